//! Messages and scripted model answers of each scene.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use quell_testkit::ScriptedResponse;
use quell_testkit::commands::{self, ProcessMarker};
use quell_testkit::hostile::{self, HostileProgram};
use quell_testkit::model::{ScriptedStream, StreamStep};
use serde_json::{Value, json};

use crate::plan::{RoundPlan, SoakScene, StopMethod};

/// A message that becomes a run, or is steered into one.
#[derive(Debug, Clone)]
pub(crate) struct SoakMessage {
    /// Idempotency key of the message, which becomes the run id.
    pub(crate) run: String,
    pub(crate) body: Value,
}

/// An action at the same time as the stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConcurrentAction {
    Nothing,
    /// Steer a message into the run.
    Steer,
    /// Answer the approval with this decision.
    Answer(&'static str),
}

/// A scene for one round.
#[derive(Debug)]
pub(crate) struct PreparedScene {
    /// Answers of the model, by marker.
    pub(crate) scripts: Vec<(String, Vec<ScriptedResponse>)>,
    /// A message whose run ends before the scene begins.
    pub(crate) before: Option<SoakMessage>,
    pub(crate) messages: Vec<SoakMessage>,
    pub(crate) concurrent_action: ConcurrentAction,
    /// Markers of the round's processes.
    pub(crate) markers: Vec<ProcessMarker>,
}

impl PreparedScene {
    /// `name` is unique for the round: ids and markers begin with it.
    pub(crate) fn prepare(plan: &RoundPlan, name: &str) -> Self {
        let mut prepared = Self {
            scripts: Vec::new(),
            before: None,
            messages: Vec::new(),
            concurrent_action: ConcurrentAction::Nothing,
            markers: Vec::new(),
        };
        match plan.scene {
            SoakScene::Silent => prepared.add_model_scene(plan, name, vec![silent_answer(plan)]),
            SoakScene::Streaming => prepared.add_model_scene(plan, name, vec![streaming_answer(plan)]),
            SoakScene::BackOff => prepared.add_model_scene(plan, name, back_off_answers(plan)),
            SoakScene::Tool | SoakScene::IgnoresTerm | SoakScene::EscapedChild => {
                prepared.add_shell_scene(plan, name, "main")
            }
            SoakScene::Background => prepared.add_background_scene(plan, name),
            SoakScene::Mcp => prepared.add_mcp_scene(plan, name),
            SoakScene::SubAgent | SoakScene::BackgroundSubAgent => prepared.add_subtree_scene(plan, name),
            SoakScene::Queued | SoakScene::Interrupt => prepared.add_two_messages(plan, name),
            SoakScene::Steer => prepared.add_steered_scene(plan, name),
            SoakScene::Approval => prepared.add_approval_scene(plan, name),
            SoakScene::Compaction => prepared.add_compaction_scene(plan, name),
        }
        prepared
    }

    /// True when processes or sub-runs may be left after a completed run.
    pub(crate) fn may_leave_work(plan: &RoundPlan) -> bool {
        matches!(plan.scene, SoakScene::Background | SoakScene::BackgroundSubAgent)
    }

    fn add_model_scene(&mut self, plan: &RoundPlan, name: &str, says: Vec<ScriptedResponse>) {
        self.add_message(plan, name, "main", says);
    }

    fn add_shell_scene(&mut self, plan: &RoundPlan, name: &str, role: &str) {
        let command = self.marked_command(plan);
        let mut calls = call_stream("shell", &json!({"command": command}));
        if plan.variant_bits & 8 == 0 {
            calls = calls.tool_call("c1", "list_files", &json!({}));
        }
        self.add_message(plan, name, role, vec![calls.into(), text_answer("It ran.")]);
    }

    /// A command for the scene, with a marker of its own.
    fn marked_command(&mut self, plan: &RoundPlan) -> String {
        let mark = ProcessMarker::new();
        let command = match (plan.scene, plan.needs_stop) {
            (SoakScene::IgnoresTerm, _) => choose_command(plan, &TERM_RESISTANT_COMMANDS),
            (SoakScene::EscapedChild, true) => {
                choose_command(plan, &[commands::setsid_child, commands::double_fork, commands::sudo_like])
            }
            (SoakScene::EscapedChild, false) => commands::detached_server,
            (SoakScene::Tool, false) => |mark: &ProcessMarker| commands::prints_bytes(mark, 2000),
            (_, true) => choose_command(plan, &[commands::obeys_signals, commands::setsid_child]),
            (_, false) => commands::background_server,
        };
        let command = command(&mark);
        self.markers.push(mark);
        command
    }

    fn add_background_scene(&mut self, plan: &RoundPlan, name: &str) {
        let mark = ProcessMarker::new();
        let command = choose_command(
            plan,
            &[commands::obeys_signals, commands::setsid_child, commands::signal_ignoring_setsid_child],
        )(&mark);
        self.markers.push(mark);
        let start = call_answer("shell", &json!({"command": command, "background": true}));
        self.add_message(plan, name, "main", vec![start, final_answer(plan)]);
    }

    fn add_mcp_scene(&mut self, plan: &RoundPlan, name: &str) {
        let tool = match (plan.needs_stop, plan.variant_bits % 3) {
            (true, 0) => "wait",
            (true, _) => "fork",
            (false, 0) => "steps",
            (false, _) => "echo",
        };
        let mark = ProcessMarker::new();
        let says = call_answer(&format!("test__{tool}"), &json!({"text": mark.as_str()}));
        self.markers.push(mark);
        self.add_message(plan, name, "tools", vec![says, text_answer("It answered.")]);
    }

    fn add_subtree_scene(&mut self, plan: &RoundPlan, name: &str) {
        let below = format!("{name}-below");
        let command = self.marked_command(plan);
        let says = match plan.variant_bits & 4 {
            0 => vec![call_answer("shell", &json!({"command": command})), text_answer("I looked.")],
            _ => vec![final_answer(plan), text_answer("I looked.")],
        };
        self.scripts.push((below.clone(), says));
        let behind = plan.scene == SoakScene::BackgroundSubAgent;
        let prompt = format!("look marker:{below}");
        let spawn = call_answer(
            "spawn_agent",
            &json!({"agent": plan.dialect.agent_id("scout"), "prompt": prompt, "wait": !behind}),
        );
        let then = if behind { final_answer(plan) } else { text_answer("The scout is back.") };
        self.add_message(plan, name, "main", vec![spawn, then]);
    }

    fn add_two_messages(&mut self, plan: &RoundPlan, name: &str) {
        self.add_message(plan, name, "main", vec![final_answer(plan)]);
        let second = format!("{name}-2");
        self.add_message(plan, &second, "main", vec![final_answer(plan)]);
        if plan.scene == SoakScene::Interrupt
            && let Some(message) = self.messages.last_mut()
        {
            message.body["onBusy"] = json!("interrupt");
        }
    }

    fn add_steered_scene(&mut self, plan: &RoundPlan, name: &str) {
        let steps = call_answer("list_files", &json!({}));
        self.add_message(
            plan,
            name,
            "main",
            vec![steps.clone(), steps, final_answer(plan), text_answer("With that in mind.")],
        );
        self.concurrent_action = ConcurrentAction::Steer;
    }

    fn add_approval_scene(&mut self, plan: &RoundPlan, name: &str) {
        self.add_shell_scene(plan, name, "asking");
        if !plan.needs_stop {
            self.concurrent_action =
                ConcurrentAction::Answer(if plan.variant_bits & 2 == 0 { "allow" } else { "deny" });
        }
    }

    /// First a turn that fills the small window, then a run that has to compact it. The request for the summary ends
    /// with the marker of the first turn.
    fn add_compaction_scene(&mut self, plan: &RoundPlan, name: &str) {
        let before = format!("{name}-before");
        self.add_message(plan, &before, "main", vec![text_answer(&"And on it went. ".repeat(200)), final_answer(plan)]);
        self.before = self.messages.pop();
        if let Some(before) = &mut self.before {
            before.body["timeoutMs"] = json!(0);
        }
        self.add_message(plan, name, "small", vec![final_answer(plan)]);
    }

    fn add_message(&mut self, plan: &RoundPlan, run: &str, role: &str, says: Vec<ScriptedResponse>) {
        self.scripts.push((run.to_owned(), says));
        let text = format!("please marker:{run}");
        let mut body = json!({"text": text, "agent": plan.dialect.agent_id(role), "idempotencyKey": run});
        if plan.stop_method == StopMethod::TimeOut {
            body["timeoutMs"] = json!(plan.stop_delay.as_millis() + 30);
        }
        self.messages.push(SoakMessage { run: run.to_owned(), body });
    }
}

/// Commands that SIGTERM does not end.
const TERM_RESISTANT_COMMANDS: [fn(&ProcessMarker) -> String; 5] = [
    hostile::blinds_its_warden,
    commands::signal_ignoring_setsid_child,
    commands::ignores_signals,
    commands::respawns_on_term,
    zombie_leader,
];

fn choose_command(plan: &RoundPlan, from: &[fn(&ProcessMarker) -> String]) -> fn(&ProcessMarker) -> String {
    from[choice_index(plan, from.len())]
}

fn choice_index(plan: &RoundPlan, of: usize) -> usize {
    usize::try_from(plan.variant_bits >> 8).unwrap_or(0) % of
}

/// True for a command that may end early although it should last. It stops its warden; if that happens before the
/// warden has reported the start, the warden fails, and the command is ended.
pub(crate) fn may_fail_at_once(plan: &RoundPlan) -> bool {
    plan.scene == SoakScene::IgnoresTerm && choice_index(plan, TERM_RESISTANT_COMMANDS.len()) == 0
}

/// Every answer begins with thinking.
fn text_stream(text: &str) -> ScriptedStream {
    ScriptedStream::new().thinking("Let me see. ").text(text)
}

fn text_answer(text: &str) -> ScriptedResponse {
    text_stream(text).into()
}

fn call_stream(tool: &str, arguments: &Value) -> ScriptedStream {
    text_stream("I look.").tool_call("c0", tool, arguments)
}

fn call_answer(tool: &str, arguments: &Value) -> ScriptedResponse {
    call_stream(tool, arguments).into()
}

/// Begins an answer, then sends nothing more.
fn begun_answer() -> ScriptedResponse {
    text_stream("So far ").step(StreamStep::Silent).into()
}

/// One token each so many milliseconds, without end.
fn endless_answer(every_ms: u64) -> ScriptedResponse {
    let every = Duration::from_millis(every_ms);
    ScriptedStream::new().thinking("Let me see. ").step(StreamStep::TokensForever { every }).into()
}

fn refusal(code: u16, retry_after: &str) -> ScriptedResponse {
    let body = json!({"error": {"message": "scripted", "type": "scripted"}}).to_string();
    ScriptedResponse::Status { code, headers: vec![("retry-after".to_owned(), retry_after.to_owned())], body }
}

/// The last answer: complete if the round should end by itself, endless if it needs a stop.
fn final_answer(plan: &RoundPlan) -> ScriptedResponse {
    match (plan.needs_stop, plan.variant_bits & 1) {
        (false, _) => text_answer("That is all."),
        (true, 0) => begun_answer(),
        (true, _) => endless_answer(5 + plan.variant_bits % 40),
    }
}

fn silent_answer(plan: &RoundPlan) -> ScriptedResponse {
    if plan.variant_bits & 2 == 0 { ScriptedResponse::SilentBeforeHeaders } else { begun_answer() }
}

fn streaming_answer(plan: &RoundPlan) -> ScriptedResponse {
    if plan.needs_stop { endless_answer(2 + plan.variant_bits % 30) } else { text_answer(&"word ".repeat(100)) }
}

fn back_off_answers(plan: &RoundPlan) -> Vec<ScriptedResponse> {
    let first = refusal(if plan.variant_bits & 2 == 0 { 429 } else { 500 }, "0.05");
    vec![first, refusal(503, if plan.needs_stop { "50" } else { "0.05" }), text_answer("Now then.")]
}

/// A process whose leader looks dead while another thread lives.
fn zombie_leader(mark: &ProcessMarker) -> String {
    hostile::zombie_leader(zombie_leader_program(), mark)
}

/// The program of [`zombie_leader`], built once, in a directory that is removed with the soak.
pub(crate) fn zombie_leader_program() -> &'static Path {
    static PROGRAM: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a folder for a program");
        let program = hostile::compile(HostileProgram::ZOMBIE_LEADER, folder.path());
        (folder, program)
    });
    &PROGRAM.1
}
