//! Pictures sent by users: shown to models with vision in both dialects, identical in later requests, and dropped from
//! the context when the model refuses them.

use quell_protocol::api::OnBusy;
use quell_test_support::seeing_agents::{
    ANTHROPIC_AGENT, OPENAI_AGENT, TEXT_ONLY_AGENT, add_seeing_agents, run_message,
};

use crate::prelude::*;

/// The smallest file that counts as a picture (its signature alone), and its base64.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const BASE64: &str = "iVBORw0KGgo=";

async fn start_engine() -> TestEngine {
    let test = TestEngine::start_with(ProcessLock::shared().await, add_seeing_agents).await;
    std::fs::write(picture_path(&test), PNG).unwrap();
    test
}

fn picture_path(test: &TestEngine) -> PathBuf {
    test.workdir().join("dot.png")
}

fn image_marker(test: &TestEngine) -> String {
    format!("[IMAGE:{}]", picture_path(test).display())
}

/// The content of a message, without the time of the message.
fn content_of(message: &Value) -> Value {
    let mut content = message["content"].clone();
    match &mut content {
        Value::String(text) => *text = without_time(text),
        Value::Array(parts) => {
            for part in parts.iter_mut().filter(|part| part["type"] == "text") {
                part["text"] = without_time(part["text"].as_str().unwrap()).into();
            }
            parts.retain(|part| part["text"] != "");
        }
        _ => {}
    }
    content
}

/// The content of the last user message.
fn last_user_content(test: &TestEngine) -> Value {
    content_of(test.last_messages().last().unwrap())
}

fn shown_content(text: &str) -> Value {
    let url = format!("data:image/png;base64,{BASE64}");
    json!([{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_sees_gets_the_picture_and_one_that_does_not_gets_the_text() {
    let test = start_engine().await;
    let text = format!("what is this? {}", image_marker(&test));
    let view = run_message(&test, OPENAI_AGENT, &text).await;
    assert_eq!(last_user_content(&test), shown_content("what is this?"));
    let held = &receipt_of(&view).resources;
    assert!(held.iter().any(|row| row.kind == ResourceKind::Task && row.label == "pictures (1)"), "{held:#?}");
    run_message(&test, ANTHROPIC_AGENT, "and you?").await;
    let source = json!({"type": "base64", "media_type": "image/png", "data": BASE64});
    let content = json!([{"type": "text", "text": "what is this?"}, {"type": "image", "source": source}]);
    assert_eq!(content_of(&test.last_messages()[0]), content);
    run_message(&test, OPENAI_AGENT, "see [IMAGE:/etc/hostname]!").await;
    let text = "see (a picture stood here; it lies where this agent sees none)!";
    assert_eq!(last_user_content(&test), json!([{"type": "text", "text": text}]));
    run_message(&test, TEXT_ONLY_AGENT, "and you?").await;
    assert_eq!(content_of(&test.last_messages()[1]), "what is this?");
    run_message(&test, TEXT_ONLY_AGENT, &image_marker(&test)).await;
    assert_eq!(last_user_content(&test), "(a picture, which this model cannot see)");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_is_the_same_in_every_later_request_as_long_as_its_file_is() {
    let test = start_engine().await;
    test.model.script(ScriptedStream::new().text("I look.").tool_call("c1", "list_files", &json!({})));
    test.model.script(ScriptedResponse::text("A dot."));
    run_message(&test, OPENAI_AGENT, &format!("what is this? {}", image_marker(&test))).await;
    run_message(&test, OPENAI_AGENT, "are you sure?").await;
    let seen = test.model.recorded_requests();
    for pair in seen.windows(2) {
        let (earlier, later) = (pair[0].messages(), pair[1].messages());
        assert_eq!(messages_as_text(&later[..earlier.len()]), messages_as_text(earlier), "byte for byte");
    }
    std::fs::remove_file(picture_path(&test)).unwrap();
    run_message(&test, OPENAI_AGENT, "and now?").await;
    let content = content_of(&test.last_messages()[1]);
    let words = "what is this? (a picture stood here; it cannot be read any more)";
    assert_eq!(content, json!([{"type": "text", "text": words}]));
    test.close().await;
}

/// The file is removed while the run works; the later requests of the run still begin with the same messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_keeps_the_pictures_that_it_has_read() {
    let test = start_engine().await;
    test.model.script(shell_call("rm dot.png")).script(ScriptedResponse::text("Gone."));
    run_message(&test, OPENAI_AGENT, &format!("remove this {}", image_marker(&test))).await;
    assert!(!picture_path(&test).exists());
    let seen = test.model.recorded_requests();
    let (earlier, later) = (seen[0].messages(), seen[1].messages());
    assert_eq!(messages_as_text(&later[..earlier.len()]), messages_as_text(earlier));
    assert_eq!(content_of(&later[1]), shown_content("remove this"));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_in_a_message_that_steers_is_seen_in_the_next_step() {
    let test = start_engine().await;
    let look = ScriptedStream::new().text("I look.").wait_for_gate("go");
    test.model.script(look.tool_call("c1", "list_files", &json!({}))).script(ScriptedResponse::text("A dot."));
    let agent = Some(parse_agent_id(OPENAI_AGENT));
    let run = test.send(Submission { agent: agent.clone(), ..submission("s", "look") }).await;
    test.model.wait_for_requests(1).await[0].wait_streaming().await;
    let steer = Submission { on_busy: OnBusy::Steer, agent, ..submission("s", &image_marker(&test)) };
    test.engine.submit(&alice(), steer).await.unwrap();
    test.model.open_gate("go");
    test.wait_ended(&run).await;
    let content = last_user_content(&test);
    assert_eq!(content[0]["type"], "image_url", "{content:#}");
    test.close().await;
}

// The older picture was taken once: the session's model has changed since.
#[rstest]
#[case::new(false, "could not take the pictures")]
#[case::older(true, "what is this? (a picture stood here; it is not shown any more)")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_that_the_model_does_not_take_leaves_what_it_sees_and_stays_in_the_record(
    #[case] is_older: bool,
    #[case] told: &str,
) {
    let test = start_engine().await;
    let text = format!("what is this? {}", image_marker(&test));
    if is_older {
        run_message(&test, OPENAI_AGENT, &text).await;
    }
    let body = json!({"error": {"message": "Invalid image data", "type": "invalid_request_error"}}).to_string();
    test.model.script(ScriptedResponse::Status { code: 400, headers: Vec::new(), body });
    let view = run_message(&test, OPENAI_AGENT, if is_older { "and now?" } else { &text }).await;
    let (code, message) = failure_of(&view);
    assert_eq!(code, "vision");
    assert!(message.contains("Invalid image data") && message.contains("without them"), "{message}");
    test.model.script(ScriptedResponse::text("Fine."));
    assert_eq!(run_message(&test, OPENAI_AGENT, "and now?").await.verdict, Some(Verdict::Completed));
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains("what is this?") == is_older && !seen.contains("image_url"), "{seen}");
    assert!(seen.contains(told), "the model is told that there was something: {seen}");
    let page = test.engine.history_page(&parse_session_key("s"), 10, None).await.unwrap();
    assert!(page.messages.iter().any(|message| message.text == text), "the record keeps it: {page:#?}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_picture_does_not_count_as_text() {
    let test = TestEngine::start_with_main(|main| {
        (main.vision, main.daily_tokens, main.window_tokens) = (true, Some(50_000), 20_000);
    })
    .await;
    // As text it would be about 250,000 tokens.
    let bytes = [PNG, &vec![0; 750_000]].concat();
    std::fs::write(picture_path(&test), bytes).unwrap();
    test.model.script(ScriptedResponse::silent_mid_stream("It is "));
    let run = test.send(submission("s", &image_marker(&test))).await;
    test.wait_text(&run).await;
    let view = test.stop_and_wait(&run).await;
    assert!(view.usage.estimated && view.usage.input_tokens < 10_000, "{:?}", view.usage);
    let again = test.run_message("s", "and now?").await;
    assert_eq!(again.verdict, Some(Verdict::Completed), "{again:#?}");
    assert_eq!(test.model.recorded_requests().len(), 2, "nothing was summarised");
    test.close().await;
}

/// The sweep proves how fast a stop is while pictures are read; this test checks the largest load of one request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pictures_of_one_request_have_a_bound_together() {
    let test = start_engine().await;
    let mut text = String::new();
    for number in 0..8 {
        let file = test.workdir().join(format!("{number}.png"));
        std::fs::write(&file, [PNG, &vec![0; 4 << 20]].concat()).unwrap();
        text.push_str(&format!("[IMAGE:{}]", file.display()));
    }
    let view = tokio::time::timeout(Duration::from_secs(60), run_message(&test, OPENAI_AGENT, &text)).await.unwrap();
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    let parts = last_user_content(&test).as_array().unwrap().clone();
    let pictures = parts.iter().filter(|part| part["type"] == "image_url").count();
    assert_eq!(pictures, 4, "24 MiB of base64");
    let text = parts[0]["text"].as_str().unwrap();
    assert_eq!(text.matches("there is no room for it").count(), 4, "the older ones are left out: {text}");
    test.close().await;
}
