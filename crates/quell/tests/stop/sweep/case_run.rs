//! A case with its stop mode, and the engine that all cases share.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::future::join_all;
use quell_kernel::network_access::{NetworkAccess, NetworkRules};

use super::*;

/// A hook that hangs in the run of this case only, ignores signals, and starts a child in its own session.
const HANGING_HOOK: &str = "case \"$QUELL_RUN_ID\" in a-hook-that-hangs.*) \
     trap '' TERM INT HUP; setsid sleep 600 & sleep 600 ;; esac";

pub(super) type CaseStepFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
pub(super) type CaseStep = for<'a> fn(&'a CaseRun<'a>) -> CaseStepFuture<'a>;

#[derive(Clone, Copy)]
pub(super) enum StopMoment {
    /// Before the message is sent: the stop names an unknown run id.
    BeforeMessage,
    /// From outside, once the message is known and while its acceptance waits for the database: on a node of a cluster,
    /// for the claim of its session.
    WhileAccepted,
    /// From outside, once this condition holds.
    OnCondition(CaseStep),
    /// On the run's own task, when it reaches the point for the `n`th time, counted from 1.
    AtPoint(Point, u32),
}

#[derive(Clone, Copy)]
pub(super) enum ExpectedOutcome {
    /// Aborted by one of the callers of the stop.
    AbortedByThisStop,
    /// Aborted by an earlier stop of Alice, which stands; this stop changes nothing.
    AbortedEarlier,
    /// Completed just before the stop.
    Completed,
}

pub(super) struct SweepCase {
    pub(super) name: String,
    pub(super) agent: &'static str,
    /// Sent by a chat network, with a file; the answer is delivered there.
    pub(super) is_from_channel: bool,
    /// What the run does.
    pub(super) work: fn() -> RunWork,
    pub(super) prepare: CaseStep,
    pub(super) moment: StopMoment,
    /// Steps between the stop and the end of the run, and checks for this case only.
    pub(super) check_after: CaseStep,
    pub(super) expected: ExpectedOutcome,
    /// Whether the run has started, so that its message stays in the history.
    pub(super) started: bool,
    /// Texts that the next request must show the model.
    pub(super) visible_next: &'static [&'static str],
    /// Texts that the next request must not show.
    pub(super) hidden_next: &'static [&'static str],
}

impl SweepCase {
    /// A case of the agent `main` that is stopped before its message is sent.
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            agent: "main",
            is_from_channel: false,
            work: RunWork::default,
            prepare: do_nothing,
            moment: StopMoment::BeforeMessage,
            check_after: do_nothing,
            expected: ExpectedOutcome::AbortedByThisStop,
            started: true,
            visible_next: &[],
            hidden_next: &[],
        }
    }

    pub(super) fn agent(self, agent: &'static str) -> Self {
        Self { agent, ..self }
    }

    pub(super) fn sent_by_channel(self) -> Self {
        Self { is_from_channel: true, ..self }
    }

    pub(super) fn work(self, work: fn() -> RunWork) -> Self {
        Self { work, ..self }
    }

    pub(super) fn prepare(self, prepare: CaseStep) -> Self {
        Self { prepare, ..self }
    }

    /// Stops it while its acceptance waits for the database.
    pub(super) fn while_accepted(self) -> Self {
        Self { moment: StopMoment::WhileAccepted, ..self }
    }

    /// Stops it from outside, once this step has waited for its condition.
    pub(super) fn when(self, condition: CaseStep) -> Self {
        Self { moment: StopMoment::OnCondition(condition), ..self }
    }

    /// Stops it on the run's own task, when it reaches the point for the `n`th time, counted from 1.
    pub(super) fn at(self, point: Point, nth: u32) -> Self {
        Self { moment: StopMoment::AtPoint(point, nth), ..self }
    }

    pub(super) fn check_after(self, check_after: CaseStep) -> Self {
        Self { check_after, ..self }
    }

    pub(super) fn expect(self, expected: ExpectedOutcome) -> Self {
        Self { expected, ..self }
    }

    pub(super) fn not_started(self) -> Self {
        Self { started: false, ..self }
    }

    pub(super) fn shows(self, visible_next: &'static [&'static str]) -> Self {
        Self { visible_next, ..self }
    }

    pub(super) fn hides(self, hidden_next: &'static [&'static str]) -> Self {
        Self { hidden_next, ..self }
    }
}

/// One engine for all cases of a stop mode, with everything that can keep a run waiting.
pub(super) struct SweepEngine {
    pub(super) test_engine: TestEngine,
    /// Never completes a connection; the model of the agent `hole` is there.
    pub(super) black_hole: BlackHole,
    /// Accepts a request and never answers it: for MCP servers by URL.
    pub(super) silent_mcp_server: FakeMcpServer,
    /// Transcribes and speaks for messages from chats.
    _audio: FakeAudioServer,
    /// Accepts connections and never answers: for `fetch_url`.
    pub(super) silent_listener: TcpListener,
    pub(super) page_url: String,
    /// A second connection to the database. SQLite keeps its file open while the engine's are open, so all cases share
    /// one.
    pub(super) database: Mutex<OtherProgram>,
}

impl SweepEngine {
    pub(super) async fn start(database: TestDatabase) -> Self {
        let sweep = Self::start_in(TestDir::Temporary(TestDataDir::new()), database, |_| {}).await;
        sweep.write_files();
        sweep.warm_up().await;
        sweep.connect_readers().await;
        sweep
    }

    /// Starts the engine in this directory, without the files for the tools.
    pub(super) async fn start_in(dir: TestDir, database: TestDatabase, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let process_lock = ProcessLock::exclusive().await;
        let (black_hole, silent_mcp_server) = (BlackHole::open().await, FakeMcpServer::start().await);
        let audio = FakeAudioServer::start().await;
        silent_mcp_server.fault_always("initialize", McpFault::Silent);
        let test_engine = TestEngine::start_on_database(dir, database, process_lock, |config| {
            // All work in one directory, so that a session that an editor opened there may change its agent.
            let main = AgentConfig {
                mcp: Some(vec!["test".to_owned()]),
                workdir: Some(config.work_dir.join("main")),
                ..config.agents[&parse_agent_id("main")].clone()
            };
            let with_server = |name: &str| AgentConfig { mcp: Some(vec![name.to_owned()]), ..main.clone() };
            let seeing = AgentConfig { vision: true, ..main.clone() };
            let skills = Some("skills".to_owned());
            let approvals = [("*".to_owned(), ApprovalPolicy::Ask)].into();
            let chain = serde_json::from_value(json!(["scripted/first", "scripted/second"])).unwrap();
            let loopback = NetworkRules::parse(&["127.0.0.1:*"]).unwrap();
            for (name, agent) in [
                ("hole", AgentConfig { model: "hole/model".into(), ..main.clone() }),
                ("chained", AgentConfig { model: chain, ..main.clone() }),
                ("small", AgentConfig { window_tokens: 400, ..main.clone() }),
                ("skilled", AgentConfig { skills, vision: false, ..seeing.clone() }),
                ("seeing", seeing),
                ("asking", AgentConfig { approvals, ..main.clone() }),
                ("listed", AgentConfig { network: NetworkAccess::List(loopback), ..main.clone() }),
                ("starting", with_server("mute")),
                ("reaching", with_server("far")),
                ("main", main.clone()),
            ] {
                config.agents.insert(parse_agent_id(name), agent);
            }
            config.hooks.on_run_start = HANGING_HOOK.into();
            config.mcp.extend(mcp_servers(&silent_mcp_server));
            config.providers.insert("hole".to_owned(), provider_config(&black_hole.base_url()));
            config.providers.insert("voice".to_owned(), provider_config(&audio.base_url()));
            config.memory.auto_recall = true;
            change(config);
        })
        .await;
        test_engine.answer_by_marker();
        let silent_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let database = test_engine.connect_to_database();
        // SQLite opens its files at the first write.
        database.lock_writes();
        database.unlock_writes();
        let (page_url, database) = (serve_page().await, Mutex::new(database));
        Self { test_engine, black_hole, silent_mcp_server, _audio: audio, silent_listener, page_url, database }
    }

    /// Files for the tools: a short one, one whose search takes longer than any stop, a picture and a skill.
    pub(super) fn write_files(&self) {
        let skill = self.test_engine.workdir().join("skills/greeting");
        std::fs::create_dir_all(&skill).unwrap();
        std::fs::write(skill.join("SKILL.md"), "---\nname: greeting\ndescription: Says hello.\n---\n").unwrap();
        std::fs::write(self.test_engine.workdir().join("dot.png"), b"\x89PNG\r\n\x1a\n").unwrap();
        let line = format!("{}\n", "the quick brown fox ".repeat(25));
        std::fs::write(self.test_engine.workdir().join("short.txt"), &line).unwrap();
        std::fs::write(self.test_engine.workdir().join("long.txt"), line.repeat(128 * 1024)).unwrap();
    }

    /// Uses everything once that is created at first use, so that the first baseline includes it.
    async fn warm_up(&self) {
        self.script_run(
            "warm-up",
            [
                ScriptedResponse::tool_call("w1", "shell", &json!({"command": "true"})),
                ScriptedResponse::tool_call("w2", "read_file", &json!({"path": "short.txt"})),
                ScriptedResponse::tool_call("w4", "test__echo", &json!({"text": "hello"})),
                ScriptedResponse::tool_call("w3", "fetch_url", &json!({"url": self.page_url})),
            ],
        );
        self.test_engine.run_message("warm-up", "warm up marker:warm-up").await;
    }

    /// The readers of a store on a server connect at their first read.
    async fn connect_readers(&self) {
        let (begun, unknown) = (Instant::now(), parse_run_id("unknown"));
        while !self.test_engine.database.is_fully_connected() {
            assert!(begun.elapsed() < WAIT_TIMEOUT, "a reader of the store does not connect");
            join_all((0..32).map(|_| self.test_engine.engine.find_run(&unknown))).await;
        }
    }

    pub(super) fn script_run(&self, run: &str, answers: impl IntoIterator<Item = ScriptedResponse>) {
        self.test_engine.script_marker(run, answers);
    }
}

/// Serves a page over HTTP until the test's runtime ends; returns its URL.
async fn serve_page() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/page.txt", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\nconnection: close";
            // A stopped caller may have disconnected already.
            let _ = connection.read(&mut [0; 4096]).await;
            let _ = connection.write_all(format!("{head}\r\n\r\nhello").as_bytes()).await;
        }
    });
    url
}

/// One case with one stop mode while it runs.
pub(super) struct CaseRun<'a> {
    pub(super) sweep: &'a SweepEngine,
    pub(super) run: RunId,
    pub(super) session: String,
    pub(super) text: String,
    /// Carried by the processes of this case.
    pub(super) mark: ProcessMarker,
    pub(super) fetch_connection: Mutex<Option<TcpStream>>,
}

impl<'a> CaseRun<'a> {
    /// `how` names the stop mode and becomes part of the run id and the session key.
    pub(super) fn new(sweep: &'a SweepEngine, case: &SweepCase, how: &str) -> Self {
        let name = format!("{}.{how}", case.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        Self {
            sweep,
            run: parse_run_id(&name),
            session: format!("session of {name}"),
            text: format!("please do {name} marker:{name}"),
            mark: ProcessMarker::new(),
            fetch_connection: Mutex::new(None),
        }
    }

    /// Sends the message without waiting for the run.
    pub(super) async fn submit(&self, case: &SweepCase) {
        self.sweep.test_engine.engine.submit(&alice(), self.submission(case)).await.unwrap();
    }

    fn submission(&self, case: &SweepCase) -> Submission {
        let engine = &self.sweep.test_engine.engine;
        let channel_origin = case
            .is_from_channel
            .then(|| channel_origin::channel_origin_with_voice(self.run.as_str(), &self.text, engine));
        Submission {
            agent: Some(parse_agent_id(case.agent)),
            channel_origin,
            work: (case.work)(),
            ..submission_as(&self.run, &self.session, &self.text)
        }
    }

    /// Sends the message and waits for `moment`. With [`SweepStopMode::CallerGone`] the sender has disconnected
    /// afterwards.
    async fn submit_and_wait(&self, case: &SweepCase, mode: SweepStopMode, moment: impl Future<Output = ()>) {
        let engine = &self.sweep.test_engine.engine;
        if mode != SweepStopMode::CallerGone {
            self.submit(case).await;
            return moment.await;
        }
        let caller = async {
            engine.submit(&alice(), self.submission(case)).await.unwrap();
            if let Ok(Some(RunFollow::Live(mut follower))) = engine.follow_run(&self.run, 0).await {
                while follower.next().await.is_some() {}
            }
            std::future::pending::<()>().await;
        };
        // The caller is dropped at any of its waits on purpose.
        tokio::select! {
            biased;
            () = moment => {}
            () = caller => {}
        }
    }

    /// Sends a message after its stop. With [`SweepStopMode::CallerGone`] the sender does not wait for the answer.
    async fn submit_after_stop(&self, case: &SweepCase, mode: SweepStopMode) {
        let alice = alice();
        let mut sending = self.sweep.test_engine.engine.submit(&alice, self.submission(case)).boxed();
        if mode == SweepStopMode::CallerGone {
            // The database may have answered by now; the sender has gone in any case.
            let _answer = self.poll_until_known(&mut sending).await;
        } else {
            sending.await.unwrap();
        }
    }

    /// Stops the run while its sender waits for a database that nobody can write. With [`SweepStopMode::CallerGone`] the
    /// sender has disconnected before it can be written again.
    async fn stop_while_accepted(&self, case: &SweepCase, mode: SweepStopMode) -> SweepStopAnswers {
        let (engine, alice) = (&self.sweep.test_engine.engine, alice());
        self.lock_database();
        let mut sending = engine.submit(&alice, self.submission(case)).boxed();
        let answer = self.poll_until_known(&mut sending).await;
        assert!(answer.is_none(), "{}: {answer:?} before the database was written", case.name);
        let answers = stop_run(engine, &self.run, mode);
        let sending = (mode != SweepStopMode::CallerGone).then_some(sending);
        self.unlock_database();
        if let Some(sending) = sending {
            sending.await.unwrap();
        }
        answers
    }

    /// Polls a message that is being sent until its run is in memory, or the sender is answered.
    async fn poll_until_known<T>(&self, sending: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        let engine = &self.sweep.test_engine.engine;
        poll_fn(|context| match sending.poll_unpin(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if engine.live_run(&self.run).is_some() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Waits until the run has come this far.
    pub(super) async fn wait_progress(&self, progress: RunProgress) {
        let (engine, run) = (self.sweep.test_engine.engine.clone(), self.run.clone());
        let found = move || engine.live_run(&run).map(|live_run| live_run.progress());
        leaks::wait_for_value("the progress of the run", Some(progress), found).await;
    }

    /// Blocks all writes to the database until [`CaseRun::unlock_database`].
    pub(super) fn lock_database(&self) {
        self.sweep.database.lock().unwrap().lock_writes();
    }

    pub(super) fn unlock_database(&self) {
        self.sweep.database.lock().unwrap().unlock_writes();
    }

    pub(super) async fn stop_at_moment(&self, case: &SweepCase, mode: SweepStopMode) -> SweepStopAnswers {
        let engine = &self.sweep.test_engine.engine;
        match case.moment {
            StopMoment::BeforeMessage => {
                let answers = stop_run(engine, &self.run, mode);
                self.submit_after_stop(case, mode).await;
                answers
            }
            StopMoment::WhileAccepted => self.stop_while_accepted(case, mode).await,
            StopMoment::OnCondition(moment) => {
                self.submit_and_wait(case, mode, moment(self)).await;
                stop_run(engine, &self.run, mode)
            }
            StopMoment::AtPoint(point, nth) => {
                let slot = Arc::new(Mutex::new(None));
                let (engine, run, result) = (engine.clone(), self.run.clone(), Arc::clone(&slot));
                let point_hook = &self.sweep.test_engine.point_hook;
                point_hook.arm(point, nth, move || *result.lock().unwrap() = Some(stop_run(&engine, &run, mode)));
                self.submit_and_wait(case, mode, async {
                    let _point = point_hook.wait_fired().await;
                })
                .await;
                slot.lock().unwrap().take().unwrap()
            }
        }
    }
}

/// MCP servers of the sweep: one that works, and two that never answer the initialisation, as a process and by URL. No
/// server stays after a run.
fn mcp_servers(silent: &FakeMcpServer) -> Vec<(String, McpConfig)> {
    let server = || McpConfig {
        command: Some("sh".to_owned()),
        args: vec!["-c".to_owned(), mcp::SERVER_SCRIPT.to_owned()],
        idle_s: Some(0),
        grace_ms: Some(100),
        // Its marks lie outside of the workdir.
        sandbox: Some(quell_protocol::SandboxMode::Off),
        ..McpConfig::default()
    };
    let mut mute = server();
    mute.env.insert("MCP_MUTE".to_owned(), "1".to_owned());
    let silent_url = McpConfig { url: Some(silent.url()), ..McpConfig::default() };
    vec![("test".to_owned(), server()), ("mute".to_owned(), mute), ("far".to_owned(), silent_url)]
}

pub(super) fn do_nothing<'a>(_: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    Box::pin(ready(()))
}
