//! A signal ends the daemon in time, whatever it holds, and the next start finds every history valid.

use std::time::Instant;

use quell_test_support::ws_client::{self as ws, WsTestClient};
use quell_testkit::mcp;
use quell_testkit::model::StreamStep;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::prelude::*;
use crate::test_engine::{ResponsesByMarker, background_call, shell_call};
use crate::test_server::assert_fields;

/// More than fits into the buffers of two sockets, one of which has the smallest receive buffer.
const MORE_THAN_SOCKET_BUFFERS: usize = 3 << 20;

/// A daemon that holds one resource of every kind.
struct BusyDaemon {
    daemon: TestDaemon,
    model: ScriptedModel,
    mark: ProcessMarker,
    /// Session and run id of the runs that a shutdown has to stop.
    runs: Vec<(&'static str, String)>,
    /// Connections whose clients do not read or write any more.
    silent_sockets: Vec<TcpStream>,
    silent_client: Option<WsTestClient>,
    _process_lock: ProcessLock,
}

fn busy_config(model: &ScriptedModel, mark: &ProcessMarker) -> String {
    let script = json!(mcp::SERVER_SCRIPT);
    format!(
        "{}[mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {script}]\n\
         env = {{ MCP_MARK = \"{mark}\", MCP_STUCK = \"1\" }}\n\
         [agents.main]\nmodel = \"scripted/m\"\napprovals.write_file = \"ask\"\n\
         [agents.scout]\nmodel = \"scripted/m\"\nparent = \"main\"\nmcp = []\n",
        provider_toml(model),
        mark = mark.as_str()
    )
}

fn responses_by_marker(mark: &ProcessMarker) -> ResponsesByMarker {
    let call = |tool: &str, given: Value| ScriptedResponse::tool_call("c1", tool, &given);
    let stubborn = || shell_call(commands::signal_ignoring_setsid_child(mark));
    let flood =
        ScriptedStream::new().step(StreamStep::HugeOutput { bytes: MORE_THAN_SOCKET_BUFFERS }).step(StreamStep::Silent);
    let responses = ResponsesByMarker::default();
    for (marker, answer) in [
        ("command", stubborn()),
        ("background", background_call(commands::ignores_signals(mark))),
        ("server", call("test__fork", json!({"text": "child"}))),
        ("idle-server", call("test__pid", json!({}))),
        ("asked", call("write_file", json!({"path": "x", "content": "y"}))),
        ("parent", call("spawn_agent", json!({"agent": "scout", "prompt": "look marker:child"}))),
        ("child", stubborn()),
        ("flood", flood.into()),
        ("long", ScriptedResponse::huge_output(MORE_THAN_SOCKET_BUFFERS / 6)),
    ] {
        responses.script(marker, [answer]);
    }
    responses
}

impl BusyDaemon {
    async fn start() -> Self {
        let (process_lock, model, mark) =
            (ProcessLock::shared().await, ScriptedModel::start().await, ProcessMarker::new());
        responses_by_marker(&mark).install(&model);
        let daemon = TestDaemon::start(quell_exe(), &busy_config(&model, &mark)).await;
        let mut busy = Self {
            daemon,
            model,
            mark,
            runs: Vec::new(),
            silent_sockets: Vec::new(),
            silent_client: None,
            _process_lock: process_lock,
        };
        busy.start_everything().await;
        busy
    }

    async fn start_everything(&mut self) {
        for session in ["long", "background", "idle-server"] {
            let run = self.send_message(session).await;
            self.daemon.api().wait_ended(&run).await;
        }
        for session in ["command", "server", "asked", "parent", "flood"] {
            let run = self.send_message(session).await;
            self.runs.push((session, run));
        }
        // The background command, two MCP servers and the child of one, and two commands with a child each.
        self.mark.wait_for_count(8).await;
        self.daemon.api().wait_approval().await;
        self.model.wait_for_marked_request("flood").await.wait_paused().await;
        self.open_silent_connections().await;
    }

    /// Opens an event stream and a WebSocket that do not read, and a request whose body stays incomplete.
    async fn open_silent_connections(&mut self) {
        let (address, token) = (self.daemon.url().trim_start_matches("http://").to_owned(), self.daemon.token());
        let flood = &self.runs.last().unwrap().1;
        let headers = |what: &str| format!("{what} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n");
        let events = headers(&format!("GET /api/runs/{flood}/events?after=0")) + "\r\n";
        let message = headers("POST /api/sessions/half/runs") + "content-length: 100\r\n\r\n{";
        for request in [events, message] {
            let mut socket = ws::connect_with_small_buffer(&address).await;
            socket.write_all(request.as_bytes()).await.unwrap();
            self.silent_sockets.push(socket);
        }
        let mut client = WsTestClient::connect_to_with_small_buffer(self.daemon.url(), token).await;
        for _ in 0..12 {
            client.send_request("chat.history", json!({"sessionKey": "long"})).await;
        }
        self.silent_client = Some(client);
    }

    async fn send_message(&self, session: &str) -> String {
        let body = json!({"text": format!("do it marker:{session}"), "agent": "main"});
        self.daemon.api().start_run(session, &body).await
    }

    /// The next daemon finds every run stopped by the shutdown and every history valid.
    async fn assert_restart_recovers(self) {
        let next = self.daemon.home().start(quell_exe()).await;
        for (session, run) in &self.runs {
            let view = next.api().run_view(run).await;
            assert_eq!(view["verdict"]["reason"], "shutdown", "{session}: {view:#}");
            let receipt = &view["receipt"];
            assert_eq!((&receipt["leftovers"], &receipt["turn"]["recorded"]), (&json!([]), &json!(true)), "{view:#}");
        }
        for (session, _) in &self.runs {
            let body = json!({"text": "and now? marker:next", "agent": "main"});
            let sent = next.api().start_run(session, &body).await;
            let log = next.api().run_events(&sent, 0).await.read_to_end().await;
            assert_eq!(log.verdict(), "completed", "{session}");
        }
        self.model.assert_histories_valid();
        assert!(next.stop().await.success(), "{}", next.output());
    }
}

/// Sends a signal; the daemon must exit with success. Returns the time until then.
async fn end_by_signal(daemon: &TestDaemon, signal: Signal) -> Duration {
    let begun = Instant::now();
    daemon.signal(signal);
    let status = daemon.wait_exit().await;
    let took = begun.elapsed();
    assert!(status.success(), "{status:?}\n{}", daemon.output());
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_everything_at_once() {
    let busy = BusyDaemon::start().await;
    end_by_signal(&busy.daemon, Signal::TERM).await;
    assert_eq!(busy.mark.marked_processes(), []);
    busy.model.wait_for_connections(0).await;
    busy.assert_restart_recovers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_forces_everything_at_once() {
    let busy = BusyDaemon::start().await;
    let mut watching = busy.daemon.api().run_events(&busy.runs[0].1, 0).await;
    busy.daemon.signal(Signal::TERM);
    watching.wait_for("run.ending").await;
    end_by_signal(&busy.daemon, Signal::INT).await;
    assert_eq!(busy.mark.marked_processes(), []);
    busy.assert_restart_recovers().await;
}

/// The second signal calls it.
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_shutdown_reaches_what_is_held_at_once() {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        config.stop_timeouts.grace = Duration::from_secs(60);
    })
    .await;
    test.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let run = test.send(submission("s", "hello")).await;
    test.wait_text(&run).await;
    let live_run = test.engine.live_run(&run).unwrap();
    let (told, mut levels) = tokio::sync::mpsc::unbounded_channel();
    let stubborn = live_run.scope.hold(ResourceKind::Task, "stubborn");
    let stubborn = stubborn.on_stop(move |level| told.send(level).unwrap());
    let engine = test.engine.clone();
    let shutdown = tokio::spawn(async move { engine.shut_down().await });
    assert_eq!(levels.recv().await, Some(StopLevel::Gentle));
    test.engine.force_shut_down();
    assert_eq!(levels.try_recv(), Ok(StopLevel::Forced));
    stubborn.release(Release::Kill);
    assert_eq!(shutdown.await.unwrap(), []);
    test.close().await;
}

/// Starts a daemon with one command that ignores signals, and with stop timeouts longer than the shutdown limit.
async fn start_slow_daemon() -> (TestDaemon, ScriptedModel, ProcessMarker, String) {
    let (model, mark) = (ScriptedModel::start().await, ProcessMarker::new());
    let config = config_toml(&model, "[stop]\nterm_ms = 20000\ngrace_ms = 30000\n");
    let daemon = TestDaemon::start(quell_exe(), &config).await;
    model.script(shell_call(commands::ignores_signals(&mark)));
    let body = json!({"text": "do it", "agent": "main"});
    let run = daemon.api().start_run("s", &body).await;
    // The command prints a text once it ignores signals.
    daemon.api().run_events(&run, 0).await.wait_for("tool.output").await;
    (daemon, model, mark, run)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_during_a_shutdown_are_refused_and_a_force_is_not() {
    let _process_lock = ProcessLock::shared().await;
    let (daemon, _model, mark, run) = start_slow_daemon().await;
    let http = daemon.api();
    let mut events = http.run_events(&run, 0).await;
    daemon.signal(Signal::TERM);
    events.wait_for("run.ending").await;
    // Each request uses a connection of its own.
    let new_client = || TestApiClient::new(daemon.url(), daemon.token());
    for (what, answer) in [
        ("a message", new_client().post_run("t", &json!({"text": "x"})).await),
        ("readiness", new_client().get("/readyz").await),
        ("a WebSocket", new_client().send(upgrade_request(&daemon)).await),
    ] {
        assert_eq!((answer.status, answer.problem_code()), (503, Some("shutting_down")), "{what}: {answer:?}");
    }
    let seen = new_client().run_view(&run).await;
    assert_fields(&seen, &json!({"state": "ending", "verdict": {"reason": "shutdown"}}));
    let forced = new_client().post(&format!("/api/runs/{run}/stop"), &json!({"force": true})).await;
    assert!(forced.status < 300, "{forced:?}");
    assert!(daemon.wait_exit().await.success(), "{}", daemon.output());
    mark.wait_gone(WAIT_TIMEOUT).await;
    events.read_to_end().await.assert_valid();
    assert!(TcpStream::connect(daemon.url().trim_start_matches("http://")).await.is_err());
}

fn upgrade_request(daemon: &TestDaemon) -> reqwest::RequestBuilder {
    let request = daemon.api().request(reqwest::Method::GET, "/ws");
    let request = request.header("connection", "upgrade").header("upgrade", "websocket");
    request.header("sec-websocket-version", "13").header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
}

/// Another program locks the database: nothing can be stored, but the daemon ends in time and reports it.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_another_program_keeps_does_not_keep_the_daemon() {
    let _process_lock = ProcessLock::shared().await;
    let (daemon, model, mark, run) = start_slow_daemon().await;
    let database = OtherProgram::connect(&daemon.home().data_dir());
    database.lock_writes();
    // No process is left, so the exit code is a success. The missing turn is logged, and sealed at the next start.
    end_by_signal(&daemon, Signal::TERM).await;
    assert!(daemon.output().contains("turn could not be recorded"), "{}", daemon.output());
    mark.wait_gone(WAIT_TIMEOUT).await;
    drop(database);
    let next = daemon.home().start(quell_exe()).await;
    let view = next.api().run_view(&run).await;
    assert_fields(&view, &json!({"state": "ended", "verdict": {"kind": "aborted"}}));
    model.script(ScriptedResponse::text("here again"));
    let sent = next.api().send_message("s", "and now?").await;
    let log = next.api().run_events(&sent, 0).await.read_to_end().await;
    assert_eq!(log.verdict(), "completed");
    model.assert_histories_valid();
}

/// Somebody removed the lock file and started a second daemon: the first one exits, since it cannot write any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_whose_data_another_one_has_taken_over_ends_by_itself() {
    let home = DaemonHome::new("");
    let first = home.start(quell_exe()).await;
    std::fs::remove_file(home.data_dir().join("quell.lock")).unwrap();
    let second = home.start(quell_exe()).await;
    let refused = first.api().post_run("s", &json!({"text": "hello"})).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    let status = first.wait_exit().await;
    assert_eq!(status.code(), Some(1), "{}", first.output());
    assert!(first.output().contains("another quell has taken over the database"), "{}", first.output());
    let accepted = second.api().post_run("s", &json!({"text": "hello"})).await;
    assert_eq!(accepted.status, 202, "{accepted:?}");
    assert!(second.stop().await.success(), "{}", second.output());
}

/// The next daemon may be ready on its address before the previous one has closed its listeners.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_ends_leaves_the_address_of_the_next_one_alone() {
    let home = DaemonHome::new("");
    let first = home.start(quell_exe()).await;
    let file = home.data_dir().join("address");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(home.data_dir().join("next"), &text).unwrap();
    std::fs::rename(home.data_dir().join("next"), &file).unwrap();
    assert!(first.stop().await.success(), "{}", first.output());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert!(home.start(quell_exe()).await.stop().await.success());
    assert!(!file.exists(), "a daemon that is gone still has an address");
}

/// The target of the stop contract is 5 s.
mod timing {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn sigterm_ends_everything() {
        let busy = BusyDaemon::start().await;
        report_time("a shutdown of everything", end_by_signal(&busy.daemon, Signal::TERM).await);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sigterm_ends_a_daemon_that_can_store_nothing() {
        let _process_lock = ProcessLock::shared().await;
        let (daemon, _model, _mark, _run) = start_slow_daemon().await;
        let database = OtherProgram::connect(&daemon.home().data_dir());
        database.lock_writes();
        report_time("a shutdown beside a locked database", end_by_signal(&daemon, Signal::TERM).await);
    }

    /// A gentle stop alone would take until the shutdown forces, 2 s after the signal.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_force_during_a_shutdown_ends_it() {
        let _process_lock = ProcessLock::shared().await;
        let (daemon, _model, _mark, run) = start_slow_daemon().await;
        let mut events = daemon.api().run_events(&run, 0).await;
        daemon.signal(Signal::TERM);
        events.wait_for("run.ending").await;
        let forced = daemon.api().post(&format!("/api/runs/{run}/stop"), &json!({"force": true})).await;
        assert!(forced.status < 300, "{forced:?}");
        let begun = Instant::now();
        assert!(daemon.wait_exit().await.success(), "{}", daemon.output());
        report_time("a shutdown after a force", begun.elapsed());
    }
}
