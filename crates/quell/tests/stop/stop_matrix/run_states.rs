//! The columns of the matrix: run states, and how each is reached.

use super::*;

pub(super) struct StoppableState {
    pub(super) name: &'static str,
    /// The answers of the model to the run's requests.
    script: fn(&StopMatrixDaemon, &mut StateRun) -> Vec<ScriptedResponse>,
    reached: Reached,
}

/// How the test sees that a run is in its state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    Connecting,
    Requested,
    Streaming,
    /// The first provider has refused the request, and the second one has it.
    SecondRequested,
    SecondStreaming,
    Refused,
    /// As many processes of the run are alive.
    Processes(usize),
    /// Two processes are alive, and the run has asked the model again.
    InBackground,
    /// It is listed as queued: it has not started.
    Queued,
    Approval,
    Summarising,
}

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
    /// The request to a model API that started the run, if one did.
    pub(super) api_request: Option<tokio::task::JoinHandle<()>>,
    /// The request of the editor that waits for the end of the run, if an editor started it.
    pub(super) prompt: Option<u64>,
    /// The open response of the MCP call that has sent the message.
    pub(super) mcp_call: Option<reqwest::Response>,
    /// The MCP session of that call, if it has one.
    pub(super) mcp_session: Option<quell_test_support::mcp_server_client::TestMcpSession>,
}

/// The state whose message a schedule sends.
pub(super) const FIRED: &str = "fired by a schedule";

pub(super) const STOPPABLE_STATES: &[StoppableState] = &[
    StoppableState::new("connecting", |_, _| Vec::new(), Reached::Connecting),
    StoppableState::new("silent", |_, _| vec![ScriptedResponse::SilentBeforeHeaders], Reached::Requested),
    StoppableState::new("streaming", |_, _| vec![stream_forever()], Reached::Streaming),
    StoppableState::new(FIRED, |_, _| vec![stream_forever()], Reached::Streaming),
    // Refused more than once, because all states together may take longer than one wait.
    StoppableState::new("back-off", |_, _| vec![ScriptedResponse::rate_limited("50"); 3], Reached::Refused),
    StoppableState::new(
        "second model silent",
        |_, _| vec![ScriptedResponse::status(402), ScriptedResponse::SilentBeforeHeaders],
        Reached::SecondRequested,
    ),
    StoppableState::new(
        "second model streaming",
        |_, _| vec![ScriptedResponse::status(402), stream_forever()],
        Reached::SecondStreaming,
    ),
    StoppableState::new("plain tool", |_, run| call_shell(run, commands::obeys_signals), Reached::Processes(1)),
    StoppableState::new(
        "TERM-ignoring",
        |_, run| call_shell(run, commands::signal_ignoring_setsid_child),
        Reached::Processes(2),
    ),
    StoppableState::new("escaped child", |_, run| call_shell(run, commands::setsid_child), Reached::Processes(2)),
    StoppableState::new(
        "background process",
        |_, run| {
            let start = background_call(commands::setsid_child(add_marker(run)));
            vec![start, ScriptedResponse::silent_mid_stream("I wait")]
        },
        Reached::InBackground,
    ),
    StoppableState::new(
        "MCP call",
        |_, run| vec![tool_call("test__fork", &json!({"text": add_marker(run).as_str()}))],
        Reached::Processes(1),
    ),
    StoppableState::new("sub-agent", call_sub_agent, Reached::Processes(2)),
    StoppableState::new("parallel sub-agents", call_sub_agents, Reached::Processes(4)),
    StoppableState::new("queued message", |_, _| Vec::new(), Reached::Queued),
    StoppableState::new("pending approval", |_, run| call_shell(run, commands::setsid_child), Reached::Approval),
    StoppableState::new("question of a server", |_, _| vec![tool_call("test__ask", &json!({}))], Reached::Approval),
    StoppableState::new("compaction", |_, _| Vec::new(), Reached::Summarising),
];

impl StoppableState {
    const fn new(
        name: &'static str,
        script: fn(&StopMatrixDaemon, &mut StateRun) -> Vec<ScriptedResponse>,
        reached: Reached,
    ) -> Self {
        Self { name, script, reached }
    }

    pub(super) fn agent(&self) -> String {
        self.name.replace(' ', "-")
    }

    /// Whether the run has started, so that its message stays in the history.
    pub(super) fn is_started(&self) -> bool {
        self.reached != Reached::Queued
    }

    /// Scripts the model, and sets up what must exist before the message.
    pub(super) async fn prepare(&self, fixture: &StopMatrixDaemon, state_run: &mut StateRun) {
        let answers = (self.script)(fixture, state_run);
        fixture.scripts.script(&state_run.marker, answers);
        match self.reached {
            Reached::Queued => occupy_session(fixture, state_run).await,
            Reached::Summarising => fill_window(fixture, state_run).await,
            _ => {}
        }
    }

    pub(super) async fn wait_reached(&self, fixture: &StopMatrixDaemon, state_run: &StateRun) {
        let request = async || fixture.model.wait_for_marked_request(&state_run.marker).await;
        let session = &state_run.session;
        match self.reached {
            Reached::Connecting => fixture.black_hole.wait_for_connecting(1).await,
            Reached::Requested => drop(request().await),
            Reached::Streaming => {
                request().await.wait_streaming().await;
            }
            Reached::SecondRequested => drop(wait_second_request(fixture, state_run).await),
            Reached::SecondStreaming => {
                wait_second_request(fixture, state_run).await.wait_streaming().await;
            }
            Reached::Refused => {
                request().await.wait_finished().await;
            }
            Reached::Processes(count) => wait_processes(state_run, count).await,
            Reached::InBackground => {
                wait_processes(state_run, 2).await;
                wait_second_request(fixture, state_run).await.wait_paused().await;
            }
            Reached::Queued => {
                let queued = json!({"sessionKey": session, "state": "queued"});
                fixture.wait_item("/api/runs?state=active", &queued).await;
            }
            Reached::Approval => {
                fixture.wait_item("/api/approvals", &json!({"sessionKey": session})).await;
            }
            Reached::Summarising => {
                let before = format!("before-{}", state_run.marker);
                wait_summary_request(&fixture.model, &before).await.wait_paused().await;
            }
        }
    }
}

/// The daemon's configuration. Each state has its own agent, so that a stop of an agent stops one state.
pub(super) fn config_toml(model: &ScriptedModel, hole: &BlackHole) -> String {
    let provider = |name: &str, url: String| format!("[providers.{name}]\nkind = \"openai\"\nbase_url = \"{url}\"\n");
    let mut text = [("scripted", model.base_url()), ("second", model.base_url()), ("hole", hole.base_url())]
        .map(|(name, url)| provider(name, url))
        .concat();
    let script = json!(mcp::SERVER_SCRIPT);
    text.push_str(&format!("[mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {script}]\ngrace_ms = 200\n"));
    for agent in ["main", "scout"] {
        text.push_str(&format!("[agents.{agent}]\nmodel = \"scripted/m\"\nmcp = []\n"));
    }
    for state in STOPPABLE_STATES {
        let model = match state.name {
            "connecting" => "\"hole/m\"",
            "second model silent" | "second model streaming" => "[\"scripted/m\", \"second/m\"]",
            _ => "\"scripted/m\"",
        };
        text.push_str(&format!("[agents.{}]\nmodel = {model}\n", state.agent()));
        if !matches!(state.name, "MCP call" | "question of a server") {
            text.push_str("mcp = []\n");
        }
        match state.name {
            "sub-agent" | "parallel sub-agents" => text.push_str("delegates = [\"scout\"]\n"),
            "pending approval" => text.push_str("approvals.shell = \"ask\"\n"),
            "compaction" => text.push_str("window_tokens = 400\n"),
            _ => {}
        }
    }
    text
}

pub(super) fn tool_call(tool: &str, arguments: &Value) -> ScriptedResponse {
    ScriptedResponse::tool_call("c1", tool, arguments)
}

fn add_marker(state_run: &mut StateRun) -> &ProcessMarker {
    state_run.marks.push(ProcessMarker::new());
    state_run.marks.last().unwrap()
}

fn stream_forever() -> ScriptedResponse {
    ScriptedResponse::tokens_forever(Duration::from_millis(5))
}

fn call_shell(state_run: &mut StateRun, command: fn(&ProcessMarker) -> String) -> Vec<ScriptedResponse> {
    vec![shell_call(command(add_marker(state_run)))]
}

fn call_sub_agent(fixture: &StopMatrixDaemon, state_run: &mut StateRun) -> Vec<ScriptedResponse> {
    let below = format!("below-{}", state_run.marker);
    fixture.scripts.script(&below, call_shell(state_run, commands::setsid_child));
    vec![tool_call("spawn_agent", &json!({"agent": "scout", "prompt": format!("look marker:{below}")}))]
}

/// Two sub-agents at the same time, whose processes carry one marker.
fn call_sub_agents(fixture: &StopMatrixDaemon, state_run: &mut StateRun) -> Vec<ScriptedResponse> {
    let command = commands::setsid_child(add_marker(state_run));
    let spawn = |stream: ScriptedStream, number: u32| {
        let below = format!("below-{number}-{}", state_run.marker);
        fixture.scripts.script(&below, [shell_call(&command)]);
        let arguments = json!({"agent": "scout", "prompt": format!("look marker:{below}")});
        stream.tool_call(format!("c{number}"), "spawn_agent", &arguments)
    };
    vec![(1..=2).fold(ScriptedStream::new(), spawn).into()]
}

pub(super) async fn wait_processes(state_run: &StateRun, count: usize) {
    state_run.marks.last().unwrap().wait_for_count(count).await;
}

pub(super) async fn wait_second_request(fixture: &StopMatrixDaemon, state_run: &StateRun) -> ModelRequestHandle {
    let of_run = |request: &&ModelRequestHandle| request.markers.last() == Some(&state_run.marker);
    wait_for_request(&fixture.model, |seen| seen.iter().filter(of_run).nth(1).cloned()).await
}

/// Starts another run in the session that streams a little and then stays silent.
async fn occupy_session(fixture: &StopMatrixDaemon, state_run: &mut StateRun) {
    let first = format!("first-{}", state_run.marker);
    fixture.scripts.script(&first, [ScriptedResponse::silent_mid_stream("busy")]);
    let body = json!({"text": format!("first marker:{first}"), "agent": "main", "timeoutMs": 600_000});
    state_run.blocking_run = Some(fixture.daemon.api().start_run(&state_run.session, &body).await);
    fixture.model.wait_for_marked_request(&first).await.wait_paused().await;
}

/// Fills the agent's window with a long turn before the run that is stopped.
async fn fill_window(fixture: &StopMatrixDaemon, state_run: &mut StateRun) {
    let before = format!("before-{}", state_run.marker);
    fixture.scripts.script(&before, [ScriptedResponse::text("And on it went. ".repeat(200))]);
    let body = json!({"text": format!("tell me a story marker:{before}"), "agent": "main"});
    let run = fixture.daemon.api().start_run(&state_run.session, &body).await;
    fixture.daemon.api().wait_ended(&run).await;
    fixture.scripts.script(&before, [ScriptedResponse::silent_mid_stream("So far")]);
}
