//! Pictures returned by tools: stored for the session, shown to models with vision in both dialects, described to
//! others, kept across restarts.

use quell_test_support::seeing_agents::{
    ANTHROPIC_AGENT, OPENAI_AGENT, TEXT_ONLY_AGENT, add_seeing_agents, run_message,
};

use super::*;

/// The text that the server's tool `picture` returns besides its picture.
const TOOL_TEXT: &str = "look\n[an image, image/png, ";

/// Starts an engine in this data directory, whose agents share one workdir and use the server `test`.
async fn start_engine(dir: &TestDataDir) -> TestEngine {
    let (marker, log) = (ProcessMarker::new(), dir.path().join("log"));
    TestEngine::start_on(dir, |config| {
        config.mcp.insert("test".to_owned(), test_server_config(&marker, &log));
        add_seeing_agents(config);
    })
    .await
}

/// Runs a message whose model calls the server's tool `picture`.
async fn request_picture(test: &TestEngine, agent_id: &str) -> RunView {
    test.model.script(ScriptedResponse::tool_call("c1", "test__picture", &json!({"text": "a dot"})));
    test.model.script(ScriptedResponse::text("A dot."));
    run_message(test, agent_id, "show me").await
}

/// The stored pictures of tools below the workdir.
fn kept_pictures(test: &TestEngine) -> Vec<PathBuf> {
    let sessions = std::fs::read_dir(test.workdir().join("attachments")).into_iter().flatten().flatten();
    let tools = sessions.filter_map(|session| std::fs::read_dir(session.path().join("tools")).ok());
    tools.flatten().flatten().map(|file| file.path()).collect()
}

/// The content of the one tool result in a request to an Anthropic model.
fn result_content(messages: &[Value]) -> Value {
    let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let mut results = blocks.filter(|block| block["type"] == "tool_result");
    results.next().unwrap_or_else(|| panic!("no result in {messages:#?}"))["content"].clone()
}

/// Compares byte for byte, except for the prompt cache marks, which move on.
fn assert_begins_with(later: &[Value], earlier: &[Value]) {
    let text = |messages| messages_as_text(&without_cache_marks(messages));
    assert_eq!(text(&later[..earlier.len()]), text(earlier));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_of_a_tool_reaches_models_that_see_in_both_dialects() {
    let dir = TestDataDir::new();
    let test = start_engine(&dir).await;
    let view = request_picture(&test, OPENAI_AGENT).await;
    assert_eq!(view.output.as_deref(), Some("A dot."), "{view:#?}");
    let is_picture_task = |row: &Resource| row.kind == ResourceKind::Task && row.label == "pictures of a result (1)";
    assert!(receipt_of(&view).resources.iter().any(is_picture_task), "{view:#?}");
    let files = kept_pictures(&test);
    assert_eq!(files.len(), 1, "{files:?}");

    let messages = test.last_messages();
    let result_at = messages.iter().position(|message| message["role"] == "tool").unwrap();
    assert_eq!(messages[result_at + 1]["role"], "user", "{messages:#?}");
    let parts = messages[result_at + 1]["content"].as_array().unwrap();
    assert_eq!(parts.len(), 2, "{parts:#?}");
    let url = parts[1]["image_url"]["url"].as_str().unwrap();
    let data = url.strip_prefix("data:image/png;base64,").unwrap().to_owned();
    let result = &messages[result_at];
    assert!(result["content"].as_str().unwrap().starts_with(TOOL_TEXT), "{result:#}");

    run_message(&test, OPENAI_AGENT, "are you sure?").await;
    let again = test.last_messages();
    assert_begins_with(&again, &messages);
    run_message(&test, ANTHROPIC_AGENT, "and you?").await;
    let content = result_content(&test.last_messages());
    assert!(content[0]["text"].as_str().unwrap().starts_with(TOOL_TEXT), "{content:#}");
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    assert_eq!(content[1], json!({"type": "image", "source": source}));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_reads_text_is_told_that_there_is_a_picture() {
    let dir = TestDataDir::new();
    let test = start_engine(&dir).await;
    request_picture(&test, TEXT_ONLY_AGENT).await;
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains("(a picture, which this model cannot see)") && !seen.contains("base64"), "{seen}");
    // A model with vision gets the picture.
    run_message(&test, ANTHROPIC_AGENT, "and you?").await;
    assert_eq!(result_content(&test.last_messages())[1]["type"], "image");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_of_a_tool_is_the_same_after_a_restart_and_goes_with_its_session() {
    let dir = TestDataDir::new();
    let first = start_engine(&dir).await;
    request_picture(&first, ANTHROPIC_AGENT).await;
    let before = first.last_messages();
    first.close().await;

    let second = start_engine(&dir).await;
    run_message(&second, ANTHROPIC_AGENT, "and now?").await;
    assert_begins_with(&second.last_messages(), &before);
    let files = kept_pictures(&second);
    std::fs::remove_file(&files[0]).unwrap();
    run_message(&second, ANTHROPIC_AGENT, "and without it?").await;
    let content = result_content(&second.last_messages());
    assert_eq!(content[1], json!({"type": "text", "text": "(a picture stood here; it cannot be read any more)"}));
    request_picture(&second, ANTHROPIC_AGENT).await;
    assert_eq!(kept_pictures(&second).len(), 1);
    assert!(second.delete_session("s").await);
    assert!(kept_pictures(&second).is_empty(), "{:?}", kept_pictures(&second));
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_a_picture_is_kept_leaves_the_result() {
    let dir = TestDataDir::new();
    let test = start_engine(&dir).await;
    let run = parse_run_id("stopped");
    test.stop_at(Point::KeepPictures, 1, &run);
    test.model.script(ScriptedResponse::tool_call("c1", "test__picture", &json!({"text": "a dot"})));
    test.send(Submission { agent: Some(parse_agent_id(OPENAI_AGENT)), ..submission_as(&run, "s", "show me") }).await;
    test.point_hook.wait_fired().await;
    let view = test.wait_ended(&run).await;
    assert_eq!(view.verdict.as_ref().map(|verdict| verdict.as_str()), Some("aborted"), "{view:#?}");
    run_message(&test, OPENAI_AGENT, "go on").await;
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains("look") && seen.contains("its pictures were not kept"), "{seen}");
    assert!(kept_pictures(&test).is_empty());
    test.close().await;
}
