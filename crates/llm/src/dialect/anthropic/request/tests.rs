//! Request bodies under the rules of the Messages API.

use quell_protocol::{AgentId, RunId};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::Conversation;
use crate::tests::shell_tool;

#[derive(Default)]
struct Settings {
    temperature: Option<f64>,
    max_tokens: Option<u32>,
    thinking: Option<ThinkingMode>,
}

fn thinking_tokens(budget: u32) -> Settings {
    Settings { thinking: Some(ThinkingMode::Tokens(budget)), ..Settings::default() }
}

fn body_for(messages: Vec<Value>, settings: Settings) -> Value {
    let Settings { temperature, max_tokens, thinking } = settings;
    let conversation = Conversation { system: "Be brief.".to_owned(), messages, ..Conversation::default() };
    let (run, agent) = (RunId::parse("r").unwrap(), AgentId::parse("main").unwrap());
    let request = ModelCallRequest {
        run: &run,
        agent: &agent,
        conversation: &conversation,
        tools: &[shell_tool()],
        answer: &AnswerOptions { temperature, max_tokens, ..AnswerOptions::default() },
        thinking,
        web_search: false,
    };
    serde_json::from_str(&request_body("m", &request).unwrap()).unwrap()
}

fn hello_messages() -> Vec<Value> {
    vec![json!({"role": "user", "content": [{"type": "text", "text": "hi"}]})]
}

/// A conversation that ends with a call result; the message with the call begins with `first`.
fn messages_with_call_result(first: &Value) -> Vec<Value> {
    let call = json!({"type": "tool_use", "id": "a", "name": "shell", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "a", "content": "A"});
    let mut messages = hello_messages();
    messages.push(json!({"role": "assistant", "content": [first, call]}));
    messages.push(json!({"role": "user", "content": [result]}));
    messages
}

#[test]
fn a_body_is_what_the_dialect_says() {
    let expected = json!({
        "model": "m",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}},
        ]}],
        "stream": true,
        "tools": [{"name": "shell", "description": "Runs a command.", "input_schema": {"type": "object"}}],
        "temperature": 0.5,
    });
    assert_eq!(
        body_for(hello_messages(), Settings { temperature: Some(0.5), max_tokens: Some(100), thinking: None },),
        expected
    );
}

#[test]
fn the_prompt_and_everything_up_to_the_last_block_are_kept_for_the_next_request() {
    let body = body_for(messages_with_call_result(&json!({"type": "text", "text": "I look."})), Settings::default());
    let marked = |block: &&Value| block.get("cache_control").is_some();
    let messages = body["messages"].as_array().unwrap();
    let blocks = messages.iter().flat_map(|message| message["content"].as_array().unwrap());
    let marked: Vec<&Value> = blocks.filter(marked).chain(body["system"].as_array().unwrap()).collect();
    assert_eq!(marked.len(), 2, "{body:#}");
    assert_eq!(marked[0]["type"], "tool_result");
    assert!(marked.iter().all(|block| block["cache_control"] == json!({"type": "ephemeral"})), "{body:#}");
}

#[rstest]
#[case::none(None, None, 8192)]
#[case::given(Some(100), None, 100)]
#[case::beside_the_budget(None, Some(4000), 12_192)]
#[case::above_the_budget(Some(5000), Some(4000), 5000)]
fn the_length_is_always_given(#[case] max_tokens: Option<u32>, #[case] budget: Option<u32>, #[case] length: u32) {
    let settings = Settings { max_tokens, thinking: budget.map(ThinkingMode::Tokens), ..Settings::default() };
    assert_eq!(body_for(hello_messages(), settings)["max_tokens"], length);
}

#[test]
fn thinking_is_asked_for_with_its_budget_and_without_a_temperature() {
    let settings = Settings { temperature: Some(1.0), max_tokens: Some(5000), ..thinking_tokens(4000) };
    let body = body_for(hello_messages(), settings);
    assert_eq!(body["thinking"], json!({"type": "enabled", "budget_tokens": 4000}));
    assert!(body.get("temperature").is_none(), "{body:#}");
}

/// Newer models answer a budget with 400, and accept this anywhere in a loop.
#[test]
fn adaptive_thinking_is_asked_for_without_a_budget_and_without_a_temperature() {
    let text = json!({"type": "text", "text": "I look."});
    for messages in [hello_messages(), messages_with_call_result(&text)] {
        let thinking = Some(ThinkingMode::Adaptive);
        let body = body_for(messages, Settings { temperature: Some(0.5), max_tokens: None, thinking });
        assert_eq!(body["thinking"], json!({"type": "adaptive"}));
        assert!(body.get("temperature").is_none(), "{body:#}");
        assert_eq!(body["max_tokens"], 16_384);
    }
}

#[test]
fn a_budget_that_the_length_cannot_hold_is_not_sent() {
    let settings = Settings { temperature: Some(0.5), max_tokens: Some(4000), ..thinking_tokens(4000) };
    let body = body_for(hello_messages(), settings);
    assert!(body.get("thinking").is_none(), "{body:#}");
    assert_eq!(body["temperature"], 0.5);
}

#[rstest]
#[case::thought(json!({"type": "thinking", "thinking": "Hm.", "signature": "proof"}), true)]
#[case::redacted(json!({"type": "redacted_thinking", "data": "ZW5j"}), true)]
#[case::unthought(json!({"type": "text", "text": "I look."}), false)]
fn a_loop_that_began_without_thinking_goes_on_without_it(#[case] first: Value, #[case] thinks: bool) {
    let body = body_for(messages_with_call_result(&first), thinking_tokens(4000));
    assert_eq!(body.get("thinking").is_some(), thinks, "{body:#}");
}
