//! The scenes: what the model says in each, and which messages bring it about.

use std::path::PathBuf;
use std::sync::LazyLock;

use quell_testkit::commands::{self, Marker};
use quell_testkit::hostile::{self, Program};
use serde_json::{Value, json};

use crate::plan::{Plan, Scene, Surface};
use crate::script::Say;

/// A message that becomes a run, or joins one.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// Its idempotency key, and so the run's id.
    pub(crate) run: String,
    pub(crate) body: Value,
}

/// What happens beside the stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    Nothing,
    /// A message is steered into the run.
    Steer,
    /// A person answers the approval.
    Answer(&'static str),
}

/// A scene made ready for one round.
#[derive(Debug)]
pub(crate) struct Stage {
    /// What the model says, by marker.
    pub(crate) scripts: Vec<(String, Vec<Say>)>,
    /// Sent and ended before.
    pub(crate) before: Option<Message>,
    pub(crate) messages: Vec<Message>,
    pub(crate) beside: Beside,
    /// Carried by the processes of the round.
    pub(crate) marks: Vec<Marker>,
}

impl Stage {
    /// `name` is the round's own: ids and markers begin with it.
    pub(crate) fn of(plan: &Plan, name: &str) -> Self {
        let mut stage = Self {
            scripts: Vec::new(),
            before: None,
            messages: Vec::new(),
            beside: Beside::Nothing,
            marks: Vec::new(),
        };
        match plan.scene {
            Scene::Silent => stage.model_scene(plan, name, vec![silent(plan)]),
            Scene::Streaming => stage.model_scene(plan, name, vec![streaming(plan)]),
            Scene::BackOff => stage.model_scene(plan, name, backing_off(plan)),
            Scene::Tool | Scene::Deaf | Scene::Escaped => stage.shell_scene(plan, name, "main"),
            Scene::Background => stage.background_scene(plan, name),
            Scene::Mcp => stage.mcp_scene(plan, name),
            Scene::SubAgent | Scene::SubBehind => stage.subtree_scene(plan, name),
            Scene::Queued | Scene::Interrupt => stage.two_messages(plan, name),
            Scene::Steer => stage.steered_scene(plan, name),
            Scene::Approval => stage.approval_scene(plan, name),
            Scene::Compaction => stage.compaction_scene(plan, name),
        }
        stage
    }

    /// True when processes or sub-runs may be left after a run that completed.
    pub(crate) fn leaves(plan: &Plan) -> bool {
        matches!(plan.scene, Scene::Background | Scene::SubBehind)
    }

    fn model_scene(&mut self, plan: &Plan, name: &str, says: Vec<Say>) {
        self.message(plan, name, "main", says);
    }

    fn shell_scene(&mut self, plan: &Plan, name: &str, role: &str) {
        let command = self.command(plan);
        let mut calls = vec![("shell".to_owned(), json!({"command": command}))];
        if plan.form & 8 == 0 {
            calls.push(("list_files".to_owned(), json!({})));
        }
        self.message(plan, name, role, vec![Say::Calls(calls), text("It ran.")]);
    }

    /// A command that suits the scene, with a marker of its own.
    fn command(&mut self, plan: &Plan) -> String {
        let mark = Marker::new();
        let command = match (plan.scene, plan.lasting) {
            (Scene::Deaf, _) => chosen(plan, &DEAF),
            (Scene::Escaped, true) => {
                chosen(plan, &[commands::setsid_child, commands::double_fork, commands::sudo_like])
            }
            (Scene::Escaped, false) => commands::detached_server,
            (Scene::Tool, false) => |mark: &Marker| commands::output_of(mark, 2000),
            (_, true) => chosen(plan, &[commands::obedient, commands::setsid_child]),
            (_, false) => commands::background_server,
        };
        let command = command(&mark);
        self.marks.push(mark);
        command
    }

    fn background_scene(&mut self, plan: &Plan, name: &str) {
        let mark = Marker::new();
        let command = chosen(plan, &[commands::obedient, commands::setsid_child, commands::deaf_setsid_child])(&mark);
        self.marks.push(mark);
        let start = call("shell", json!({"command": command, "background": true}));
        self.message(plan, name, "main", vec![start, last(plan)]);
    }

    fn mcp_scene(&mut self, plan: &Plan, name: &str) {
        let tool = match (plan.lasting, plan.form % 3) {
            (true, 0) => "wait",
            (true, _) => "fork",
            (false, 0) => "steps",
            (false, _) => "echo",
        };
        let mark = Marker::new();
        let says = call(&format!("test__{tool}"), json!({"text": mark.as_str()}));
        self.marks.push(mark);
        self.message(plan, name, "tools", vec![says, text("It answered.")]);
    }

    fn subtree_scene(&mut self, plan: &Plan, name: &str) {
        let below = format!("{name}-below");
        let command = self.command(plan);
        let says = match plan.form & 4 {
            0 => vec![call("shell", json!({"command": command})), text("I looked.")],
            _ => vec![last(plan), text("I looked.")],
        };
        self.scripts.push((below.clone(), says));
        let behind = plan.scene == Scene::SubBehind;
        let prompt = format!("look marker:{below}");
        let spawn = call("spawn_agent", json!({"agent": plan.agent("scout"), "prompt": prompt, "wait": !behind}));
        let then = if behind { last(plan) } else { text("The scout is back.") };
        self.message(plan, name, "main", vec![spawn, then]);
    }

    fn two_messages(&mut self, plan: &Plan, name: &str) {
        self.message(plan, name, "main", vec![last(plan)]);
        let second = format!("{name}-2");
        self.message(plan, &second, "main", vec![last(plan)]);
        if plan.scene == Scene::Interrupt
            && let Some(message) = self.messages.last_mut()
        {
            message.body["onBusy"] = json!("interrupt");
        }
    }

    fn steered_scene(&mut self, plan: &Plan, name: &str) {
        let steps = call("list_files", json!({}));
        self.message(plan, name, "main", vec![steps.clone(), steps, last(plan), text("With that in mind.")]);
        self.beside = Beside::Steer;
    }

    fn approval_scene(&mut self, plan: &Plan, name: &str) {
        self.shell_scene(plan, name, "asking");
        if !plan.lasting {
            self.beside = Beside::Answer(if plan.form & 2 == 0 { "allow" } else { "deny" });
        }
    }

    /// A turn that fills the small window, and then a run that has to make room first. The summary's request ends with the
    /// marker of the turn before.
    fn compaction_scene(&mut self, plan: &Plan, name: &str) {
        let before = format!("{name}-before");
        self.message(plan, &before, "main", vec![text(&"And on it went. ".repeat(200)), last(plan)]);
        self.before = self.messages.pop();
        if let Some(before) = &mut self.before {
            before.body["timeoutMs"] = json!(0);
        }
        self.message(plan, name, "small", vec![last(plan)]);
    }

    fn message(&mut self, plan: &Plan, run: &str, role: &str, says: Vec<Say>) {
        self.scripts.push((run.to_owned(), says));
        let text = format!("please marker:{run}");
        let mut body = json!({"text": text, "agent": plan.agent(role), "idempotencyKey": run});
        if plan.surface == Surface::TimeOut {
            body["timeoutMs"] = json!(plan.moment.as_millis() + 30);
        }
        self.messages.push(Message { run: run.to_owned(), body });
    }
}

/// Commands that do not end by a gentle signal.
const DEAF: [fn(&Marker) -> String; 5] = [
    hostile::blinds_its_warden,
    commands::deaf_setsid_child,
    commands::ignores_signals,
    commands::respawns_on_term,
    zombie_leader,
];

fn chosen(plan: &Plan, from: &[fn(&Marker) -> String]) -> fn(&Marker) -> String {
    from[place(plan, from.len())]
}

fn place(plan: &Plan, of: usize) -> usize {
    usize::try_from(plan.form >> 8).unwrap_or(0) % of
}

/// True for a command that may end at once, although it is to last: a warden that is blinded before it has told of its start fails,
/// and its command ends with it.
pub(crate) fn may_fail_at_once(plan: &Plan) -> bool {
    plan.scene == Scene::Deaf && place(plan, DEAF.len()) == 0
}

fn text(text: &str) -> Say {
    Say::Text(text.to_owned())
}

fn call(tool: &str, arguments: Value) -> Say {
    Say::Calls(vec![(tool.to_owned(), arguments)])
}

/// What ends a round that is to end by itself, and what never does.
fn last(plan: &Plan) -> Say {
    match (plan.lasting, plan.form & 1) {
        (false, _) => text("That is all."),
        (true, 0) => Say::Begin,
        (true, _) => Say::Tokens(5 + plan.form % 40),
    }
}

fn silent(plan: &Plan) -> Say {
    if plan.form & 2 == 0 { Say::Silent } else { Say::Begin }
}

fn streaming(plan: &Plan) -> Say {
    if plan.lasting { Say::Tokens(2 + plan.form % 30) } else { text(&"word ".repeat(100)) }
}

fn backing_off(plan: &Plan) -> Vec<Say> {
    let soon = || Some("0.05".to_owned());
    let mut says = vec![Say::Refuse(if plan.form & 2 == 0 { 429 } else { 500 }, soon())];
    says.push(Say::Refuse(503, if plan.lasting { Some("50".to_owned()) } else { soon() }));
    says.push(text("Now then."));
    says
}

/// A process that looks dead while a thread of it lives. Its program is built once, in a folder that goes with the soak.
fn zombie_leader(mark: &Marker) -> String {
    static PROGRAM: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a folder for a program");
        let program = hostile::build(Program::ZombieLeader, folder.path());
        (folder, program)
    });
    hostile::zombie_leader(&PROGRAM.1, mark)
}
