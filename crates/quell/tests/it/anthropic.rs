//! The Anthropic messages dialect with a whole engine: answers, thinking in a tool loop, stops, and two dialects that take
//! turns in one session.

use quell_engine::agent::AgentConfig;
use quell_engine::dispatch::Submission;
use quell_engine::llm::{ProviderConfig, ProviderKind};
use quell_engine::scope::Point;
use quell_kernel::Push;
use quell_protocol::api::RunView;
use quell_protocol::{EventKind, ResourceKind, RunId, StopReason, Usage, Verdict};
use quell_testkit::Behaviour;
use quell_testkit::history::corpus::Dialect;
use quell_testkit::model::{ModelRequest, Step, Stream};
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::{
    self, Claim, House, abort_reason, agent, alice, flat, message, message_as, of_run, receipt, run_id,
};

/// The agent of each dialect; both are served by the same scripted model.
const OPENAI: &str = "main";
const CLAUDE: &str = "claude";

/// A house where the agent `claude` thinks in the Anthropic dialect, and `main` speaks the other one.
async fn house() -> House {
    House::with(Claim::shared().await, |config| {
        let base_url = config.providers["scripted"].base_url.clone();
        let provider = ProviderConfig { base_url, ..ProviderConfig::new(ProviderKind::Anthropic) };
        let provider = ProviderConfig { api_key: Some("sk-ant".to_owned().into()), ..provider };
        config.providers.insert("anthropic".to_owned(), provider);
        let claude = AgentConfig {
            model: "anthropic/claude".to_owned(),
            thinking_tokens: Some(2048),
            ..config.agents[&agent(OPENAI)].clone()
        };
        config.agents.insert(agent(CLAUDE), claude);
    })
    .await
}

fn to(who: &str, text: &str) -> Submission {
    Submission { agent: Some(agent(who)), ..message("s", text) }
}

async fn ask(house: &House, who: &str, text: &str) -> RunView {
    let run = house.send(to(who, text)).await;
    let view = house.ended(&run).await;
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    view
}

fn last(house: &House) -> ModelRequest {
    house.model.seen().pop().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_answered_and_counted_by_the_provider() {
    let house = house().await;
    house.model.script(Stream::new().thinking("A greeting.").text("Hello!"));
    let view = ask(&house, CLAUDE, "hi").await;
    assert_eq!(view.output.as_deref(), Some("Hello!"));
    assert_eq!(view.usage, Usage { input_tokens: 10, output_tokens: 5, estimated: false });
    let request = last(&house);
    assert_eq!((request.dialect, request.header("x-api-key")), (Dialect::Anthropic, Some("sk-ant")));
    let body = &request.body;
    assert_eq!((&body["model"], &body["max_tokens"]), (&json!("claude"), &json!(8192 + 2048)));
    assert_eq!(body["thinking"], json!({"type": "enabled", "budget_tokens": 2048}));
    assert!(body["system"][0]["text"].as_str().is_some_and(|system| !system.is_empty()), "{body:#}");
    assert!(body["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "shell"), "{body:#}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thinking_survives_the_tool_loop_and_the_turn_unchanged() {
    let house = house().await;
    let look = Stream::new().thinking("First ").thinking("ls.").redacted("ZW5j").text("I look.");
    house.model.script(look.tool_call("toolu_1", "shell", &json!({"command": "echo $((40 + 2))"})));
    house.model.script(Stream::new().thinking("Clear.").text("It is 42."));
    ask(&house, CLAUDE, "what is it?").await;
    let messages = house.last_messages();
    let said = messages[1]["content"].as_array().unwrap();
    let kinds: Vec<&str> = said.iter().filter_map(|block| block["type"].as_str()).collect();
    assert_eq!(kinds, ["thinking", "redacted_thinking", "text", "tool_use"]);
    assert_eq!((&said[0]["thinking"], &said[1]["data"]), (&json!("First ls."), &json!("ZW5j")));
    let result = &messages[2]["content"][0];
    assert_eq!((&result["type"], &result["tool_use_id"]), (&json!("tool_result"), &json!("toolu_1")));
    assert!(result["content"].as_str().unwrap().contains("42"), "{result}");

    // The next message reads the turn from the same history; the server refuses reasoning that was changed.
    ask(&house, CLAUDE, "sure?").await;
    assert_eq!(without_marks(&house.last_messages()[..3]), without_marks(&messages));
    assert!(flat(&house.last_messages()).contains("Clear."));
    house.close().await;
}

/// The server's signatures hold only where it put them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thinking_between_two_calls_goes_back_between_them() {
    let house = house().await;
    let look = call(Stream::new().thinking("One.").text("First."), "a", "one").thinking("Two.").redacted("ZW5j");
    house.model.script(call(look, "b", "two")).script(Stream::new().thinking("Clear.").text("Both are 42."));
    ask(&house, CLAUDE, "look twice").await;
    let messages = house.last_messages();
    let said = messages[1]["content"].as_array().unwrap();
    let kinds: Vec<&str> = said.iter().filter_map(|block| block["type"].as_str()).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use", "thinking", "redacted_thinking", "tool_use"]);
    ask(&house, CLAUDE, "sure?").await;
    assert_eq!(without_marks(&house.last_messages()[..3]), without_marks(&messages));
    house.close().await;
}

/// Reasoning that a stop cut off has no signature, and no provider takes it back.
#[rstest]
#[case::before_the_answer(Behaviour::SilentBeforeHeaders, None)]
#[case::silent_after_the_headers(Stream::new().step(Step::Silent).into(), None)]
#[case::while_thinking(Stream::new().thinking("I wonder").step(Step::Silent).into(), Some((10, 2)))]
#[case::while_streaming(Stream::new().thinking("Hm.").text("Once upon a time").step(Step::Silent).into(), Some((10, 5)))]
#[case::before_a_call_is_whole(Stream::new().tool_call("a", "shell", &json!({"command": "true"})).step(Step::Silent).into(), None)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_closes_the_socket_and_the_next_message_is_valid(
    #[case] behaviour: Behaviour,
    #[case] counted: Option<(u64, u64)>,
) {
    let house = house().await;
    house.model.script(behaviour);
    let run = house.send(to(CLAUDE, "a story")).await;
    house.model.request(0).resting().await;
    if counted.is_some() {
        until(&house, &run, |kind| matches!(kind, EventKind::TextDelta { .. } | EventKind::ThinkingDelta { .. })).await;
    }
    house.stop(&run);
    let view = house.ended(&run).await;
    house.model.request(0).client_left().await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    assert!(receipt(&view).leftovers.is_empty() && view.usage.estimated, "{view:#?}");
    if let Some((input, most)) = counted {
        let Usage { input_tokens, output_tokens, .. } = view.usage;
        assert!(input_tokens == input && (1..=most).contains(&output_tokens), "{:?}", view.usage);
    }
    ask(&house, CLAUDE, "and now?").await;
    let seen = flat(&house.last_messages());
    assert!(seen.contains("stopped on purpose by the user"), "{seen}");
    assert!(!seen.contains("wonder") && !seen.contains("Once upon"), "{seen}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_in_the_back_off_of_an_overloaded_server_asks_no_more() {
    let house = house().await;
    let run = run_id("backing-off");
    let engine = house.engine.clone();
    let id = run.clone();
    house.trap.arm(Point::ModelBackoff, 1, move || {
        assert_eq!(engine.stop(&alice(), &of_run(&id), &harness::ask(Push::Gentle)).aborted, [id]);
    });
    house.model.script(Behaviour::overloaded());
    house.send(Submission { agent: Some(agent(CLAUDE)), ..message_as(&run, "s", "hello") }).await;
    let view = house.ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    assert_eq!(view.usage.input_tokens, 0, "what the provider refused costs nothing");
    assert_eq!(house.model.seen().len(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_server_is_asked_again() {
    let house = house().await;
    let Behaviour::Status { code, body, .. } = Behaviour::overloaded() else { panic!("a status") };
    let headers = vec![("retry-after".to_owned(), "0.02".to_owned())];
    house.model.script(Behaviour::Status { code, headers, body }).script(Behaviour::text("At last."));
    let view = ask(&house, CLAUDE, "hello").await;
    assert_eq!(view.output.as_deref(), Some("At last."));
    assert_eq!(view.usage, Usage { input_tokens: 10, output_tokens: 5, estimated: false }, "a refusal costs nothing");
    assert_eq!(house.model.seen().len(), 2);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_inside_the_stream_fails_the_run_and_not_the_session() {
    let house = house().await;
    house.model.script(Behaviour::error_inside_stream("Well", "Overloaded"));
    let run = house.send(to(CLAUDE, "hello")).await;
    let view = house.ended(&run).await;
    let Some(Verdict::Failed { message, .. }) = &view.verdict else { panic!("{view:#?}") };
    assert!(message.contains("Overloaded") && message.contains("try again later"), "{message}");
    ask(&house, CLAUDE, "again").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_pauses_is_asked_to_go_on() {
    let house = house().await;
    house.model.script(Stream::new().text("So far.").finish_reason("pause_turn")).script(Behaviour::text("Done now."));
    assert_eq!(ask(&house, CLAUDE, "work").await.output.as_deref(), Some("Done now."));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_without_words_fails_with_its_reason() {
    let house = house().await;
    house.model.script(Stream::new().finish_reason("refusal"));
    let run = house.send(to(CLAUDE, "no")).await;
    let view = house.ended(&run).await;
    let Some(Verdict::Failed { message, .. }) = &view.verdict else { panic!("{view:#?}") };
    assert!(message.contains("refused to answer"), "{message}");
    house.close().await;
}

/// The summary is asked for in the dialect of the model that makes it, after a turn with thinking and a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_is_too_long_is_summarised_in_the_same_dialect() {
    let house = house().await;
    ask_with_a_tool(&house, CLAUDE, "one").await;
    let error =
        json!({"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"});
    let body = json!({"type": "error", "error": error}).to_string();
    house.model.script(Behaviour::Status { code: 400, headers: Vec::new(), body });
    house.model.script(Behaviour::text("It was 42.")).script(Behaviour::text("Two."));
    assert_eq!(ask(&house, CLAUDE, "two").await.output.as_deref(), Some("Two."));
    let seen = house.model.seen();
    assert!(seen.iter().all(|request| request.dialect == Dialect::Anthropic) && seen.len() == 5, "{}", seen.len());
    assert!(seen[3].body.get("thinking").is_none(), "a summary needs no thinking: {:#}", seen[3].body);
    let after = flat(&house.last_messages());
    assert!(after.contains("It was 42.") && !after.contains("one: 42"), "{after}");
    house.close().await;
}

/// Provider-valid in every request: the scripted model checks each one in the dialect it came in, thinking included.
#[rstest]
#[case::openai_first(OPENAI, CLAUDE)]
#[case::anthropic_first(CLAUDE, OPENAI)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_dialects_take_turns_in_one_session(#[case] first: &str, #[case] second: &str) {
    let house = house().await;
    stopped_in_a_batch(&house, first, "one").await;
    ask_with_a_tool(&house, second, "two").await;
    stopped_in_a_batch(&house, second, "three").await;
    ask_with_a_tool(&house, first, "four").await;
    house.model.script(Behaviour::silent_mid_stream("Half of five"));
    let run = house.send(to(first, "five")).await;
    house.text_came(&run).await;
    house.stop(&run);
    house.ended(&run).await;
    for who in [second, first] {
        ask(&house, who, "what happened?").await;
        let seen = flat(&house.last_messages());
        for word in ["one: 42", "two: 42", "three: 42", "four: 42", "five"] {
            assert!(seen.contains(word), "{who}: {word} is missing in {seen}");
        }
        assert_eq!(seen.matches("stopped on purpose by the user").count(), 3, "{seen}");
        assert!(!seen.contains("Half of five"), "{seen}");
        assert_eq!(house.last_messages().iter().any(has_thinking), who == CLAUDE, "{seen}");
    }
    let dialects: Vec<Dialect> = house.model.seen().iter().map(|request| request.dialect).collect();
    assert!(dialects.contains(&Dialect::OpenAi) && dialects.contains(&Dialect::Anthropic), "{dialects:?}");
    house.close().await;
}

/// The messages without the marks that ask the provider to keep them: these move on with the conversation.
fn without_marks(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    let blocks = messages.iter_mut().filter_map(|message| message["content"].as_array_mut()).flatten();
    for block in blocks.filter_map(Value::as_object_mut) {
        block.remove("cache_control");
    }
    messages
}

fn has_thinking(message: &Value) -> bool {
    message["content"].as_array().is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "thinking"))
}

/// A call that says `TEXT: 42`. Its id is the same every time, as from providers that count calls per answer.
fn call(stream: Stream, id: &str, text: &str) -> Stream {
    stream.tool_call(id, "shell", &json!({"command": format!("echo {text}: $((40 + 2))")}))
}

async fn ask_with_a_tool(house: &House, who: &str, text: &str) {
    house.model.script(call(Stream::new().thinking("Let me see.").text("I look."), "call_0", text));
    house.model.script(Stream::new().thinking("That is it.").text("There."));
    ask(house, who, text).await;
}

/// Stops a run whose first call is finished, whose second is at work and whose third has not begun.
async fn stopped_in_a_batch(house: &House, who: &str, text: &str) {
    let batch = call(Stream::new().thinking("Three steps.").text("I begin."), "call_0", text);
    let batch = batch.tool_call("call_1", "shell", &json!({"command": "sleep 600"}));
    house.model.script(call(batch, "call_2", "never"));
    let run = house.send(to(who, text)).await;
    let mut started = 0;
    until(house, &run, |kind| {
        started += u32::from(matches!(kind, EventKind::ToolStarted { .. }));
        started == 2
    })
    .await;
    house.holds(&run, ResourceKind::Process).await;
    house.stop(&run);
    let view = house.ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
}

/// Waits for an event of a run.
async fn until(house: &House, run: &RunId, mut wanted: impl FnMut(&EventKind) -> bool) {
    let Some(cell) = house.engine.live(run) else { panic!("run {run} is over") };
    let mut follower = cell.follow(0);
    while let Some(event) = follower.next().await {
        if wanted(&event.kind) {
            return;
        }
    }
    panic!("run {run} ended before the event came");
}
