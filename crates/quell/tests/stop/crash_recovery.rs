//! What a daemon that dies leaves behind, and how the next one recovers it. The sweep tests at which points it may die.

mod disk_full;
mod random_kills;
mod write_refused;

use std::io::Write;

use quell_engine::engine::RunFollow;
use quell_protocol::RunEvent;
use quell_store::test_support::{CountedRows, RefusedWrite};
use quell_test_support::crash_copies::{certain_leftovers, start_on_changed_copy, start_on_copy};

use crate::prelude::*;
use crate::test_server::assert_fields;

/// A small file system, as this test sees it.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// The disk that a process sees at this path in its mount namespace.
    fn of_process(pid: u32, path: &Path) -> Self {
        Self(Path::new("/proc").join(pid.to_string()).join("root").join(path.strip_prefix("/").unwrap()))
    }

    fn fill(&self) {
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        while filler.write(&[0; 512]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

/// Starts an engine beside other tests; `None` if a server that its store needs is switched off.
async fn start_on_store(kind: StoreKind, change: impl FnOnce(&mut EngineConfig)) -> Option<TestEngine> {
    let (dir, database) = (TestDir::Temporary(TestDataDir::new()), kind.start_database()?);
    Some(TestEngine::start_on_database(dir, database, ProcessLock::shared().await, change).await)
}

/// Closes both engines. The first one is not really dead, and its run still goes on.
async fn close_both(after: TestEngine, test: TestEngine, run: &RunId) {
    after.close().await;
    test.stop(run).wait_settled().await;
    test.close().await;
}

/// The events of an ended run after this sequence number.
async fn read_ended_run(test: &TestEngine, run: &RunId, after: u64) -> Vec<RunEvent> {
    match test.engine.follow_run(run, after).await.unwrap() {
        Some(RunFollow::Ended(events)) => events,
        _ => panic!("{run} is live or unknown"),
    }
}

/// Waits until the journal of a run has a line of this kind with this text.
async fn wait_journal_line(test: &TestEngine, run: &RunId, kind: &'static str, text: &'static str) {
    let (database, run) = (test.connect_to_database(), run.clone());
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let lines: Vec<Value> =
            database.journal_lines(&run).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let found = lines.iter().any(|line| line["kind"] == kind && line.to_string().contains(text));
        if found { Ok(()) } else { Err(format!("no {kind} with {text:?} in {lines:#?}")) }
    })
    .await;
}

#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_calls_stay_and_interrupted_ones_are_told(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    let marker = ProcessMarker::new();
    let waits = format!("printf 'printed %s it died\\n' before; {}", commands::setsid_child(&marker));
    let batch = ScriptedStream::new()
        .text("I look around.")
        .tool_call("c1", "shell", &json!({"command": "echo finished $((40+2))"}))
        .tool_call("c2", "shell", &json!({"command": waits}))
        .tool_call("c3", "shell", &json!({"command": "echo never"}));
    test.model.script(batch);
    let run = test.send(submission("s", "look around")).await;
    wait_journal_line(&test, &run, "printed", "before it died").await;

    let after = start_on_copy(&test).await;
    let view = after.engine.find_run(&run).await.unwrap().unwrap();
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::DaemonStopped);
    assert_eq!((view.steps, view.usage.estimated), (1, false), "{view:#?}");
    assert!(view.usage.input_tokens > 0 && receipt_of(&view).usage == view.usage, "{view:#?}");
    // The first daemon is not really dead, so its command was alive: the second one has ended it.
    assert_eq!(certain_leftovers(&json!(receipt_of(&view).leftovers)), [""; 0], "{view:#?}");
    assert_eq!(marker.marked_processes(), []);
    let seen = after.next_request_text().await;
    let tools = ["finished 42", "printed before it died", "Side effects are possible", "did nothing"];
    for part in tools.into_iter().chain(["I look around.", "stopped because the service went down"]) {
        assert!(seen.contains(part), "{part:?} is not in {seen}");
    }
    close_both(after, test, &run).await;
}

#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_that_streamed_is_there_for_people_and_by_the_agents_policy_for_the_model(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    test.model.script(ScriptedResponse::silent_mid_stream("The first half of an answer"));
    let run = test.send(submission("s", "tell me")).await;
    wait_journal_line(&test, &run, "text", "first half").await;
    let after = start_on_copy(&test).await;
    let view = after.engine.find_run(&run).await.unwrap().unwrap();
    assert_eq!(view.output.as_deref(), Some("The first half of an answer"));
    let seen = after.next_request_text().await;
    assert!(seen.contains("The first half of an answer") && seen.contains("[Interrupted"), "{seen}");
    close_both(after, test, &run).await;
}

/// The daemon dies between the stop and the death of a command that ignores SIGTERM. The verdict still names the
/// person.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_outlives_the_daemon_that_took_it(#[case] kind: StoreKind) {
    // Only the forced stop kills the command.
    let slow = |config: &mut EngineConfig| {
        config.stop_timeouts.term = WAIT_TIMEOUT * 2;
        config.stop_timeouts.grace = WAIT_TIMEOUT * 2;
    };
    let Some(test) = start_on_store(kind, slow).await else { return };
    let marker = ProcessMarker::new();
    let deaf = json!({"command": commands::signal_ignoring_setsid_child(&marker)});
    test.model.script(ScriptedResponse::tool_call("c1", "shell", &deaf));
    let run = test.send(submission("s", "wait for ever")).await;
    test.wait_printed(&run, "deaf").await;
    let stop = test.stop(&run);
    wait_journal_line(&test, &run, "ending", "alice").await;
    let after = start_on_copy(&test).await;
    test.engine.stop(&alice(), &run_stop_scope(&run), &stop_ask(StopLevel::Forced)).wait_settled().await;
    stop.wait_settled().await;
    let view = after.engine.find_run(&run).await.unwrap().unwrap();
    let theirs = test.wait_ended(&run).await;
    assert_eq!(view.verdict, theirs.verdict, "{view:#?}");
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    let asked = |view: &RunView| receipt_of(view).requested_at.as_ref().map(|at| at.at.clone());
    assert_eq!(asked(&view), asked(&theirs));
    let seen = after.next_request_text().await;
    assert!(seen.contains("stopped on purpose by the user"), "{seen}");
    after.close().await;
    test.close().await;
}

/// The turn is in the database, and the daemon died before it stored the end of the run.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_turn_says_how_its_run_ended(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    test.model.script(ScriptedResponse::text("All is well."));
    let run = test.run_message("s", "how is it?").await.run_id;
    // The client had seen more events than one block of reserved sequence numbers.
    let had_seen = 70_000;
    let after = start_on_changed_copy(&test, |data| data.undo_ends_but_turns(had_seen)).await;
    let view = after.engine.find_run(&run).await.unwrap().unwrap();
    assert_eq!((view.verdict.as_ref(), view.output.as_deref()), (Some(&Verdict::Completed), Some("All is well.")));
    assert!(receipt_of(&view).turn.recorded && view.result.as_ref().unwrap().success, "{view:#?}");
    let events = read_ended_run(&after, &run, had_seen).await;
    assert!(events.iter().all(|event| event.seq >= had_seen), "sequence numbers go backwards: {events:#?}");
    assert!(matches!(events.last().unwrap().kind, EventKind::Ended { .. }), "{events:#?}");
    let seen = after.next_request_text().await;
    assert!(seen.contains("All is well.") && !seen.contains("went down"), "{seen}");
    after.close().await;
    test.close().await;
}

/// A damaged disk or a newer version: the journal is used up to the first unreadable line, and the start continues.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_is_read_as_far_as_it_can_be(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    let batch = ScriptedStream::new()
        .text("I look.")
        .tool_call("c1", "shell", &json!({"command": "echo one"}))
        .tool_call("c2", "shell", &json!({"command": "sleep 600"}));
    test.model.script(batch);
    let run = test.send(submission("s", "look")).await;
    wait_journal_line(&test, &run, "began", "c2").await;
    let damage = |data: &OtherProgram| data.replace_journal_lines("finished", r#"{"kind":"of a later version"}"#);
    let after = start_on_changed_copy(&test, damage).await;
    let seen = after.next_request_text().await;
    assert!(seen.contains("I look.") && seen.contains("Side effects are possible"), "{seen}");
    close_both(after, test, &run).await;
}

/// One damaged row affects one run: the daemon starts, the run is over, and the session continues.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_row_is_damaged_does_not_keep_the_daemon_from_starting(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    test.model.script(ScriptedResponse::text("All is well."));
    test.run_message("s", "how is it?").await;
    test.model.script(ScriptedResponse::silent_mid_stream("The first half"));
    let run = test.send(submission("s", "tell me")).await;
    wait_journal_line(&test, &run, "text", "first half").await;
    let after = start_on_changed_copy(&test, |data| data.damage_open_views()).await;
    let view = after.engine.find_run(&run).await.unwrap().unwrap();
    assert_eq!((view.state.as_str(), view.output.as_deref()), ("ended", Some("The first half")), "{view:#?}");
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::DaemonStopped);
    let seen = after.next_request_text().await;
    assert!(seen.contains("All is well.") && seen.contains("damaged") && seen.contains("The first half"), "{seen}");
    close_both(after, test, &run).await;
}

/// A client that has seen many events reconnects after the crash and gets the end, as one event and once.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_told_the_end_whatever_it_had_seen(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    let stream = (0..2000).fold(ScriptedStream::new(), |stream, n| stream.text(format!("{n} ")));
    test.model.script(stream.wait_for_gate("never"));
    let run = test.send(submission("s", "count")).await;
    wait_journal_line(&test, &run, "text", "1999 ").await;
    let had_seen = test.engine.live_run(&run).unwrap().last_seq();
    assert!(had_seen > 2000);
    let after = start_on_copy(&test).await;
    for cursor in [0, 7, had_seen] {
        let events = read_ended_run(&after, &run, cursor).await;
        let [snapshot, end] = events.as_slice() else { panic!("{events:#?}") };
        assert!(matches!(&snapshot.kind, EventKind::Snapshot { text, .. } if text.contains("1999 ")), "{snapshot:#?}");
        assert!(matches!(end.kind, EventKind::Ended { .. }) && end.seq > had_seen, "{end:#?}");
        let again = read_ended_run(&after, &run, end.seq).await;
        assert_eq!(again.as_slice(), std::slice::from_ref(end), "the end must come once");
    }
    close_both(after, test, &run).await;
}

/// The lock file is removed and a second daemon starts: the first one may not write any more, and reports it.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_lost_its_data_starts_no_tool(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    let call = ScriptedStream::new().wait_for_gate("go").tool_call("c1", "shell", &json!({"command": "touch proof"}));
    test.model.script(call);
    let run = test.send(submission("s", "write")).await;
    test.model.request_at(0).wait_paused().await;
    std::fs::remove_file(test.test_dir.path().join("quell.lock")).unwrap();
    let (dir, database) = (TestDir::Borrowed(test.test_dir.path().to_owned()), test.database.clone());
    let second = TestEngine::start_on_database(dir, database, ProcessLock::shared().await, |_| {}).await;
    let sealed = second.engine.find_run(&run).await.unwrap().unwrap();
    assert_eq!(sealed.state, "ended", "the second daemon must seal the run");
    test.model.open_gate("go");
    let Some(live_run) = test.engine.live_run(&run) else { panic!("{run} is over") };
    live_run.wait_for_progress(RunProgress::Ended).await;
    let Some(Verdict::Failed { code, message: why }) = live_run.verdict() else { panic!("{:?}", live_run.verdict()) };
    assert_eq!(code, "store");
    assert!(why.contains("shell was not started") && why.contains("another quell has taken over"), "{why}");
    assert!(!test.workdir().join("proof").exists());
    let refused = test.engine.submit(&alice(), submission("s", "again")).await.unwrap_err();
    assert!(refused.to_string().contains("another quell has taken over"), "{refused}");
    second.close().await;
    test.engine.shut_down().await;
}
