//! Bad input: each error in the form of its binding, whatever has refused the request.

use super::*;

#[rstest]
#[case("GetTask", json!({"id": "unknown"}), "TASK_NOT_FOUND")]
#[case("GetTask", json!({"id": "a b"}), "TASK_NOT_FOUND")]
#[case("CancelTask", json!({"id": "unknown"}), "TASK_NOT_FOUND")]
#[case("SubscribeToTask", json!({"id": "unknown"}), "TASK_NOT_FOUND")]
#[case("SendMessage", message("x", &json!({"taskId": "unknown"})), "TASK_NOT_FOUND")]
#[case("SendMessage", json!({}), "INVALID_PARAMS")]
#[case("SendMessage", json!({"message": 1}), "INVALID_PARAMS")]
#[case("SendMessage", message("x", &json!({"parts": "x"})), "INVALID_PARAMS")]
#[case("SendMessage", message("x", &json!({"parts": []})), "INVALID_PARAMS")]
#[case("SendMessage", message("x", &json!({"role": "ROLE_AGENT"})), "INVALID_PARAMS")]
#[case("SendMessage", message("x", &json!({"messageId": ""})), "INVALID_PARAMS")]
#[case("SendMessage", message("x", &json!({"contextId": "a\u{7}b"})), "INVALID_PARAMS")]
#[case("SendMessage", message("x", &json!({"parts": [{"raw": "?"}]})), "INVALID_PARAMS")]
#[case("SendStreamingMessage", message("x", &json!({"parts": [{"url": "https://x"}]})), "CONTENT_TYPE_NOT_SUPPORTED")]
#[case("ListTasks", json!({"pageSize": 101}), "INVALID_PARAMS")]
#[case("ListTasks", json!({"pageSize": "many"}), "INVALID_PARAMS")]
#[case("ListTasks", json!({"historyLength": -1}), "INVALID_PARAMS")]
#[case("ListTasks", json!({"status": "TASK_STATE_RUNNING"}), "INVALID_PARAMS")]
#[case("ListTasks", json!({"pageToken": "1.x"}), "INVALID_PARAMS")]
#[case("tasks/send", json!({}), "METHOD_NOT_FOUND")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_is_refused_in_the_words_of_the_protocol(
    #[case] method: &str,
    #[case] params: Value,
    #[case] expected: &str,
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start().await;
    let client = A2aTestClient::new(&server.http, binding);
    assert_eq!(client.error(method, &params).await, expected);
    assert_eq!(server.model.request_count(), 0);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_token_has_only_so_many_tasks_and_tool_calls_at_once(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start_with(|config| config.engine.limits.in_flight_runs = 1).await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let client = A2aTestClient::new(&server.http, binding);
    let mut stream = client.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = json!({"id": stream.first_task().await["id"]});
    stream.read_until("begun").await;
    for method in ["SendMessage", "SendStreamingMessage"] {
        let refused = client.request(method, &message("and this", &json!({}))).send().await.unwrap();
        let (status, retry_after) = (refused.status().as_u16(), refused.headers().get("retry-after").cloned());
        let body: Value = refused.json().await.unwrap();
        let details = match binding {
            A2aTestBinding::JsonRpc => &body["error"]["data"],
            A2aTestBinding::Rest => {
                assert_eq!((status, retry_after), (429, Some("1".parse().unwrap())));
                &body["error"]["details"]
            }
        };
        assert_eq!(body["error"]["code"], 429, "{body:#}");
        assert_eq!((&details[0]["reason"], &details[1]["retryDelay"]), (&json!("TOO_MANY_REQUESTS"), &json!("1s")));
    }
    let call =
        quell_test_support::mcp_server_client::stateless_call(&server.http, "run_agent", &json!({"message": "go"}));
    let answer: Value = call.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["result"]["structuredContent"]["code"], "too_many_requests", "{answer:#}");
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(answer["result"]["isError"] == true && text.contains("send this again when one has ended"), "{text}");
    assert_eq!(server.http.get("/api/runs").await.expect_status(200)["items"].as_array().unwrap().len(), 1);
    // What is said to the task is a part of it, and its end makes room.
    let mut said = message("be quick", &json!({"taskId": task["id"]}));
    said["configuration"] = json!({"returnImmediately": true});
    assert_eq!(client.task("SendMessage", &said).await["id"], task["id"]);
    client.task("CancelTask", &task).await;
    server.model.script(ScriptedResponse::text("done"));
    let next = client.task("SendMessage", &message("and now?", &json!({}))).await;
    assert_eq!(next["status"]["state"], "TASK_STATE_COMPLETED", "{next:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_codes_of_the_specification() {
    let server = TestServer::start().await;
    let client = A2aTestClient::new(&server.http, A2aTestBinding::JsonRpc);
    let unknown = json!({"id": "unknown"});
    for (method, params, code) in [
        ("CancelTask", &unknown, -32001),
        ("GetExtendedAgentCard", &json!({}), -32004),
        ("message/send", &json!({}), -32601),
        ("GetTask", &json!({}), -32602),
    ] {
        let response = client.request(method, params).send().await.unwrap();
        assert_eq!(response.status(), 200, "{method}");
        let body: Value = response.json().await.unwrap();
        assert_eq!((&body["id"], &body["error"]["code"]), (&json!(1), &json!(code)), "{method}: {body:#}");
    }
    let rest = A2aTestClient::new(&server.http, A2aTestBinding::Rest);
    let response = rest.request("CancelTask", &unknown).send().await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (404, &"application/a2a+json".parse().unwrap())
    );
    assert_eq!(response.json::<Value>().await.unwrap()["error"]["status"], "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_refused_in_the_form_of_its_binding() {
    let server = TestServer::start_with(|plan| plan.engine.limits.request_body_bytes = 64 * 1024).await;
    let send = async |path: &str, body: String| {
        let request = server.http.request(Method::POST, path).header("a2a-version", "1.0");
        server.http.send(request.header("content-type", "application/json").body(body)).await
    };
    for (body, code) in [("{", -32700), ("[]", -32600), (r#"{"jsonrpc":"2.0","method":"GetTask"}"#, -32600)] {
        let answer = send("/a2a/main", body.to_owned()).await;
        assert_eq!((answer.status, &answer.body["error"]["code"]), (200, &json!(code)), "{:#}", answer.body);
        assert_eq!(answer.body["id"], Value::Null, "{:#}", answer.body);
    }
    for body in ["{", "[]"] {
        let answer = send("/a2a/main/message:send", body.to_owned()).await;
        assert_eq!((answer.status, &answer.body["error"]["code"]), (400, &json!(400)), "{:#}", answer.body);
    }
    let huge = json!({"message": {"text": "x".repeat(128 * 1024)}}).to_string();
    let json_rpc = send("/a2a/main", huge.clone()).await;
    assert_eq!(
        (json_rpc.status, &json_rpc.body["jsonrpc"], &json_rpc.body["error"]["code"]),
        (413, &json!("2.0"), &json!(413))
    );
    let rest = send("/a2a/main/message:send", huge).await;
    assert_eq!((rest.status, &rest.body["error"]["details"][0]["reason"]), (413, &json!("BODY_TOO_LARGE")));
    let nobody = send("/a2a/nobody/message:send", message("x", &json!({})).to_string()).await;
    assert_eq!((nobody.status, &nobody.body["error"]["details"][0]["reason"]), (404, &json!("AGENT_NOT_FOUND")));
    let stranger = server.http.with_token("wrong");
    let request = stranger.request(Method::GET, "/a2a/main/tasks").header("a2a-version", "1.0").send().await.unwrap();
    assert_eq!((request.status().as_u16(), request.headers()["www-authenticate"].to_str().unwrap()), (401, "Bearer"));
    assert_eq!(request.json::<Value>().await.unwrap()["error"]["status"], "UNAUTHENTICATED");
    let foreign = server.http.request(Method::POST, "/a2a/main").header("origin", "https://evil.example");
    let foreign = server.http.send(foreign.json(&json!({}))).await;
    assert_eq!((foreign.status, &foreign.body["error"]["data"][0]["reason"]), (403, &json!("BAD_ORIGIN")));
}
