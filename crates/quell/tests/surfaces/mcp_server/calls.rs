//! Calls of tools: what a cancel, a lost connection and the end of a session mean, and calls as tasks.

use super::*;

async fn verdict_of(server: &TestServer, text: &str) -> Value {
    verdict_by_text(&server.http, text).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_is_stopped_and_gets_no_answer() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let session = TestMcpSession::begin(&server.http).await;
    let response = session.call(7, "run_agent", &json!({"message": "go"})).send().await.unwrap();
    server.model.wait_for_requests(1).await[0].wait_streaming().await;
    session.cancel(7).await;
    let messages = MessageStream::of(response).read_to_end().await;
    assert!(messages.iter().all(|message| message["method"] == "notifications/progress"), "{messages:#?}");
    assert_fields(&verdict_of(&server, "go").await, &json!({"kind": "aborted", "reason": "enough"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_overtakes_its_call_leaves_no_run() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("done"));
    let session = TestMcpSession::begin(&server.http).await;
    session.cancel(7).await;
    let response = session.call(7, "run_agent", &json!({"message": "go"})).send().await.unwrap();
    assert!(MessageStream::of(response).read_to_end().await.is_empty());
    assert_eq!(server.http.get("/api/runs").await.expect_status(200)["items"], json!([]));
    let next = session.call(8, "run_agent", &json!({"message": "go"})).send().await.unwrap();
    let answer = MessageStream::of(next).read_to_end().await.pop().unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_stream_of_a_session_is_resumed_by_its_last_event() {
    let server = TestServer::start().await;
    server.model.script(gated_response("go"));
    let session = TestMcpSession::begin(&server.http).await;
    let response = session.call(1, "run_agent", &json!({"message": "go"})).send().await.unwrap();
    let mut stream = MessageStream::of(response);
    let first = stream.next().await.unwrap();
    server.model.wait_for_requests(1).await[0].wait_paused().await;
    drop(stream);
    let resumed = session.resume(&first.event_id).send().await.unwrap();
    server.model.open_gate("go");
    let messages = MessageStream::of(resumed).read_to_end().await;
    let progress = |message: &Value| message["params"]["progress"].as_u64();
    assert!(progress(&messages[0]) > progress(&first.message), "{messages:#?}");
    let answer = messages.last().unwrap();
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(1), &json!("begun and done")));
    // Nothing of another session, and no invented event.
    let other = TestMcpSession::begin(&server.http).await;
    assert_eq!(other.resume(&first.event_id).send().await.unwrap().status(), 404);
    assert_eq!(session.resume("x-1").send().await.unwrap().status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_session_the_end_of_the_stream_stops_the_run() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let response = stateless_call(&server.http, "run_agent", &json!({"message": "go"})).send().await.unwrap();
    let request = server.model.wait_for_requests(1).await[0].clone();
    request.wait_streaming().await;
    drop(response);
    request.wait_client_left().await;
    assert_fields(&verdict_of(&server, "go").await, &json!({"kind": "aborted", "reason": "disconnect"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_session_stops_its_calls_and_no_task() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("call")).script(gated_response("task"));
    let session = TestMcpSession::begin(&server.http).await;
    let call = session.call(1, "run_agent", &json!({"message": "call"})).send().await.unwrap();
    server.model.wait_for_requests(1).await;
    let params = json!({"name": "run_agent", "arguments": {"message": "task"}, "task": {}});
    answer_of(session.request(2, "tools/call", &params)).await;
    server.model.wait_for_requests(2).await;
    assert_eq!(session.with_headers(Method::DELETE).send().await.unwrap().status(), 204);
    MessageStream::of(call).read_to_end().await;
    assert_fields(&verdict_of(&server, "call").await, &json!({"kind": "aborted", "reason": "disconnect"}));
    assert_eq!(session.call(3, "list_agents", &json!({})).send().await.unwrap().status(), 404);
    server.model.open_gate("task");
    assert_fields(&verdict_of(&server, "task").await, &json!({"kind": "completed"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_a_session_is_polled_cancelled_and_stays_cancelled() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let session = TestMcpSession::begin(&server.http).await;
    let params = json!({"name": "run_agent", "arguments": {"message": "go"}, "task": {"ttl": 1000}});
    let task = answer_of(session.request(1, "tools/call", &params)).await["result"]["task"].clone();
    assert_fields(&task, &json!({"status": "working", "ttl": null}));
    let id = json!({"taskId": task["taskId"]});
    assert_eq!(answer_of(session.request(2, "tasks/get", &id)).await["result"]["status"], "working");
    assert_eq!(answer_of(session.request(3, "tasks/cancel", &id)).await["result"]["status"], "cancelled");
    assert_eq!(answer_of(session.request(4, "tasks/cancel", &id)).await["error"]["code"], -32602);
    let result = session.request(5, "tasks/result", &id).send().await.unwrap();
    let result = MessageStream::of(result).read_to_end().await.pop().unwrap()["result"].clone();
    assert_fields(&result, &json!({"isError": true, "structuredContent": {"receipt": {"leftovers": []}}}));
    assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"], id);
    assert_eq!(answer_of(session.request(6, "tasks/get", &id)).await["result"]["status"], "cancelled");
    let listed = answer_of(session.request(7, "tasks/list", &json!({}))).await;
    assert_eq!(listed["result"]["tasks"][0]["taskId"], task["taskId"], "{listed:#}");
    let params = json!({"name": "list_agents", "task": {}});
    assert_eq!(answer_of(session.request(8, "tools/call", &params)).await["error"]["code"], -32601);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_without_a_session_ends_as_its_run_does() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("done")).script(ScriptedResponse::silent_mid_stream("begun"));
    let http = &server.http;
    let create = async |message: &str| {
        let params = json!({"name": "run_agent", "arguments": {"message": message}});
        let task = answer_of(task_request(http, "tools/call", "run_agent", &params)).await["result"].clone();
        assert_eq!(task["resultType"], "task", "{task:#}");
        task["taskId"].as_str().unwrap().to_owned()
    };
    let ask = async |method: &str, id: &str| {
        answer_of(task_request(http, method, id, &json!({"taskId": id, "inputResponses": {}}))).await
    };
    let done = create("one").await;
    http.wait_ended(&done).await;
    let task = ask("tasks/get", &done).await["result"].clone();
    assert_fields(&task, &json!({"status": "completed", "resultType": "complete"}));
    assert_eq!(task["result"]["content"][0]["text"], "done", "{task:#}");
    // The acknowledgement of a cancel says nothing of the state, and a terminal one stays.
    assert_eq!(ask("tasks/cancel", &done).await["result"]["resultType"], "complete");
    assert_eq!(ask("tasks/get", &done).await["result"]["status"], "completed");
    let stopped = create("two").await;
    assert_eq!(ask("tasks/cancel", &stopped).await["result"]["resultType"], "complete");
    assert_eq!(ask("tasks/get", &stopped).await["result"]["status"], "cancelled");
    assert_eq!(ask("tasks/get", "unknown").await["error"]["code"], -32602);
    let undeclared = stateless_request(http, "tasks/get", &done, &json!({"taskId": done}));
    assert_eq!(answer_of(undeclared).await["error"]["code"], -32021);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_for_an_approval_asks_the_client() {
    let server = TestServer::start_with(|plan| {
        let main = plan.engine.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.approvals.insert("list_files".to_owned(), quell_kernel::approval::ApprovalPolicy::Ask);
    })
    .await;
    server.model.script(list_files_call()).script(ScriptedResponse::text("not listed"));
    let http = &server.http;
    let params = json!({"name": "run_agent", "arguments": {"message": "go"}});
    let created = answer_of(task_request(http, "tools/call", "run_agent", &params)).await;
    let id = created["result"]["taskId"].as_str().unwrap();
    let approval = http.wait_approval().await["id"].as_str().unwrap().to_owned();
    let task = answer_of(task_request(http, "tasks/get", id, &json!({"taskId": id}))).await["result"].clone();
    assert_eq!(task["status"], "input_required", "{task:#}");
    assert_eq!(task["inputRequests"][&approval]["method"], "elicitation/create", "{task:#}");
    let update = async |decision: &str| {
        let response = json!({&approval: {"action": "accept", "content": {"decision": decision}}});
        let params = json!({"taskId": id, "inputResponses": response});
        answer_of(task_request(http, "tasks/update", id, &params)).await
    };
    // A token may not allow the calls of its own runs.
    assert_fields(&update("allow").await, &json!({"error": {"code": 403, "data": {"code": "forbidden"}}}));
    assert_fields(&update("deny").await, &json!({"result": {"resultType": "complete"}}));
    assert_fields(&http.wait_ended(id).await, &json!({"verdict": {"kind": "completed"}, "output": "not listed"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_tool_answers_with_the_receipt_and_a_watch_sees_the_end() {
    let (server, run) = TestServer::start_streaming().await;
    let watch = stateless_call(&server.http, "watch_run", &json!({"run": run})).send().await.unwrap();
    let short = stateless_call(&server.http, "watch_run", &json!({"run": run, "timeout_s": 0})).send().await.unwrap();
    let still = MessageStream::of(short).read_to_end().await.pop().unwrap();
    assert_fields(&still["result"], &json!({"isError": false, "structuredContent": {"state": "running"}}));
    let stopped = answer_of(stateless_call(&server.http, "stop_run", &json!({"run": run}))).await;
    let content = json!({"verdict": {"kind": "aborted"}, "receipt": {"leftovers": []}});
    assert_fields(&stopped["result"], &json!({"isError": false, "structuredContent": content}));
    let watched = MessageStream::of(watch).read_to_end().await.pop().unwrap();
    assert_fields(&watched["result"]["structuredContent"], &json!({"state": "ended", "verdict": {"kind": "aborted"}}));
    let held = answer_of(stateless_call(&server.http, "hold", &json!({"reason": "pause"}))).await;
    assert_eq!(held["result"]["structuredContent"]["held"], true, "{held:#}");
    let refused = answer_of(stateless_call(&server.http, "run_agent", &json!({"message": "go"}))).await;
    assert_fields(&refused["result"], &json!({"isError": true, "structuredContent": {"code": "held"}}));
    let lifted = answer_of(stateless_call(&server.http, "lift_hold", &json!({}))).await;
    assert_eq!(lifted["result"]["structuredContent"]["held"], false, "{lifted:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_web_origin_and_a_bad_body_are_refused() {
    let server = TestServer::start().await;
    let foreign = stateless_call(&server.http, "list_agents", &json!({})).header("origin", "https://evil.example");
    assert_eq!(foreign.send().await.unwrap().status(), 403);
    let without_token = server.http.with_token("wrong").post("/mcp", &json!({})).await;
    assert_eq!(without_token.status, 401);
    for (body, code) in [("{", -32700), ("[]", -32600), (r#"{"jsonrpc":"2.0","id":1}"#, -32600)] {
        let request = server.http.request(Method::POST, "/mcp").header("content-type", "application/json").body(body);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 400);
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], code);
    }
}

/// A run with this text that has no verdict; polls until there is one or none, as told.
async fn wait_active_run(api: &TestApiClient, text: &str, is_active: bool) {
    poll_until(if is_active { "the run is active" } else { "the run is stopped" }, async || {
        let runs = api.get("/api/runs?state=active").await.expect_status(200);
        let going = |run: &Value| run["text"] == text && run.get("verdict").is_none_or(Value::is_null);
        (runs["items"].as_array().unwrap().iter().any(going) == is_active).then_some(())
    })
    .await;
}

async fn verdict_by_text(api: &TestApiClient, text: &str) -> Value {
    ended_run(api, text).await["verdict"].clone()
}

/// The run with this text, once it has ended and is stored.
pub(super) async fn ended_run(api: &TestApiClient, text: &str) -> Value {
    let run = poll_until("the run is listed", async || {
        let runs = api.get("/api/runs").await.expect_status(200);
        runs["items"].as_array().unwrap().iter().find(|run| run["text"] == text).cloned()
    })
    .await;
    api.wait_ended(run["runId"].as_str().unwrap()).await
}

/// Sends a request and drops it while its run waits for the database.
async fn drop_while_accepting(daemon: &TestDaemon, request: RequestBuilder, text: &str, stops: bool) {
    let database = OtherProgram::connect(&daemon.home().data_dir());
    database.lock_writes();
    let api = daemon.api();
    tokio::select! {
        _ = request.send() => panic!("the answer came before the client could leave"),
        () = wait_active_run(&api, text, true) => {}
    }
    if stops {
        wait_active_run(&api, text, false).await;
    }
    database.unlock_writes();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_client_leaves_before_its_id_is_stopped() {
    let (model, daemon) = start_daemon("").await;
    model.script(ScriptedResponse::text("done"));
    let params = json!({"name": "run_agent", "arguments": {"message": "go"}});
    drop_while_accepting(&daemon, task_request(&daemon.api(), "tools/call", "run_agent", &params), "go", true).await;
    assert_fields(&verdict_by_text(&daemon.api(), "go").await, &json!({"kind": "aborted", "reason": "disconnect"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_call_goes_on_when_its_client_leaves_early() {
    let (model, daemon) = start_daemon("").await;
    model.script(ScriptedResponse::text("done")).script(ScriptedResponse::text("again"));
    let session = TestMcpSession::begin(&daemon.api()).await;
    let call = |text: &str| session.call(1, "run_agent", &json!({"message": text}));
    drop_while_accepting(&daemon, call("go"), "go", false).await;
    assert_fields(&verdict_by_text(&daemon.api(), "go").await, &json!({"kind": "completed"}));
    // Its run has ended and nobody waits, so the id is free again.
    let answer = poll_until("the id is free", async || {
        let response = call("again").send().await.unwrap();
        let is_stream = response.headers()["content-type"] == "text/event-stream";
        if is_stream { MessageStream::of(response).read_to_end().await.pop() } else { None }
    })
    .await;
    assert_eq!(answer["result"]["content"][0]["text"], "again", "{answer:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_program_is_no_stop_command() {
    let (server, run) = TestServer::start_streaming().await;
    let arguments = json!({"message": "stop", "session": "s"});
    let params = json!({"name": "run_agent", "arguments": arguments, "task": {}});
    let session = TestMcpSession::begin(&server.http).await;
    let created = answer_of(session.request(1, "tools/call", &params)).await;
    assert_fields(&created["result"]["task"], &json!({"status": "working"}));
    server.assert_running(&run).await;
    server.http.stop_run(created["result"]["task"]["taskId"].as_str().unwrap()).await;
    server.model.script(ScriptedResponse::text("I cannot stop"));
    let called = stateless_call(&server.http, "run_agent", &json!({"message": "/stop"})).send().await.unwrap();
    let answer = MessageStream::of(called).read_to_end().await.pop().unwrap();
    assert_fields(&answer["result"]["structuredContent"], &json!({"verdict": {"kind": "completed"}}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_stops_the_call_that_ends_with_it() {
    let server = TestServer::start().await;
    for (name, goes_on) in [("without", false), ("with", true)] {
        server.model.script(ScriptedResponse::silent_mid_stream("begun"));
        let api = server.api_with_new_token(name, "write").await;
        let arguments = json!({"message": name});
        let call = if goes_on {
            TestMcpSession::begin(&api).await.call(1, "run_agent", &arguments)
        } else {
            stateless_call(&api, "run_agent", &arguments)
        };
        let response = call.send().await.unwrap();
        wait_active_run(&server.http, name, true).await;
        server.http.delete(&format!("/api/tokens/{name}")).await.expect_status(204);
        let last = MessageStream::of(response).read_to_end().await.pop().unwrap();
        assert_fields(&last["error"], &json!({"code": 401, "data": {"code": "signed_out"}}));
        if goes_on {
            wait_active_run(&server.http, name, true).await;
        } else {
            assert_fields(&verdict_of(&server, name).await, &json!({"kind": "aborted", "reason": "disconnect"}));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_listed_without_the_runs_of_other_tokens() {
    let (server, run) = TestServer::start_streaming().await;
    let listed = async |api: &TestApiClient| {
        let listed = answer_of(stateless_call(api, "list_agents", &json!({}))).await;
        let agents = listed["result"]["structuredContent"]["items"].as_array().unwrap().clone();
        agents.into_iter().find(|agent| agent["id"] == "main").unwrap()["activeRuns"].clone()
    };
    assert_eq!(listed(&server.http).await, json!([run]));
    assert_eq!(listed(&server.api_with_new_token("other", "read").await).await, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_asks_for_all_approvals_of_its_sub_runs() {
    let server = TestServer::start_with_asking_sub_agent().await;
    let delegation = json!({"agent": "team/writer", "prompt": "look"});
    server.model.script(ScriptedResponse::tool_call("c0", "spawn_agent", &delegation));
    let two = ScriptedStream::new().tool_call("c1", "list_files", &json!({"path": "."}));
    server.model.script(two.tool_call("c2", "list_files", &json!({"path": "./"})));
    server.model.script(ScriptedResponse::text("denied")).script(ScriptedResponse::text("done"));
    let http = &server.http;
    let params = json!({"name": "run_agent", "arguments": {"message": "go"}});
    let created = answer_of(task_request(http, "tools/call", "run_agent", &params)).await;
    let id = created["result"]["taskId"].as_str().unwrap();
    let questions = async |count: usize| {
        poll_until("the task asks", async || {
            let task = answer_of(task_request(http, "tasks/get", id, &json!({"taskId": id}))).await["result"].clone();
            let asked = task["inputRequests"].as_object()?.keys().cloned().collect::<Vec<_>>();
            (asked.len() == count && task["status"] == "input_required").then_some(asked)
        })
        .await
    };
    let deny = async |approval: &str| {
        let response = json!({approval: {"action": "decline"}});
        let params = json!({"taskId": id, "inputResponses": response});
        let answer = answer_of(task_request(http, "tasks/update", id, &params)).await;
        assert_fields(&answer, &json!({"result": {"resultType": "complete"}}));
    };
    let asked = questions(2).await;
    // The second one first.
    deny(&asked[1]).await;
    assert_eq!(questions(1).await, [asked[0].clone()]);
    deny(&asked[0]).await;
    assert_fields(&http.wait_ended(id).await, &json!({"verdict": {"kind": "completed"}, "output": "done"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_too_many_busy_sessions_locks_nobody_out() {
    let (server, run) = TestServer::start_streaming().await;
    let reader = server.api_with_new_token("reader", "read:all").await;
    let mut watches = Vec::new();
    for _ in 0..256 {
        let session = TestMcpSession::begin(&reader).await;
        let watch = session.call(1, "watch_run", &json!({"run": run, "timeout_s": 3600})).send().await.unwrap();
        assert_eq!(watch.headers()["content-type"], "text/event-stream");
        watches.push(watch);
    }
    let refused = answer_of(TestMcpSession::initialize(&reader)).await;
    assert_fields(&refused, &json!({"error": {"code": 503, "data": {"code": "too_many_connections"}}}));
    TestMcpSession::begin(&server.http).await;
    // A watch that its client has left holds no place.
    watches.pop();
    poll_until("there is room for a session", async || {
        answer_of(TestMcpSession::initialize(&reader)).await.get("result").map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_version_is_refused_in_every_kind_of_message() {
    let server = TestServer::start().await;
    let session = TestMcpSession::begin(&server.http).await;
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    for method in [Method::POST, Method::GET, Method::DELETE] {
        let request = server.http.request(method, "/mcp").header("mcp-session-id", &session.id);
        let request = request.header("last-event-id", "x-1").header("mcp-protocol-version", "2025-03-26");
        let response = request.json(&notification).send().await.unwrap();
        assert_eq!(response.status(), 400);
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], -32022);
    }
    answer_of(session.request(1, "ping", &json!({}))).await;
}
