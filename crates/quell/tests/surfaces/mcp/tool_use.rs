//! Which tools agents are offered, calls, progress, changed tool lists.

use std::collections::BTreeSet;

use super::*;

fn offered_tools(test: &TestEngine) -> Vec<String> {
    let request = test.model.recorded_requests().pop().unwrap();
    let tools = request.body["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().filter_map(|tool| tool["function"]["name"].as_str().map(str::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_offered_with_their_schemas_and_called() {
    let fixture = McpFixture::start().await;
    let view = fixture.run_call("s", "echo").await;
    assert_eq!((call_row(&view).how.as_str(), call_row(&view).label.as_str()), ("finished", "test: echo"));
    assert_eq!(last_result(&fixture), "hello");
    let names = offered_tools(&fixture);
    assert!(names.contains(&"test__echo".to_owned()) && names.contains(&"shell".to_owned()), "{names:?}");
    let odd = names.iter().find(|name| name.starts_with("test__dot_ted_")).unwrap().clone();
    let request = fixture.model.recorded_requests().pop().unwrap();
    let tools = request.body["tools"].as_array().unwrap();
    let echo: &Value = tools.iter().find(|tool| tool["function"]["name"] == "test__echo").unwrap();
    assert_eq!(echo["function"]["description"], "Does echo.");
    assert_eq!(echo["function"]["parameters"]["properties"]["text"]["type"], "string");
    let odd = odd.strip_prefix("test__").unwrap().to_owned();
    assert_eq!(fixture.call_and_answer("s", &odd).await, "dotted");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_shown_as_output_and_an_error_is_one() {
    let fixture = McpFixture::start().await;
    let mut watcher = NoticeRecorder::subscribe(&fixture.engine);
    let run = fixture.run_call("s", "steps").await.run_id;
    assert_eq!(last_result(&fixture), "done");
    let printed =
        |kind: &EventKind| if let EventKind::ToolOutput { text, .. } = kind { text.clone() } else { String::new() };
    let output: String = watcher.run_events(&run).iter().map(|event| printed(&event.kind)).collect();
    assert_eq!(output, "progress: 1 of 3\nprogress: 2 of 3\nprogress: 3 of 3\n");
    assert_eq!(fixture.call_and_answer("s", "refuse").await, "no such thing");
    let unknown = fixture.call_and_answer("s", "nothing").await;
    assert!(unknown.contains("has no tool \"test__nothing\"; it has: test__echo"), "{unknown}");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_gets_little_environment_and_what_finds_it() {
    let fixture = McpFixture::start_with(|server| {
        server.api_key_env = Some("TOKEN_OF_TEST".to_owned());
        server.api_key = Some("hush".to_owned().into());
    })
    .await;
    let seen = fixture.call_and_answer("the session", "env").await;
    for part in ["QUELL_SESSION=the session", "QUELL_RUN_ID=mcp-test-", "TOKEN_OF_TEST=hush", "MCP_MARK="] {
        assert!(seen.contains(part), "{part} in {seen}");
    }
    assert!(!seen.contains("CARGO"), "{seen}");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_server_are_refused() {
    let fixture = McpFixture::start().await;
    let refusals = fixture.call_and_answer("s", "beg").await;
    // The answers come in any order.
    let refusals: BTreeSet<&str> = refusals.split_whitespace().collect();
    assert_eq!(refusals, BTreeSet::from(["r-32601", "s-32601"]));
    let hello = fixture.wait_messages("initialize", 1).await;
    assert_eq!(hello[0].message["params"]["capabilities"], json!({"elicitation": {"form": {}}, "roots": {}}));
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_list_of_tools_is_offered_at_the_next_model_call() {
    let fixture = McpFixture::start().await;
    assert_eq!(fixture.call_and_answer("s", "grow").await, "grown");
    let [.., before, after] = &fixture.model.recorded_requests()[..] else { panic!("the model was called once") };
    let offers = |body: &Value| body["tools"].to_string().contains("test__grown");
    assert!(!offers(&before.body) && offers(&after.body), "{:#}", after.body["tools"]);
    assert_eq!(fixture.wait_messages("tools/list", 2).await.len(), 2);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_the_wait_for_a_changed_list_of_tools() {
    stop_wait_for_tools().await;
}

/// Returns the milliseconds that the stop took.
async fn stop_wait_for_tools() -> f64 {
    let fixture = McpFixture::start().await;
    fixture.model.script(ScriptedResponse::tool_call("c1", "test__grow", &json!({"text": "slowly"})));
    let run = fixture.send(submission("s", "do it")).await;
    fixture.wait_messages("tools/list", 2).await;
    let view = fixture.stop_to_end(&run).await;
    assert_eq!(fixture.model.recorded_requests().len(), 1, "the model was called again");
    // A server that never sends the changed list costs each step one second, and goes on.
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    fixture.close().await;
    receipt_of(&view).settled_at.ms.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_of_calls_to_a_server_is_asked_for_with_its_tools() {
    let fixture = McpFixture::start().await;
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    let overflow = json!({"error": {"message": "too many tokens", "code": "context_length_exceeded"}}).to_string();
    fixture.model.script(ScriptedResponse::Status { code: 400, headers: Vec::new(), body: overflow });
    fixture.model.script(ScriptedResponse::text("It said hello.")).script(ScriptedResponse::text("fine"));
    fixture.run_message("s", "go on").await;
    let seen = fixture.model.recorded_requests();
    let summary = &seen[seen.len() - 2].body;
    assert!(summary["messages"].to_string().contains("Summarise the whole conversation"), "{summary:#}");
    assert_eq!(summary["tools"], seen[seen.len() - 1].body["tools"]);
    assert!(summary["tools"].to_string().contains("test__echo"), "{summary:#}");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_and_junk_do_no_harm() {
    let fixture = McpFixture::start().await;
    assert_eq!(fixture.call_and_answer("s", "flood").await, "drained");
    assert_eq!(fixture.call_and_answer("s", "junk").await, "survived");
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_only_the_servers_and_tools_that_it_is_given() {
    let marker = ProcessMarker::new();
    let folder = tempfile::tempdir().unwrap();
    let server = test_server_config(&marker, &folder.path().join("log"));
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        config.mcp.insert("one".to_owned(), server.clone());
        config.mcp.insert("two".to_owned(), server);
        let main = config.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.tools = vec!["read_file".to_owned(), "one__echo".to_owned(), "two__pid".to_owned()];
        main.mcp = Some(vec!["one".to_owned()]);
    })
    .await;
    test.model.script(ScriptedResponse::tool_call("c1", "two__pid", &json!({})));
    test.model.script(ScriptedResponse::tool_call("c2", "one__pid", &json!({})));
    test.model.script(ScriptedResponse::text("fine"));
    test.run_message("s", "hello").await;
    assert_eq!(offered_tools(&test), ["read_file", "one__echo"]);
    let shown = last_request_text(&test);
    assert!(shown.contains("there is no tool named \\\"two__pid\\\"") || shown.contains("two__pid"), "{shown}");
    assert!(shown.contains("has no tool"), "{shown}");
    assert_eq!(test.engine.mcp().count_live(), 1, "a server that the agent may not use was started");
    test.close().await;
}

mod timing {
    use super::*;

    /// Without the stop, the wait takes a second.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_stop_ends_the_wait_for_tools() {
        let took = Duration::from_secs_f64(stop_wait_for_tools().await / 1000.0);
        report_time("a stop during the wait for a changed list of tools", took);
    }
}
