//! Disks that are full or refuse writes: runs end with a clear verdict, nothing hangs, and a stop works as ever. The disks are
//! real: small file systems in a mount name space of the daemon's own, which needs root or user name spaces.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use quell_engine::store::{Database, inspect};
use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::model::{Behaviour, Stream};
use serde_json::json;

use crate::cli::{exe, run};
use crate::harness::PATIENCE;

fn config(model: &ScriptedModel) -> String {
    format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\n[agents.main]\nmodel = \"scripted/m\"\n",
        model.base_url()
    )
}

/// A program that does this in a mount name space of its own and goes on as the binary under test.
fn wrapped(home: &Home, first: &str) -> PathBuf {
    let first = format!("exec unshare --user --map-root-user --mount sh -c '{first} && exec \"$0\" \"$@\"'");
    script(home, &format!("{first} '{}' \"$@\"", exe().display()))
}

fn script(home: &Home, text: &str) -> PathBuf {
    let path = home.data().join("wrapper");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A daemon whose database lies on a disk of its own with little room.
struct Cramped {
    model: ScriptedModel,
    daemon: Daemon,
    /// The disk as the daemon sees it.
    disk: PathBuf,
}

impl Cramped {
    async fn open() -> Self {
        let model = ScriptedModel::start().await;
        let home = Home::new(&config(&model));
        let disk = home.data().join("disk");
        std::fs::create_dir(&disk).unwrap();
        std::os::unix::fs::symlink("disk/quell.db", home.data().join("quell.db")).unwrap();
        let disk_path = disk.display();
        let first = format!("mount -t tmpfs -o size=8m small \"{disk_path}\" && : > \"{disk_path}/quell.db\"");
        let daemon = home.start(&wrapped(&home, &first)).await;
        let disk = Path::new("/proc").join(daemon.pid().to_string()).join("root").join(disk.strip_prefix("/").unwrap());
        Self { model, daemon, disk }
    }

    /// Leaves not a byte.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.disk.join("filler")).unwrap();
        while filler.write(&[0; 512]).is_ok() {}
    }

    fn make_room(&self) {
        std::fs::remove_file(self.disk.join("filler")).unwrap();
    }

    /// Waits until `/readyz` answers this; an answer counts for a moment. Returns its text.
    async fn readiness(&self, status: u16) -> String {
        let begun = Instant::now();
        loop {
            let answer = self.daemon.http().get("/readyz").await;
            if answer.status == status {
                return format!("{answer:?}");
            }
            assert!(begun.elapsed() < PATIENCE, "{answer:?}");
        }
    }

    /// Whether a restart would find the hold.
    fn hold_in_database(&self) -> bool {
        let copy = tempfile::tempdir().unwrap();
        for name in ["quell.db", "quell.db-wal"] {
            std::fs::copy(self.disk.join(name), copy.path().join(name)).unwrap();
        }
        let found = inspect(copy.path(), "quell.db").unwrap();
        matches!(found.database, Database::Whole(hold) if hold.held)
    }

    async fn send(&self, session: &str) -> quell_testkit::daemon::Answer {
        self.daemon.http().post(&format!("/api/sessions/{session}/runs"), &json!({"text": "go"})).await
    }

    /// A run whose model waits for the gate before it says this.
    async fn waiting(&self, session: &str, then: Behaviour) -> String {
        let n = self.model.seen().len();
        self.model.script(then);
        let run = self.send(session).await.expect_status(202)["runId"].as_str().unwrap().to_owned();
        self.model.request(n).resting().await;
        run
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_runs_with_a_reason_and_hangs_nothing() {
    let site = Cramped::open().await;
    let http = site.daemon.http();
    let gate = || Stream::new().text("I have an idea.").wait_for("go");
    let tool = gate().tool_call("c1", "shell", &json!({"command": "touch proof"}));
    let acting = site.waiting("acting", tool.into()).await;
    let talking = site.waiting("talking", gate().text("This is it.").into()).await;
    let silent = site.waiting("silent", Behaviour::silent_mid_stream("Well")).await;
    site.fill();

    let refused = site.send("new").await;
    assert_eq!((refused.status, refused.code()), (503, Some("store_unavailable")), "{refused:?}");
    let problem = format!("{refused:?}");
    assert!(problem.contains("full"), "{problem}");
    let stopped = http.post(&format!("/api/runs/{silent}/stop?wait=1"), &json!({})).await.expect_status(200);
    assert_eq!(stopped["aborted"], true, "{stopped:#}");

    site.model.open_gate("go");
    let log = tokio::time::timeout(PATIENCE, async { http.events(&acting, 0).await.to_end().await }).await.unwrap();
    log.assert_sound();
    let verdict = log.receipt()["verdict"].clone();
    assert_eq!((&verdict["kind"], &verdict["code"]), (&json!("failed"), &json!("store")), "{verdict:#}");
    let why = verdict["message"].as_str().unwrap();
    assert!(why.contains("shell was not started") && why.contains("full"), "{why}");
    assert!(!site.daemon.home().work().join("main/proof").exists(), "it was started all the same");
    let log = http.events(&talking, 0).await.to_end().await;
    assert_eq!((log.verdict(), log.text().as_str()), ("completed", "I have an idea.This is it."));
    assert_eq!(log.receipt()["turn"]["recorded"], false, "the receipt hides that the turn is not in the database");

    site.make_room();
    site.model.script(Behaviour::text("Here again."));
    let next = site.send("talking").await.expect_status(202)["runId"].as_str().unwrap().to_owned();
    let log = http.events(&next, 0).await.to_end().await;
    assert_eq!((log.verdict(), &log.receipt()["turn"]["recorded"]), ("completed", &json!(true)));
    let past = http.get("/api/sessions/talking/history").await.expect_status(200).to_string();
    let (kept, new) = (past.find("This is it."), past.find("Here again."));
    assert!(kept.is_some() && kept < new, "what was said while the disk was full is not before what followed: {past}");
    site.model.assert_histories_valid();
    assert!(site.daemon.stop().await.success(), "{}", site.daemon.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_on_a_full_disk_says_that_it_is_not_written_and_is_written_later() {
    let site = Cramped::open().await;
    let http = site.daemon.http();
    assert_eq!(http.get("/readyz").await.status, 200);
    site.fill();
    let refused = http.send(http.request(reqwest::Method::PUT, "/api/hold")).await;
    assert_eq!((refused.status, refused.code()), (503, Some("store_unavailable")), "{refused:?}");
    assert!(format!("{refused:?}").contains("new runs are refused from now on"), "{refused:?}");
    assert_eq!(http.get("/api/hold").await.expect_status(200)["held"], true, "it is told that nothing is on hold");
    assert_eq!(site.send("new").await.code(), Some("held"));
    let unready = site.readiness(503).await;
    assert!(unready.contains("0 KiB are free"), "{unready}");
    assert!(!site.hold_in_database(), "it fits, so this test shows nothing");

    site.make_room();
    site.readiness(200).await;
    assert_eq!(http.get("/api/hold").await.expect_status(200)["held"], true);
    let begun = Instant::now();
    while !site.hold_in_database() {
        assert!(begun.elapsed() < PATIENCE, "not written although there is room\n{}", site.daemon.output());
    }
}

/// The first write of a start is the number of the boot, which all later ones are checked against.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_grow_at_the_start_is_not_taken_for_another_daemon() {
    let model = ScriptedModel::start().await;
    let home = Home::new(&config(&model));
    home.start(exe()).await.kill9().await;
    // What a crash leaves of the database's log is as long as a file may be: it cannot grow.
    let log = std::fs::metadata(home.data().join("quell.db-wal")).unwrap().len();
    assert!(log > 64 * 1024, "the shared memory beside a log of {log} bytes does not fit either");
    let wrapper = script(&home, &format!("trap '' XFSZ; ulimit -f 72; exec '{}' \"$@\"", exe().display()));
    let daemon = home.start_unready(&wrapper).await;
    let unready = daemon.http().get("/readyz").await;
    assert!(format!("{unready:?}").contains("cannot be read or written"), "{unready:?}");
    let refused = daemon.http().post("/api/sessions/s/runs", &json!({"text": "go"})).await;
    assert_eq!((refused.status, refused.code()), (503, Some("store_unavailable")), "{refused:?}");
    assert!(daemon.stop().await.success(), "{}", daemon.output());
    assert!(home.start(exe()).await.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_refuses_writes_is_named_at_the_start() {
    let model = ScriptedModel::start().await;
    let home = Home::new(&config(&model));
    assert!(home.start(exe()).await.stop().await.success());
    let data = home.data();
    let data = data.display();
    let first = format!("mount --bind \"{data}\" \"{data}\" && mount -o remount,bind,ro \"{data}\"");
    let wrapper = wrapped(&home, &first);
    let mut serve = home.command(&wrapper);
    serve.arg("serve").arg("--config").arg(home.config()).args(["--listen", "127.0.0.1:0"]);
    let ended = run(&mut serve);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.err.contains("ead-only file system") && ended.err.contains("quell.lock"), "{ended:?}");
    assert!(!ended.err.contains("panicked"), "{ended:?}");
    // The data is as it was, and opens again where it can be written.
    assert!(home.start(exe()).await.stop().await.success());
}
