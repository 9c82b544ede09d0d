//! Full or read-only disks: runs end with a clear verdict, nothing hangs, and stops still work. A daemon that starts on
//! a full disk ends what the last one left, answers queries and accepts stops, but accepts no runs until there is room.
//!
//! The disks are real: small file systems in a mount namespace, which needs root or user namespaces.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use quell_store::DatabaseState;
use quell_store::sqlite::inspect_database;

use super::*;

/// A program that runs `first` in its own mount namespace and then executes the binary under test.
fn wrap_in_namespace(home: &DaemonHome, first: &str) -> PathBuf {
    let first = format!("exec unshare --user --map-root-user --mount sh -c '{first} && exec \"$0\" \"$@\"'");
    write_shell_program(home.data_dir().join("wrapper"), &format!("{first} '{}' \"$@\"", quell_exe().display()))
}

/// A home whose data directory lies on a small file system that outlives its daemons.
struct SmallDiskHome {
    model: ScriptedModel,
    home: DaemonHome,
    /// Starts the daemon inside the mount namespace of the small disk.
    wrapper: PathBuf,
    /// The data directory.
    disk: SmallDisk,
    /// Keeps the file system mounted.
    holder: Child,
}

impl SmallDiskHome {
    async fn mount() -> Self {
        let model = ScriptedModel::start().await;
        let home = DaemonHome::new("").with_env("QUELL_TOKEN", "a-token-of-the-test");
        let token = home.root_dir().join("token");
        let config = format!(
            "[server]\ntoken_file = {token:?}\n{}\
             [agents.main]\nmodel = \"scripted/m\"\nisolate = \"none\"\nsandbox = \"off\"\n",
            provider_toml(&model)
        );
        std::fs::write(home.config_file(), config).unwrap();
        // The second place is for the test support, which reads it outside the namespace; the daemon sees its disk
        // there.
        for place in [token, home.data_dir().join("token")] {
            std::fs::write(&place, "a-token-of-the-test\n").unwrap();
            std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let disk = home.data_dir();
        let first = format!("mount -t tmpfs -o size=8m,mode=700 small {disk:?} && echo mounted && cat");
        #[expect(clippy::disallowed_methods, reason = "keeps a file system mounted for the binary under test")]
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &first]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "mounted\n");
        let pid = holder.id();
        let enter = format!("exec nsenter --target {pid} --user --mount --preserve-credentials");
        let wrapper = format!("{enter} -- '{}' \"$@\"", quell_exe().display());
        let wrapper = write_shell_program(home.root_dir().join("wrapper"), &wrapper);
        Self { model, home, wrapper, disk: SmallDisk::of_process(pid, &disk), holder }
    }

    /// Starts a run whose model waits for a gate within `then`.
    async fn start_gated_run(&self, daemon: &TestDaemon, session: &str, then: ScriptedResponse) -> String {
        let n = self.model.recorded_requests().len();
        self.model.script(then);
        let run = daemon.api().send_message(session, "go").await;
        self.model.request_at(n).wait_paused().await;
        run
    }

    /// True when a restart would find the hold.
    fn hold_in_database(&self) -> bool {
        let copy = tempfile::tempdir().unwrap();
        for name in ["quell.db", "quell.db-wal"] {
            std::fs::copy(self.disk.0.join(name), copy.path().join(name)).unwrap();
        }
        let found = inspect_database(copy.path(), "quell.db").unwrap();
        matches!(found.database, DatabaseState::Readable(hold) if hold.held)
    }

    async fn wait_ready(&self, daemon: &TestDaemon) {
        let is_ready = async || (daemon.api().get("/readyz").await.status == 200).then_some(());
        poll_until("readiness", is_ready).await;
    }

    async fn assert_answers(&self, daemon: &TestDaemon, session: &str, text: &str) {
        self.model.script(ScriptedResponse::text(text));
        let run = daemon.api().send_message(session, "go").await;
        let log = daemon.api().run_events(&run, 0).await.read_to_end().await;
        assert_eq!((log.verdict(), &log.receipt()["turn"]["recorded"]), ("completed", &json!(true)));
        assert_eq!(daemon.api().run_view(&run).await["output"], text);
        self.model.assert_histories_valid();
    }
}

impl Drop for SmallDiskHome {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // It exits at the end of its input.
        let _ = self.holder.wait();
    }
}

/// Fails unless the answer says that the database cannot be used, with these words.
#[track_caller]
fn assert_unavailable(answer: &TestApiResponse, words: &str) {
    assert_problem(answer, 503, "store_unavailable");
    assert!(answer.body.to_string().contains(words), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_runs_with_a_reason_and_hangs_nothing() {
    let fixture = SmallDiskHome::mount().await;
    let daemon = fixture.home.start(&fixture.wrapper).await;
    let http = daemon.api();
    let gate = || ScriptedStream::new().text("I have an idea.").wait_for_gate("go");
    let tool = gate().tool_call("c1", "shell", &json!({"command": "touch proof"}));
    let acting = fixture.start_gated_run(&daemon, "acting", tool.into()).await;
    let talking = fixture.start_gated_run(&daemon, "talking", gate().text("This is it.").into()).await;
    let silent = fixture.start_gated_run(&daemon, "silent", ScriptedResponse::silent_mid_stream("Well")).await;
    fixture.disk.fill();

    let refused = http.post_run("new", &json!({"text": "go"})).await;
    assert_unavailable(&refused, "full");
    let stopped = http.stop_run(&silent).await;
    assert_eq!(stopped["aborted"], true, "{stopped:#}");

    fixture.model.open_gate("go");
    let ended = async { http.run_events(&acting, 0).await.read_to_end().await };
    let log = tokio::time::timeout(WAIT_TIMEOUT, ended).await.unwrap();
    log.assert_valid();
    let verdict = log.receipt()["verdict"].clone();
    assert_eq!((&verdict["kind"], &verdict["code"]), (&json!("failed"), &json!("store")), "{verdict:#}");
    let why = verdict["message"].as_str().unwrap();
    assert!(why.contains("shell was not started") && why.contains("full"), "{why}");
    assert!(!fixture.home.work_dir().join("main/proof").exists(), "the call was started");
    let log = http.run_events(&talking, 0).await.read_to_end().await;
    assert_eq!((log.verdict(), log.text().as_str()), ("completed", "I have an idea.This is it."));
    assert_eq!(log.receipt()["turn"]["recorded"], false, "the receipt claims that the turn is in the database");

    fixture.disk.free();
    fixture.assert_answers(&daemon, "talking", "Here again.").await;
    let past = http.get("/api/sessions/talking/history").await.expect_status(200).to_string();
    let (kept, new) = (past.find("This is it."), past.find("Here again."));
    assert!(kept.is_some() && kept < new, "the turn from the full disk must come before the next one: {past}");
    assert!(daemon.stop().await.success(), "{}", daemon.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_on_a_full_disk_says_that_it_is_not_written_and_is_written_later() {
    let fixture = SmallDiskHome::mount().await;
    let daemon = fixture.home.start(&fixture.wrapper).await;
    let http = daemon.api();
    assert_eq!(http.get("/readyz").await.status, 200);
    fixture.disk.fill();
    let refused = http.send(http.request(reqwest::Method::PUT, "/api/hold")).await;
    assert_unavailable(&refused, "new runs are refused from now on");
    assert_eq!(http.get("/api/hold").await.expect_status(200)["held"], true, "the hold is not in force");
    assert_eq!(http.post_run("new", &json!({"text": "go"})).await.problem_code(), Some("held"));
    // The answer of a moment ago is not given again while the hold waits.
    assert_unavailable(&http.get("/readyz").await, "0 KiB are free");
    assert!(!fixture.hold_in_database(), "the hold was written, so this test proves nothing");

    fixture.disk.free();
    fixture.wait_ready(&daemon).await;
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
    let limited = format!("trap '' XFSZ; ulimit -f 72; exec '{}' \"$@\"", quell_exe().display());
    let wrapper = write_shell_program(home.data_dir().join("wrapper"), &limited);
    let daemon = home.start_unready(&wrapper).await;
    assert_unavailable(&daemon.api().get("/readyz").await, "cannot be read or written");
    assert_unavailable(&daemon.api().post_run("s", &json!({"text": "go"})).await, "");
    assert!(daemon.stop().await.success(), "{}", daemon.output());
    assert!(home.start(quell_exe()).await.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_refuses_writes_is_named_at_the_start() {
    let model = ScriptedModel::start().await;
    let home = DaemonHome::new(&config_toml(&model, ""));
    assert!(home.start(quell_exe()).await.stop().await.success());
    let data = home.data_dir().display().to_string();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_on_a_full_disk_ends_what_was_left_and_waits_for_room() {
    let fixture = SmallDiskHome::mount().await;
    let first = fixture.home.start(&fixture.wrapper).await;
    let marker = ProcessMarker::new();
    let command = json!({"command": format!("env -i sh -c 'while :; do sleep 1; done' {} & wait", marker.as_str())});
    fixture.model.script(ScriptedResponse::tool_call("c1", "shell", &command));
    let left = first.api().send_message("s", "go").await;
    marker.wait_for_count(1).await;
    hostile::kill_daemon_and_warden(first.pid(), &marker);
    first.wait_exit().await;
    assert_ne!(marker.marked_processes(), []);
    // The next daemon would remove this file, which would free space.
    std::fs::remove_file(fixture.disk.0.join("address")).unwrap();
    fixture.disk.fill();

    let next = fixture.home.start_unready(&fixture.wrapper).await;
    marker.wait_gone(WAIT_TIMEOUT).await;
    let shown = next.api().run_view(&left).await;
    assert_fields(&shown, &json!({"state": "ended", "verdict": {"reason": "daemon_stopped"}}));
    assert_eq!(certain_leftovers(&shown["receipt"]["leftovers"]), [""; 0], "{shown:#}");
    assert_eq!(shown["receipt"]["turn"]["recorded"], false, "the receipt claims a turn that cannot be in the database");
    assert_unavailable(&next.api().get("/readyz").await, "");
    assert!(next.output().contains("no run is taken until the database can be written"), "{}", next.output());
    let message = json!({"text": "go"});
    assert_unavailable(&next.api().post_run("s", &message).await, "make room on the disk");
    let held = next.api().send(next.api().request(reqwest::Method::PUT, "/api/hold")).await;
    assert_eq!(held.status, 503, "{held:?}");
    assert_eq!(next.api().get("/api/hold").await.expect_status(200)["held"], true);
    let doctor = run_to_exit(fixture.home.command(&fixture.wrapper).args(["doctor", "--json"]));
    assert!(doctor.out.contains("it takes no runs") && doctor.out.contains("0 MiB are free"), "{doctor:?}");

    fixture.disk.free();
    fixture.wait_ready(&next).await;
    assert_eq!(next.api().run_view(&left).await["receipt"]["turn"]["recorded"], true);
    let refused = next.api().post_run("s", &message).await;
    assert_eq!(refused.problem_code(), Some("held"), "the hold was lost with the full disk");
    let lifted = next.api().send(next.api().request(reqwest::Method::DELETE, "/api/hold")).await;
    assert_eq!(lifted.status, 200, "{lifted:?}");
    fixture.assert_answers(&next, "s", "Here again.").await;
    assert!(next.stop().await.success(), "{}", next.output());
}

/// After an orderly end neither the log of the database nor its index exists, and there is no room for either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_after_an_orderly_end_is_no_reason_not_to_start() {
    let fixture = SmallDiskHome::mount().await;
    let first = fixture.home.start(&fixture.wrapper).await;
    fixture.assert_answers(&first, "s", "Before.").await;
    assert!(first.stop().await.success());
    assert!(!fixture.disk.0.join("quell.db-wal").exists());
    fixture.disk.fill();

    let next = fixture.home.start_unready(&fixture.wrapper).await;
    let past = next.api().get("/api/sessions/s/history").await.expect_status(200);
    assert!(past.to_string().contains("Before."), "{past:#}");
    assert_unavailable(&next.api().post_run("s", &json!({"text": "go"})).await, "");
    let doctor = run_to_exit(fixture.home.command(&fixture.wrapper).args(["doctor", "--json"]));
    assert!(doctor.out.contains("it takes no runs"), "{doctor:?}");
    assert!(!doctor.out.contains("end the other program"), "the daemon is no other program: {doctor:?}");

    fixture.disk.free();
    fixture.wait_ready(&next).await;
    fixture.assert_answers(&next, "s", "After.").await;
    let listed = run_to_exit(fixture.home.command(&fixture.wrapper).args(["runs", "list"]));
    assert_eq!(listed.code, 0, "{listed:?}");
    assert!(next.stop().await.success(), "{}", next.output());
    let last = fixture.home.start(&fixture.wrapper).await;
    fixture.assert_answers(&last, "s", "And on.").await;
}
