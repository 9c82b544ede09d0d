//! Tokens that are restricted to some agents, on every route and method that names an agent or means the default one.

use std::collections::BTreeSet;

use quell_test_support::a2a_client::{A2aTestBinding, A2aTestClient, message};
use quell_test_support::mcp_server_client::stateless_call;
use quell_test_support::ws_client::{WsTestClient, chat_send_params};
use reqwest::RequestBuilder;

use crate::prelude::*;

const DEFAULT: &str = "main";
const OTHER: &str = "team/writer";

/// What every refusal says, in whatever form.
const REFUSAL: &str = "this token may not run the agent";

/// A server whose model answers every request.
async fn start() -> TestServer {
    let server = TestServer::start().await;
    server.model.respond_by_prompt(|_, _| ScriptedResponse::text("done"));
    server
}

/// Creates a token for one agent; returns its secret.
async fn create_token(server: &TestServer, name: &str, agent: &str) -> String {
    let body = json!({"name": name, "scope": ["write", "read:all"], "restrictions": {"agents": [agent]}});
    let made = server.http.post("/api/tokens", &body).await.expect_status(201);
    made["token"].as_str().unwrap().to_owned()
}

/// A request that names an agent, or none and means the default one.
struct HttpAttempt {
    /// Method and path, as in the document at `/openapi.json`.
    route: &'static str,
    request: RequestBuilder,
    /// The status of the answer if the token is for the agent.
    allowed: u16,
}

/// All requests for an agent; without one, those that mean the default agent. `session` is a new key.
fn http_attempts(api: &TestApiClient, agent: Option<&str>, session: &str) -> Vec<HttpAttempt> {
    let attempt = |route: &'static str, path: &str, body: Value, allowed: u16| {
        let (method, _) = route.split_once(' ').unwrap();
        let request = api.request(Method::from_bytes(method.to_ascii_uppercase().as_bytes()).unwrap(), path);
        HttpAttempt { route, request: if body.is_null() { request } else { request.json(&body) }, allowed }
    };
    let with_agent = |mut body: Value| {
        if let Some(agent) = agent {
            body["agent"] = json!(agent);
        }
        body
    };
    let query = agent.map_or_else(String::new, |agent| format!("?agent={}", percent_encode(agent)));
    let setup = json!({"userId": "u", "chatId": session, "provider": "scripted"});
    let model = json!({"model": "scripted/other"});
    let (sessions, text) = ("/api/sessions", json!({"text": "x"}));
    // No such MCP server is configured, which a token for the agent is told.
    let mut attempts = vec![
        attempt("get /api/mcp/prompts", &format!("/api/mcp/prompts{query}"), Value::Null, 200),
        attempt("get /api/mcp/resources", &format!("/api/mcp/resources{query}"), Value::Null, 200),
        attempt("post /api/mcp/{server}/prompt", "/api/mcp/none/prompt", with_agent(json!({"name": "x"})), 404),
        attempt("post /api/mcp/{server}/resource", "/api/mcp/none/resource", with_agent(json!({"uri": "x"})), 404),
        attempt("post /api/schedules", "/api/schedules", with_agent(json!({"every": "1h", "text": "x"})), 201),
        attempt("post /api/sessions", sessions, with_agent(setup), 201),
        attempt("patch /api/sessions/{key}", &format!("{sessions}/{session}"), with_agent(model.clone()), 200),
        attempt(
            "post /api/sessions/{key}/runs",
            &format!("{sessions}/{session}-sent/runs"),
            with_agent(text.clone()),
            202,
        ),
    ];
    let call = stateless_call(api, "run_agent", &with_agent(json!({"message": "x"})));
    attempts.push(HttpAttempt { route: "post /mcp", request: call, allowed: 200 });
    let Some(agent) = agent else {
        let card = "/.well-known/agent-card.json";
        attempts.push(attempt("get /.well-known/agent-card.json", card, Value::Null, 200));
        return attempts;
    };
    let id = percent_encode(agent);
    let in_key = format!("{sessions}/{}", percent_encode(&format!("agent:{agent}:{session}")));
    let chat = json!({"model": format!("agent/{agent}"), "messages": [{"role": "user", "content": "x"}]});
    let mut limited_chat = chat.clone();
    limited_chat["max_tokens"] = json!(99);
    let response = json!({"model": format!("agent/{agent}"), "input": "x"});
    attempts.extend([
        attempt("get /api/agents/{id}", &format!("/api/agents/{id}"), Value::Null, 200),
        attempt("get /api/agents/{id}/memory", &format!("/api/agents/{id}/memory"), Value::Null, 200),
        attempt("patch /api/sessions/{key}", &in_key, model, 200),
        attempt("post /api/sessions/{key}/runs", &format!("{in_key}/runs"), text, 202),
        attempt("post /v1/chat/completions", "/v1/chat/completions", chat.clone(), 200),
        attempt("post /v1/messages", "/v1/messages", limited_chat, 200),
        attempt("post /v1/messages/count_tokens", "/v1/messages/count_tokens", chat, 200),
        attempt("post /v1/responses", "/v1/responses", response.clone(), 200),
        attempt("post /v1/responses/input_tokens", "/v1/responses/input_tokens", response, 200),
        attempt("get /a2a/{agent}", &format!("/a2a/{id}/.well-known/agent-card.json"), Value::Null, 200),
    ]);
    attempts
}

#[rstest]
#[case::the_default_agent(DEFAULT, OTHER)]
#[case::another_agent(OTHER, DEFAULT)]
#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_one_agent_names_no_other_over_http(#[case] own: &str, #[case] other: &str) {
    let server = start().await;
    let api = server.http.with_token(&create_token(&server, "desk", own).await);
    let mut wrong = Vec::new();
    for (agent, is_own, session) in [(Some(other), false, "a"), (None, own == DEFAULT, "b"), (Some(own), true, "c")] {
        for HttpAttempt { route, request, allowed } in http_attempts(&api, agent, session) {
            let answer = api.send(request).await;
            let is_told = answer.body.to_string().contains(REFUSAL);
            // In JSON-RPC the code of the error is the status.
            let is_forbidden = answer.status == 403 || answer.body["error"]["code"] == 403;
            let is_right = if is_own { !is_told && answer.status == allowed } else { is_told && is_forbidden };
            if !is_right {
                wrong.push(format!("{route} for {agent:?}: {} {:#}", answer.status, answer.body));
            }
        }
        assert!(is_own || server.model.request_count() == 0, "a run of another agent has begun");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // An agent of others is no model of the token.
    for (agent, status) in [(own, 200), (other, 404)] {
        assert_eq!(api.get(&format!("/v1/models/agent/{agent}")).await.status, status, "{agent}");
    }
}

/// True if an object of this schema may have this property.
fn has_property(document: &Value, schema: &Value, name: &str) -> bool {
    let referenced = schema["$ref"].as_str().and_then(|to| document.pointer(to.trim_start_matches('#')));
    let parts = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|kind| schema[kind].as_array()).flatten();
    schema["properties"].get(name).is_some()
        || referenced.into_iter().chain(parts).any(|part| has_property(document, part, name))
}

fn names_agent(document: &Value, path: &str, operation: &Value) -> bool {
    let mut parameters = operation["parameters"].as_array().into_iter().flatten();
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    path.contains("/agent/{id}")
        || path.contains("/agents/{id}")
        || parameters.any(|parameter| parameter["name"] == "agent")
        || has_property(document, body, "agent")
        || path.starts_with("/v1/") && has_property(document, body, "model")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_documented_route_that_names_an_agent_is_tried() {
    let server = TestServer::start().await;
    let document = server.http.get("/openapi.json").await.expect_status(200);
    let tried: BTreeSet<String> =
        http_attempts(&server.http, Some(DEFAULT), "x").iter().map(|attempt| attempt.route.to_owned()).collect();
    let mut found = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            // A stop does not depend on the agent, and a token of an admin has no restrictions.
            let is_free = matches!(operation["x-quell-access"].as_str(), Some("stop" | "admin"));
            if !is_free && names_agent(&document, path, operation) {
                found.insert(format!("{method} {path}"));
            }
        }
    }
    assert!(found.len() > 10, "{found:#?}");
    assert!(found.is_subset(&tried), "not tried: {:#?}", found.difference(&tried));
}

/// Without `CancelTask`: a stop does not depend on the agent.
const A2A_OPERATIONS: [&str; 9] = [
    "SendMessage",
    "SendStreamingMessage",
    "GetTask",
    "ListTasks",
    "SubscribeToTask",
    "CreateTaskPushNotificationConfig",
    "GetTaskPushNotificationConfig",
    "ListTaskPushNotificationConfigs",
    "DeleteTaskPushNotificationConfig",
];

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_one_agent_has_no_tasks_of_another(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = start().await;
    let api = server.http.with_token(&create_token(&server, "desk", OTHER).await);
    let client = A2aTestClient::new(&api, binding).with_agent(DEFAULT);
    let mut params = message("x", &json!({}));
    for (name, value) in [("id", "none"), ("taskId", "none"), ("url", "https://x.example")] {
        params[name] = json!(value);
    }
    for operation in A2A_OPERATIONS {
        assert_eq!(client.error(operation, &params).await, "FORBIDDEN", "{operation}");
    }
    assert_eq!(server.model.request_count(), 0);
    let task = client.with_agent(OTHER).task("SendMessage", &message("x", &json!({}))).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task:#}");
}

/// All methods for an agent; without one, those that mean the default agent. `session` is a new key.
fn ws_attempts(agent: Option<&str>, session: &str) -> Vec<(&'static str, Value)> {
    let with_agent = |mut params: Value| {
        if let Some(agent) = agent {
            params["agentId"] = json!(agent);
        }
        params
    };
    let sent = chat_send_params(&format!("{session}-sent"), "x", &format!("{session}-1"));
    let patched = agent.map_or_else(|| session.to_owned(), |agent| format!("agent:{agent}:{session}"));
    let mut attempts = vec![
        ("agent", with_agent(json!({"message": "x", "idempotencyKey": format!("{session}-2")}))),
        ("chat.send", with_agent(sent)),
        ("sessions.create", with_agent(json!({"key": format!("{session}-created")}))),
        ("sessions.patch", json!({"key": patched, "model": "scripted/other"})),
    ];
    if agent.is_some() {
        let of_agent = ["chat.metadata", "commands.list", "models.list"];
        attempts.extend(of_agent.map(|method| (method, with_agent(json!({})))));
    }
    attempts
}

/// Methods whose `agentId` gives nothing: it must be that of a session which the caller may read, selects some of these
/// sessions, or is ignored.
const COMPARING_METHODS: [&str; 13] = [
    "chat.abort",
    "chat.history",
    "chat.inject",
    "chat.startup",
    "sessions.abort",
    "sessions.compact",
    "sessions.delete",
    "sessions.get",
    "sessions.list",
    "sessions.messages.subscribe",
    "sessions.messages.unsubscribe",
    "sessions.reset",
    "sessions.resolve",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_one_agent_names_no_other_over_the_websocket() {
    let server = start().await;
    let token = create_token(&server, "desk", OTHER).await;
    let mut client = WsTestClient::open_socket(&server).await;
    let hello = client.handshake(&token, json!({})).await;
    let tried: BTreeSet<&str> = ws_attempts(Some(DEFAULT), "x").into_iter().map(|(method, _)| method).collect();
    let methods = hello["payload"]["features"]["methods"].as_array().unwrap();
    for method in methods.iter().filter_map(Value::as_str).filter(|method| *method != "connect") {
        let answer = client.request(method, json!({"agentId": DEFAULT})).await;
        let takes_agent = answer["error"]["details"]["code"] != "UNSUPPORTED_PARAMETER";
        let is_known = tried.contains(method) || COMPARING_METHODS.contains(&method);
        assert_eq!(takes_agent, is_known, "{method}: {answer:#}");
    }
    for (agent, session) in [(Some(DEFAULT), "a"), (None, "b")] {
        for (method, params) in ws_attempts(agent, session) {
            let error = client.call_refused_as("FORBIDDEN", method, params).await;
            assert!(error["message"].as_str().unwrap().contains(REFUSAL), "{method} for {agent:?}: {error:#}");
        }
    }
    assert_eq!(server.model.request_count(), 0);
    for (method, params) in ws_attempts(Some(OTHER), "c") {
        client.call(method, params).await;
    }
}

/// The name of a token is its principal, so the session is that of a later token with this name.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_one_agent_changes_no_session_of_another() {
    let server = start().await;
    let before = server.api_with_new_token("desk", "write").await;
    server.wait_forgotten(&before.send_message("old", "x").await).await;
    let _ = server.http.delete("/api/tokens/desk").await;
    let archive = server.http.request(Method::GET, "/api/sessions/old/export").send().await.unwrap();
    let archive = archive.text().await.unwrap();
    let token = create_token(&server, "desk", OTHER).await;
    let desk = server.http.with_token(&token);
    let import = desk.request(Method::POST, "/api/import").header("content-type", "application/x-ndjson");
    let refused = [
        desk.post_run("old", &json!({"text": "x"})).await,
        desk.post("/api/sessions/old/compact", &json!({})).await,
        desk.patch("/api/sessions/old", &json!({"model": "scripted/other"})).await,
        desk.post("/api/schedules", &json!({"every": "1h", "text": "x", "sessionKey": "old"})).await,
        desk.send(import.body(archive)).await,
    ];
    for answer in refused {
        assert_problem(&answer, 403, "forbidden");
        assert!(answer.body["detail"].as_str().unwrap().contains(REFUSAL), "{:#}", answer.body);
    }
    let mut client = WsTestClient::connect_operator(&server, &token).await;
    for (method, params) in [
        ("chat.send", chat_send_params("old", "x", "k")),
        ("chat.inject", json!({"sessionKey": "old", "message": "x"})),
        ("sessions.compact", json!({"key": "old"})),
    ] {
        let error = client.call_refused_as("FORBIDDEN", method, params).await;
        assert!(error["message"].as_str().unwrap().contains(REFUSAL), "{method}: {error:#}");
    }
    assert_eq!(server.model.request_count(), 1, "nothing else went out");
    // It goes on with an agent that the token is for.
    let sent = desk.post_run("old", &json!({"text": "x", "agent": OTHER})).await.expect_status(202);
    assert_eq!(server.wait_ended(sent["runId"].as_str().unwrap()).await["output"], "done");
}
