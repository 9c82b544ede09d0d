//! Full or read-only disks: runs end with a clear verdict, nothing hangs, and stops still work.
//!
//! The disks are real: small file systems in a mount namespace of the daemon, which needs root or user namespaces.

use quell_store::sqlite::{DatabaseState, inspect_database};

use super::SmallDisk;
use crate::prelude::*;

/// A program that runs `first` in its own mount namespace and then executes the binary under test.
fn wrap_in_namespace(home: &DaemonHome, first: &str) -> PathBuf {
    let first = format!("exec unshare --user --map-root-user --mount sh -c '{first} && exec \"$0\" \"$@\"'");
    write_shell_program(home.data_dir().join("wrapper"), &format!("{first} '{}' \"$@\"", quell_exe().display()))
}

/// A daemon whose database lies on a small disk of its own.
struct SmallDiskDaemon {
    model: ScriptedModel,
    daemon: TestDaemon,
    disk: SmallDisk,
}

impl SmallDiskDaemon {
    async fn start() -> Self {
        let model = ScriptedModel::start().await;
        let home = DaemonHome::new(&config_toml(&model, ""));
        let disk = home.data_dir().join("disk");
        std::fs::create_dir(&disk).unwrap();
        std::os::unix::fs::symlink("disk/quell.db", home.data_dir().join("quell.db")).unwrap();
        let disk_path = disk.display();
        let first = format!("mount -t tmpfs -o size=8m small \"{disk_path}\" && : > \"{disk_path}/quell.db\"");
        let daemon = home.start(&wrap_in_namespace(&home, &first)).await;
        let disk = SmallDisk::of_process(daemon.pid(), &disk);
        Self { model, daemon, disk }
    }

    /// Polls `/readyz` until it answers with this status, and returns the answer. The daemon caches the answer for a
    /// moment.
    /// True when a restart would find the hold.
    fn hold_in_database(&self) -> bool {
        let copy = tempfile::tempdir().unwrap();
        for name in ["quell.db", "quell.db-wal"] {
            std::fs::copy(self.disk.0.join(name), copy.path().join(name)).unwrap();
        }
        let found = inspect_database(copy.path(), "quell.db").unwrap();
        matches!(found.database, DatabaseState::Readable(hold) if hold.held)
    }

    async fn send_message(&self, session: &str) -> TestApiResponse {
        self.daemon.api().post_run(session, &json!({"text": "go"})).await
    }

    /// Starts a run whose model waits for a gate within `then`.
    async fn start_gated_run(&self, session: &str, then: ScriptedResponse) -> String {
        let n = self.model.recorded_requests().len();
        self.model.script(then);
        let run = self.daemon.api().send_message(session, "go").await;
        self.model.request_at(n).wait_paused().await;
        run
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_runs_with_a_reason_and_hangs_nothing() {
    let fixture = SmallDiskDaemon::start().await;
    let http = fixture.daemon.api();
    let gate = || ScriptedStream::new().text("I have an idea.").wait_for_gate("go");
    let tool = gate().tool_call("c1", "shell", &json!({"command": "touch proof"}));
    let acting = fixture.start_gated_run("acting", tool.into()).await;
    let talking = fixture.start_gated_run("talking", gate().text("This is it.").into()).await;
    let silent = fixture.start_gated_run("silent", ScriptedResponse::silent_mid_stream("Well")).await;
    fixture.disk.fill();

    let refused = fixture.send_message("new").await;
    assert_eq!((refused.status, refused.problem_code()), (503, Some("store_unavailable")), "{refused:?}");
    let problem = format!("{refused:?}");
    assert!(problem.contains("full"), "{problem}");
    let stopped = http.stop_run(&silent).await;
    assert_eq!(stopped["aborted"], true, "{stopped:#}");

    fixture.model.open_gate("go");
    let log = tokio::time::timeout(WAIT_TIMEOUT, async { http.run_events(&acting, 0).await.read_to_end().await })
        .await
        .unwrap();
    log.assert_valid();
    let verdict = log.receipt()["verdict"].clone();
    assert_eq!((&verdict["kind"], &verdict["code"]), (&json!("failed"), &json!("store")), "{verdict:#}");
    let why = verdict["message"].as_str().unwrap();
    assert!(why.contains("shell was not started") && why.contains("full"), "{why}");
    assert!(!fixture.daemon.home().work_dir().join("main/proof").exists(), "the call was started");
    let log = http.run_events(&talking, 0).await.read_to_end().await;
    assert_eq!((log.verdict(), log.text().as_str()), ("completed", "I have an idea.This is it."));
    assert_eq!(log.receipt()["turn"]["recorded"], false, "the receipt claims that the turn is in the database");

    fixture.disk.free();
    fixture.model.script(ScriptedResponse::text("Here again."));
    let next = http.send_message("talking", "go").await;
    let log = http.run_events(&next, 0).await.read_to_end().await;
    assert_eq!((log.verdict(), &log.receipt()["turn"]["recorded"]), ("completed", &json!(true)));
    let past = http.get("/api/sessions/talking/history").await.expect_status(200).to_string();
    let (kept, new) = (past.find("This is it."), past.find("Here again."));
    assert!(kept.is_some() && kept < new, "the turn from the full disk must come before the next one: {past}");
    fixture.model.assert_histories_valid();
    assert!(fixture.daemon.stop().await.success(), "{}", fixture.daemon.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_on_a_full_disk_says_that_it_is_not_written_and_is_written_later() {
    let fixture = SmallDiskDaemon::start().await;
    let http = fixture.daemon.api();
    assert_eq!(http.get("/readyz").await.status, 200);
    fixture.disk.fill();
    let refused = http.send(http.request(reqwest::Method::PUT, "/api/hold")).await;
    assert_eq!((refused.status, refused.problem_code()), (503, Some("store_unavailable")), "{refused:?}");
    assert!(format!("{refused:?}").contains("new runs are refused from now on"), "{refused:?}");
    assert_eq!(http.get("/api/hold").await.expect_status(200)["held"], true, "the hold is not in force");
    assert_eq!(fixture.send_message("new").await.problem_code(), Some("held"));
    // The answer of a moment ago is not given again while the hold waits.
    let unready = http.get("/readyz").await;
    assert_eq!(unready.status, 503, "{unready:?}");
    assert!(format!("{unready:?}").contains("0 KiB are free"), "{unready:?}");
    assert!(!fixture.hold_in_database(), "the hold was written, so this test proves nothing");

    fixture.disk.free();
    poll_until("readiness", async || (http.get("/readyz").await.status == 200).then_some(())).await;
    assert_eq!(http.get("/api/hold").await.expect_status(200)["held"], true);
    poll_until("the hold in the database", async || fixture.hold_in_database().then_some(())).await;
}

/// The first write of a start is the boot number, against which all later writes are checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_grow_at_the_start_is_not_taken_for_another_daemon() {
    let model = ScriptedModel::start().await;
    let home = DaemonHome::new(&config_toml(&model, ""));
    home.start(quell_exe()).await.kill9().await;
    // The database log of a crash has the maximum file size already, so it cannot grow.
    let log = std::fs::metadata(home.data_dir().join("quell.db-wal")).unwrap().len();
    assert!(log > 64 * 1024, "the shared memory beside a log of {log} bytes does not fit either");
    let wrapper = write_shell_program(
        home.data_dir().join("wrapper"),
        &format!("trap '' XFSZ; ulimit -f 72; exec '{}' \"$@\"", quell_exe().display()),
    );
    let daemon = home.start_unready(&wrapper).await;
    let unready = daemon.api().get("/readyz").await;
    assert!(format!("{unready:?}").contains("cannot be read or written"), "{unready:?}");
    let refused = daemon.api().post_run("s", &json!({"text": "go"})).await;
    assert_eq!((refused.status, refused.problem_code()), (503, Some("store_unavailable")), "{refused:?}");
    assert!(daemon.stop().await.success(), "{}", daemon.output());
    assert!(home.start(quell_exe()).await.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_refuses_writes_is_named_at_the_start() {
    let model = ScriptedModel::start().await;
    let home = DaemonHome::new(&config_toml(&model, ""));
    assert!(home.start(quell_exe()).await.stop().await.success());
    let data = home.data_dir();
    let data = data.display();
    let first = format!("mount --bind \"{data}\" \"{data}\" && mount -o remount,bind,ro \"{data}\"");
    let wrapper = wrap_in_namespace(&home, &first);
    let mut serve = home.command(&wrapper);
    serve.arg("serve").arg("--config").arg(home.config_file()).args(["--listen", "127.0.0.1:0"]);
    let ended = run_to_exit(&mut serve);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.err.contains("ead-only file system") && ended.err.contains("quell.lock"), "{ended:?}");
    assert!(!ended.err.contains("panicked"), "{ended:?}");
    // The data is unchanged, and opens again where it can be written.
    assert!(home.start(quell_exe()).await.stop().await.success());
}
