//! Undo of a run's file changes: over HTTP and on the command line, with changes of others, with sub-runs, against
//! active runs, and after the death of a daemon.

use std::fs;

use quell_kernel::file_undo::UndoForce;
use quell_protocol::undo::{UndoReport, UndoneChange};

use crate::prelude::*;

fn write_call(path: &str, content: &str) -> ScriptedResponse {
    ScriptedResponse::tool_call("c1", "write_file", &json!({"path": path, "content": content}))
}

/// One batch: a changed, a new and a deleted file.
fn edit_batch() -> ScriptedResponse {
    let patch = "*** Begin Patch\n*** Delete File: old.txt\n*** Add File: dir/new.txt\n+new\n*** End Patch";
    ScriptedStream::new()
        .tool_call("c1", "edit_file", &json!({"path": "a.txt", "old": "two", "new": "2"}))
        .tool_call("c2", "apply_patch", &json!({"input": patch}))
        .tool_call("c3", "edit_file", &json!({"path": "a.txt", "old": "one", "new": "1"}))
        .into()
}

/// A workdir with two files, and a run that has changed them.
async fn start_with_edits() -> (TestEngine, RunId) {
    let test = TestEngine::start_shared().await;
    fs::create_dir_all(test.workdir()).unwrap();
    fs::write(test.workdir().join("a.txt"), "one\ntwo\n").unwrap();
    fs::write(test.workdir().join("old.txt"), "old\n").unwrap();
    test.model.script(edit_batch());
    test.model.script(ScriptedResponse::text("done"));
    let run = test.run_message("s", "change the files").await;
    assert_eq!(files(&test), ["a.txt: 1\n2\n", "dir/new.txt: new\n"]);
    (test, run.run_id)
}

/// The files of the workdir with their contents.
fn files(test: &TestEngine) -> Vec<String> {
    ["a.txt", "dir/new.txt", "old.txt"]
        .iter()
        .filter_map(|path| Some(format!("{path}: {}", fs::read_to_string(test.workdir().join(path)).ok()?)))
        .collect()
}

async fn undo(test: &TestEngine, run: &RunId) -> Result<UndoReport, String> {
    test.engine.undo_run(&alice(), run, UndoForce::OwnChangesOnly).await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_puts_every_file_back_once() {
    let (test, run) = start_with_edits().await;
    let report = undo(&test, &run).await.unwrap();
    let changes: Vec<_> = report.files.iter().map(|file| (file.path.as_str(), file.change)).collect();
    let (restored, removed) = (UndoneChange::Restored, UndoneChange::Removed);
    assert_eq!(changes, [("a.txt", restored), ("dir/new.txt", removed), ("old.txt", restored)]);
    assert_eq!(files(&test), ["a.txt: one\ntwo\n", "old.txt: old\n"]);
    let again = undo(&test, &run).await.unwrap_err();
    assert!(again.contains("were undone already, at 20"), "{again}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_somebody_changed_since_holds_the_whole_undo() {
    let (test, run) = start_with_edits().await;
    fs::write(test.workdir().join("a.txt"), "by hand\n").unwrap();
    let refused = undo(&test, &run).await.unwrap_err();
    assert!(refused.contains("nothing was undone") && refused.contains("a.txt (changed since)"), "{refused}");
    assert_eq!(files(&test), ["a.txt: by hand\n", "dir/new.txt: new\n"]);
    let report = test.engine.undo_run(&alice(), &run, UndoForce::OverwriteOthers).await.unwrap();
    assert_eq!(report.files.len(), 3);
    assert_eq!(files(&test), ["a.txt: one\ntwo\n", "old.txt: old\n"]);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_runs_are_undone_first() {
    let (test, first) = start_with_edits().await;
    test.model.script(write_call("a.txt", "second\n"));
    test.model.script(ScriptedResponse::text("done"));
    let second = test.run_message("s", "again").await.run_id;
    assert!(undo(&test, &first).await.unwrap_err().contains("a.txt (changed since)"));
    assert_eq!(undo(&test, &second).await.unwrap().files.len(), 1);
    assert_eq!(undo(&test, &first).await.unwrap().files.len(), 3);
    assert_eq!(files(&test), ["a.txt: one\ntwo\n", "old.txt: old\n"]);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_active_run_is_not_undone_and_neither_is_one_beside_it() {
    let (test, run) = start_with_edits().await;
    test.model.script(ScriptedResponse::silent_mid_stream("I wait."));
    let active = test.send(submission("other", "wait")).await;
    test.wait_text(&active).await;
    let refused = undo(&test, &active).await.unwrap_err();
    assert!(refused.contains(&format!("stop it first: `quell stop {active}`")), "{refused}");
    let refused = undo(&test, &run).await.unwrap_err();
    assert!(refused.contains("active in the same session or the same working directory"), "{refused}");
    assert_eq!(files(&test), ["a.txt: 1\n2\n", "dir/new.txt: new\n"]);
    test.stop_and_wait(&active).await;
    undo(&test, &run).await.unwrap();
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_changes_of_sub_runs_are_undone_with_their_parent() {
    let test = TestEngine::start_shared().await;
    test.answer_by_marker();
    fs::create_dir_all(test.workdir()).unwrap();
    let spawn = json!({"agent": "main", "prompt": "help marker:child"});
    test.script_marker("parent", [ScriptedResponse::tool_call("c1", "spawn_agent", &spawn)]);
    test.script_marker("child", [write_call("old.txt", "by the child")]);
    let run = test.run_message("s", "marker:parent").await;
    assert_eq!(files(&test), ["old.txt: by the child"]);
    let report = undo(&test, &run.run_id).await.unwrap();
    assert_eq!((files(&test), report.files.len()), (vec![], 1));
    assert_eq!(report.not_covered, ["commands of sub-agents (`spawn_agent`): 1"]);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_undo_does_not_cover_is_named() {
    let test = TestEngine::start_exclusive().await;
    fs::create_dir_all(test.workdir()).unwrap();
    fs::write(test.workdir().join("a.txt"), "x".repeat(2 << 20)).unwrap();
    test.model.script(write_call("a.txt", "small"));
    test.model.script(shell_call("echo by a command > old.txt"));
    test.model.script(ScriptedResponse::text("done"));
    let run = test.run_message("s", "go").await;
    let report = undo(&test, &run.run_id).await.unwrap();
    assert_eq!(report.not_covered, ["commands (`shell`): 1", "a.txt: it was too large to be kept"]);
    assert_eq!(files(&test), ["a.txt: small", "old.txt: by a command\n"]);
    test.close().await;
}

/// Only the owner of the session and tokens with rights over all sessions may undo.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_over_http_is_for_the_owner_and_is_audited() {
    let server = TestServer::start().await;
    let (anna, ben) =
        (server.api_with_new_token("anna", "write").await, server.api_with_new_token("ben", "write").await);
    server.model.script(write_call("a.txt", "new"));
    server.model.script(ScriptedResponse::text("done"));
    let run = anna.send_message("mine", "write a file").await;
    server.wait_ended(&run).await;
    let path = format!("/api/runs/{run}/undo");
    assert_problem(&ben.post(&path, &json!({})).await, 404, "run_not_found");
    assert_problem(&anna.post("/api/runs/nobody/undo", &json!({})).await, 404, "run_not_found");
    assert_problem(&anna.post(&path, &json!({"forced": true})).await, 400, "invalid_request");
    anna.put("/api/sessions/mine/sharing", &json!({"shared": true})).await.expect_status(200);
    assert_problem(&ben.post(&path, &json!({})).await, 403, "forbidden");
    let report = anna.post(&path, &json!({})).await.expect_status(200);
    let removed = json!([{"path": "a.txt", "change": "removed"}]);
    assert_fields(&report, &json!({"runId": run, "files": removed, "unchanged": [], "notCovered": []}));
    assert_problem(&anna.post(&path, &json!({})).await, 409, "conflict");
    let audit = server.http.get("/api/audit").await.expect_status(200);
    let entry = audit["items"].as_array().unwrap().iter().find(|row| row["action"] == "undo_run").unwrap();
    assert_fields(entry, &json!({"principal": "anna", "target": format!("run {run}"), "detail": "files: 1"}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_between_backup_and_write_leaves_nothing_to_undo() {
    let test = TestEngine::start_shared().await;
    fs::create_dir_all(test.workdir()).unwrap();
    fs::write(test.workdir().join("a.txt"), "before").unwrap();
    test.model.script(write_call("a.txt", "after"));
    let run = parse_run_id("stopped");
    // The thread that plans the write is at work at the second time; the third is the start of the one that writes.
    test.stop_at(Point::Blocking, 3, &run);
    test.send(submission_as(&run, "s", "write")).await;
    test.wait_ended(&run).await;
    assert_eq!(files(&test), ["a.txt: before"]);
    let report = undo(&test, &run).await.unwrap();
    assert_eq!((report.files.len(), report.unchanged), (0, vec!["a.txt".to_owned()]));
    test.close().await;
}

/// What was kept survives the daemon, also when it was killed during the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_changes_of_a_run_that_a_crash_ended_can_be_undone() {
    let _process_lock = ProcessLock::shared().await;
    let model = ScriptedModel::start().await;
    let home = DaemonHome::new(&config_toml(&model, ""));
    let daemon = home.start(quell_exe()).await;
    model.script(write_call("made.txt", "made"));
    model.script(ScriptedResponse::silent_mid_stream("I go on."));
    let run = daemon.api().send_message("s", "write").await;
    model.request_at(1).wait_paused().await;
    let file = home.work_dir().join("main/made.txt");
    assert_eq!(fs::read_to_string(&file).unwrap(), "made");
    daemon.kill9().await;
    let daemon = home.start(quell_exe()).await;
    daemon.api().wait_ended(&run).await;
    let done = run_cli(&home, &["undo", &run]);
    assert_eq!((done.code, done.out.as_str()), (0, "1 file was put back\n  removed  made.txt\n"), "{}", done.err);
    assert!(!file.exists());
    let again = run_cli(&home, &["undo", &run]);
    assert_eq!(again.code, 1);
    assert!(again.err.contains("were undone already"), "{}", again.err);
    daemon.stop().await;
}
