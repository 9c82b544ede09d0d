//! What only the Anthropic Messages dialect has, with a whole engine. `dialects` has what holds in all of them.

use quell_protocol::Usage;
use quell_testkit::history_check::corpus::ModelDialect;

use crate::prelude::*;

const ANTHROPIC_AGENT: &str = "claude";

/// Starts an engine where the agent `claude` thinks.
async fn start_engine() -> TestEngine {
    TestEngine::start_with(ProcessLock::shared().await, |config| {
        add_anthropic_provider(config);
        let claude = AgentConfig {
            model: "anthropic/claude".into(),
            thinking_tokens: Some(2048),
            ..config.agents[&parse_agent_id("main")].clone()
        };
        config.agents.insert(parse_agent_id(ANTHROPIC_AGENT), claude);
    })
    .await
}

fn submission_to(agent_id: &str, text: &str) -> Submission {
    Submission { agent: Some(parse_agent_id(agent_id)), ..submission("s", text) }
}

async fn run_completed(test: &TestEngine, agent_id: &str, text: &str) -> RunView {
    let run = test.send(submission_to(agent_id, text)).await;
    let view = test.wait_ended(&run).await;
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    view
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_answered_and_counted_by_the_provider() {
    let test = start_engine().await;
    test.model.script(ScriptedStream::new().thinking("A greeting.").text("Hello!"));
    let view = run_completed(&test, ANTHROPIC_AGENT, "hi").await;
    assert_eq!(view.output.as_deref(), Some("Hello!"));
    assert_eq!(view.usage, Usage { input_tokens: 10, output_tokens: 5, cached_tokens: 0, estimated: false });
    let request = test.model.recorded_requests().pop().unwrap();
    assert_eq!((request.dialect, request.header("x-api-key")), (ModelDialect::Anthropic, Some("sk-ant")));
    let body = &request.body;
    assert_eq!((&body["model"], &body["max_tokens"]), (&json!("claude"), &json!(8192 + 2048)));
    assert_eq!(body["thinking"], json!({"type": "enabled", "budget_tokens": 2048}));
    assert!(body["system"][0]["text"].as_str().is_some_and(|system| !system.is_empty()), "{body:#}");
    assert!(body["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "shell"), "{body:#}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thinking_survives_the_tool_loop_and_the_turn_unchanged() {
    let test = start_engine().await;
    let look = ScriptedStream::new().thinking("First ").thinking("ls.").redacted("ZW5j").text("I look.");
    test.model.script(look.tool_call("toolu_1", "shell", &json!({"command": "echo $((40 + 2))"})));
    test.model.script(ScriptedStream::new().thinking("Clear.").text("It is 42."));
    run_completed(&test, ANTHROPIC_AGENT, "what is it?").await;
    let messages = test.last_messages();
    let blocks = messages[1]["content"].as_array().unwrap();
    let kinds: Vec<&str> = blocks.iter().filter_map(|block| block["type"].as_str()).collect();
    assert_eq!(kinds, ["thinking", "redacted_thinking", "text", "tool_use"]);
    assert_eq!((&blocks[0]["thinking"], &blocks[1]["data"]), (&json!("First ls."), &json!("ZW5j")));
    let result = &messages[2]["content"][0];
    assert_eq!((&result["type"], &result["tool_use_id"]), (&json!("tool_result"), &json!("toolu_1")));
    assert!(result["content"].as_str().unwrap().contains("42"), "{result}");

    // The next message sends the turn again; the scripted model refuses changed reasoning.
    run_completed(&test, ANTHROPIC_AGENT, "sure?").await;
    assert_eq!(without_cache_marks(&test.last_messages()[..3]), without_cache_marks(&messages));
    assert!(messages_as_text(&test.last_messages()).contains("Clear."));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_pauses_is_asked_to_go_on() {
    let test = start_engine().await;
    test.model
        .script(ScriptedStream::new().text("So far.").finish_reason("pause_turn"))
        .script(ScriptedResponse::text("Done now."));
    assert_eq!(run_completed(&test, ANTHROPIC_AGENT, "work").await.output.as_deref(), Some("Done now."));
    test.close().await;
}

/// The summary is requested in the dialect of its model, after a turn with thinking and a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_is_too_long_is_summarised_in_the_same_dialect() {
    let test = start_engine().await;
    run_with_tool(&test, ANTHROPIC_AGENT, "one").await;
    let message = "prompt is too long: 210000 tokens > 200000 maximum";
    let body = json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}}).to_string();
    test.model.script(ScriptedResponse::Status { code: 400, headers: Vec::new(), body });
    test.model.script(ScriptedResponse::text("It was 42.")).script(ScriptedResponse::text("Two."));
    assert_eq!(run_completed(&test, ANTHROPIC_AGENT, "two").await.output.as_deref(), Some("Two."));
    let seen = test.model.recorded_requests();
    assert!(seen.iter().all(|request| request.dialect == ModelDialect::Anthropic) && seen.len() == 5, "{}", seen.len());
    assert!(seen[3].body.get("thinking").is_none(), "a summary needs no thinking: {:#}", seen[3].body);
    let after = messages_as_text(&test.last_messages());
    assert!(after.contains("It was 42.") && !after.contains("one: 42"), "{after}");
    test.close().await;
}

/// A call that prints `TEXT: 42`. Its id repeats, as with providers that count calls per answer.
fn add_shell_call(stream: ScriptedStream, id: &str, text: &str) -> ScriptedStream {
    stream.tool_call(id, "shell", &json!({"command": format!("echo {text}: $((40 + 2))")}))
}

async fn run_with_tool(test: &TestEngine, agent_id: &str, text: &str) {
    test.model.script(add_shell_call(ScriptedStream::new().thinking("Let me see.").text("I look."), "call_0", text));
    test.model.script(ScriptedStream::new().thinking("That is it.").text("There."));
    run_completed(test, agent_id, text).await;
}
