//! The tools `remember` and `recall`.

use super::*;

#[tokio::test]
async fn session_notes_are_recalled_here_and_agent_notes_everywhere() {
    let test = start_engine(|_| {}).await;
    let (end, output) = call_tool(&test, "one", "recall", &json!({"query": "colour"})).await;
    assert_eq!(end, CallEnd::Ok);
    assert_eq!(output, "This session has no notes yet, and you have none of your own. `remember` writes one.");
    let colour = json!({"text": "The fence is green.", "key": "fence-colour"});
    let (end, output) = call_tool(&test, "one", "remember", &colour).await;
    assert_eq!(end, CallEnd::Ok);
    assert!(output.starts_with("Remembered of this session as \"fence-colour\"."), "{output}");
    assert!(output.contains("`auto_recall` under [memory]"), "the automatic memory is off: {output}");
    let again = json!({"text": "The fence is blue.", "key": "fence-colour", "scope": "session"});
    let (_, output) = call_tool(&test, "one", "remember", &again).await;
    assert!(output.ends_with("in place of what was remembered under that key."), "{output}");
    let (_, output) =
        call_tool(&test, "one", "remember", &json!({"text": "Fences need paint.", "scope": "agent"})).await;
    assert!(output.starts_with("Remembered of this agent as \"fences-need-paint-"), "{output}");

    let (_, output) = call_tool(&test, "one", "recall", &json!({"query": "which colour is my fence?"})).await;
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 2, "{output}");
    assert!(lines[0].starts_with("- fence-colour (session, core, 2"), "{output}");
    assert!(lines[0].contains(", relevance 0.") && lines[0].ends_with("): The fence is blue."), "{output}");
    assert!(lines[1].starts_with("- fences-need-paint-") && lines[1].contains("(agent, core, "), "{output}");

    let (_, output) = call_tool(&test, "two", "recall", &json!({"query": "fence"})).await;
    assert!(output.contains("Fences need paint.") && !output.contains("blue"), "{output}");
    let (_, output) = call_tool(&test, "two", "recall", &json!({"query": "boats"})).await;
    assert_eq!(output, "No note has words of \"boats\". With an empty query the newest are listed.");
    let (_, output) = call_tool(&test, "one", "recall", &json!({"query": "", "limit": 1, "scope": "agent"})).await;
    assert!(output.ends_with("): Fences need paint.") && !output.contains("relevance"), "{output}");
    test.close().await;
}

#[tokio::test]
async fn wrong_arguments_are_explained_and_remember_nothing() {
    let test = start_engine(|_| {}).await;
    for (tool, arguments, wanted) in [
        ("remember", json!({"text": " \n"}), "The text is empty"),
        ("remember", json!({"text": "x", "key": ""}), "field `key`: expected a name of 1 to 200 characters"),
        ("remember", json!({"text": "x", "key": "two\nlines"}), "field `key`: expected a name"),
        (
            "remember",
            json!({"text": "x", "scope": "world"}),
            "field `scope`: \"world\" is neither `session` nor `agent`",
        ),
        ("remember", json!({"text": "x".repeat(4001)}), "The text has 4001 characters, a note at most 4000"),
        ("remember", json!({"words": "x"}), "there is no field \"words\"; the fields are `key`, `scope`, `text`"),
        ("recall", json!({}), "field `query` is missing"),
        ("recall", json!({"query": "x", "limit": -1}), "field `limit`: expected a whole number"),
    ] {
        let (end, output) = call_tool(&test, "s", tool, &arguments).await;
        assert!(end == CallEnd::Error && output.contains(wanted), "{tool} {arguments}: {output}");
    }
    assert!(list_notes(&test, session_scope("s")).await.is_empty());
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_a_database_that_takes_no_note() {
    let test = start_engine(|_| {}).await;
    let run = parse_run_id("blocked");
    let note = json!({"text": "The fence is green."});
    test.script_marker("blocked", [ScriptedResponse::tool_call("c1", "remember", &note)]);
    // The call is in the journal by then, so that only the note waits for the database.
    let database = lock_writes_at(&test, Point::Remember);
    test.send(submission_as(&run, "s", "note it marker:blocked")).await;
    test.point_hook.wait_fired().await;
    let live_run = test.engine.live_run(&run).unwrap();
    assert_eq!(test.stop(&run).aborted, std::slice::from_ref(&run));
    // The turn is not in the database yet, but everything that the run held is released.
    live_run.wait_for_sealed_turn().await;
    let held = Arc::clone(&live_run);
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let rows = held.scope.ledger().rows();
        let open = rows.iter().filter(|row| row.is_held() && row.kind != ResourceKind::Timer).count();
        if open == 0 { Ok(()) } else { Err(format!("{rows:?}")) }
    })
    .await;
    assert!(live_run.progress() >= RunProgress::Ending);
    database.lock().unwrap().unlock_writes();
    let view = test.wait_ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    test.close().await;
}

#[tokio::test]
async fn a_database_that_cannot_be_searched_is_an_error_that_the_model_reads() {
    let test = start_engine(|_| {}).await;
    remember(&test, "s", &json!({"text": "The fence is green."})).await;
    let database = OtherProgram::connect(test.test_dir.path());
    database.drop_note_index();
    database.lock_writes();
    database.unlock_writes();
    let (end, output) = call_tool(&test, "s", "recall", &json!({"query": "fence"})).await;
    assert_eq!(end, CallEnd::Error);
    assert!(output.starts_with("The notes could not be read: "), "{output}");
    let (end, output) = call_tool(&test, "s", "remember", &json!({"text": "The fence is red."})).await;
    assert_eq!(end, CallEnd::Error);
    assert!(output.starts_with("It could not be written down: "), "{output}");
    assert_eq!(list_notes(&test, session_scope("s")).await.len(), 1, "a note was stored without its words");
    test.close().await;
}
