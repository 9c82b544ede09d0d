//! The columns of the matrix: run states, and how each is reached.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use quell_testkit::commands::{self, ProcessMarker};
use quell_testkit::model::{BlackHole, ModelRequestHandle, ScriptedResponse};
use quell_testkit::{ScriptedModel, mcp};
use serde_json::{Value, json};

use super::StopMatrixDaemon;
use crate::test_engine::{background_call, shell_call, wait_for_request, wait_summary_request};

pub(super) struct StoppableState {
    pub(super) name: &'static str,
    /// Whether the run has started, so that its message stays in the history.
    pub(super) started: bool,
    /// Scripts the model, and sets up what must exist before the message.
    pub(super) prepare: PrepareStep,
    pub(super) reached: ReachedStep,
}

type StateStepFuture<'a> = LocalBoxFuture<'a, ()>;

pub(super) struct StateRun {
    /// The run id. For runs that a client starts, it is set once the run exists.
    pub(super) run: String,
    pub(super) marker: String,
    pub(super) session: String,
    pub(super) marks: Vec<ProcessMarker>,
    /// A run ahead of it in its session, which a stop of one run does not affect.
    pub(super) blocking_run: Option<String>,
    /// The `quell send` process that started the run, if one did.
    pub(super) client: Option<tokio::process::Child>,
}

type PrepareStep = for<'a> fn(&'a StopMatrixDaemon, &'a mut StateRun) -> StateStepFuture<'a>;
type ReachedStep = for<'a> fn(&'a StopMatrixDaemon, &'a StateRun) -> StateStepFuture<'a>;

impl StoppableState {
    /// A state of a run that has started.
    const fn new(name: &'static str, prepare: PrepareStep, reached: ReachedStep) -> Self {
        Self { name, started: true, prepare, reached }
    }

    pub(super) fn agent(&self) -> String {
        self.name.replace(' ', "-")
    }
}

pub(super) const STOPPABLE_STATES: &[StoppableState] = &[
    StoppableState::new("connecting", do_nothing, |fixture, _| fixture.black_hole.wait_for_connecting(1).boxed_local()),
    StoppableState::new(
        "silent",
        |fixture, state_run| script_responses(fixture, state_run, [ScriptedResponse::SilentBeforeHeaders]),
        |fixture, state_run| wait_request(fixture, state_run).map(drop).boxed_local(),
    ),
    StoppableState::new(
        "streaming",
        |fixture, state_run| {
            script_responses(fixture, state_run, [ScriptedResponse::tokens_forever(Duration::from_millis(5))])
        },
        |fixture, state_run| wait_streaming(fixture, state_run).boxed_local(),
    ),
    StoppableState::new(
        "back-off",
        |fixture, state_run| script_responses(fixture, state_run, [ScriptedResponse::rate_limited("50")]),
        |fixture, state_run| wait_refused(fixture, state_run).boxed_local(),
    ),
    StoppableState::new(
        "plain tool",
        |fixture, state_run| script_shell(fixture, state_run, commands::obeys_signals),
        |_, state_run| wait_processes(state_run, 1).boxed_local(),
    ),
    StoppableState::new(
        "TERM-ignoring",
        |fixture, state_run| script_shell(fixture, state_run, commands::signal_ignoring_setsid_child),
        |_, state_run| wait_processes(state_run, 2).boxed_local(),
    ),
    StoppableState::new(
        "escaped child",
        |fixture, state_run| script_shell(fixture, state_run, commands::setsid_child),
        |_, state_run| wait_processes(state_run, 2).boxed_local(),
    ),
    StoppableState::new(
        "background process",
        |fixture, state_run| {
            let start = background_call(commands::setsid_child(add_marker(state_run)));
            script_responses(fixture, state_run, [start, ScriptedResponse::silent_mid_stream("I wait")])
        },
        |fixture, state_run| wait_in_background(fixture, state_run).boxed_local(),
    ),
    StoppableState::new(
        "MCP call",
        |fixture, state_run| {
            let child = json!({"text": add_marker(state_run).as_str()});
            script_responses(fixture, state_run, [tool_call("test__fork", &child)])
        },
        |_, state_run| wait_processes(state_run, 1).boxed_local(),
    ),
    StoppableState::new(
        "sub-agent",
        |fixture, state_run| {
            let below = format!("below-{}", state_run.marker);
            fixture.script_marker(&below, [shell_call(commands::setsid_child(add_marker(state_run)))]);
            let spawn = json!({"agent": "scout", "prompt": format!("look marker:{below}")});
            script_responses(fixture, state_run, [tool_call("spawn_agent", &spawn)])
        },
        |_, state_run| wait_processes(state_run, 2).boxed_local(),
    ),
    StoppableState {
        started: false,
        ..StoppableState::new(
            "queued message",
            |fixture, state_run| occupy_session(fixture, state_run).boxed_local(),
            |fixture, state_run| wait_listed(fixture, state_run).boxed_local(),
        )
    },
    StoppableState::new(
        "pending approval",
        |fixture, state_run| script_shell(fixture, state_run, commands::setsid_child),
        |fixture, state_run| wait_approval(fixture, state_run).boxed_local(),
    ),
    StoppableState::new(
        "compaction",
        |fixture, state_run| fill_window(fixture, state_run).boxed_local(),
        |fixture, state_run| wait_summarising(fixture, state_run).boxed_local(),
    ),
];

/// The daemon's configuration. Each state has its own agent, so that a stop of an agent stops one state.
pub(super) fn config_toml(model: &ScriptedModel, hole: &BlackHole) -> String {
    let provider = |name: &str, url: String| format!("[providers.{name}]\nkind = \"openai\"\nbase_url = \"{url}\"\n");
    let mut text = provider("scripted", model.base_url()) + provider("hole", hole.base_url()).as_str();
    let script = json!(mcp::SERVER_SCRIPT);
    text.push_str(&format!("[mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {script}]\ngrace_ms = 200\n"));
    for agent in ["main", "scout"] {
        text.push_str(&format!("[agents.{agent}]\nmodel = \"scripted/m\"\nmcp = []\n"));
    }
    for state in STOPPABLE_STATES {
        let model = if state.name == "connecting" { "hole/m" } else { "scripted/m" };
        text.push_str(&format!("[agents.{}]\nmodel = \"{model}\"\n", state.agent()));
        if state.name != "MCP call" {
            text.push_str("mcp = []\n");
        }
        match state.name {
            "sub-agent" => text.push_str("delegates = [\"scout\"]\n"),
            "pending approval" => text.push_str("approvals.shell = \"ask\"\n"),
            "compaction" => text.push_str("window_tokens = 400\n"),
            _ => {}
        }
    }
    text
}

fn do_nothing<'a>(_: &'a StopMatrixDaemon, _: &'a mut StateRun) -> StateStepFuture<'a> {
    Box::pin(std::future::ready(()))
}

fn script_responses<'a>(
    fixture: &'a StopMatrixDaemon,
    state_run: &'a mut StateRun,
    answers: impl IntoIterator<Item = ScriptedResponse>,
) -> StateStepFuture<'a> {
    fixture.script_marker(&state_run.marker, answers);
    do_nothing(fixture, state_run)
}

pub(super) fn tool_call(tool: &str, arguments: &Value) -> ScriptedResponse {
    ScriptedResponse::tool_call("c1", tool, arguments)
}

fn add_marker(state_run: &mut StateRun) -> &ProcessMarker {
    state_run.marks.push(ProcessMarker::new());
    state_run.marks.last().unwrap()
}

fn script_shell<'a>(
    fixture: &'a StopMatrixDaemon,
    state_run: &'a mut StateRun,
    command: fn(&ProcessMarker) -> String,
) -> StateStepFuture<'a> {
    let call = shell_call(command(add_marker(state_run)));
    script_responses(fixture, state_run, [call])
}

pub(super) async fn wait_processes(state_run: &StateRun, count: usize) {
    state_run.marks.last().unwrap().wait_for_count(count).await;
}

async fn wait_request(fixture: &StopMatrixDaemon, state_run: &StateRun) -> ModelRequestHandle {
    fixture.model.wait_for_marked_request(&state_run.marker).await
}

async fn wait_streaming(fixture: &StopMatrixDaemon, state_run: &StateRun) {
    wait_request(fixture, state_run).await.wait_streaming().await;
}

async fn wait_refused(fixture: &StopMatrixDaemon, state_run: &StateRun) {
    wait_request(fixture, state_run).await.wait_finished().await;
}

pub(super) async fn wait_second_request(fixture: &StopMatrixDaemon, state_run: &StateRun) -> ModelRequestHandle {
    let of_run = |request: &&ModelRequestHandle| request.markers.last() == Some(&state_run.marker);
    wait_for_request(&fixture.model, |seen| seen.iter().filter(of_run).nth(1).cloned()).await
}

/// Starts another run in the session that streams a little and then stays silent.
async fn occupy_session(fixture: &StopMatrixDaemon, state_run: &mut StateRun) {
    let first = format!("first-{}", state_run.marker);
    fixture.script_marker(&first, [ScriptedResponse::silent_mid_stream("busy")]);
    let body = json!({"text": format!("first marker:{first}"), "agent": "main", "timeoutMs": 600_000});
    state_run.blocking_run = Some(fixture.daemon.api().start_run(&state_run.session, &body).await);
    fixture.model.wait_for_marked_request(&first).await.wait_paused().await;
}

async fn wait_in_background(fixture: &StopMatrixDaemon, state_run: &StateRun) {
    wait_processes(state_run, 2).await;
    wait_second_request(fixture, state_run).await.wait_paused().await;
}

async fn wait_listed(fixture: &StopMatrixDaemon, state_run: &StateRun) {
    let queued = json!({"sessionKey": state_run.session, "state": "queued"});
    fixture.wait_item("/api/runs?state=active", &queued).await;
}

async fn wait_approval(fixture: &StopMatrixDaemon, state_run: &StateRun) {
    fixture.wait_item("/api/approvals", &json!({"sessionKey": state_run.session})).await;
}

/// Fills the agent's window with a long turn before the run that is stopped.
async fn fill_window(fixture: &StopMatrixDaemon, state_run: &mut StateRun) {
    let before = format!("before-{}", state_run.marker);
    fixture.script_marker(&before, [ScriptedResponse::text("And on it went. ".repeat(200))]);
    let body = json!({"text": format!("tell me a story marker:{before}"), "agent": "main"});
    let run = fixture.daemon.api().start_run(&state_run.session, &body).await;
    fixture.daemon.api().wait_ended(&run).await;
    fixture.script_marker(&before, [ScriptedResponse::silent_mid_stream("So far")]);
}

async fn wait_summarising(fixture: &StopMatrixDaemon, state_run: &StateRun) {
    wait_summary_request(&fixture.model, &format!("before-{}", state_run.marker)).await.wait_paused().await;
}
