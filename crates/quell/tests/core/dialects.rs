//! What holds in every dialect, with a whole engine: answers, reasoning in tool loops, stops, incomplete answers, and
//! dialects that take turns in one session.
//!
//! The scripted model checks each history by the rules of its dialect, and that reasoning comes back unchanged.

mod provider_garbage;
mod web_search;

use quell_protocol::{RunEvent, Usage};
use quell_testkit::history_check::corpus::ModelDialect;
use quell_testkit::history_check::corpus::ModelDialect::{Anthropic, Gemini, OpenAi, OpenAiResponses};
use quell_testkit::model::StreamStep;

use crate::prelude::*;
use crate::test_engine::{add_dialect_agents, reasoning_mark};

async fn start_engine() -> TestEngine {
    TestEngine::start_with(ProcessLock::shared().await, add_dialect_agents).await
}

fn submission_in(dialect: ModelDialect, text: &str) -> Submission {
    Submission { agent: Some(parse_agent_id(dialect.kind())), ..submission("s", text) }
}

async fn run_completed(test: &TestEngine, dialect: ModelDialect, text: &str) -> RunView {
    let run = test.send(submission_in(dialect, text)).await;
    let view = test.wait_ended(&run).await;
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    view
}

async fn run_failed(test: &TestEngine, dialect: ModelDialect, text: &str) -> (String, String) {
    let run = test.send(submission_in(dialect, text)).await;
    let view = test.wait_ended(&run).await;
    let (code, message) = failure_of(&view);
    (code.to_owned(), message.to_owned())
}

/// The word for an answer that was cut by its length.
fn length_reason(dialect: ModelDialect) -> &'static str {
    match dialect {
        OpenAi => "length",
        OpenAiResponses => "max_output_tokens",
        Anthropic => "max_tokens",
        Gemini => "MAX_TOKENS",
    }
}

fn refusal_reason(dialect: ModelDialect) -> &'static str {
    match dialect {
        OpenAi | OpenAiResponses => "content_filter",
        Anthropic => "refusal",
        Gemini => "SAFETY",
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_shown_and_counted_by_the_provider(
    #[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] dialect: ModelDialect,
) {
    let test = start_engine().await;
    test.model.script(ScriptedStream::new().thinking("A greeting.").text("Hel").text("lo!").cached_tokens(4));
    let view = run_completed(&test, dialect, "hi").await;
    assert_eq!(view.output.as_deref(), Some("Hello!"));
    assert_eq!(view.usage, Usage { input_tokens: 10, output_tokens: 5, cached_tokens: 4, estimated: false });
    let request = test.model.recorded_requests().pop().unwrap();
    assert_eq!((request.dialect, request.last_user_text.contains("hi")), (dialect, true));
    test.close().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasoning_survives_the_tool_loop_and_the_turn_unchanged(
    #[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] dialect: ModelDialect,
) {
    let test = start_engine().await;
    let look = ScriptedStream::new().thinking("First ").thinking("ls.").text("I look.");
    let look = look.tool_call("call_1", "shell", &json!({"command": "echo $((40 + 2))"}));
    test.model.script(look.tool_call("call_2", "list_files", &json!({"path": "."})));
    test.model.script(ScriptedStream::new().thinking("Clear.").text("It is 42."));
    run_completed(&test, dialect, "what is it?").await;
    let messages = test.last_messages();
    let seen = messages_as_text(&messages);
    assert!(seen.contains(reasoning_mark(dialect)) && seen.contains("42"), "{seen}");
    assert!(!seen.contains("skip_thought_signature_validator"), "the own signature was lost: {seen}");
    // The next message sends the turn again; the scripted model refuses changed reasoning.
    run_completed(&test, dialect, "sure?").await;
    if dialect != OpenAi {
        // Chat completions take reasoning back only within the tool loop.
        let again = &test.last_messages()[..messages.len()];
        assert_eq!(without_cache_marks(again), without_cache_marks(&messages));
    }
    test.close().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_arrive_whole_in_any_pieces(#[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] dialect: ModelDialect) {
    let test = start_engine().await;
    let calls = ["one", "two"].iter().fold(ScriptedStream::new(), |stream, word| {
        stream.tool_call(format!("call_{word}"), "shell", &json!({"command": format!("echo ü{word}: $((40 + 2))")}))
    });
    test.model.script(calls.split_arguments(3).split_writes(7));
    run_completed(&test, dialect, "go").await;
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains("üone: 42") && seen.contains("ütwo: 42"), "{seen}");
    test.close().await;
}

/// Reasoning that a stop cut off has no signature, so it must not be sent back.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_closes_the_socket_and_the_next_message_is_valid(
    #[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] dialect: ModelDialect,
    #[values("before", "headers", "thinking", "text", "call")] moment: &str,
) {
    let test = start_engine().await;
    let call = json!({"command": "true"});
    let stream = match moment {
        "thinking" => ScriptedStream::new().thinking("I wonder"),
        "text" => ScriptedStream::new().thinking("Hm.").text("Once upon a time"),
        "call" => ScriptedStream::new().tool_call("a", "shell", &call),
        _ => ScriptedStream::new(),
    };
    test.model.script(match moment {
        "before" => ScriptedResponse::SilentBeforeHeaders,
        _ => stream.step(StreamStep::Silent).into(),
    });
    let run = test.send(submission_in(dialect, "a story")).await;
    test.model.request_at(0).wait_paused().await;
    if matches!(moment, "thinking" | "text") {
        let is_piece =
            |event: &RunEvent| matches!(event.kind, EventKind::TextDelta { .. } | EventKind::ThinkingDelta { .. });
        test.follow_until(&run, "a piece of the answer", is_piece).await;
    }
    let view = test.stop_and_wait(&run).await;
    test.model.request_at(0).wait_client_left().await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    assert!(receipt_of(&view).leftovers.is_empty() && view.usage.estimated, "{view:#?}");
    assert!(view.usage.input_tokens > 0, "the provider read the request: {:?}", view.usage);
    if matches!(moment, "thinking" | "text") {
        assert!((1..=5).contains(&view.usage.output_tokens), "{:?}", view.usage);
    }
    run_completed(&test, dialect, "and now?").await;
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains("stopped on purpose by the user"), "{seen}");
    assert!(!seen.contains("wonder") && !seen.contains("Once upon"), "{seen}");
    test.close().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incomplete_answer_fails_with_its_reason(
    #[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] dialect: ModelDialect,
) {
    let test = start_engine().await;
    test.model.script(ScriptedStream::new().text("The plan is: first").finish_reason(length_reason(dialect)));
    let (code, message) = run_failed(&test, dialect, "make a plan").await;
    assert!(code == "truncated" && message.contains("max_tokens"), "{code} {message}");
    test.model.script(ScriptedStream::new().finish_reason(refusal_reason(dialect)));
    let (code, message) = run_failed(&test, dialect, "no").await;
    assert!(code == "refused" && message.contains("refused to answer"), "{code} {message}");
    test.model.script(ScriptedResponse::error_inside_stream("I be", "the engine is on fire"));
    let (code, message) = run_failed(&test, dialect, "again").await;
    assert!(code == "model_error" && message.contains("the engine is on fire"), "{code} {message}");
    run_completed(&test, dialect, "and now?").await;
    let seen = messages_as_text(&test.last_messages());
    assert!(!seen.contains("The plan is") && !seen.contains("I be"), "{seen}");
    test.close().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_dialects_take_turns_in_one_session(
    #[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] first: ModelDialect,
    #[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] second: ModelDialect,
) {
    if first == second {
        return;
    }
    let test = start_engine().await;
    stop_in_batch(&test, first, "one").await;
    run_with_tool(&test, second, "two").await;
    stop_in_batch(&test, second, "three").await;
    run_with_tool(&test, first, "four").await;
    test.model.script(ScriptedResponse::silent_mid_stream("Half of five"));
    let run = test.send(submission_in(first, "five")).await;
    test.wait_text(&run).await;
    test.stop_and_wait(&run).await;
    for dialect in [second, first] {
        run_completed(&test, dialect, "what happened?").await;
        let seen = messages_as_text(&test.last_messages());
        for word in ["one: 42", "two: 42", "three: 42", "four: 42", "five"] {
            assert!(seen.contains(word), "{dialect:?}: {word} is missing in {seen}");
        }
        assert_eq!(seen.matches("stopped on purpose by the user").count(), 3, "{seen}");
        assert!(!seen.contains("Half of five"), "{seen}");
        for other in ModelDialect::ALL.into_iter().filter(|other| *other != dialect) {
            assert!(!seen.contains(reasoning_mark(other)), "reasoning of {other:?} was sent to {dialect:?}: {seen}");
        }
    }
    let dialects: Vec<ModelDialect> = test.model.recorded_requests().iter().map(|request| request.dialect).collect();
    assert!(dialects.contains(&first) && dialects.contains(&second), "{dialects:?}");
    test.close().await;
}

/// A call that prints `TEXT: 42`. Its id repeats, as with providers that count calls per answer.
fn add_shell_call(stream: ScriptedStream, id: &str, text: &str) -> ScriptedStream {
    stream.tool_call(id, "shell", &json!({"command": format!("echo {text}: $((40 + 2))")}))
}

async fn run_with_tool(test: &TestEngine, dialect: ModelDialect, text: &str) {
    test.model.script(add_shell_call(ScriptedStream::new().thinking("Let me see.").text("I look."), "call_0", text));
    test.model.script(ScriptedStream::new().thinking("That is it.").text("There."));
    run_completed(test, dialect, text).await;
}

/// Stops a run whose first call is finished, whose second is running and whose third has not begun.
async fn stop_in_batch(test: &TestEngine, dialect: ModelDialect, text: &str) {
    let batch = add_shell_call(ScriptedStream::new().thinking("Three steps.").text("I begin."), "call_0", text);
    let batch = batch.tool_call("call_1", "shell", &json!({"command": "sleep 600"}));
    test.model.script(add_shell_call(batch, "call_2", "never"));
    let run = test.send(submission_in(dialect, text)).await;
    let is_second = |event: &RunEvent| matches!(&event.kind, EventKind::ToolStarted { arguments, .. } if arguments["command"] == "sleep 600");
    test.follow_until(&run, "the second call", is_second).await;
    test.wait_resource_held(&run, ResourceKind::Process).await;
    assert_eq!(abort_reason(test.stop_and_wait(&run).await.verdict.as_ref()), StopReason::User);
}
