//! A chain of models: when a provider fails before its answer begins, the next model takes over for the rest of the run.

use quell_protocol::Usage;
use quell_testkit::history_check::corpus::ModelDialect;
use quell_testkit::model::StreamStep;

use crate::prelude::*;
use crate::test_engine::add_dialect_agents;

/// An engine whose agent `main` has these models, each as `KIND/NAME` of a dialect.
async fn start_engine(models: &[&str]) -> TestEngine {
    TestEngine::start_with(ProcessLock::shared().await, |config| {
        add_dialect_agents(config);
        let chain = serde_json::from_value(json!(models)).unwrap();
        config.agents.get_mut(&parse_agent_id("main")).unwrap().model = chain;
    })
    .await
}

fn fallbacks(watcher: &mut NoticeRecorder, run: &RunId) -> Vec<(String, String, String)> {
    let of = |kind: &EventKind| match kind {
        EventKind::ModelFallback { from, to, reason } => Some((from.clone(), to.clone(), reason.clone())),
        _ => None,
    };
    watcher.run_events(run).iter().filter_map(|event| of(&event.kind)).collect()
}

fn json_status(code: u16, error: &Value) -> ScriptedResponse {
    ScriptedResponse::Status { code, headers: Vec::new(), body: json!({"error": error}).to_string() }
}

#[rstest]
#[case::overloaded(vec![ScriptedResponse::overloaded(); 2], "Overloaded")]
#[case::too_many(vec![ScriptedResponse::rate_limited("0.01"); 2], "429")]
#[case::out_of_service(vec![ScriptedResponse::status(503); 2], "503")]
#[case::no_money(vec![ScriptedResponse::status(402)], "402")]
#[case::no_quota(vec![json_status(429, &json!({"message": "pay", "code": "insufficient_quota"}))], "billing")]
#[case::no_credit(vec![json_status(400, &json!({"message": "Your credit balance is too low."}))], "credit balance")]
#[case::cut(vec![ScriptedStream::new().step(StreamStep::Disconnect).into()], "broke off")]
#[case::error_in_the_stream(vec![ScriptedStream::new().step(StreamStep::Error { message: "engine is full".into() }).into(); 2], "engine is full")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_model_answers_when_a_provider_fails(
    #[case] failures: Vec<ScriptedResponse>,
    #[case] reason: &str,
    #[values("openai", "openai-responses", "anthropic", "gemini")] second: &str,
) {
    // The first dialect is the one whose error in a stream has a status.
    let test = start_engine(&["anthropic/first", &format!("{second}/second")]).await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let attempts = failures.len();
    for failure in failures {
        test.model.script(failure);
    }
    test.model.script(ScriptedResponse::text("Here I am."));
    let view = test.run_message("s", "hello").await;
    assert_eq!((view.output.as_deref(), &view.verdict), (Some("Here I am."), &Some(Verdict::Completed)), "{view:#?}");
    let seen = fallbacks(&mut watcher, &view.run_id);
    let [(from, to, why)] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!((from.as_str(), to), ("anthropic/first", &format!("{second}/second")));
    assert!(why.contains(reason), "{why}");
    let requests = test.model.recorded_requests();
    let dialects: Vec<&str> = requests.iter().map(|request| request.dialect.kind()).collect();
    let tried = dialects.iter().filter(|kind| **kind == "anthropic").count() - usize::from(second == "anthropic");
    assert!(tried >= attempts && dialects.last() == Some(&second), "{dialects:?}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_that_took_over_stays_for_the_run() {
    let test = start_engine(&["openai/first", "gemini/second"]).await;
    test.model.script(ScriptedResponse::status(402));
    let call = ScriptedStream::new().tool_call("c1", "shell", &json!({"command": "echo $((40 + 2))"}));
    test.model.script(call).script(ScriptedResponse::text("It is 42."));
    let view = test.run_message("s", "what is it?").await;
    assert_eq!(view.output.as_deref(), Some("It is 42."));
    assert_eq!(
        view.usage,
        Usage { input_tokens: 20, output_tokens: 10, cached_tokens: 0, estimated: false },
        "a refusal costs nothing"
    );
    // The next run begins with the first model again.
    test.run_message("s", "sure?").await;
    let requests = test.model.recorded_requests();
    let dialects: Vec<ModelDialect> = requests.iter().map(|request| request.dialect).collect();
    assert_eq!(dialects, [ModelDialect::OpenAi, ModelDialect::Gemini, ModelDialect::Gemini, ModelDialect::OpenAi]);
    test.close().await;
}

/// The calls of the first model are in the history of the second, without the reasoning that only the first can read.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_goes_on_with_the_calls_of_another(
    #[values("openai", "openai-responses", "anthropic", "gemini")] first: &str,
    #[values("openai", "openai-responses", "anthropic", "gemini")] second: &str,
) {
    let test = start_engine(&[&format!("{first}/first"), &format!("{second}/second")]).await;
    let call = ScriptedStream::new().thinking("Hm.").tool_call("c1", "shell", &json!({"command": "echo $((40 + 2))"}));
    test.model.script(call).script(ScriptedResponse::status(402)).script(ScriptedResponse::text("It is 42."));
    let view = test.run_message("s", "what is it?").await;
    assert_eq!(view.output.as_deref(), Some("It is 42."), "{view:#?}");
    assert!(messages_as_text(&test.last_messages()).contains("42"));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_failure_is_the_failure_of_the_run() {
    let test = start_engine(&["openai/first", "anthropic/second"]).await;
    test.model.script(ScriptedResponse::status(402)).script(ScriptedResponse::status(402));
    let view = test.run_message("s", "hello").await;
    let (code, message) = failure_of(&view);
    assert!(code == "model_error" && message.contains("`anthropic`"), "{code} {message}");
    assert_eq!(test.model.recorded_requests().len(), 2);
    test.close().await;
}

#[rstest]
#[case::text(ScriptedStream::new().text("Half"))]
#[case::reasoning(ScriptedStream::new().thinking("Hm"))]
#[case::call(ScriptedStream::new().tool_call("c1", "shell", &json!({"command": "touch proof"})))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_has_begun_is_not_asked_of_another_model(#[case] begun: ScriptedStream) {
    let test = start_engine(&["openai/first", "anthropic/second"]).await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.model.script(begun.step(StreamStep::Disconnect));
    let view = test.run_message("s", "hello").await;
    assert_eq!(failure_of(&view).0, "truncated");
    assert_eq!(fallbacks(&mut watcher, &view.run_id), []);
    assert_eq!(test.model.recorded_requests().len(), 1);
    test.close().await;
}

#[rstest]
#[case::bad_key(401)]
#[case::bad_request(400)]
#[case::no_such_model(404)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mistake_of_the_configuration_is_not_hidden(#[case] status: u16) {
    let test = start_engine(&["openai/first", "anthropic/second"]).await;
    test.model.script(ScriptedResponse::status(status));
    let view = test.run_message("s", "hello").await;
    assert!(failure_of(&view).1.contains(&status.to_string()), "{view:#?}");
    assert_eq!(test.model.recorded_requests().len(), 1);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stop_ends_a_chain_between_two_providers() {
    let test = start_engine(&["openai/first", "anthropic/second"]).await;
    test.model.script(ScriptedResponse::status(402));
    let run = parse_run_id("chained");
    test.stop_at(Point::ModelFallback, 1, &run);
    let sent = test.send(Submission { idempotency_key: Some(run.clone()), ..submission("s", "hello") }).await;
    assert_eq!(sent, run);
    let view = test.wait_ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    assert_eq!(test.model.recorded_requests().len(), 1, "the second provider was asked after the stop");
    test.next_request_text().await;
    test.close().await;
}

/// An engine with a chain whose window is full, so that the next message needs a summary.
async fn start_engine_with_full_window() -> TestEngine {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        add_dialect_agents(config);
        let main = config.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.model = serde_json::from_value(json!(["openai/first", "anthropic/second"])).unwrap();
        main.window_tokens = 600;
    })
    .await;
    test.model.script(ScriptedResponse::text("Boats are fine. ".repeat(200)));
    test.run_message("s", "tell me of boats").await;
    test.model.script(ScriptedResponse::status(402));
    test
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_summary_is_made_by_the_model_that_takes_over() {
    let test = start_engine_with_full_window().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.model.script(ScriptedResponse::text("They spoke of boats.")).script(ScriptedResponse::text("Trains."));
    let view = test.run_message("s", "and of trains?").await;
    assert_eq!(view.output.as_deref(), Some("Trains."), "{view:#?}");
    let seen = fallbacks(&mut watcher, &view.run_id);
    assert!(matches!(&seen[..], [(from, to, _)] if from == "openai/first" && to == "anthropic/second"), "{seen:?}");
    let requests = test.model.recorded_requests();
    let dialects: Vec<ModelDialect> = requests.iter().map(|request| request.dialect).collect();
    use ModelDialect::{Anthropic, OpenAi};
    assert_eq!(dialects, [OpenAi, OpenAi, Anthropic, Anthropic]);
    assert!(messages_as_text(&test.last_messages()).contains("They spoke of boats."));
    // Summary and answer are counted, and the refusal is not.
    assert_eq!((view.usage.input_tokens, view.usage.output_tokens), (20, 10));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stop_ends_a_summary_between_two_providers() {
    let test = start_engine_with_full_window().await;
    let run = parse_run_id("summarised");
    test.stop_at(Point::ModelFallback, 1, &run);
    test.send(Submission { idempotency_key: Some(run.clone()), ..submission("s", "and of trains?") }).await;
    let view = test.wait_ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    assert_eq!(test.model.recorded_requests().len(), 2, "the second provider was asked after the stop");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_of_an_agent_show_its_whole_chain() {
    let test = start_engine(&["openai/first", "anthropic/second"]).await;
    let main = parse_agent_id("main");
    let chain = ["openai/first", "anthropic/second"];
    let row = test.engine.list_agents().into_iter().find(|row| row.id == main).unwrap();
    assert_eq!((row.model.as_str(), row.models), ("openai/first", chain.map(str::to_owned).to_vec()));
    assert_eq!(test.engine.agent_view(&main).unwrap().row.models, chain);
    let node = test.engine.agent_tree().into_iter().find(|node| node.id == main).unwrap();
    assert_eq!((node.model.as_str(), node.models), ("openai/first", chain.map(str::to_owned).to_vec()));
    test.close().await;
}

/// Tokens are counted for the provider that was used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_provider_is_counted_for_its_own_tokens() {
    let model = ScriptedModel::start().await;
    let provider = |name: &str| {
        format!("[providers.{name}]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n", model.base_url())
    };
    let agent = "[agents.main]\nmodel = [\"first/m\", \"second/m\"]\n";
    let daemon = TestDaemon::start(quell_exe(), &format!("{}{}{agent}", provider("first"), provider("second"))).await;
    model.script(ScriptedStream::new().tool_call("c1", "shell", &json!({"command": "true"})));
    model.script(ScriptedResponse::status(402)).script(ScriptedResponse::text("Done."));
    let run = daemon.api().send_message("s", "go").await;
    let log = daemon.api().run_events(&run, 0).await.read_to_end().await;
    assert_eq!(log.verdict(), "completed");
    let metrics = daemon.api().get("/metrics").await.expect_status(200).as_str().unwrap().to_owned();
    for (name, direction, tokens) in [("first", "input", 10), ("second", "input", 10), ("second", "output", 5)] {
        let line = format!("quell_tokens_total{{provider=\"{name}\",direction=\"{direction}\"}} {tokens}");
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
}
