//! Backup and restore with the real binary, under load.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::prelude::*;

/// Sends messages one after the other in a few sessions until the flag is cleared. Each task returns its number of runs.
fn start_load(daemon: &TestDaemon, go_on: &Arc<AtomicBool>) -> Vec<tokio::task::JoinHandle<usize>> {
    let send = |lane| {
        let (http, go_on) = (daemon.api(), Arc::clone(go_on));
        tokio::spawn(async move {
            let mut ended = 0;
            while go_on.load(Ordering::Relaxed) {
                let id = http.send_message(&format!("lane-{lane}"), "go").await;
                http.wait_ended(&id).await;
                ended += 1;
            }
            ended
        })
    };
    (0..4).map(send).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_restored_with_its_sessions_and_receipts_and_its_open_runs_are_sealed() {
    let (model, daemon) = start_daemon("").await;
    let http = daemon.api();
    model.respond_by_prompt(|_, request| match request.markers.last().map(String::as_str) {
        Some("rest") => ScriptedResponse::silent_mid_stream("begun"),
        _ => ScriptedResponse::text("an answer"),
    });
    let first = http.send_message("s", "the first").await;
    let receipt = http.wait_ended(&first).await["receipt"].clone();
    let open = http.send_message("t", "marker:rest").await;
    http.run_events(&open, 0).await.wait_for("text.delta").await;

    let go_on = Arc::new(AtomicBool::new(true));
    let load = start_load(&daemon, &go_on);
    let file = daemon.home().config_file().with_file_name("copy.db");
    let (path, mut sizes) = (file.to_str().unwrap().to_owned(), Vec::new());
    for args in [&["backup", &path][..], &["backup", &path, "--force", "--json"]] {
        let made = tokio::task::block_in_place(|| run_cli(daemon.home(), args));
        assert_eq!(made.code, 0, "{made:?}");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        sizes.push(std::fs::metadata(&file).unwrap().len());
    }
    assert!(sizes[1] > sizes[0], "the second backup must be newer: {sizes:?}");
    let again = run_cli(daemon.home(), &["backup", &path]);
    assert!(again.code == 1 && again.err.contains("--force"), "{again:?}");
    let under = run_cli(daemon.home(), &["restore", &path]);
    assert!(under.code == 1 && under.err.contains("another quell"), "{under:?}");
    go_on.store(false, Ordering::Relaxed);
    for lane in load {
        assert!(lane.await.unwrap() > 0, "no load");
    }
    let late = http.send_message("late", "after the backup").await;
    http.wait_ended(&late).await;
    let rows = http.get("/api/audit").await.expect_status(200);
    let backups = rows["items"].as_array().unwrap().iter().filter(|row| row["action"] == "backup").count();
    assert_eq!(backups, 2, "{rows:#}");
    daemon.stop().await;

    let back = run_cli(daemon.home(), &["restore", &path]);
    assert!(back.code == 0 && back.out.contains("quell.db.before-"), "{back:?}");
    let daemon = daemon.home().start(quell_exe()).await;
    let http = daemon.api();
    assert_eq!(http.run_view(&first).await["receipt"], receipt);
    assert_problem(&http.get(&format!("/api/runs/{late}")).await, 404, "run_not_found");
    let sealed = http.run_view(&open).await;
    assert_fields(&sealed, &json!({"state": "ended", "verdict": {"kind": "aborted", "reason": "daemon_stopped"}}));
    assert_eq!(http.get("/api/runs?state=active").await.expect_status(200)["items"], json!([]));
    // The session continues where the backup was made.
    let next = http.send_message("s", "the second").await;
    assert_eq!(http.wait_ended(&next).await["verdict"]["kind"], "completed");
    let seen = messages_as_text(model.recorded_requests().last().unwrap().messages());
    assert!(seen.contains("the first") && seen.contains("the second"), "{seen}");
    model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_without_a_daemon_reads_the_file_and_a_broken_one_leaves_nothing() {
    let (model, daemon) = start_daemon("").await;
    model.script(ScriptedResponse::text("an answer"));
    let id = daemon.api().send_message("s", "hello").await;
    daemon.api().wait_ended(&id).await;
    daemon.kill9().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("copy.db");
    let made = run_cli(daemon.home(), &["backup", file.to_str().unwrap()]);
    assert!(made.code == 0 && made.out.contains("checked"), "{made:?}");
    // Restore into a new data directory.
    let other = DaemonHome::new(&config_toml(&model, ""));
    let back = run_cli(&other, &["restore", file.to_str().unwrap(), "--json"]);
    let result: Value = serde_json::from_str(&back.out).unwrap();
    assert_eq!((back.code, &result["kept"]), (0, &Value::Null), "{back:?}");
    let moved = other.start(quell_exe()).await;
    let _ = moved.api().run_view(&id).await;
    moved.stop().await;

    let nobody = run_cli(&DaemonHome::new(""), &["backup", folder.path().join("none.db").to_str().unwrap()]);
    assert!(nobody.code == 1 && nobody.err.contains("no daemon answers"), "{nobody:?}");
    std::fs::write(&file, "half a file").unwrap();
    let bad = run_cli(&other, &["restore", file.to_str().unwrap()]);
    assert!(bad.code == 1 && bad.err.contains("copy.db"), "{bad:?}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["copy.db"], "an incomplete file was left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_for_admins() {
    let server = TestServer::start().await;
    assert_problem(&server.api_with_new_token("writer", "write").await.get("/api/backup").await, 403, "forbidden");
    let answer = server.http.request(Method::GET, "/api/backup").send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/vnd.sqlite3");
    assert!(answer.bytes().await.unwrap().starts_with(b"SQLite format 3\0"));
}
