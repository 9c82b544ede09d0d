//! Every way to stop, through the real binary, in every state of a run; after each stop the same checks. Rows are ways
//! to stop, columns are run states; both are tables.

mod run_states;
mod stop_methods;

use std::process::Stdio;

use quell_test_support::a2a_client::{self as a2a, A2aTestBinding, A2aTestClient};
use quell_test_support::acp_client::AcpTestClient;
use quell_test_support::mcp_server_client as mcp_server;
use quell_test_support::ws_client::WsTestClient;
use quell_testkit::daemon::TestRunEventStream;
use quell_testkit::mcp;
use quell_testkit::model::BlackHole;
use rustix::process::{Pid, Signal, kill_process};

use crate::prelude::*;
use crate::test_engine::{ResponsesByMarker, background_call, shell_call, wait_for_request, wait_summary_request};
use crate::test_server::has_fields;
use run_states::{FIRED, STOPPABLE_STATES, StateRun, StoppableState, tool_call, wait_processes, wait_second_request};
use stop_methods::MatrixStopMethod;

/// A daemon with everything that can keep a run waiting.
pub(super) struct StopMatrixDaemon {
    pub(super) home: DaemonHome,
    pub(super) daemon: TestDaemon,
    pub(super) model: ScriptedModel,
    pub(super) black_hole: BlackHole,
    pub(super) scripts: ResponsesByMarker,
    /// The editor that has all sessions of its method open.
    pub(super) editor: tokio::sync::Mutex<Option<AcpTestClient>>,
    _database: TestDatabase,
}

impl StopMatrixDaemon {
    /// `None` if a server that its store needs is switched off for the tests.
    async fn start(kind: StoreKind, more: &str) -> Option<Self> {
        let database = kind.start_database()?;
        let (model, hole) = (ScriptedModel::start().await, BlackHole::open().await);
        let scripts = ResponsesByMarker::default();
        scripts.install(&model);
        let home =
            DaemonHome::new(&format!("{}{}{more}", database.config_toml(), run_states::config_toml(&model, &hole)));
        let daemon = home.start(quell_exe()).await;
        let editor = tokio::sync::Mutex::default();
        Some(Self { home, daemon, model, black_hole: hole, scripts, editor, _database: database })
    }

    async fn run_events(&self, run: &str) -> TestRunEventStream {
        self.daemon.api().run_events(run, 0).await
    }

    /// Waits until a list of the API has an item with these fields; returns it.
    async fn wait_item(&self, path: &str, fields: &Value) -> Value {
        poll_until(path, async || {
            let list = self.daemon.api().get(path).await.expect_status(200);
            list["items"].as_array().unwrap().iter().find(|item| has_fields(item, fields)).cloned()
        })
        .await
    }

    /// Sends the next message of the session and expects an answer on a valid history.
    async fn assert_next_message_works(&self, state: &StoppableState, state_run: &StateRun) {
        if state_run.prompt.is_some() {
            // The editor's directory lies below the workdir of another agent.
            let workdir = self.home.work_dir().join("main");
            std::fs::create_dir_all(&workdir).unwrap();
            let path = format!("/api/sessions/{}", percent_encode(&state_run.session));
            self.daemon.api().patch(&path, &json!({"agent": "main", "workdir": workdir})).await.expect_status(200);
        }
        let marker = format!("next-{}", state_run.run);
        let body = json!({"text": format!("and now? marker:{marker}"), "agent": "main"});
        let next = self.daemon.api().start_run(&state_run.session, &body).await;
        let log = self.run_events(&next).await.read_to_end().await;
        log.assert_valid();
        assert_eq!(log.verdict(), "completed", "{}: the message after it", state.name);
    }
}

#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_works_in_every_state(
    #[case] kind: StoreKind,
    #[values(
        MatrixStopMethod::HttpRun,
        MatrixStopMethod::WsSession,
        MatrixStopMethod::StopText,
        MatrixStopMethod::CtrlC,
        MatrixStopMethod::Kill9
    )]
    method: MatrixStopMethod,
) {
    stop_in_every_state(kind, method).await;
}

#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[case::postgres(StoreKind::Postgres)]
#[ignore = "full: more ways to stop"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_by_other_methods_works_in_every_state(
    #[case] kind: StoreKind,
    #[values(
        MatrixStopMethod::HttpSession,
        MatrixStopMethod::HttpAll,
        MatrixStopMethod::AgentAbort,
        MatrixStopMethod::WsRun,
        MatrixStopMethod::WsSessionsAbort,
        MatrixStopMethod::OpenAiDisconnect,
        MatrixStopMethod::AnthropicDisconnect,
        MatrixStopMethod::ResponsesCancel,
        MatrixStopMethod::AcpCancel,
        MatrixStopMethod::McpCancel,
        MatrixStopMethod::McpSessionCancel,
        MatrixStopMethod::A2aCancel,
        MatrixStopMethod::TimeOut,
        MatrixStopMethod::Sigterm
    )]
    method: MatrixStopMethod,
) {
    stop_in_every_state(kind, method).await;
}

async fn stop_in_every_state(kind: StoreKind, method: MatrixStopMethod) {
    if method == MatrixStopMethod::AcpCancel && quell_test_support::npm_packages::is_skipped() {
        return;
    }
    let Some(mut fixture) = StopMatrixDaemon::start(kind, "").await else { return };
    let mut state_runs = Vec::new();
    for state in STOPPABLE_STATES {
        state_runs.push(stop_methods::start_in_state(&fixture, state, method).await);
    }
    // All states exist at the same time, so this also checks that a stop of one run does not affect the others.
    let mut streams = Vec::new();
    for state_run in &state_runs {
        streams.push(fixture.run_events(&state_run.run).await);
    }
    if method.stops_all_at_once() {
        stop_methods::stop_all(&mut fixture, method, &state_runs).await;
    } else {
        for (state, state_run) in STOPPABLE_STATES.iter().zip(&mut state_runs) {
            stop_methods::stop_one(&fixture, method, state, state_run).await;
        }
    }
    for ((state, state_run), stream) in STOPPABLE_STATES.iter().zip(&state_runs).zip(streams) {
        assert_stopped(&fixture, method, (state, state_run), stream).await;
    }
    for run in state_runs.iter().filter_map(|state_run| state_run.blocking_run.as_ref()) {
        let over = fixture.daemon.api().stop_run(run).await;
        // A stop of one run does not stop other runs of its session.
        assert_eq!(over["aborted"], json!(method.stops_one_run()), "{method:?}: {over:#}");
    }
    fixture.model.wait_for_connections(0).await;
    fixture.black_hole.wait_for_connecting(0).await;
    for (state, state_run) in STOPPABLE_STATES.iter().zip(&state_runs) {
        fixture.assert_next_message_works(state, state_run).await;
    }
    fixture.model.assert_histories_valid();
    assert!(fixture.daemon.stop().await.success(), "{}", fixture.daemon.output());
}

/// Budgets are checked between steps: background work that the run has started ends with it.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_ends_what_its_run_had_started(#[case] kind: StoreKind) {
    let Some(fixture) = StopMatrixDaemon::start(kind, "[limits]\nmax_steps = 2\n").await else { return };
    for name in ["background process", "sub-agent"] {
        let state = STOPPABLE_STATES.iter().find(|state| state.name == name).unwrap();
        let state_run = stop_methods::start_background_state(&fixture, state).await;
        let stream = fixture.run_events(&state_run.run).await;
        fixture.model.open_gate(&state_run.run);
        assert_stopped(&fixture, MatrixStopMethod::Budget, (state, &state_run), stream).await;
        fixture.assert_next_message_works(state, &state_run).await;
    }
    fixture.model.assert_histories_valid();
    assert!(fixture.daemon.stop().await.success(), "{}", fixture.daemon.output());
}

/// The checks after every stop.
async fn assert_stopped(
    fixture: &StopMatrixDaemon,
    method: MatrixStopMethod,
    (state, state_run): (&StoppableState, &StateRun),
    stream: TestRunEventStream,
) {
    let what = format!("{method:?} x {}", state.name);
    if method == MatrixStopMethod::Kill9 {
        drop(stream);
    } else {
        let log = stream.read_to_end().await;
        log.assert_valid();
        assert_eq!(log.verdict(), "aborted", "{what}: {:?}", log.kinds());
    }
    for mark in &state_run.marks {
        mark.wait_gone(WAIT_TIMEOUT).await;
    }
    let view = fixture.daemon.api().run_view(&state_run.run).await;
    let verdict = json!({"kind": "aborted", "reason": method.reason()});
    let receipt = json!({"leftovers": [], "turn": {"recorded": state.is_started()}});
    let expected = json!({"state": "ended", "verdict": verdict, "receipt": receipt});
    assert!(has_fields(&view, &expected), "{what}: {view:#}");
    for row in view["receipt"]["resources"].as_array().unwrap() {
        assert!(row["releasedAt"].is_object(), "{what}: {row:#}");
    }
}
