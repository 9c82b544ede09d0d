//! Providers that search the web by themselves: the request, the event, the links, and the search in the next request.

use super::*;

/// Agents of all dialects that may search.
async fn start_searching_engine() -> TestEngine {
    TestEngine::start_with(ProcessLock::shared().await, |config| {
        add_dialect_agents(config);
        for dialect in [OpenAiResponses, Gemini] {
            config.agents.get_mut(&parse_agent_id(dialect.kind())).unwrap().web_search = true;
        }
    })
    .await
}

/// What only a search looks like in the history of a request.
fn search_mark(dialect: ModelDialect) -> &'static str {
    match dialect {
        OpenAiResponses => "web_search_call",
        _ => "toolResponse",
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_is_shown_cited_and_sent_back(#[values(OpenAiResponses, Gemini)] dialect: ModelDialect) {
    let test = start_searching_engine().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let answer = ScriptedStream::new().thinking("I had better look.").web_search("is rust safe");
    test.model.script(answer.text("It is.").citation("https://rust.example/safe", "Safety"));
    let view = run_completed(&test, dialect, "is it safe?").await;
    let shown = "It is.\n\n- [Safety](https://rust.example/safe)";
    assert_eq!(view.output.as_deref(), Some(shown));
    let searches: Vec<String> = watcher
        .run_events(&view.run_id)
        .iter()
        .filter_map(|event| if let EventKind::ModelSearch { query } = &event.kind { Some(query.clone()) } else { None })
        .collect();
    assert_eq!(searches, ["is rust safe"]);
    // A tool of another dialect, or none, would be refused by the checker of the scripted model.
    run_completed(&test, dialect, "sure?").await;
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains(search_mark(dialect)) && seen.contains("It is."), "{seen}");
    assert!(!seen.contains("rust.example"), "links are for people: {seen}");
    test.close().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_before_a_call_survives_the_tool_loop(#[values(OpenAiResponses, Gemini)] dialect: ModelDialect) {
    let test = start_searching_engine().await;
    let look = ScriptedStream::new().thinking("First the web.").web_search("how to add");
    test.model.script(add_shell_call(look, "call_0", "sum"));
    test.model.script(ScriptedStream::new().text("It is 42."));
    run_completed(&test, dialect, "add").await;
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains(search_mark(dialect)) && seen.contains("sum: 42"), "{seen}");
    // A stop during the search of the next answer leaves nothing of it.
    let silent = ScriptedStream::new().web_search("for nothing").step(StreamStep::Silent);
    test.model.script(silent);
    let run = test.send(submission_in(dialect, "again")).await;
    test.model.request_at(2).wait_paused().await;
    let view = test.stop_and_wait(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    run_completed(&test, dialect, "and now?").await;
    assert!(!messages_as_text(&test.last_messages()).contains("for nothing"));
    test.close().await;
}

/// A model of a chain whose provider cannot search does without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_takes_over_without_search_goes_without() {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        add_dialect_agents(config);
        let main = config.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.model = serde_json::from_value(json!(["openai-responses/first", "anthropic/second"])).unwrap();
        main.web_search = true;
    })
    .await;
    test.model.script(ScriptedResponse::status(402)).script(ScriptedResponse::text("I know it."));
    let view = test.run_message("s", "is it safe?").await;
    assert_eq!(view.output.as_deref(), Some("I know it."));
    let has_search: Vec<bool> = test
        .model
        .recorded_requests()
        .iter()
        .map(|request| request.body["tools"].to_string().contains("web_search"))
        .collect();
    assert_eq!(has_search, [true, false]);
    test.close().await;
}

/// A sub-run may do no more than its parent, so it may not search where its parent may not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sub_run_searches_only_where_its_parent_may() {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        add_dialect_agents(config);
        let gemini = parse_agent_id(Gemini.kind());
        config.agents.get_mut(&gemini).unwrap().web_search = true;
        config.agents.get_mut(&parse_agent_id("main")).unwrap().delegates = Some(vec![gemini]);
    })
    .await;
    let spawn = json!({"agent": "gemini", "prompt": "look it up"});
    test.model.script(ScriptedResponse::tool_call("c1", "spawn_agent", &spawn));
    test.run_message("s", "go").await;
    let requests = test.model.recorded_requests();
    let of_gemini = requests.iter().find(|request| request.dialect == Gemini).expect("the agent was asked");
    assert!(!of_gemini.body["tools"].to_string().contains("googleSearch"), "{:#}", of_gemini.body["tools"]);
    test.close().await;
}
