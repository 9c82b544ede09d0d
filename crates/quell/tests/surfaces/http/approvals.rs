//! Approvals over HTTP and WebSocket: listed, answered once, refused to callers without the right.

use quell_engine::access::{BrowserSignIn, LinkIssuer};
use quell_kernel::approval::ApprovalPolicy;
use quell_process::{WardenExe, base_environment};
use quell_test_support::ws_client::WsTestClient;
use reqwest::Method;
use secrecy::ExposeSecret;

use crate::prelude::*;

async fn start_server() -> TestServer {
    TestServer::start_with(|plan| {
        let main = plan.engine.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.approvals.insert("list_files".to_owned(), ApprovalPolicy::Ask);
    })
    .await
}

/// Starts a run whose call waits for approval, and returns the run id and the approval.
async fn start_asking_run(server: &TestServer, session: &str) -> (String, Value) {
    server.model.script(list_files_call()).script(ScriptedResponse::text("done"));
    let run = server.send_message(session, "list").await;
    (run, server.http.wait_approval().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_listed_and_answered_once() {
    let server = start_server().await;
    let (run, row) = start_asking_run(&server, "s").await;
    assert_fields(&row, &json!({"runId": run, "state": "pending", "sessionKey": "s"}));
    assert_fields(&row, &json!({"tool": "list_files", "arguments": {"path": "."}}));
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    let allow = json!({"decision": "allow"});
    for scope in ["read", "write"] {
        assert_problem(&server.api_with_new_token(scope, scope).await.post(&path, &allow).await, 403, "forbidden");
    }
    // An admin token is what asked, too, when the run is its own.
    let refused = server.http.post(&path, &allow).await;
    assert_problem(&refused, 403, "forbidden");
    assert!(refused.body["detail"].as_str().unwrap().contains("quell page"), "{:#}", refused.body);
    let approver = server.api_with_new_token("approver", "approve").await;
    assert_problem(&approver.post(&path, &json!({"decision": "perhaps"})).await, 400, "invalid_request");
    let long = json!({"decision": "deny", "reason": "x".repeat(2001)});
    assert_problem(&approver.post(&path, &long).await, 400, "invalid_request");
    assert_problem(&server.http.post("/api/approvals/none", &allow).await, 404, "not_found");
    let answered = approver.post(&path, &allow).await.expect_status(200);
    assert_fields(&answered, &json!({"state": "allowed", "by": {"surface": "http"}}));
    assert_problem(&approver.post(&path, &allow).await, 409, "conflict");
    assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed");
    assert_eq!(server.http.get("/api/approvals").await.expect_status(200), json!({"items": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_an_mcp_server_is_answered_over_http_and_websocket() {
    let (marker, folder) = (ProcessMarker::new(), tempfile::tempdir().unwrap());
    let asking = quell_test_support::mcp_servers::test_server_config(&marker, &folder.path().join("log"));
    let server = TestServer::start_with(|plan| {
        plan.engine.warden_exe = WardenExe::Path(quell_exe().into());
        plan.engine.environment = base_environment(std::env::vars_os());
        plan.engine.mcp.insert("test".to_owned(), asking);
    })
    .await;
    let approver = server.api_with_new_token("approver", "approve").await;
    let token = server.create_token("other", "approve").await;
    let mut client = WsTestClient::connect_operator(&server, &token).await;
    for session in ["http", "ws"] {
        server.model.script(ScriptedResponse::tool_call("c1", "test__ask", &json!({})));
        server.model.script(ScriptedResponse::text("done"));
        let run = server.send_message(session, "ask me").await;
        let row = server.http.wait_approval().await;
        assert_fields(&row["question"], &json!({"server": "test", "message": "Who are you?"}));
        assert_fields(&row["question"]["fields"][0], &json!({"name": "name", "kind": "text", "required": true}));
        let id = row["id"].as_str().unwrap();
        if session == "http" {
            let path = format!("/api/approvals/{id}");
            let refused = approver.post(&path, &json!({"decision": "allow"})).await;
            assert_problem(&refused, 400, "invalid_request");
            assert!(refused.body["detail"].as_str().unwrap().contains("write name=TEXT"), "{:#}", refused.body);
            let answer = json!({"decision": "allow", "fields": {"name": "Ada"}});
            assert_fields(&approver.post(&path, &answer).await.expect_status(200), &json!({"state": "allowed"}));
        } else {
            let answer = json!({"id": id, "decision": "allow", "fields": {"name": "Ada"}});
            client.call("approvals.resolve", answer).await;
        }
        assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed");
        let told = server.model.recorded_requests().pop().unwrap().body["messages"].to_string();
        assert!(told.contains("accept Ada"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_websocket_lists_and_answers_them_under_both_names() {
    let server = start_server().await;
    let mut sender = WsTestClient::connect_operator(&server, &server.token).await;
    let token = server.create_token("approver", "approve").await;
    let mut client = WsTestClient::connect_operator(&server, &token).await;
    for (method, word) in [("approvals.resolve", "allow"), ("plugin.approval.resolve", "allow-once")] {
        let (run, row) = start_asking_run(&server, method).await;
        let own = client.call("approvals.list", json!({})).await;
        let plugin = client.call("plugin.approval.list", json!({})).await;
        assert_eq!((&own["approvals"][0], &plugin[0]["id"]), (&row, &row["id"]));
        assert_eq!(plugin[0]["request"]["toolName"], "list_files");
        let own_call = sender.request(method, json!({"id": row["id"], "decision": word})).await;
        assert_eq!(own_call["error"]["details"]["code"], "APPROVAL_NOT_YOURS", "{own_call}");
        let answer = client.call(method, json!({"id": row["id"], "decision": word})).await;
        assert_eq!(answer["approval"]["state"], "allowed");
        assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed");
        let again = client.request(method, json!({"id": row["id"], "decision": "deny"})).await;
        assert_eq!(again["error"]["details"]["code"], "APPROVAL_ALREADY_RESOLVED", "{again}");
    }
    let unknown = client.request("approvals.resolve", json!({"id": "none", "decision": "deny"})).await;
    assert_eq!(unknown["error"]["details"]["code"], "APPROVAL_NOT_FOUND", "{unknown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_websocket_allows_later_calls_of_a_session() {
    let server = start_server().await;
    let token = server.create_token("approver", "approve").await;
    let mut client = WsTestClient::connect_operator(&server, &token).await;
    let (run, row) = start_asking_run(&server, "s").await;
    let answer = json!({"id": row["id"], "decision": "allow", "scope": "pattern", "pattern": "no match"});
    let refused = client.call_refused("approvals.resolve", answer).await;
    assert!(refused.to_string().contains("pattern"), "{refused}");
    client.call("approvals.resolve", json!({"id": row["id"], "decision": "allow", "scope": "session"})).await;
    assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed");
    let rules = server.http.get("/api/approval-rules").await.expect_status(200);
    assert_fields(&rules["items"][0], &json!({"sessionKey": "s", "tool": "list_files"}));
    server.model.script(list_files_call()).script(ScriptedResponse::text("done"));
    let run = server.send_message("s", "again").await;
    assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed", "nobody was asked");
}

/// The principal of the run answers in person: by a browser that was signed in by a link from the daemon's terminal. A
/// link or a cookie that a token alone gave is no better than that token.
#[tokio::test(flavor = "multi_thread")]
async fn a_browser_allows_its_own_call_only_after_a_link_that_a_person_had() {
    let server = start_server().await;
    let access = server.engine.access();
    let (run, row) = start_asking_run(&server, "s").await;
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    let by_token = access.sign_in_with_token(&server.token).await.unwrap().unwrap();
    let link = server.http.post("/api/sign-in-link", &json!({})).await.expect_status(200);
    let code = link["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let by_token_link = access.sign_in_with_code(&code).await.unwrap().unwrap();
    for unverified in [by_token, by_token_link] {
        let answer = answer_as_browser(&server, &unverified, &path).await;
        assert_eq!(answer, (403, json!(false)));
    }
    let code = access.issue_login_code(LinkIssuer::Person).unwrap();
    let in_person = access.sign_in_with_code(code.expose_secret()).await.unwrap().unwrap();
    assert_eq!(answer_as_browser(&server, &in_person, &path).await, (200, json!(true)));
    assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed");
}

/// Allows a call from this browser. Returns the status, and what `GET /api/me` says about such answers.
async fn answer_as_browser(server: &TestServer, browser: &BrowserSignIn, path: &str) -> (u16, Value) {
    let secrets = browser.secrets();
    let cookie = format!("{}={}", server.engine.access().cookie_name(), secrets.cookie);
    let browser = server.http.with_token("");
    let with_cookie = |request: reqwest::RequestBuilder| {
        let (client, request) = request.build_split();
        let mut request = request.unwrap();
        request.headers_mut().remove("authorization");
        request.headers_mut().insert("cookie", cookie.parse().unwrap());
        request.headers_mut().insert("x-quell-page", secrets.page_secret.parse().unwrap());
        client.execute(request)
    };
    let me: Value = with_cookie(browser.request(Method::GET, "/api/me")).await.unwrap().json().await.unwrap();
    let allow = browser.request(Method::POST, path).json(&json!({"decision": "allow"}));
    (with_cookie(allow).await.unwrap().status().as_u16(), me["answersOwnCalls"].clone())
}
