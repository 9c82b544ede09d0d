//! The end of the daemon: whatever it holds and whoever does not listen, a signal ends all of it within its time, and the next
//! start finds every history in order.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_testkit::ScriptedModel;
use quell_testkit::commands::{self, Marker};
use quell_testkit::daemon::{Api, Daemon, Home};
use quell_testkit::mcp;
use quell_testkit::model::{Behaviour, Step, Stream};
use quell_testkit::pace::allowed;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::cli::exe;
use crate::harness::{Claim, PATIENCE};
use crate::ws::{self, Client};

/// What the contract says.
const IN_TIME: Duration = Duration::from_secs(5);

/// Enough not to fit into the buffers of two sockets of which one takes next to nothing.
const MORE_THAN_BUFFERS: usize = 3 << 20;

/// A daemon that holds one of everything.
struct World {
    daemon: Daemon,
    model: ScriptedModel,
    mark: Marker,
    /// Session and run of what a shutdown has to stop.
    runs: Vec<(&'static str, String)>,
    /// Connections whose clients do nothing any more.
    idle: Vec<TcpStream>,
    deaf: Option<Client>,
    _claim: Claim,
}

fn config(model: &ScriptedModel, mark: &Marker) -> String {
    let (url, script) = (model.base_url(), json!(mcp::SERVER));
    format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{url}\"\nmax_retries = 0\n\
         [mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {script}]\n\
         env = {{ MCP_MARK = \"{mark}\", MCP_STUCK = \"1\" }}\n\
         [agents.main]\nmodel = \"scripted/m\"\napprovals.write_file = \"ask\"\n\
         [agents.scout]\nmodel = \"scripted/m\"\nparent = \"main\"\nmcp = []\n",
        mark = mark.as_str()
    )
}

/// What the model answers to a message that carries one of these markers, in order; else a word.
fn scripts(mark: &Marker) -> HashMap<String, VecDeque<Behaviour>> {
    let call = |tool: &str, given: Value| Behaviour::tool_call("c1", tool, &given);
    let deaf = json!({"command": commands::deaf_setsid_child(mark)});
    let in_background = json!({"command": commands::ignores_signals(mark), "background": true});
    let flood = Stream::new().step(Step::HugeOutput { bytes: MORE_THAN_BUFFERS }).step(Step::Silent);
    let scripts = [
        ("command", call("shell", deaf.clone())),
        ("background", call("shell", in_background)),
        ("server", call("test__fork", json!({"text": "child"}))),
        ("idle-server", call("test__pid", json!({}))),
        ("asked", call("write_file", json!({"path": "x", "content": "y"}))),
        ("parent", call("spawn_agent", json!({"agent": "scout", "prompt": "look marker:child"}))),
        ("child", call("shell", deaf)),
        ("flood", flood.into()),
        ("long", Behaviour::huge_output(MORE_THAN_BUFFERS / 6)),
    ];
    scripts.into_iter().map(|(name, answer)| (name.to_owned(), VecDeque::from([answer]))).collect()
}

impl World {
    async fn open() -> Self {
        let (claim, model, mark) = (Claim::shared().await, ScriptedModel::start().await, Marker::new());
        let answers = Arc::new(Mutex::new(scripts(&mark)));
        model.by_prompt(move |_, request| {
            let marker = request.markers.last().cloned().unwrap_or_default();
            let scripted = answers.lock().unwrap().get_mut(&marker).and_then(VecDeque::pop_front);
            scripted.unwrap_or_else(|| Behaviour::text("That is done."))
        });
        let daemon = Daemon::start(exe(), &config(&model, &mark)).await;
        let mut world = Self { daemon, model, mark, runs: Vec::new(), idle: Vec::new(), deaf: None, _claim: claim };
        world.fill().await;
        world
    }

    async fn fill(&mut self) {
        for session in ["long", "background", "idle-server"] {
            let run = self.send(session).await;
            drop(self.daemon.http().events(&run, 0).await.until("run.ended").await);
        }
        for session in ["command", "server", "asked", "parent", "flood"] {
            let run = self.send(session).await;
            self.runs.push((session, run));
        }
        // The background command, two servers and the child of one, and two commands with a child each.
        self.mark.at_least(8).await;
        let http = self.daemon.http();
        while http.get("/api/approvals").await.expect_status(200)["items"].as_array().unwrap().is_empty() {
            // Asked again over the wire: the list has no event.
        }
        self.model.marked("flood").await.resting().await;
        self.open_silent_connections().await;
    }

    /// A reader of events and a WebSocket that do not read, and a message that never becomes whole.
    async fn open_silent_connections(&mut self) {
        let (address, token) = (self.daemon.url().trim_start_matches("http://").to_owned(), self.daemon.token());
        let flood = &self.runs.last().unwrap().1;
        let head = |what: &str| format!("{what} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n");
        let events = head(&format!("GET /api/runs/{flood}/events?after=0")) + "\r\n";
        let message = head("POST /api/sessions/half/runs") + "content-length: 100\r\n\r\n{";
        for request in [events, message] {
            let mut socket = ws::narrow(&address).await;
            socket.write_all(request.as_bytes()).await.unwrap();
            self.idle.push(socket);
        }
        let mut client = Client::narrow_at(self.daemon.url(), token).await;
        for _ in 0..12 {
            client.begin("chat.history", json!({"sessionKey": "long"})).await;
        }
        self.deaf = Some(client);
    }

    async fn send(&self, session: &str) -> String {
        let body = json!({"text": format!("do it marker:{session}"), "agent": "main"});
        let sent = self.daemon.http().post(&format!("/api/sessions/{session}/runs"), &body).await.expect_status(202);
        sent["runId"].as_str().unwrap().to_owned()
    }

    /// The next daemon finds every run stopped by the shutdown and every history valid.
    async fn come_back(self) {
        let next = self.daemon.home().start(exe()).await;
        for (session, run) in &self.runs {
            let view = next.http().get(&format!("/api/runs/{run}")).await.expect_status(200);
            assert_eq!(view["verdict"]["reason"], "shutdown", "{session}: {view:#}");
            let receipt = &view["receipt"];
            assert_eq!((&receipt["leftovers"], &receipt["turn"]["recorded"]), (&json!([]), &json!(true)), "{view:#}");
        }
        for (session, _) in &self.runs {
            let body = json!({"text": "and now? marker:next", "agent": "main"});
            let sent = next.http().post(&format!("/api/sessions/{session}/runs"), &body).await.expect_status(202);
            let log = next.http().events(sent["runId"].as_str().unwrap(), 0).await.to_end().await;
            assert_eq!(log.verdict(), "completed", "{session}");
        }
        self.model.assert_histories_valid();
        assert!(next.stop().await.success(), "{}", next.output());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_everything_at_once_within_five_seconds() {
    let world = World::open().await;
    let begun = Instant::now();
    let status = world.daemon.stop().await;
    let took = begun.elapsed();
    println!("ended {took:?} after SIGTERM");
    assert!(took < IN_TIME, "{took:?}\n{}", world.daemon.output());
    assert!(status.success(), "{status:?}\n{}", world.daemon.output());
    assert_eq!(world.mark.survivors().len(), 0, "{:#?}", world.mark.survivors());
    world.model.connections(0).await;
    world.come_back().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_forces_everything_at_once() {
    let world = World::open().await;
    let mut watching = world.daemon.http().events(&world.runs[0].1, 0).await;
    world.daemon.signal(Signal::TERM);
    watching.until("run.ending").await;
    let begun = Instant::now();
    world.daemon.signal(Signal::INT);
    let status = world.daemon.ended().await;
    let took = begun.elapsed();
    println!("ended {took:?} after the second signal");
    // A busy machine needs longer for so many than the shutdown gives them before it forces by itself: that the signal does is
    // seen where one command takes no notice (`cli`).
    assert!(took < IN_TIME, "{took:?}\n{}", world.daemon.output());
    assert!(status.success(), "{status:?}\n{}", world.daemon.output());
    assert_eq!(world.mark.survivors().len(), 0, "{:#?}", world.mark.survivors());
    world.come_back().await;
}

/// A daemon with one command that takes no notice, and a ladder that is slower than the shutdown.
async fn slow_to_stop() -> (Daemon, ScriptedModel, Marker, String) {
    let (model, mark) = (ScriptedModel::start().await, Marker::new());
    let config = format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\n[agents.main]\nmodel = \"scripted/m\"\n\
         [stop]\nterm_ms = 20000\ngrace_ms = 30000\n",
        model.base_url()
    );
    let daemon = Daemon::start(exe(), &config).await;
    model.script(Behaviour::tool_call("c1", "shell", &json!({"command": commands::ignores_signals(&mark)})));
    let body = json!({"text": "do it", "agent": "main"});
    let sent = daemon.http().post("/api/sessions/s/runs", &body).await.expect_status(202);
    let run = sent["runId"].as_str().unwrap().to_owned();
    // It prints that it is deaf.
    daemon.http().events(&run, 0).await.until("tool.output").await;
    (daemon, model, mark, run)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_during_a_shutdown_is_refused_by_name_and_can_still_force() {
    let _claim = Claim::shared().await;
    let (daemon, _model, mark, run) = slow_to_stop().await;
    let http = daemon.http();
    let mut events = http.events(&run, 0).await;
    daemon.signal(Signal::TERM);
    events.until("run.ending").await;
    // Each over a connection of its own.
    let fresh = || Api::new(daemon.url(), daemon.token());
    for (what, answer) in [
        ("a message", fresh().post("/api/sessions/t/runs", &json!({"text": "x"})).await),
        ("readiness", fresh().get("/readyz").await),
        ("a WebSocket", fresh().send(upgrade(&daemon)).await),
    ] {
        assert_eq!((answer.status, answer.code()), (503, Some("shutting_down")), "{what}: {answer:?}");
    }
    let seen = fresh().get(&format!("/api/runs/{run}")).await.expect_status(200);
    assert_eq!((&seen["state"], &seen["verdict"]["reason"]), (&json!("ending"), &json!("shutdown")), "{seen:#}");
    let forced = fresh().post(&format!("/api/runs/{run}/stop"), &json!({"force": true})).await;
    assert!(forced.status < 300, "{forced:?}");
    let begun = Instant::now();
    assert!(daemon.ended().await.success(), "{}", daemon.output());
    let took = begun.elapsed();
    assert!(took < allowed(Duration::from_millis(1500)), "{took:?}");
    mark.gone(PATIENCE).await;
    events.to_end().await.assert_sound();
    assert!(TcpStream::connect(daemon.url().trim_start_matches("http://")).await.is_err());
}

fn upgrade(daemon: &Daemon) -> reqwest::RequestBuilder {
    let request = daemon.http().request(reqwest::Method::GET, "/ws");
    let request = request.header("connection", "upgrade").header("upgrade", "websocket");
    request.header("sec-websocket-version", "13").header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
}

/// Another program has the database: nothing can be stored, and still the daemon ends in time, and says what it could not do.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_another_program_keeps_does_not_keep_the_daemon() {
    let _claim = Claim::shared().await;
    let (daemon, model, mark, run) = slow_to_stop().await;
    let database = rusqlite::Connection::open(daemon.home().data().join("quell.db")).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    daemon.signal(Signal::TERM);
    let status = daemon.ended().await;
    let took = begun.elapsed();
    println!("ended {took:?} after SIGTERM");
    assert!(took < IN_TIME, "{took:?}\n{}", daemon.output());
    // Nothing is alive, so the end is a good one; what is missing in the database is told, and sealed at the next start.
    assert!(status.success(), "{status:?}\n{}", daemon.output());
    assert!(daemon.output().contains("turn could not be recorded"), "{}", daemon.output());
    mark.gone(PATIENCE).await;
    drop(database);
    // The next start seals what could not be stored.
    let next = daemon.home().start(exe()).await;
    let view = next.http().get(&format!("/api/runs/{run}")).await.expect_status(200);
    assert_eq!((&view["state"], &view["verdict"]["kind"]), (&json!("ended"), &json!("aborted")), "{view:#}");
    model.script(Behaviour::text("here again"));
    let sent = next.http().post("/api/sessions/s/runs", &json!({"text": "and now?"})).await.expect_status(202);
    let log = next.http().events(sent["runId"].as_str().unwrap(), 0).await.to_end().await;
    assert_eq!(log.verdict(), "completed");
    model.assert_histories_valid();
}

/// Somebody removed the lock file and started a second daemon: the first one ends instead of serving what it cannot write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_whose_data_another_one_has_taken_over_ends_by_itself() {
    let home = Home::new("");
    let first = home.start(exe()).await;
    std::fs::remove_file(home.data().join("quell.lock")).unwrap();
    let second = home.start(exe()).await;
    let refused = first.http().post("/api/sessions/s/runs", &json!({"text": "hello"})).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    let status = first.ended().await;
    assert_eq!(status.code(), Some(1), "{}", first.output());
    assert!(first.output().contains("another quell has taken over the data directory"), "{}", first.output());
    let taken = second.http().post("/api/sessions/s/runs", &json!({"text": "hello"})).await;
    assert_eq!(taken.status, 202, "{taken:?}");
    assert!(second.stop().await.success(), "{}", second.output());
}

/// The next daemon may be ready before the last one has closed its doors, and on the same address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_ends_leaves_the_address_of_the_next_one_alone() {
    let home = Home::new("");
    let first = home.start(exe()).await;
    let file = home.data().join("address");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(home.data().join("next"), &text).unwrap();
    std::fs::rename(home.data().join("next"), &file).unwrap();
    assert!(first.stop().await.success(), "{}", first.output());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert!(home.start(exe()).await.stop().await.success());
    assert!(!file.exists(), "a daemon that is gone still has an address");
}
