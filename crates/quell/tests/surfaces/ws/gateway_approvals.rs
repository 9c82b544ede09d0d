//! Calls that wait for a person, answered by gateway clients: their words for a decision, two at once, a reconnect.

use quell_kernel::approval::ApprovalPolicy;

use super::WsTestClient;
use crate::prelude::*;

async fn start_asking_server() -> TestServer {
    TestServer::start_with(|config| {
        config.engine.approvals.by_own_principal = true;
        let main = config.engine.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.approvals.extend(["list_files", "shell"].map(|tool| (tool.to_owned(), ApprovalPolicy::Ask)));
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn allow_always_leaves_a_rule_that_is_listed_and_revoked() {
    let server = start_asking_server().await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let mut other = WsTestClient::connect_operator(&server, &server.token).await;
    let list = || ScriptedResponse::tool_call("c1", "list_files", &json!({"path": "."}));
    for (method, key) in [("plugin.approval.resolve", "k"), ("exec.approval.resolve", "l")] {
        server.model.script(list()).script(ScriptedResponse::text("done"));
        client.send_chat("s", "list", key).await;
        let requested = client.wait_event("plugin.approval.requested").await["payload"].clone();
        assert_eq!(requested["request"]["allowedDecisions"], json!(["allow-once", "allow-always", "deny"]));
        let answered = client.call(method, json!({"id": requested["id"], "decision": "allow-always"})).await;
        assert_fields(&answered, &json!({"decision": "allow-always", "scope": "pattern", "pattern": "."}));
        other.wait_event_with("plugin.approval.resolved", "id", requested["id"].as_str().unwrap()).await;
        client.wait_chat(key, "final").await;

        server.model.script(list()).script(ScriptedResponse::text("done"));
        let run = server.send_message("elsewhere", "list again").await;
        assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed", "nobody was asked");
        let rules = server.http.get("/api/approval-rules").await.expect_status(200);
        assert_fields(&rules["items"][0], &json!({"tool": "list_files", "pattern": "."}));
        let rule = rules["items"][0]["id"].as_str().unwrap();
        server.http.delete(&format!("/api/approval-rules/{rule}")).await.expect_status(204);
    }
    server.model.script(list());
    client.send_chat("s", "list once more", "m").await;
    client.wait_event("plugin.approval.requested").await;
    client.call("chat.abort", json!({"sessionKey": "s"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_asked_once_about_a_call_of_a_sub_agent() {
    let server = TestServer::start_with_asking_sub_agent().await;
    let delegation = json!({"agent": "team/writer", "prompt": "look"});
    server.model.script(ScriptedResponse::tool_call("c0", "spawn_agent", &delegation)).script(list_files_call());
    server.model.script(ScriptedResponse::text("not listed")).script(ScriptedResponse::text("done"));
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let run = server.send_message("s", "go").await;
    let asked = poll_until("an approval", async || server.engine.pending_approvals().into_iter().next()).await;
    server.http.post(&format!("/api/approvals/{}", asked.id), &json!({"decision": "deny"})).await.expect_status(200);
    server.wait_ended(&run).await;
    server.engine.shut_down().await;
    let (_, _, frames) = client.wait_close().await;
    let told = |name: &str| frames.iter().filter(|frame| frame["event"] == name).count();
    assert_eq!((told("plugin.approval.requested"), told("plugin.approval.resolved")), (1, 1));
    assert!(told("agent") > 0, "{frames:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn allow_always_is_refused_where_it_would_cover_more() {
    let server = start_asking_server().await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    server.model.script(ScriptedResponse::tool_call("c1", "shell", &json!({"command": "ls *"})));
    server.model.script(ScriptedResponse::text("done"));
    client.send_chat("s", "run it", "k").await;
    let requested = client.wait_event("plugin.approval.requested").await["payload"].clone();
    let offered = json!(["allow-once", "deny"]);
    assert_eq!(requested["request"]["allowedDecisions"], offered);
    let always = json!({"id": requested["id"], "decision": "allow-always"});
    let refused = client.call_refused("plugin.approval.resolve", always).await;
    assert_eq!(refused["details"]["allowedDecisions"], offered, "{refused}");
    let once = json!({"id": requested["id"], "decision": "allow-once"});
    let answered = client.call("plugin.approval.resolve", once).await;
    assert_eq!(answered["decision"], "allow-once");
    client.wait_chat("k", "final").await;
    assert_eq!(server.http.get("/api/approval-rules").await.expect_status(200)["items"], json!([]));
}

fn list_call() -> ScriptedResponse {
    ScriptedResponse::tool_call("c1", "list_files", &json!({"path": "."}))
}

/// Whoever is first decides; the other one is told so, and both see one end.
#[tokio::test(flavor = "multi_thread")]
async fn two_clients_decide_a_call_at_once_and_one_answer_counts() {
    let server = start_asking_server().await;
    let mut one = WsTestClient::connect_operator(&server, &server.token).await;
    let mut two = WsTestClient::connect_operator(&server, &server.token).await;
    for round in 0..10 {
        let (session, key) = (format!("s{round}"), format!("k{round}"));
        server.model.script(list_call()).script(ScriptedResponse::text("done"));
        one.send_chat(&session, "list", &key).await;
        let requested = one.wait_event("plugin.approval.requested").await["payload"].clone();
        let id = requested["id"].clone();
        let allow = one.send_request("plugin.approval.resolve", json!({"id": id, "decision": "allow-always"})).await;
        let deny = two.send_request("plugin.approval.resolve", json!({"id": id, "decision": "deny"})).await;
        let (allow, deny) = (one.wait_response(&allow).await, two.wait_response(&deny).await);
        assert_ne!(allow["ok"], deny["ok"], "{allow} {deny}");
        let refused = if allow["ok"] == true { &deny } else { &allow };
        assert_eq!(refused["error"]["details"]["reason"], "APPROVAL_ALREADY_RESOLVED", "{refused}");
        one.wait_chat(&key, "final").await;
        let rules = server.http.get("/api/approval-rules").await.expect_status(200)["items"].clone();
        assert_eq!(rules.as_array().unwrap().len(), usize::from(allow["ok"] == true), "{rules}");
        for rule in rules.as_array().unwrap() {
            let path = format!("/api/approval-rules/{}", rule["id"].as_str().unwrap());
            server.http.delete(&path).await.expect_status(204);
        }
        let ends = |client: &WsTestClient| {
            let of_this = |event: &&Value| event["event"] == "plugin.approval.resolved" && event["payload"]["id"] == id;
            client.events.iter().filter(of_this).count()
        };
        assert_eq!(ends(&one), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reconnects_answers_the_call_that_waits() {
    let server = start_asking_server().await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    server.model.script(list_call()).script(ScriptedResponse::text("done"));
    client.send_chat("s", "list", "k").await;
    let requested = client.wait_event("plugin.approval.requested").await["payload"].clone();
    drop(client);
    let mut again = WsTestClient::connect_operator(&server, &server.token).await;
    assert_eq!(again.call("plugin.approval.list", json!({})).await, json!([requested]));
    let answer = json!({"id": requested["id"], "decision": "allow-once"});
    assert_eq!(again.call("plugin.approval.resolve", answer).await["decision"], "allow-once");
    again.wait_event_with("plugin.approval.resolved", "id", requested["id"].as_str().unwrap()).await;
    again.wait_chat("k", "final").await;
    assert_eq!(again.call("plugin.approval.list", json!({})).await, json!([]));
}
