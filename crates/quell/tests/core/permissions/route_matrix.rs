//! Every route and every WebSocket method, tried by callers with different rights on a session of somebody else. The
//! rules come from the tables of the server: the document at `/openapi.json` and the WebSocket's own table.

use std::collections::BTreeMap;

use quell_engine::engine::{Caller, SubmitOutcome};
use quell_protocol::Surface;
use quell_test_support::ws_client::WsTestClient;
use reqwest::Method;

use super::*;
use crate::test_engine::parse_principal;

/// Rules of the document. A route whose rule is not here has no test.
const RULES: [&str; 13] = [
    "public",
    "token",
    "list",
    "read",
    "read_all",
    "create",
    "use",
    "manage",
    "configure",
    "stop",
    "stop_all",
    "approve",
    "admin",
];

/// The callers besides the owner `ann`, with the scopes of their tokens.
const STRANGERS: [(&str, &[&str]); 8] = [
    ("reader", &["read"]),
    ("writer", &["write"]),
    ("read-all", &["read:all"]),
    ("write-all", &["write:all"]),
    ("stop-all", &["stop:all"]),
    ("approver", &["approve"]),
    ("endpoints", &["write", "endpoints"]),
    ("root", &["admin"]),
];

/// True if a caller with these scopes gets in at a route with this rule, in the private session of somebody else.
fn is_allowed(rule: &str, scopes: &[&str]) -> bool {
    let has = |wanted: &[&str]| scopes.iter().any(|scope| wanted.contains(scope) || *scope == "admin");
    match rule {
        "public" | "token" | "list" => true,
        "read" | "read_all" => has(&["read:all", "write:all"]),
        "create" => has(&["write", "write:all"]),
        "use" | "manage" => has(&["write:all"]),
        "configure" | "admin" => has(&[]),
        "stop" | "stop_all" => has(&["stop:all"]),
        "approve" => has(&["approve"]),
        other => panic!("no test knows the rule {other:?}"),
    }
}

/// A caller without the right is told so, or that nothing is there.
fn is_refusal(status: u16) -> bool {
    matches!(status, 401 | 403 | 404)
}

struct Matrix {
    server: TestServer,
    /// Parameters of paths.
    names: BTreeMap<&'static str, String>,
    /// A run of `ann` that waits for an approval.
    approval: String,
    /// A schedule of `ann`.
    schedule: String,
    ann: TestApiClient,
}

impl Matrix {
    /// The session `private` of `ann`, with an ended run, a run that waits, and a note.
    async fn start() -> Self {
        let server = TestServer::start_with(|plan| {
            let main = plan.engine.agents.get_mut(&parse_agent_id("main")).unwrap();
            main.approvals.insert("list_files".to_owned(), quell_kernel::approval::ApprovalPolicy::Ask);
        })
        .await;
        let ann = server.http.with_token(&token_with(&server, "ann", &["write"]).await);
        server.model.script(ScriptedResponse::text("a secret answer"));
        let ended = ann.send_message("private", "a secret question").await;
        server.wait_ended(&ended).await;
        server.model.script(list_files_call());
        let _waiting = ann.send_message("private", "list").await;
        let approval = server.http.wait_approval().await["id"].as_str().unwrap().to_owned();
        let schedule = json!({"every": "1h", "text": "a secret question"});
        let schedule = ann.post("/api/schedules", &schedule).await.expect_status(201);
        let schedule = schedule["id"].as_str().unwrap().to_owned();
        let names = BTreeMap::from([("key", "private".to_owned()), ("name", "x".to_owned()), ("note", "x".to_owned())]);
        let names = names.into_iter().chain([("sender", "x".to_owned()), ("run", ended)]).collect();
        Self { server, names, approval, schedule, ann }
    }

    fn path(&self, template: &str) -> String {
        let mut path = template.to_owned();
        let id = if template.starts_with("/api/runs/") {
            self.names["run"].clone()
        } else if template.starts_with("/api/approvals/") {
            self.approval.clone()
        } else if template.starts_with("/api/schedules/") {
            self.schedule.clone()
        } else {
            "main".to_owned()
        };
        for (name, value) in &self.names {
            path = path.replace(&format!("{{{name}}}"), value);
        }
        path.replace("{id}", &id)
    }

    /// The body with which a route would do something harmless, if it has one.
    fn body(method: &str, template: &str) -> Option<Value> {
        Some(match (method, template) {
            ("post", "/api/sessions/{key}/runs") => json!({"text": "hello", "literal": true, "onBusy": "reject"}),
            ("post", "/api/sessions") => {
                json!({"userId": "u", "chatId": "c", "provider": "scripted", "model": "scripted/model"})
            }
            ("patch", "/api/sessions/{key}") => json!({"model": "scripted/other"}),
            ("put", "/api/sessions/{key}/sharing") => json!({"shared": false}),
            ("post", "/api/approvals/{id}") => json!({"decision": "deny"}),
            ("post", "/api/tokens") => json!({"name": "x", "scope": "read"}),
            ("post", "/api/agents") => json!({"id": "x", "model": "none/none"}),
            ("post", "/api/mcp/{server}/prompt") => json!({"name": "x"}),
            ("post", "/api/mcp/{server}/resource") => json!({"uri": "x"}),
            ("post", "/api/channels/send") => json!({"to": "x:y", "text": "z"}),
            ("post" | "put" | "patch", _) => json!({}),
            _ => return None,
        })
    }

    async fn status(&self, api: &TestApiClient, method: &str, template: &str) -> u16 {
        let verb = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).unwrap();
        let mut request = api.request(verb, &self.path(template));
        if let Some(body) = Self::body(method, template) {
            request = request.json(&body);
        }
        request.send().await.unwrap().status().as_u16()
    }
}

async fn token_with(server: &TestServer, name: &str, scopes: &[&str]) -> String {
    let made = server.http.post("/api/tokens", &json!({"name": name, "scope": scopes})).await.expect_status(201);
    made["token"].as_str().unwrap().to_owned()
}

/// Routes with a rule, in the order of the document, those that end something last.
async fn routes(server: &TestServer) -> Vec<(String, String, String)> {
    let document = server.http.get("/openapi.json").await.expect_status(200);
    let mut found = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let rule = operation["x-quell-access"].as_str().unwrap_or_else(|| panic!("{method} {path} has no rule"));
            assert!(RULES.contains(&rule), "{method} {path}: {rule}");
            found.push((method.clone(), path.clone(), rule.to_owned()));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_gets_in_where_the_tables_say_so_and_nowhere_else() {
    let matrix = Matrix::start().await;
    let mut wrong = Vec::new();
    let routes = routes(&matrix.server).await;
    assert!(routes.len() > 50, "{}", routes.len());
    for (name, scopes) in STRANGERS {
        let token = token_with(&matrix.server, name, scopes).await;
        let api = matrix.server.http.with_token(&token);
        for (method, path, rule) in &routes {
            let allowed = is_allowed(rule, scopes);
            // What a caller may do would change the scene for the next one. Its rule is tried by those who may not.
            let is_change = *method != "get" && !matches!(rule.as_str(), "public" | "token" | "list");
            // A path without a session or run of `ann` in it has a rule of its own.
            let names_private = path.contains("{key}") || path.starts_with("/api/runs/{id}");
            // A writer stops its own runs there, and nothing of others: `a_right_to_stop_needs_no_right_to_read`.
            let stops_own = rule == "stop" && scopes.iter().any(|scope| scope.starts_with("write"));
            if stops_own || rule == "public" || (allowed && is_change) || (rule == "use" && !names_private) {
                continue;
            }
            let status = matrix.status(&api, method, path).await;
            let refused = is_refusal(status);
            // Something that does not exist is not found by anybody.
            let unknown_to_all = status == 404 && (path.contains("{note}") || path.contains("{sender}"));
            let unknown_to_all = unknown_to_all || status == 404 && path.ends_with("/processes/{id}");
            let unknown_to_all = unknown_to_all
                || status == 404 && (path == "/metrics" || path == "/api/cluster" || path.ends_with("{id}/memory"));
            let is_of_owner =
                ["/v1/responses/{", "/v1/conversations/{", "/v1/models/{"].iter().any(|begin| path.starts_with(begin));
            let unknown_to_all = unknown_to_all || status == 404 && is_of_owner;
            if refused == allowed && !(allowed && unknown_to_all) {
                wrong.push(format!("{name} {method} {path} ({rule}): {status}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_events_show_a_stranger_nothing_of_a_private_session() {
    let matrix = Matrix::start().await;
    let lists =
        ["/api/sessions", "/api/runs", "/api/runs?state=active", "/api/processes", "/api/approvals", "/api/agents"];
    for (scopes, sees) in [(&["write"] as &[&str], false), (&["read:all"], true)] {
        let name = if sees { "sees" } else { "stranger" };
        let token = token_with(&matrix.server, name, scopes).await;
        let api = matrix.server.http.with_token(&token);
        let mut client = WsTestClient::connect_operator(&matrix.server, &token).await;
        let run = &matrix.names["run"];
        let mut shown = String::new();
        for list in lists {
            shown += &api.get(list).await.expect_status(200).to_string();
        }
        for method in ["sessions.list", "runs.list", "agents.list", "approvals.list"] {
            shown += &client.call(method, json!({})).await.to_string();
        }
        assert_eq!(shown.contains("private") || shown.contains(run), sees, "{name}: {shown}");
        for (method, params) in [
            ("runs.get", json!({"runId": run})),
            ("runs.follow", json!({"runId": run})),
            ("agent.wait", json!({"runId": run})),
            ("chat.history", json!({"sessionKey": "private"})),
        ] {
            let answer = client.request(method, params).await;
            assert_eq!(answer["ok"] == true, sees, "{name} {method}: {answer}");
        }
        let described = client.call("sessions.describe", json!({"key": "private"})).await;
        assert_eq!(described["ok"] == true, sees, "{described}");
    }
}

/// Every method that the server announces, with every way to name a target.
#[tokio::test(flavor = "multi_thread")]
async fn no_websocket_method_shows_a_stranger_a_private_session() {
    let matrix = Matrix::start().await;
    let token = token_with(&matrix.server, "stranger", &["write"]).await;
    let mut client = WsTestClient::open_socket(&matrix.server).await;
    let hello = client.handshake(&token, json!({})).await;
    let methods = hello["payload"]["features"]["methods"].as_array().unwrap().clone();
    assert!(methods.len() > 25, "{hello:#}");
    let run = &matrix.names["run"];
    for method in methods.iter().filter_map(Value::as_str).filter(|method| *method != "connect") {
        for params in [
            json!({}),
            json!({"key": "private"}),
            json!({"sessionKey": "private"}),
            json!({"runId": run}),
            json!({"key": "private", "shared": true}),
            json!({"sessionKey": "private", "message": "/status", "idempotencyKey": "i"}),
            json!({"sessionKey": "private", "message": "hello", "idempotencyKey": "i"}),
            json!({"id": matrix.approval, "decision": "allow"}),
        ] {
            let shown = client.request(method, params.clone()).await.to_string();
            assert!(!shown.contains("a secret"), "{method} {params}: {shown}");
        }
    }
    // Nothing of it has changed, either.
    let session = matrix.ann.get("/api/sessions/private").await.expect_status(200);
    assert_fields(&session, &json!({"shared": false, "turns": 1}));
    assert_eq!(session["activeRuns"].as_array().unwrap().len(), 1, "{session:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_session_is_read_and_used_by_all_until_it_is_private_again() {
    let matrix = Matrix::start().await;
    let bob = matrix.server.http.with_token(&token_with(&matrix.server, "bob", &["write"]).await);
    let reader = matrix.server.http.with_token(&token_with(&matrix.server, "reader", &["read"]).await);
    let sharing = "/api/sessions/private/sharing";
    assert_problem(&bob.put(sharing, &json!({"shared": true})).await, 404, "session_not_found");
    assert_problem(&bob.get("/api/sessions/private/history").await, 404, "session_not_found");
    assert_problem(&bob.post_run("private", &json!({"text": "x"})).await, 403, "forbidden");
    let row = matrix.ann.put(sharing, &json!({"shared": true})).await.expect_status(200);
    assert_fields(&row, &json!({"owner": "ann", "shared": true}));
    let history = reader.get("/api/sessions/private/history").await.expect_status(200);
    assert!(history.to_string().contains("a secret answer"), "{history:#}");
    assert_problem(&bob.delete("/api/sessions/private").await, 403, "forbidden");
    assert_problem(&bob.put(sharing, &json!({"shared": true})).await, 403, "forbidden");
    assert_problem(&bob.post("/api/sessions/private/compact", &json!({})).await, 403, "forbidden");
    let token = token_with(&matrix.server, "bob-ws", &["write"]).await;
    let mut client = WsTestClient::connect_operator(&matrix.server, &token).await;
    for (method, params) in [
        ("chat.inject", json!({"sessionKey": "private", "message": "I agree."})),
        ("sessions.compact", json!({"key": "private"})),
    ] {
        let refused = client.call_refused(method, params).await;
        assert!(refused["message"].as_str().unwrap().contains("did not create the session"), "{method}: {refused}");
    }
    let run = bob.send_message("private", "me, too").await;
    let _ = matrix.ann.put(sharing, &json!({"shared": false})).await.expect_status(200);
    // His own run stays his: he sees it and stops it, and the owner of the session sees it, too.
    assert_eq!(bob.get(&format!("/api/runs/{run}")).await.status, 200);
    assert_eq!(matrix.ann.get(&format!("/api/runs/{run}")).await.status, 200);
    assert_problem(&reader.get(&format!("/api/runs/{run}")).await, 404, "run_not_found");
    assert!(bob.post(&format!("/api/runs/{run}/stop"), &json!({})).await.status < 300);
    assert_problem(&bob.post_run("private", &json!({"text": "again"})).await, 403, "forbidden");
    // The rights survive a restart.
    let server = matrix.server.restart().await;
    let bob = server.http.with_token(&token_with(&server, "bob-2", &["write"]).await);
    assert_problem(&bob.get("/api/sessions/private").await, 404, "session_not_found");
}

/// Row by row: whoever may not read a run stops it only by a right to stop, and nobody is kept from stopping.
#[tokio::test(flavor = "multi_thread")]
async fn a_right_to_stop_needs_no_right_to_read() {
    let matrix = Matrix::start().await;
    let token = |name: &'static str, scopes: &'static [&'static str]| token_with(&matrix.server, name, scopes);
    let (writer, stopper) = (token("writer", &["write"]).await, token("stopper", &["stop:all"]).await);
    let (writer, stopper) = (matrix.server.http.with_token(&writer), matrix.server.http.with_token(&stopper));
    let start = async |session: &str| {
        matrix.server.model.script(ScriptedResponse::SilentBeforeHeaders);
        matrix.ann.send_message(session, "go").await
    };
    let run = start("one").await;
    let path = format!("/api/runs/{run}/stop?wait=1");
    assert_problem(&stopper.get(&format!("/api/runs/{run}")).await, 404, "run_not_found");
    assert_problem(&writer.post(&path, &json!({})).await, 403, "forbidden");
    let stopped = stopper.post(&path, &json!({})).await.expect_status(200);
    assert_eq!(stopped["verdict"]["kind"], "aborted", "{stopped:#}");
    let run = start("two").await;
    let answer = stopper.post("/api/sessions/two/stop", &json!({})).await.expect_status(200);
    assert_eq!(answer["runIds"], json!([run]), "{answer:#}");
    let run = start("three").await;
    assert_problem(&stopper.post("/api/stop", &json!({"hold": true})).await, 403, "forbidden");
    let answer = stopper.post("/api/stop?wait=1", &json!({})).await.expect_status(200);
    assert!(answer["runIds"].as_array().unwrap().contains(&json!(run)), "{answer:#}");
    assert_problem(&stopper.post_run("four", &json!({"text": "x"})).await, 403, "forbidden");
}

/// Nobody reads a conversation of sub-agents by creating its session first.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_key_that_was_taken_before_is_not_used_for_a_sub_run() {
    let matrix = Matrix::start().await;
    let bob = matrix.server.http.with_token(&token_with(&matrix.server, "bob", &["write"]).await);
    matrix.server.model.script(ScriptedResponse::text("mine"));
    let taken = bob.send_message("agent:main:from:target", "hello").await;
    matrix.server.wait_ended(&taken).await;
    let work = json!({"to": "main", "text": "a secret"});
    matrix.server.model.script(ScriptedResponse::tool_call("c1", "send_message", &work));
    matrix.server.model.script(ScriptedResponse::text("It was refused."));
    let run = matrix.ann.send_message("target", "delegate").await;
    matrix.server.wait_ended(&run).await;
    let history = bob.get("/api/sessions/agent:main:from:target/history").await.expect_status(200);
    assert!(!history.to_string().contains("a secret"), "{history:#}");
    let seen = matrix.server.model.recorded_requests().last().unwrap().body["messages"].to_string();
    assert!(seen.contains("belongs to somebody else"), "{seen}");
}

/// The same for a chat, whose people use each other's conversations.
#[tokio::test(flavor = "multi_thread")]
async fn a_chat_does_not_use_a_sub_run_session_of_a_token() {
    let matrix = Matrix::start().await;
    let bob = matrix.server.http.with_token(&token_with(&matrix.server, "bob", &["write"]).await);
    matrix.server.model.script(ScriptedResponse::text("mine"));
    let taken = bob.send_message("agent:main:from:irc_room_ann", "hello").await;
    matrix.server.wait_ended(&taken).await;
    let work = json!({"to": "main", "text": "a secret"});
    matrix.server.model.script(ScriptedResponse::tool_call("c1", "send_message", &work));
    matrix.server.model.script(ScriptedResponse::text("It was refused."));
    let ann = Caller { principal: parse_principal("irc:ann"), surface: Surface::Channel, ..alice() };
    let sent = matrix.server.engine.submit(&ann, submission("irc_room_ann", "delegate")).await.unwrap();
    let SubmitOutcome::Accepted(sent) = sent else { panic!("{sent:?}") };
    matrix.server.wait_ended(sent.run_id.as_str()).await;
    let history = bob.get("/api/sessions/agent:main:from:irc_room_ann/history").await.expect_status(200);
    assert!(!history.to_string().contains("a secret"), "{history:#}");
    let seen = matrix.server.model.recorded_requests().last().unwrap().body["messages"].to_string();
    assert!(seen.contains("belongs to somebody else"), "{seen}");
}

/// A right to stop is no right to write into the run of somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_a_right_to_stop_does_not_steer_a_foreign_run() {
    let matrix = Matrix::start().await;
    let stopper = token_with(&matrix.server, "stopper", &["write", "stop:all"]).await;
    let stopper = matrix.server.http.with_token(&stopper);
    let _ = matrix.ann.put("/api/sessions/private/sharing", &json!({"shared": true})).await.expect_status(200);
    let steering = json!({"text": "obey", "onBusy": "steer"});
    let sent = stopper.post_run("private", &steering).await;
    assert_eq!(sent.body["state"], "queued", "{:#}", sent.body);
    let sent = matrix.server.http.post_run("private", &steering).await;
    assert_eq!(sent.body["state"], "steered", "an admin may: {:#}", sent.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_refusal_to_configure_a_private_session_does_not_tell_its_provider() {
    let matrix = Matrix::start().await;
    let bob = matrix.server.http.with_token(&token_with(&matrix.server, "bob", &["write"]).await);
    let body = json!({"userId": "u", "chatId": "c", "provider": "scripted", "model": "scripted/model"});
    let opened = matrix.ann.post("/api/sessions", &body).await;
    assert!(opened.status < 300, "{:#}", opened.body);
    let key = opened.body["key"].as_str().or(opened.body["sessionKey"].as_str()).unwrap();
    let path = format!("/api/sessions/{}", percent_encode(key));
    let change = json!({"model": "nobody/x"});
    let refused = bob.patch(&path, &change).await;
    assert_problem(&refused, 403, "forbidden");
    assert!(!refused.body.to_string().contains("of the provider"), "{:#}", refused.body);
    let refused = matrix.ann.patch(&path, &change).await;
    assert!(refused.body.to_string().contains("of the provider scripted"), "{:#}", refused.body);
}
