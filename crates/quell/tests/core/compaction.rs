//! Summarise older turns when a conversation gets too long.

use crate::prelude::*;

/// About 3,000 bytes.
fn long_text(text: &str) -> String {
    format!("{text} {}", "and so on and on it goes, ".repeat(120))
}

async fn start_engine(window_tokens: usize) -> TestEngine {
    TestEngine::start_with_main(|main| main.window_tokens = window_tokens).await
}

fn overflow_response() -> ScriptedResponse {
    let body = json!({"error": {"message": "too many tokens", "code": "context_length_exceeded"}}).to_string();
    ScriptedResponse::Status { code: 400, headers: Vec::new(), body }
}

fn compactions(watcher: &mut NoticeRecorder, run: &RunId) -> Vec<(u32, String)> {
    let of = |kind: &EventKind| match kind {
        EventKind::Compacted { turns, summary } => Some((*turns, summary.clone())),
        _ => None,
    };
    watcher.run_events(run).iter().filter_map(|event| of(&event.kind)).collect()
}

#[tokio::test]
async fn older_turns_are_summarised_when_the_window_fills_and_stay_so() {
    // 1,700 tokens are 6,800 bytes, of which four fifths may be used.
    let test = start_engine(1700).await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let call = ScriptedStream::new().text("I look.").tool_call("c1", "list_files", &json!({}));
    test.model.script(call).script(ScriptedResponse::text(long_text("Boats are fine.")));
    test.run_message("s", "tell me of boats").await;
    test.model.script(ScriptedResponse::text(long_text("Trains are too.")));
    assert!(
        compactions(&mut watcher, &test.run_message("s", "and of trains?").await.run_id).is_empty(),
        "the history fits, so no summary is needed"
    );
    test.model
        .script(ScriptedResponse::text("They spoke of boats and trains."))
        .script(ScriptedResponse::text("Planes fly."));
    let third = test.run_message("s", "and of planes?").await;
    assert_eq!(third.output.as_deref(), Some("Planes fly."));
    assert_eq!(compactions(&mut watcher, &third.run_id), [(2, "They spoke of boats and trains.".to_owned())]);
    let seen = test.model.recorded_requests();
    let (summary, step) = (messages_as_text(seen[3].messages()), messages_as_text(seen[4].messages()));
    assert!(summary.contains("Boats are fine.") && summary.contains("Summarise the whole conversation"), "{summary}");
    assert!(!summary.contains("and of planes?"), "the current message was summarised: {summary}");
    assert!(step.contains("They spoke of boats and trains.") && step.contains("and of planes?"), "{step}");
    assert!(!step.contains("Boats are fine.") && !step.contains("list_files"), "{step}");
    // Usage counts both model calls: the summary and the step.
    assert!(third.usage.input_tokens > 0 && third.steps == 1, "{third:?}");
    test.model.script(ScriptedResponse::text("Yes."));
    let fourth = test.run_message("s", "really?").await;
    assert!(compactions(&mut watcher, &fourth.run_id).is_empty());
    assert!(
        messages_as_text(&test.last_messages()).contains("They spoke of boats and trains."),
        "the summary was lost"
    );
    // The summary is also used by another daemon on the same database.
    let other = quell_test_support::crash_copies::start_on_copy(&test).await;
    let after = other.next_request_text().await;
    assert!(after.contains("They spoke of boats and trains.") && !after.contains("Boats are fine."), "{after}");
    other.close().await;
    // The history for people stays complete.
    let page = test.engine.history_page(&parse_session_key("s"), 10, None).await.unwrap();
    assert!(page.messages.iter().any(|message| message.text.starts_with("Boats are fine.")));
    test.close().await;
}

#[tokio::test]
async fn a_provider_that_finds_it_too_long_triggers_a_summary_once() {
    let test = start_engine(128_000).await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.model.script(ScriptedResponse::text(long_text("Boats are fine.")));
    test.run_message("s", "tell me of boats").await;
    test.model
        .script(overflow_response())
        .script(ScriptedResponse::text("Boats."))
        .script(ScriptedResponse::text("Trains are too."));
    let second = test.run_message("s", "and of trains?").await;
    assert_eq!(second.output.as_deref(), Some("Trains are too."));
    assert_eq!(compactions(&mut watcher, &second.run_id), [(1, "Boats.".to_owned())]);
    test.model.script(ScriptedResponse::text(long_text("More."))).script(overflow_response());
    test.run_message("s", "more").await;
    test.model.script(ScriptedResponse::text("Summed up.")).script(overflow_response());
    let failed = test.run_message("s", "and more").await;
    assert_eq!(failure_of(&failed).0, "context_overflow", "a second overflow in one step must fail the run");
    assert_eq!(test.model.unused_count(), 0);
    test.close().await;
}

#[rstest]
#[case::refused(ScriptedResponse::status(401))]
#[case::cut_by_its_length(ScriptedStream::new().text("It was ab").finish_reason("length").into())]
#[tokio::test]
async fn a_summary_that_fails_is_no_end_and_after_an_overflow_the_last_words_stay(#[case] failed: ScriptedResponse) {
    let test = start_engine(600).await;
    test.model.script(ScriptedResponse::text(long_text("Boats are fine.")));
    test.run_message("s", "tell me of boats").await;
    test.model.script(failed).script(ScriptedResponse::text("Trains."));
    assert_eq!(test.run_message("s", "and of trains?").await.output.as_deref(), Some("Trains."));
    let whole = messages_as_text(&test.last_messages());
    assert!(
        whole.contains("Boats are fine.") && !whole.contains("It was ab"),
        "without a summary the whole history must be sent: {whole}"
    );
    test.model.script(ScriptedResponse::status(401)).script(overflow_response()).script(ScriptedResponse::status(401));
    let failed = test.run_message("s", "and of planes?").await;
    let (code, message) = failure_of(&failed);
    assert_eq!(code, "context_overflow");
    assert!(message.contains("summarising it failed") && message.contains("check its API key"), "{message}");
    test.model.script(ScriptedResponse::text("Planes."));
    assert_eq!(
        test.run_message("s", "again").await.output.as_deref(),
        Some("Planes."),
        "the history fits, so no summary is needed"
    );
    let short = messages_as_text(&test.last_messages());
    assert!(short.contains("User: tell me of boats") && short.contains("Assistant: Boats are fine."), "{short}");
    assert!(short.contains("and of planes?"), "the newest turn was shortened: {short}");
    assert!(!short.contains(&long_text("Boats are fine.")), "an older message was not shortened: {short}");
    test.close().await;
}

/// A call that prints about 3,000 bytes.
fn printing_call(id: &str) -> ScriptedResponse {
    let command = format!("printf 'begin {id} '; head -c 3000 /dev/zero | tr '\\0' x; printf ' end {id}'");
    ScriptedResponse::tool_call(id, "shell", &json!({"command": command}))
}

#[tokio::test]
async fn a_run_that_is_too_long_by_itself_goes_on_and_so_does_its_session() {
    // 3,000 tokens are 12,000 bytes, of which four fifths may be used.
    let test = start_engine(3000).await;
    for id in ["c1", "c2", "c3", "c4", "c5"] {
        test.model.script(printing_call(id));
    }
    test.model.script(ScriptedResponse::text("It printed a lot."));
    let run = test.run_message("s", "print").await;
    assert_eq!(run.output.as_deref(), Some("It printed a lot."), "{run:#?}");
    let last = messages_as_text(&test.last_messages());
    assert!(last.len() < 12_000, "{} bytes", last.len());
    assert!(last.contains("left out to make room") && last.contains("begin c1") && last.contains("end c1"), "{last}");
    assert!(last.contains(&"x".repeat(3000)), "the newest result was shortened: {last}");
    test.model.script(ScriptedResponse::text("x was printed.")).script(ScriptedResponse::text("Yes."));
    assert_eq!(test.run_message("s", "really?").await.output.as_deref(), Some("Yes."));
    let seen = test.model.recorded_requests();
    let summary = messages_as_text(seen[6].messages());
    assert!(summary.contains("Summarise the whole") && summary.len() < 12_000, "{} bytes: {summary}", summary.len());
    test.close().await;
}

#[tokio::test]
async fn a_run_that_its_provider_finds_too_long_is_shown_shorter() {
    let test = start_engine(128_000).await;
    test.model
        .script(printing_call("c1"))
        .script(printing_call("c2"))
        .script(overflow_response())
        .script(ScriptedResponse::text("Done."));
    assert_eq!(test.run_message("s", "print").await.output.as_deref(), Some("Done."));
    let seen = test.model.recorded_requests();
    let (refused, taken) = (messages_as_text(seen[2].messages()).len(), messages_as_text(seen[3].messages()).len());
    assert!(taken < refused - 1500, "{taken} of {refused} bytes");
    test.model.script(overflow_response());
    let failed = test.run_message("empty", "hello").await;
    assert!(
        matches!(failed.verdict, Some(Verdict::Failed { .. })),
        "a request that cannot shrink must fail: {failed:?}"
    );
    test.close().await;
}

#[tokio::test]
async fn a_summary_does_not_lose_that_a_request_was_stopped() {
    let test = start_engine(1700).await;
    test.model.script(ScriptedResponse::text(long_text("Boats are fine.")));
    test.run_message("s", "tell me of boats").await;
    test.model.script(ScriptedResponse::silent_mid_stream("Trains"));
    let run = test.send(submission("s", "sell all my trains")).await;
    test.wait_text(&run).await;
    test.stop(&run);
    test.wait_ended(&run).await;
    test.model.script(ScriptedResponse::text("Boats and trains.")).script(ScriptedResponse::text("Planes fly."));
    assert_eq!(test.run_message("s", &long_text("and of planes?")).await.output.as_deref(), Some("Planes fly."));
    let shown = messages_as_text(&test.last_messages());
    assert!(shown.contains("Boats and trains.") && !shown.contains("sell all my trains"), "{shown}");
    assert!(shown.contains("Do not resume them"), "{shown}");
    test.close().await;
}
