//! A database that refuses writes for a while: turns are stored in order once it accepts them.

use quell_protocol::CallId;
use quell_protocol::api::OnBusy;

use super::*;

/// Waits until a run is over without its turn in the database.
async fn wait_unrecorded_end(test: &TestEngine, run: &RunId) {
    let Some(live_run) = test.engine.live_run(run) else { panic!("run {run} is forgotten") };
    live_run.wait_for_progress(RunProgress::Ended).await;
    let receipt = live_run.receipt().unwrap();
    assert!(!receipt.turn.recorded, "the database refused: {receipt:#?}");
}

/// Another program, such as a backup, holds the write lock for longer than a statement waits, just as a run ends.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_the_database_refused_once_is_there_after_a_restart(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    test.model.script(ScriptedStream::new().text("All is").wait_for_gate("go").text(" well."));
    let run = test.send(submission("s", "how is it?")).await;
    wait_journal_line(&test, &run, "text", "All is").await;
    let other = test.connect_to_database();
    other.lock_writes();
    test.model.open_gate("go");
    wait_unrecorded_end(&test, &run).await;
    other.unlock_writes();
    let view = test.wait_ended(&run).await;
    assert!(view.verdict == Some(Verdict::Completed) && receipt_of(&view).turn.recorded, "{view:#?}");
    let after = start_on_copy(&test).await;
    let seen = after.next_request_text().await;
    assert!(seen.contains("All is well."), "{seen}");
    after.close().await;
    test.close().await;
}

#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_were_refused_stand_before_those_that_came_after_them(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    let other = test.connect_to_database();
    other.refuse(RefusedWrite::Turn);
    for (text, answer) in [("one?", "The first."), ("two?", "The second.")] {
        test.model.script(ScriptedResponse::text(answer));
        let run = test.send(submission("s", text)).await;
        wait_unrecorded_end(&test, &run).await;
    }
    other.accept_again();
    test.model.script(ScriptedResponse::text("The third."));
    let third = test.run_message("s", "three?").await;
    assert!(receipt_of(&third).turn.recorded, "{third:#?}");
    let after = start_on_copy(&test).await;
    let seen = after.next_request_text().await;
    let positions = ["The first.", "The second.", "The third."].map(|answer| seen.find(answer));
    assert!(positions.iter().all(Option::is_some) && positions.is_sorted(), "{positions:?} in {seen}");
    after.close().await;
    test.close().await;
}

/// The next start seals all of them from their journals.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_a_dead_daemon_could_not_write_come_back_in_order(#[case] kind: StoreKind) {
    let long_window = |config: &mut EngineConfig| {
        config.agents.get_mut(&parse_agent_id("main")).unwrap().window_tokens = 1_000_000;
    };
    let Some(test) = start_on_store(kind, long_window).await else { return };
    test.connect_to_database().refuse(RefusedWrite::Turn);
    let answers: Vec<String> = (10..20).map(|n| format!("answer {n}")).collect();
    let mut last = None;
    for answer in &answers {
        // The first takes longest to read.
        let long = if last.is_none() { " and so on".repeat(150_000) } else { String::new() };
        test.model.script(ScriptedResponse::text(format!("{answer}{long}")));
        let run = test.send(submission("s", "go on")).await;
        wait_unrecorded_end(&test, &run).await;
        last = Some(run);
    }
    wait_journal_line(&test, &last.unwrap(), "ending", "completed").await;
    let after = start_on_changed_copy(&test, |data| data.accept_again()).await;
    let messages = after.engine.history_page(&parse_session_key("s"), 100, None).await.unwrap().messages;
    let answered = messages.iter().filter(|message| message.role == "assistant");
    let stored: Vec<&str> = answered.map(|message| &message.text[..9]).collect();
    assert_eq!(stored, answers);
    after.close().await;
    test.close().await;
}

/// A forced stop seals in the call that gives the verdict; the daemon dies before the database accepts the turn.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_stop_whose_turn_was_refused_outlives_its_daemon(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    test.connect_to_database().refuse(RefusedWrite::Turn);
    test.model.script(ScriptedResponse::silent_mid_stream("Half of it"));
    let run = test.send(submission("s", "tell me")).await;
    test.wait_text(&run).await;
    test.engine.stop(&alice(), &run_stop_scope(&run), &stop_ask(StopLevel::Forced)).wait_settled().await;
    wait_unrecorded_end(&test, &run).await;
    // A call that starts after the stop is not written to the journal after the verdict.
    let late = CallId::parse("late").unwrap();
    test.engine.live_run(&run).unwrap().writer().journal_call_start(&late).await.unwrap();
    wait_journal_line(&test, &run, "ending", "alice").await;
    let after = start_on_changed_copy(&test, |data| {
        assert_eq!(data.count(CountedRows::JournalLinesWith("began")), 0);
        data.accept_again();
    })
    .await;
    let view = after.engine.find_run(&run).await.unwrap().unwrap();
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    let seen = after.next_request_text().await;
    assert!(seen.contains("Half of it") && seen.contains("stopped on purpose by the user"), "{seen}");
    after.close().await;
    test.close().await;
}

/// A queued run is withdrawn, and the daemon dies before it stored that. The run never began, so it leaves no turn.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawn_message_does_not_come_back_as_a_turn(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    test.connect_to_database().refuse(RefusedWrite::RunEnd);
    test.model.script(ScriptedResponse::silent_mid_stream("I think"));
    let first = test.send(submission("s", "think")).await;
    test.wait_text(&first).await;
    let queued = test.send(submission("s", "and forget this")).await;
    test.stop(&queued).wait_settled().await;
    wait_journal_line(&test, &queued, "ending", "alice").await;
    let after = start_on_changed_copy(&test, |data| data.accept_again()).await;
    let view = after.engine.find_run(&queued).await.unwrap().unwrap();
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    assert!(!receipt_of(&view).turn.recorded, "{view:#?}");
    let seen = after.next_request_text().await;
    assert!(seen.contains("think") && !seen.contains("forget this"), "{seen}");
    close_both(after, test, &first).await;
}

/// At every moment the database has a steered message in the queue or in the journal of the run that took it.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steered_message_is_never_in_neither_of_two_runs(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    let other = test.connect_to_database();
    other.refuse(RefusedWrite::SteerBeforeJournalLine("turn left"));
    let call = ScriptedStream::new().wait_for_gate("go").tool_call("c1", "shell", &json!({"command": "true"}));
    test.model.script(call).script(ScriptedResponse::silent_mid_stream("I turn."));
    let run = test.send(submission("s", "begin")).await;
    test.model.request_at(0).wait_paused().await;
    let steer = test.send_for_answer(Submission { on_busy: OnBusy::Steer, ..submission("s", "turn left") }).await;
    test.model.open_gate("go");
    test.wait_text(&run).await;
    let id = steer.message_id.unwrap();
    leaks::wait_for_value("the state of the message", "steered".to_owned(), move || other.run_state(&id)).await;
    let after = start_on_copy(&test).await;
    let seen = after.next_request_text().await;
    assert!(seen.contains("turn left"), "{seen}");
    close_both(after, test, &run).await;
}

/// The journal of a run shows that it has begun, even when its start could not be stored.
#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_start_was_refused_is_no_queued_one_after_a_crash(#[case] kind: StoreKind) {
    let Some(test) = start_on_store(kind, |_| {}).await else { return };
    test.connect_to_database().refuse(RefusedWrite::RunStart);
    test.model.script(ScriptedResponse::SilentBeforeHeaders);
    let run = test.send(submission("s", "think about it")).await;
    test.model.request_at(0).wait_paused().await;
    wait_journal_line(&test, &run, "step", "1").await;
    let after = start_on_copy(&test).await;
    let view = after.engine.find_run(&run).await.unwrap().unwrap();
    assert!(receipt_of(&view).turn.recorded, "{view:#?}");
    let seen = after.next_request_text().await;
    assert!(seen.contains("think about it"), "{seen}");
    close_both(after, test, &run).await;
}
