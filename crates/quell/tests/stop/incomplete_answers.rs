//! Truncated and refused model answers never count as finished, and none of their calls runs. A refused message does
//! not block the next one.

use crate::prelude::*;

#[tokio::test]
async fn an_answer_cut_by_its_length_is_failed_and_kept_for_people_alone() {
    let test = TestEngine::start_shared().await;
    test.model.script(ScriptedStream::new().text("The plan is: first").finish_reason("length"));
    let view = test.run_message("s", "make a plan").await;
    let (code, message) = failure_of(&view);
    assert_eq!(code, "truncated");
    assert!(message.contains("max_tokens"), "{message}");
    let page = test.engine.history_page(&parse_session_key("s"), 10, None).await.unwrap();
    let cut = page.messages.iter().find(|message| message.text == "The plan is: first");
    assert!(cut.is_some_and(|message| message.partial), "{page:#?}");
    let seen = test.next_request_text().await;
    assert!(seen.contains("make a plan") && !seen.contains("The plan is"), "{seen}");
    test.close().await;
}

#[rstest]
#[case::before_its_arguments("")]
#[case::with_arguments(r#"{"path":"."}"#)]
#[tokio::test]
async fn a_call_of_a_cut_message_does_not_run(#[case] arguments: &str) {
    let test = TestEngine::start_shared().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let cut = ScriptedStream::new().text("I look.").raw_tool_call("c1", "list_files", arguments);
    test.model.script(cut.finish_reason("length"));
    let view = test.run_message("s", "look").await;
    assert_eq!(failure_of(&view).0, "truncated");
    let started = |kind: &EventKind| matches!(kind, EventKind::ToolStarted { .. });
    assert!(!watcher.run_events(&view.run_id).iter().any(|event| started(&event.kind)), "{view:#?}");
    let seen = test.next_request_text().await;
    assert!(!seen.contains("list_files"), "{seen}");
    test.close().await;
}

#[tokio::test]
async fn a_refused_request_fails_and_leaves_what_the_model_sees() {
    let test = TestEngine::start_shared().await;
    test.model.script(ScriptedStream::new().text("I would say").finish_reason("content_filter"));
    let view = test.run_message("s", "something forbidden").await;
    let (code, message) = failure_of(&view);
    assert_eq!(code, "refused");
    assert!(message.contains("refused to answer"), "{message}");
    let seen = test.next_request_text().await;
    assert!(!seen.contains("something forbidden") && !seen.contains("I would say"), "{seen}");
    assert!(seen.contains("refused"), "the model does not learn of the refused message: {seen}");
    let page = test.engine.history_page(&parse_session_key("s"), 10, None).await.unwrap();
    for text in ["something forbidden", "I would say"] {
        assert!(page.messages.iter().any(|message| message.text == text), "the history for people lost it: {page:#?}");
    }
    test.close().await;
}

#[tokio::test]
async fn an_answer_of_white_space_is_no_answer() {
    let test = TestEngine::start_shared().await;
    test.model.script(ScriptedResponse::text("\n "));
    let view = test.run_message("s", "hello").await;
    assert_eq!(failure_of(&view).0, "empty_answer");
    test.close().await;
}
