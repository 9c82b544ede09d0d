//! The Anthropic Messages dialect with a whole engine: answers, thinking in tool loops, stops, and two dialects in one
//! session.

use quell_protocol::{RunEvent, Usage};
use quell_testkit::history_check::corpus::ModelDialect;
use quell_testkit::model::StreamStep;

use crate::prelude::*;

/// The agent of each dialect. Both are served by the same scripted model.
const OPENAI_AGENT: &str = "main";
const ANTHROPIC_AGENT: &str = "claude";

/// Starts an engine where the agent `claude` thinks in the Anthropic dialect, and `main` speaks the OpenAI one.
async fn start_engine() -> TestEngine {
    TestEngine::start_with(ProcessLock::shared().await, |config| {
        add_anthropic_provider(config);
        let claude = AgentConfig {
            model: "anthropic/claude".to_owned(),
            thinking_tokens: Some(2048),
            ..config.agents[&parse_agent_id(OPENAI_AGENT)].clone()
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
    assert_eq!(view.usage, Usage { input_tokens: 10, output_tokens: 5, estimated: false });
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

/// Reasoning that a stop cut off has no signature, so it must not be sent back.
#[rstest]
#[case::before_the_answer(ScriptedResponse::SilentBeforeHeaders, None)]
#[case::silent_after_the_headers(ScriptedStream::new().step(StreamStep::Silent).into(), None)]
#[case::while_thinking(ScriptedStream::new().thinking("I wonder").step(StreamStep::Silent).into(), Some((10, 2)))]
#[case::while_streaming(ScriptedStream::new().thinking("Hm.").text("Once upon a time").step(StreamStep::Silent).into(), Some((10, 5)))]
#[case::before_a_call_is_whole(ScriptedStream::new().tool_call("a", "shell", &json!({"command": "true"})).step(StreamStep::Silent).into(), None)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_closes_the_socket_and_the_next_message_is_valid(
    #[case] behaviour: ScriptedResponse,
    #[case] counted: Option<(u64, u64)>,
) {
    let test = start_engine().await;
    test.model.script(behaviour);
    let run = test.send(submission_to(ANTHROPIC_AGENT, "a story")).await;
    test.model.request_at(0).wait_paused().await;
    if counted.is_some() {
        let is_piece =
            |event: &RunEvent| matches!(event.kind, EventKind::TextDelta { .. } | EventKind::ThinkingDelta { .. });
        test.follow_until(&run, "a piece of the answer", is_piece).await;
    }
    let view = test.stop_and_wait(&run).await;
    test.model.request_at(0).wait_client_left().await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    assert!(receipt_of(&view).leftovers.is_empty() && view.usage.estimated, "{view:#?}");
    if let Some((input, most)) = counted {
        let Usage { input_tokens, output_tokens, .. } = view.usage;
        assert!(input_tokens == input && (1..=most).contains(&output_tokens), "{:?}", view.usage);
    }
    run_completed(&test, ANTHROPIC_AGENT, "and now?").await;
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains("stopped on purpose by the user"), "{seen}");
    assert!(!seen.contains("wonder") && !seen.contains("Once upon"), "{seen}");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_without_words_fails_with_its_reason() {
    let test = start_engine().await;
    test.model.script(ScriptedStream::new().finish_reason("refusal"));
    let run = test.send(submission_to(ANTHROPIC_AGENT, "no")).await;
    let view = test.wait_ended(&run).await;
    let (_, message) = failure_of(&view);
    assert!(message.contains("refused to answer"), "{message}");
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

/// The scripted model validates each request in its dialect, thinking included.
#[rstest]
#[case::openai_first(OPENAI_AGENT, ANTHROPIC_AGENT)]
#[case::anthropic_first(ANTHROPIC_AGENT, OPENAI_AGENT)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_dialects_take_turns_in_one_session(#[case] first: &str, #[case] second: &str) {
    let test = start_engine().await;
    stop_in_batch(&test, first, "one").await;
    run_with_tool(&test, second, "two").await;
    stop_in_batch(&test, second, "three").await;
    run_with_tool(&test, first, "four").await;
    test.model.script(ScriptedResponse::silent_mid_stream("Half of five"));
    let run = test.send(submission_to(first, "five")).await;
    test.wait_text(&run).await;
    test.stop_and_wait(&run).await;
    for agent_id in [second, first] {
        run_completed(&test, agent_id, "what happened?").await;
        let seen = messages_as_text(&test.last_messages());
        for word in ["one: 42", "two: 42", "three: 42", "four: 42", "five"] {
            assert!(seen.contains(word), "{agent_id}: {word} is missing in {seen}");
        }
        assert_eq!(seen.matches("stopped on purpose by the user").count(), 3, "{seen}");
        assert!(!seen.contains("Half of five"), "{seen}");
        assert_eq!(seen.contains("\"type\":\"thinking\""), agent_id == ANTHROPIC_AGENT, "{seen}");
    }
    let dialects: Vec<ModelDialect> = test.model.recorded_requests().iter().map(|request| request.dialect).collect();
    assert!(dialects.contains(&ModelDialect::OpenAi) && dialects.contains(&ModelDialect::Anthropic), "{dialects:?}");
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

/// Stops a run whose first call is finished, whose second is running and whose third has not begun.
async fn stop_in_batch(test: &TestEngine, agent_id: &str, text: &str) {
    let batch = add_shell_call(ScriptedStream::new().thinking("Three steps.").text("I begin."), "call_0", text);
    let batch = batch.tool_call("call_1", "shell", &json!({"command": "sleep 600"}));
    test.model.script(add_shell_call(batch, "call_2", "never"));
    let run = test.send(submission_to(agent_id, text)).await;
    let is_second = |event: &RunEvent| matches!(&event.kind, EventKind::ToolStarted { arguments, .. } if arguments["command"] == "sleep 600");
    test.follow_until(&run, "the second call", is_second).await;
    test.wait_resource_held(&run, ResourceKind::Process).await;
    assert_eq!(abort_reason(test.stop_and_wait(&run).await.verdict.as_ref()), StopReason::User);
}
