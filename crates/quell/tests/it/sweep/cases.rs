//! The places where a stop can find a run, as data.

use std::future::{Future, ready};
use std::pin::Pin;
use std::time::Duration;

use quell_engine::cell::Progress;
use quell_engine::scope::Point;
use quell_protocol::ResourceKind;
use quell_protocol::approval::Decision;
use quell_testkit::{Behaviour, commands, leaks, model};
use serde_json::json;
use tokio::io::AsyncReadExt;

use super::scene::Scene;
use super::strike::{Mode, strike};
use super::summary::{a_long_story, a_picture_before, it_is_summarised, the_summary_is_left};
use crate::harness::{PATIENCE, alice, message_as, run_id};

pub(super) type Doing<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
pub(super) type Act = for<'a> fn(&'a Scene<'a>) -> Doing<'a>;

/// When the stop is made.
#[derive(Clone, Copy)]
pub(super) enum Moment {
    /// Before the message is sent: the stop names an id that nobody knows.
    Before,
    /// From outside, once this condition holds.
    When(Act),
    /// On the run's own task, when it reaches the point for the `n`th time.
    At(Point, u32),
}

/// Who is to have ended the run.
#[derive(Clone, Copy)]
pub(super) enum Ruling {
    /// One of the callers of the stop.
    ByTheStop,
    /// Alice's earlier stop stands; this one changes nothing.
    ByAliceBefore,
    /// The run was done a moment earlier.
    Completed,
}

/// Where a message comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// A door that waits for nothing but the run.
    ADoor,
    /// A chat network, with a file; the answer goes back there.
    AChat,
}

/// One place.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) agent: &'static str,
    /// Where its message comes from.
    pub(super) from: From,
    pub(super) prepare: Act,
    pub(super) moment: Moment,
    /// What has to happen between the stop and the end, and what only this case can check.
    pub(super) aftermath: Act,
    pub(super) ruling: Ruling,
    /// Whether the run had begun, so that its message stays in the history.
    pub(super) started: bool,
    /// What the next request must show the model.
    pub(super) seen: &'static [&'static str],
    /// What it must not.
    pub(super) unseen: &'static [&'static str],
}

impl Case {
    pub(super) fn new(name: &str, prepare: Act, moment: Moment) -> Self {
        Self {
            name: name.to_owned(),
            agent: "main",
            from: From::ADoor,
            prepare,
            moment,
            aftermath: nothing,
            ruling: Ruling::ByTheStop,
            started: true,
            seen: &[],
            unseen: &[],
        }
    }
}

/// All of them: the named places from outside, then every point of the code from inside.
pub(super) fn all() -> Vec<Case> {
    let mut cases = waiting();
    cases.extend(at_the_model());
    cases.extend(in_tools());
    cases.extend(super::servers::cases());
    cases.push(super::hooked::case());
    cases.push(super::steered::case());
    cases.extend(at_the_end());
    cases.extend(points());
    cases
}

fn waiting() -> Vec<Case> {
    let before = Case {
        ruling: Ruling::ByAliceBefore,
        started: false,
        ..Case::new("before it was accepted", nothing, Moment::Before)
    };
    let queued = Case {
        aftermath: |scene| Box::pin(let_the_first_end(scene)),
        started: false,
        ..Case::new(
            "queued",
            |scene| Box::pin(occupy_the_session(scene)),
            Moment::When(|scene| Box::pin(in_line(scene))),
        )
    };
    vec![before, queued]
}

fn at_the_model() -> Vec<Case> {
    let connecting = Case {
        agent: "hole",
        ..Case::new("connecting", nothing, Moment::When(|scene| Box::pin(scene.site.hole.connecting(1))))
    };
    let headers = Case {
        aftermath: |scene| Box::pin(model_left(scene)),
        ..Case::new(
            "waiting for headers",
            |scene| model_says(scene, [Behaviour::SilentBeforeHeaders]),
            Moment::When(|scene| Box::pin(async { drop(scene.request().await) })),
        )
    };
    let streaming = Case {
        aftermath: |scene| Box::pin(model_left(scene)),
        ..Case::new(
            "streaming",
            |scene| model_says(scene, [Behaviour::tokens_forever(Duration::from_millis(2))]),
            Moment::When(|scene| Box::pin(text_came(scene))),
        )
    };
    let silent = Case {
        aftermath: |scene| Box::pin(model_left(scene)),
        unseen: &["Let me think about"],
        ..Case::new(
            "silent mid-stream",
            |scene| model_says(scene, [Behaviour::silent_mid_stream("Let me think about")]),
            Moment::When(|scene| Box::pin(text_came(scene))),
        )
    };
    let back_off = Case::new(
        "back-off sleep",
        |scene| model_says(scene, [Behaviour::rate_limited("50")]),
        Moment::When(|scene| Box::pin(holds(scene, ResourceKind::Timer))),
    );
    let summarising = Case {
        agent: "small",
        aftermath: |scene| Box::pin(the_summary_is_left(scene)),
        seen: &["It was a long story."],
        unseen: &["So far it was about"],
        ..Case::new(
            "summarising older turns",
            |scene| Box::pin(a_long_story(scene, Behaviour::silent_mid_stream("So far it was about"))),
            Moment::When(|scene| Box::pin(it_is_summarised(scene))),
        )
    };
    vec![connecting, headers, streaming, silent, back_off, summarising]
}

fn in_tools() -> Vec<Case> {
    let shell = Case {
        seen: &["printed before the stop", "effects"],
        ..Case::new(
            "tool running (shell)",
            |scene| {
                let command =
                    format!("printf 'printed %s the stop\\n' before; {}", commands::setsid_child(&scene.mark));
                model_says(scene, [Behaviour::tool_call("c1", "shell", &json!({"command": command}))])
            },
            Moment::When(|scene| Box::pin(the_shell_has_printed(scene))),
        )
    };
    let between = Case {
        seen: &["first of the batch", "Not started"],
        unseen: &["second of the batch\\n"],
        ..Case::new("between tools of one batch", batch_of_two, Moment::At(Point::BeforeTool, 2))
    };
    let blocking = Case {
        seen: &["Stopped while it ran"],
        ..Case::new(
            "blocking file tool running",
            |scene| {
                let arguments = json!({"pattern": "[a-z]+[0-9]+[A-Z]+Q$", "path": "long.txt"});
                model_says(scene, [Behaviour::tool_call("c1", "search_files", &arguments)])
            },
            Moment::When(|scene| Box::pin(holds(scene, ResourceKind::Task))),
        )
    };
    let fetching = Case {
        seen: &["Stopped while it ran"],
        aftermath: |scene| Box::pin(fetch_left(scene)),
        ..Case::new("fetch_url running", fetch_quiet, Moment::When(|scene| Box::pin(fetch_arrived(scene))))
    };
    let agent = Case {
        seen: &["Stopped while it ran"],
        aftermath: |scene| Box::pin(the_other_agent_is_gone(scene)),
        ..Case::new("another agent at work", hand_out, Moment::When(|scene| Box::pin(the_other_agent_works(scene))))
    };
    let approval = Case {
        agent: "asking",
        seen: &["Not started"],
        aftermath: |scene| Box::pin(a_late_answer_runs_nothing(scene)),
        ..Case::new("pending approval", ask_first, Moment::When(|scene| Box::pin(holds(scene, ResourceKind::Approval))))
    };
    let background = Case {
        seen: &["Started in the background"],
        aftermath: |scene| Box::pin(the_background_is_gone(scene)),
        ..Case::new("background process", leave_running, Moment::When(|scene| Box::pin(it_runs_behind(scene))))
    };
    vec![shell, between, blocking, fetching, agent, approval, background]
}

fn at_the_end() -> Vec<Case> {
    let writes = |name, ruling, moment| Case {
        ruling,
        aftermath: |scene| Box::pin(async { resume_the_database(scene) }),
        ..Case::new(name, |scene| model_says(scene, [gated(scene)]), Moment::When(moment))
    };
    vec![
        writes("writing history, completed", Ruling::Completed, |scene| Box::pin(completed_unwritten(scene))),
        writes("writing history, stopped before", Ruling::ByAliceBefore, |scene| Box::pin(stopped_unwritten(scene))),
    ]
}

/// A stop at every point, in a run that fails once, uses a shell, a file, a page, another agent, an MCP server and its memory in
/// one batch, and then answers.
fn points() -> Vec<Case> {
    let nth = |point: &Point| match point {
        // Once when it is entered and once when its thread is at work.
        Point::Blocking | Point::Pictures | Point::KeepPictures | Point::Skills => vec![1, 2],
        Point::ModelStream | Point::ProcessWait | Point::Compaction => vec![1, 2],
        // The second time is the other agent's.
        Point::BeforeStep | Point::ContextBuilt | Point::AfterModel => vec![1, 2, 3],
        // The first process is its hook's.
        Point::ModelSend | Point::AfterTool | Point::Process => vec![1, 2],
        Point::BeforeTool => vec![1, 3],
        // Before the first step, and by the tool; between the two the other agent's.
        Point::Recall => vec![1, 3],
        _ => vec![1],
    };
    let case = |(point, nth): (Point, u32)| {
        let name = format!("at {point:?} {nth}");
        match point {
            // Before the first summary, and right after it.
            Point::Compaction => Case {
                agent: "small",
                seen: &["It was a long story."],
                ..Case::new(
                    &name,
                    |scene| Box::pin(a_long_story(scene, Behaviour::text("A story."))),
                    Moment::At(point, nth),
                )
            },
            Point::Pictures => Case {
                agent: "seeing",
                ..Case::new(&name, |scene| Box::pin(a_picture_before(scene)), Moment::At(point, nth))
            },
            Point::KeepPictures => Case::new(&name, show_a_picture, Moment::At(point, nth)),
            Point::Skills => Case { agent: "skilled", ..Case::new(&name, a_word, Moment::At(point, nth)) },
            Point::Attachments | Point::Delivery => {
                Case { from: From::AChat, ..Case::new(&name, a_word, Moment::At(point, nth)) }
            }
            Point::ProcessWait => Case::new(&name, wait_for_it, Moment::At(point, nth)),
            Point::Approval => Case { agent: "asking", ..Case::new(&name, ask_first, Moment::At(point, nth)) },
            _ => Case::new(&name, everything, Moment::At(point, nth)),
        }
    };
    here().flat_map(|point| nth(point).into_iter().map(|nth| (*point, nth))).map(case).collect()
}

/// The points that a run comes to. What goes on behind one that has answered is stopped at its points in `memory/consolidated`.
pub(super) fn here() -> impl Iterator<Item = &'static Point> {
    Point::ALL.iter().filter(|point| **point != Point::Consolidation)
}

fn nothing<'a>(_: &'a Scene<'a>) -> Doing<'a> {
    Box::pin(ready(()))
}

pub(super) fn model_says<'a>(scene: &'a Scene<'a>, answers: impl IntoIterator<Item = Behaviour>) -> Doing<'a> {
    scene.site.script(scene.run.as_str(), answers);
    nothing(scene)
}

fn a_word<'a>(scene: &'a Scene<'a>) -> Doing<'a> {
    model_says(scene, [Behaviour::text("Here it is.")])
}

fn everything<'a>(scene: &'a Scene<'a>) -> Doing<'a> {
    let batch = model::Stream::new()
        .text("I will look.")
        .tool_call("c1", "shell", &json!({"command": format!("echo one; : {}", scene.mark.as_str())}))
        .tool_call("c2", "read_file", &json!({"path": "short.txt"}))
        .tool_call("c3", "fetch_url", &json!({"url": scene.site.page}))
        .tool_call("c4", "spawn_agent", &json!({"agent": "main", "prompt": "help me"}))
        .tool_call("c5", "test__echo", &json!({"text": "hello"}))
        .tool_call("c6", "remember", &json!({"text": "The fence is green.", "key": "fence"}))
        .tool_call("c7", "recall", &json!({"query": "fence"}));
    model_says(scene, [Behaviour::rate_limited("0"), batch.into()])
}

fn show_a_picture<'a>(scene: &'a Scene<'a>) -> Doing<'a> {
    model_says(scene, [Behaviour::tool_call("c1", "test__picture", &json!({"text": "a dot"}))])
}

fn batch_of_two<'a>(scene: &'a Scene<'a>) -> Doing<'a> {
    let batch = model::Stream::new()
        .tool_call("c1", "shell", &json!({"command": "printf 'first of the %s\\n' batch"}))
        .tool_call("c2", "shell", &json!({"command": "printf 'second of the %s\\n' batch"}));
    model_says(scene, [batch.into()])
}

fn fetch_quiet<'a>(scene: &'a Scene<'a>) -> Doing<'a> {
    let url = format!("http://{}/never", scene.site.quiet.local_addr().unwrap());
    model_says(scene, [Behaviour::tool_call("c1", "fetch_url", &json!({"url": url}))])
}

fn hand_out<'a>(scene: &'a Scene<'a>) -> Doing<'a> {
    let child = format!("of-{}", scene.run);
    let command = format!("echo in the child; {}", commands::setsid_child(&scene.mark));
    scene.site.script(&child, [Behaviour::tool_call("s1", "shell", &json!({"command": command}))]);
    let arguments = json!({"agent": "main", "prompt": format!("help marker:{child}")});
    model_says(scene, [Behaviour::tool_call("c1", "spawn_agent", &arguments)])
}

fn ask_first<'a>(scene: &'a Scene<'a>) -> Doing<'a> {
    let command = json!({"command": commands::setsid_child(&scene.mark)});
    model_says(scene, [Behaviour::tool_call("c1", "shell", &command)])
}

fn leave_running<'a>(scene: &'a Scene<'a>) -> Doing<'a> {
    let command = json!({"command": commands::setsid_child(&scene.mark), "background": true});
    let start = Behaviour::tool_call("c1", "shell", &command);
    model_says(scene, [start, Behaviour::silent_mid_stream("I wait.")])
}

fn wait_for_it<'a>(scene: &'a Scene<'a>) -> Doing<'a> {
    let command = json!({"command": commands::setsid_child(&scene.mark), "background": true});
    let batch = model::Stream::new().tool_call("c1", "shell", &command).tool_call(
        "c2",
        "process",
        &json!({"action": "wait", "timeout_s": 600}),
    );
    model_says(scene, [batch.into()])
}

async fn it_runs_behind(scene: &Scene<'_>) {
    scene.mark.at_least(2).await;
    text_came(scene).await;
}

async fn the_background_is_gone(scene: &Scene<'_>) {
    let view = scene.site.house.ended(&scene.run).await;
    scene.mark.gone(PATIENCE).await;
    let rows = view.receipt.unwrap().resources;
    let row = rows.iter().rfind(|row| row.kind == ResourceKind::Process).unwrap();
    assert_ne!(row.process.as_ref().unwrap().pid, 0, "{row:#?}");
    assert!(matches!(row.how.as_str(), "term" | "kill"), "{row:#?}");
}

async fn a_late_answer_runs_nothing(scene: &Scene<'_>) {
    let engine = &scene.site.house.engine;
    assert!(engine.approvals().is_empty(), "{:?}", engine.approvals());
    let view = scene.site.house.ended(&scene.run).await;
    let row = view.receipt.unwrap().resources.into_iter().find(|row| row.kind == ResourceKind::Approval).unwrap();
    let id = row.label.rsplit(' ').next().unwrap();
    let late = engine.answer_approval(&alice(), id, Decision::Allow).unwrap_err();
    assert!(late.to_string().contains("was settled before (cancelled)"), "{late}");
    assert_eq!(row.how, "cancelled");
}

async fn the_other_agent_works(scene: &Scene<'_>) {
    scene.mark.at_least(2).await;
    holds(scene, ResourceKind::Run).await;
}

async fn the_other_agent_is_gone(scene: &Scene<'_>) {
    let engine = &scene.site.house.engine;
    scene.mark.gone(PATIENCE).await;
    let cell = engine.live(&scene.run);
    let below = |rows: Vec<quell_engine::scope::Row>| rows.iter().filter(|row| row.kind == ResourceKind::Run).count();
    assert!(cell.is_none_or(|cell| below(cell.scope.ledger().rows()) == 1));
}

/// An answer that the test lets end.
fn gated(scene: &Scene<'_>) -> Behaviour {
    model::Stream::new().text("Here is ").wait_for(scene.run.as_str()).text("the answer.").into()
}

impl Scene<'_> {
    pub(super) async fn request(&self) -> model::ModelRequest {
        self.site.house.model.marked(self.run.as_str()).await
    }

    fn first_run(&self) -> quell_protocol::RunId {
        run_id(&format!("first-of-{}", self.run))
    }
}

async fn occupy_the_session(scene: &Scene<'_>) {
    let (house, first) = (&scene.site.house, scene.first_run());
    scene.site.script(first.as_str(), [gated(scene)]);
    house.send(message_as(&first, &scene.session, &format!("first marker:{first}"))).await;
    house.model.marked(first.as_str()).await.resting().await;
}

async fn in_line(scene: &Scene<'_>) {
    let (engine, run) = (scene.site.house.engine.clone(), scene.run.clone());
    leaks::settled(PATIENCE, move || match engine.live(&run).map(|cell| cell.progress()) {
        Some(Progress::Durable) => Ok(()),
        other => Err(format!("run {run} is {other:?}")),
    })
    .await;
}

/// The run before it goes on as if nothing had happened.
async fn let_the_first_end(scene: &Scene<'_>) {
    scene.site.house.model.open_gate(scene.run.as_str());
    let view = scene.site.house.ended(&scene.first_run()).await;
    assert_eq!(view.output.as_deref(), Some("Here is the answer."));
}

pub(super) async fn text_came(scene: &Scene<'_>) {
    scene.request().await.streaming().await;
    scene.site.house.text_came(&scene.run).await;
}

async fn model_left(scene: &Scene<'_>) {
    scene.request().await.client_left().await;
}

async fn holds(scene: &Scene<'_>, kind: ResourceKind) {
    scene.site.house.holds(&scene.run, kind).await;
}

async fn the_shell_has_printed(scene: &Scene<'_>) {
    let house = &scene.site.house;
    scene.mark.at_least(2).await;
    house.printed(&scene.run, "printed before the stop").await;
}

async fn fetch_arrived(scene: &Scene<'_>) {
    let (mut connection, _) = scene.site.quiet.accept().await.unwrap();
    // Its request is out, and it waits for an answer.
    let mut byte = [0; 3];
    connection.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"GET");
    *scene.fetching.lock().unwrap() = Some(connection);
    holds(scene, ResourceKind::HttpRequest).await;
}

/// The other side sees the end of the connection.
async fn fetch_left(scene: &Scene<'_>) {
    let Some(mut connection) = scene.fetching.lock().unwrap().take() else { panic!("nothing was fetched") };
    let mut rest = Vec::new();
    let read = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut rest)).await;
    // A reset is an end as well.
    let _ = read.expect("the socket of fetch_url stays open");
}

/// From now on nothing can be written, until [`resume_the_database`].
fn pause_the_database(scene: &Scene<'_>) {
    scene.site.database.lock().unwrap().execute_batch("BEGIN IMMEDIATE").unwrap();
}

fn resume_the_database(scene: &Scene<'_>) {
    scene.site.database.lock().unwrap().execute_batch("ROLLBACK").unwrap();
}

/// The run has its answer; its turn is on its way to the database.
async fn completed_unwritten(scene: &Scene<'_>) {
    let house = &scene.site.house;
    scene.request().await.resting().await;
    pause_the_database(scene);
    house.model.open_gate(scene.run.as_str());
    let Some(cell) = house.engine.live(&scene.run) else { panic!("run {} is over", scene.run) };
    cell.reached(Progress::Ending).await;
    cell.sealed().await;
}

/// The run was stopped and has given everything back; its turn is on its way to the database.
async fn stopped_unwritten(scene: &Scene<'_>) {
    let house = &scene.site.house;
    scene.request().await.resting().await;
    pause_the_database(scene);
    let Some(cell) = house.engine.live(&scene.run) else { panic!("run {} is over", scene.run) };
    let first = strike(&house.engine, &scene.run, Mode::Gentle);
    assert_eq!(first.winners(&scene.run).len(), 1);
    cell.sealed().await;
}
