//! One case in one mode, from the message to the proof; and the place where all of them are played.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use futures_util::poll;
use quell_engine::EngineConfig;
use quell_engine::agent::AgentConfig;
use quell_engine::dispatch::{Follow, Submission};
use quell_kernel::approval::ApprovalPolicy;
use quell_protocol::RunId;
use quell_testkit::Behaviour;
use quell_testkit::commands::Marker;
use quell_testkit::leaks::{Baseline, Tasks};
use quell_testkit::mcp::{HttpServer, Manner};
use quell_testkit::model::BlackHole;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::cases::{Case, From, Moment};
use super::proof::{self, Proven};
use super::servers;
use super::strike::{Mode, Struck, strike, wait_and_leave};
use super::{chat, hooked};
use crate::harness::{Claim, DataDir, Ground, House, PATIENCE, Watcher, agent, alice, message_as, provider, run_id};

/// One engine for all cases of a mode, with everything that can keep a run waiting.
pub(super) struct Site {
    pub(super) house: House,
    /// Never completes a connection; the agent `hole` has its model there.
    pub(super) hole: BlackHole,
    /// Takes a request and never says hello: for MCP by URL.
    pub(super) mute: HttpServer,
    /// Accepts and never answers: for `fetch_url`.
    pub(super) quiet: TcpListener,
    /// Serves a page: for `fetch_url`.
    pub(super) page: String,
    /// A second connection to the database. SQLite keeps its file open while the engine's are, so there is one for all cases.
    pub(super) database: Mutex<rusqlite::Connection>,
}

impl Site {
    pub(super) async fn open() -> Self {
        let site = Self::on(Ground::Own(DataDir::new()), |_| {}).await;
        site.lay_out();
        site.warm_up().await;
        site
    }

    /// A site on this ground, with nothing laid out.
    pub(super) async fn on(ground: Ground, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let claim = Claim::alone().await;
        let (hole, mute) = (BlackHole::open().await, HttpServer::start().await);
        mute.always("initialize", Manner::Silent);
        let house = House::on(ground, claim, |config| {
            let model = AgentConfig { model: "hole/model".to_owned(), ..AgentConfig::default() };
            config.agents.insert(agent("hole"), model);
            let mut small = config.agents.get(&agent("main")).unwrap().clone();
            small.window_tokens = 400;
            config.agents.insert(agent("small"), small);
            let mut seeing = config.agents.get(&agent("main")).unwrap().clone();
            (seeing.vision, seeing.workdir) = (true, Some(config.work_dir.join("main")));
            config.agents.insert(agent("seeing"), seeing);
            let skills = Some("skills".to_owned());
            let skilled = AgentConfig { skills, vision: false, ..config.agents[&agent("seeing")].clone() };
            config.agents.insert(agent("skilled"), skilled);
            let mut asking = config.agents.get(&agent("main")).unwrap().clone();
            asking.approvals.insert("*".to_owned(), ApprovalPolicy::Ask);
            config.agents.insert(agent("asking"), asking);
            config.hooks.on_run_start = hooked::COMMAND.into();
            config.mcp.extend(servers::servers(&mute));
            for (name, server) in [("starting", "mute"), ("reaching", "far")] {
                let mut starting = config.agents.get(&agent("main")).unwrap().clone();
                starting.mcp = Some(vec![server.to_owned()]);
                config.agents.insert(agent(name), starting);
            }
            for main in ["main", "hole", "asking", "small", "seeing", "skilled"] {
                config.agents.get_mut(&agent(main)).unwrap().mcp = Some(vec!["test".to_owned()]);
            }
            config.providers.insert("hole".to_owned(), provider(&hole.base_url()));
            config.memory.auto_recall = true;
            change(config);
        })
        .await;
        house.answer_by_marker();
        let quiet = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let database = rusqlite::Connection::open(house.dir.path().join("quell.db")).unwrap();
        database.busy_timeout(PATIENCE).unwrap();
        // It opens its files when it writes first.
        database.execute_batch("BEGIN IMMEDIATE; ROLLBACK").unwrap();
        let page = serve_a_page().await;
        Self { house, hole, mute, quiet, page, database: Mutex::new(database) }
    }

    /// Files for the tools: a short one, and one whose search takes longer than any stop; a picture, and a skill.
    pub(super) fn lay_out(&self) {
        let skill = self.workdir().join("skills/greeting");
        std::fs::create_dir_all(&skill).unwrap();
        std::fs::write(skill.join("SKILL.md"), "---\nname: greeting\ndescription: Says hello.\n---\n").unwrap();
        std::fs::write(self.workdir().join("dot.png"), b"\x89PNG\r\n\x1a\n").unwrap();
        let line = format!("{}\n", "the quick brown fox ".repeat(25));
        std::fs::write(self.workdir().join("short.txt"), &line).unwrap();
        std::fs::write(self.workdir().join("long.txt"), line.repeat(128 * 1024)).unwrap();
    }

    /// One run through everything that is made at its first use, so that it is there when the first baseline is taken.
    async fn warm_up(&self) {
        self.script(
            "warm-up",
            [
                Behaviour::tool_call("w1", "shell", &serde_json::json!({"command": "true"})),
                Behaviour::tool_call("w2", "read_file", &serde_json::json!({"path": "short.txt"})),
                Behaviour::tool_call("w4", "test__echo", &serde_json::json!({"text": "hello"})),
                Behaviour::tool_call("w3", "fetch_url", &serde_json::json!({"url": self.page})),
            ],
        );
        self.house.ask("warm-up", "warm up marker:warm-up").await;
    }

    pub(super) fn workdir(&self) -> PathBuf {
        self.house.workdir()
    }

    pub(super) fn script(&self, run: &str, answers: impl IntoIterator<Item = Behaviour>) {
        self.house.script(run, answers);
    }

    pub(super) async fn close(self) {
        self.house.close().await;
    }
}

/// A page over HTTP, served until the test's runtime ends.
async fn serve_a_page() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/page.txt", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let answer =
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
            // Whoever was stopped has left before the answer.
            let _ = connection.read(&mut [0; 4096]).await;
            let _ = connection.write_all(answer).await;
        }
    });
    url
}

/// One case being played.
pub(super) struct Scene<'a> {
    pub(super) site: &'a Site,
    pub(super) run: RunId,
    pub(super) session: String,
    pub(super) text: String,
    /// Carried by the processes of this case.
    pub(super) mark: Marker,
    /// What `fetch_url` connected with.
    pub(super) fetching: Mutex<Option<TcpStream>>,
}

impl<'a> Scene<'a> {
    /// A case on its site; `how` it is played is in its names.
    pub(super) fn of(site: &'a Site, case: &Case, how: &str) -> Self {
        let name = format!("{}.{how}", case.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        Self {
            site,
            run: run_id(&name),
            session: format!("session of {name}"),
            text: format!("please do {name} marker:{name}"),
            mark: Marker::new(),
            fetching: Mutex::new(None),
        }
    }

    /// Sends the message and goes on.
    pub(super) async fn submit(&self, case: &Case) {
        self.site.house.engine.submit(&alice(), self.message(case)).await.unwrap();
    }

    fn message(&self, case: &Case) -> Submission {
        let errand = (case.from == From::AChat).then(|| chat::errand(self.run.as_str(), &self.text));
        Submission { agent: Some(agent(case.agent)), errand, ..message_as(&self.run, &self.session, &self.text) }
    }

    /// Sends the message, and with it whatever `moment` waits for. In [`Mode::CallerGone`] whoever sent is gone after it.
    async fn send(&self, case: &Case, mode: Mode, moment: impl Future<Output = ()>) {
        let engine = &self.site.house.engine;
        if mode != Mode::CallerGone {
            self.submit(case).await;
            return moment.await;
        }
        let caller = async {
            engine.submit(&alice(), self.message(case)).await.unwrap();
            if let Ok(Some(Follow::Live(mut follower))) = engine.follow(&self.run, 0).await {
                while follower.next().await.is_some() {}
            }
            std::future::pending::<()>().await;
        };
        // The caller is to be dropped wherever it stands: that is the case.
        tokio::select! {
            biased;
            () = moment => {}
            () = caller => {}
        }
    }

    /// Sends a message whose stop came first. In [`Mode::CallerGone`] the sender does not stay for the answer.
    async fn send_late(&self, case: &Case, mode: Mode) {
        let alice = alice();
        let mut sending = pin!(self.site.house.engine.submit(&alice, self.message(case)));
        if mode == Mode::CallerGone {
            assert!(poll!(sending.as_mut()).is_pending(), "accepted without a word from the database");
        } else {
            sending.await.unwrap();
        }
    }

    async fn stopped(&self, case: &Case, mode: Mode) -> Struck {
        let engine = &self.site.house.engine;
        match case.moment {
            Moment::Before => {
                let struck = strike(engine, &self.run, mode);
                self.send_late(case, mode).await;
                struck
            }
            Moment::When(moment) => {
                self.send(case, mode, moment(self)).await;
                strike(engine, &self.run, mode)
            }
            Moment::At(point, nth) => {
                let slot = Arc::new(Mutex::new(None));
                let (engine, run, result) = (engine.clone(), self.run.clone(), Arc::clone(&slot));
                let trap = &self.site.house.trap;
                trap.arm(point, nth, move || *result.lock().unwrap() = Some(strike(&engine, &run, mode)));
                self.send(case, mode, async {
                    let _point = trap.sprung().await;
                })
                .await;
                slot.lock().unwrap().take().unwrap()
            }
        }
    }
}

/// Plays one case in one mode and proves that the stop was one.
pub(super) async fn play(site: &Site, case: &Case, mode: Mode) -> Proven {
    let scene = Scene::of(site, case, &format!("{mode:?}"));
    let (baseline, tasks) = (Baseline::of(std::process::id()), Tasks::now());
    let mut watcher = Watcher::of(&site.house.engine);
    (case.prepare)(&scene).await;
    let struck = scene.stopped(case, mode).await;
    if mode == Mode::CallerGone {
        wait_and_leave(&struck).await;
    }
    (case.aftermath)(&scene).await;
    watcher.until_ended(&scene.run).await;
    let proven = proof::of(&scene, case, &struck, &mut watcher).await;
    drop(watcher);
    let _back = baseline.assert_back_but_for(proof::POOLS, PATIENCE).await;
    let _back = tasks.assert_back(PATIENCE).await;
    proven
}
