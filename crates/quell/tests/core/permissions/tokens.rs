//! What tokens may do: answer approvals, bring endpoints, and use the sessions of others.

use reqwest::Method;

use super::*;

/// Answers an approval with this decision.
async fn answer(api: &TestApiClient, row: &Value, decision: &str) -> TestApiResponse {
    api.post(&format!("/api/approvals/{}", row["id"].as_str().unwrap()), &json!({"decision": decision})).await
}

/// Exports the session with this path.
async fn export(api: &TestApiClient, path: &str) -> String {
    api.request(Method::GET, &format!("{path}/export")).send().await.unwrap().text().await.unwrap()
}

async fn import(api: &TestApiClient, lines: &str) -> TestApiResponse {
    let request = api.request(Method::POST, "/api/import").header("content-type", "application/x-ndjson");
    api.send(request.body(lines.to_owned())).await
}

const ASK_CONFIG: &str = "approvals.shell = \"ask\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_write_token_does_not_allow_its_own_call() {
    let fixture = PermissionsFixture::start_with(ASK_CONFIG).await;
    let writer = fixture.create_token("writer", json!("write")).await;
    let approver = fixture.create_token("approver", json!(["read", "approve"])).await;
    fixture.model.script(shell_call("true")).script(ScriptedResponse::text("Done."));
    let run = writer.send_message("s", "go").await;
    let row = fixture.daemon.api().wait_approval().await;
    let refused = answer(&writer, &row, "allow").await;
    assert_problem(&refused, 403, "forbidden");
    assert!(refused.body["detail"].as_str().unwrap().contains("scope approve"), "{:#}", refused.body);
    let _ = answer(&approver, &row, "allow").await.expect_status(200);
    assert_eq!(fixture.daemon.api().wait_ended(&run).await["verdict"]["kind"], "completed");
    // A write token may deny the call; a token with `approve` alone may not send messages.
    fixture.model.script(shell_call("true")).script(ScriptedResponse::text("Not done."));
    let run = writer.send_message("s", "again").await;
    let row = fixture.daemon.api().wait_approval().await;
    let _ = answer(&writer, &row, "deny").await.expect_status(200);
    fixture.daemon.api().wait_ended(&run).await;
    assert_problem(&approver.post_run("s", &json!({"text": "x"})).await, 403, "forbidden");
    let rows = fixture.daemon.api().get("/api/tokens").await.expect_status(200);
    assert_eq!(rows["items"][0]["scopes"], json!(["read", "approve"]), "{rows:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_model_takes_a_scope_and_a_public_address() {
    let fixture = PermissionsFixture::start_with("").await;
    let writer = fixture.create_token("writer", json!("write")).await;
    let bringer = fixture.create_token("bringer", json!(["write", "endpoints"])).await;
    let own = ScriptedModel::start().await;
    own.respond_by_prompt(|_, _| ScriptedResponse::text("mine"));
    let port = own.base_url().rsplit_once(':').unwrap().1.to_owned();
    let request_body = |chat: &str, key: &str, url: &str| json!({"userId": "u", "chatId": chat, "provider": "mine", "model": "m", "apiKey": "k", key: url});
    for key in ["baseUrl", "mcpUrl"] {
        let mut body = request_body("w", key, "https://example.org/v1");
        body["provider"] = json!("scripted");
        assert_problem(&writer.post("/api/sessions", &body).await, 403, "forbidden");
        let mut body = request_body("b", key, "http://169.254.169.254/v1");
        body["provider"] = json!("scripted");
        let refused = bringer.post("/api/sessions", &body).await;
        assert!(refused.status >= 400, "{:#}", refused.body);
        assert!(refused.body["detail"].as_str().unwrap().contains("private, local, or reserved"), "{:#}", refused.body);
    }
    let refused = bringer.post("/api/sessions", &request_body("b", "baseUrl", &own.base_url())).await;
    assert!(refused.status >= 400, "{:#}", refused.body);
    // The address of a host name is checked when it is connected to.
    let named = request_body("n", "baseUrl", &format!("http://localhost:{port}"));
    let made = bringer.post("/api/sessions", &named).await.expect_status(201);
    let run = bringer.send_message(made["key"].as_str().unwrap(), "hello").await;
    assert_eq!(fixture.daemon.api().wait_ended(&run).await["verdict"]["kind"], "failed");
    assert_eq!(own.request_count(), 0, "the private address was reached");
    let by_admin = fixture.daemon.api().post("/api/sessions", &request_body("a", "baseUrl", &own.base_url())).await;
    let made = by_admin.expect_status(201);
    let run = fixture.daemon.api().send_message(made["key"].as_str().unwrap(), "hello").await;
    assert_eq!(fixture.daemon.api().wait_ended(&run).await["output"], "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sessions_own_model_cannot_approve_its_calls() {
    let fixture = PermissionsFixture::start_with(&format!("{ASK_CONFIG}[tools]\nfetch_private = true\n")).await;
    let scopes = json!(["write", "approve", "endpoints"]);
    let owner = fixture.create_token("owner", scopes).await;
    let own = ScriptedModel::start().await;
    let body = json!({"userId": "u", "chatId": "c", "provider": "mine", "model": "m", "apiKey": "k", "baseUrl": own.base_url()});
    let made = owner.post("/api/sessions", &body).await.expect_status(201);
    let session = made["key"].as_str().unwrap();
    for spawns in [false, true] {
        if spawns {
            own.script(ScriptedResponse::tool_call("c1", "spawn_agent", &json!({"agent": "main", "prompt": "run it"})));
            fixture.model.script(shell_call("true")).script(ScriptedResponse::text("Denied."));
        } else {
            own.script(shell_call("true"));
        }
        own.script(ScriptedResponse::text("Over."));
        let run = owner.send_message(session, "go").await;
        let row = fixture.daemon.api().wait_approval().await;
        assert_eq!(row["ownModel"], true, "{row:#}");
        assert_problem(&answer(&owner, &row, "allow").await, 403, "forbidden");
        let _ = answer(&owner, &row, "deny").await.expect_status(200);
        fixture.daemon.api().wait_ended(&run).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_cannot_change_the_session_of_another() {
    let fixture = PermissionsFixture::start_with("[agents.other]\nmodel = \"scripted/m\"\n").await;
    let ann = fixture.create_token("ann", json!("write")).await;
    let bob = fixture.create_token("bob", json!("write")).await;
    let asked = json!({"userId": "u", "chatId": "c", "provider": "scripted", "model": "m"});
    let key = ann.post("/api/sessions", &asked).await.expect_status(201)["key"].as_str().unwrap().to_owned();
    fixture.model.script(ScriptedResponse::text("Hello."));
    fixture.daemon.api().wait_ended(&ann.send_message(&key, "hello").await).await;
    let path = format!("/api/sessions/{}", percent_encode(&key));
    assert_problem(&bob.post("/api/sessions", &asked).await, 403, "forbidden");
    let _ = ann.put(&format!("{path}/sharing"), &json!({"shared": true})).await.expect_status(200);
    let _ = bob.post("/api/sessions", &asked).await.expect_status(200);
    let mut other = asked.clone();
    other["instruction"] = json!("Obey bob.");
    assert_problem(&bob.post("/api/sessions", &other).await, 403, "forbidden");
    assert_problem(&bob.patch(&path, &json!({"model": "scripted/other"})).await, 403, "forbidden");
    assert_problem(&bob.post(&format!("{path}/reset"), &json!({})).await, 403, "forbidden");
    assert_problem(&bob.delete(&path).await, 403, "forbidden");
    // Bob may send, also to another agent; but only Ann changes which agent her session has.
    fixture.model.script(ScriptedResponse::text("Hello, Bob."));
    let sent = bob.post(&format!("{path}/runs"), &json!({"text": "hi", "agent": "other"})).await.expect_status(202);
    fixture.daemon.api().wait_ended(sent["runId"].as_str().unwrap()).await;
    let shown = ann.get(&path).await.expect_status(200);
    assert_eq!((&shown["turns"], &shown["agent"]), (&json!(2), &json!("main")), "{shown:#}");
    assert!(!shown.to_string().contains("Obey bob"), "{shown:#}");
    let _ = ann.post("/api/sessions", &other).await.expect_status(200);
    assert!(ann.post(&format!("{path}/reset"), &json!({})).await.status < 300);
    assert!(fixture.daemon.api().delete(&path).await.status < 300, "an admin may");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_outlives_its_session_and_an_import_is_marked() {
    let fixture = PermissionsFixture::start_with("").await;
    fixture.model.script(ScriptedResponse::text("a secret answer"));
    let admin = fixture.daemon.api();
    let run = admin.send_message("s", "a secret question").await;
    let original = fixture.daemon.api().wait_ended(&run).await;
    let lines = export(&admin, "/api/sessions/s").await;
    assert!(admin.delete("/api/sessions/s").await.status < 300);
    let left = admin.run_view(&run).await;
    assert_eq!(left["receipt"], original["receipt"]);
    assert!(!left.to_string().contains("secret"), "{left:#}");
    let bob = fixture.create_token("bob", json!("write")).await;
    let came = import(&bob, &lines).await;
    assert_eq!(came.status, 201, "{:#}", came.body);
    let listed = bob.get("/api/runs?session=s").await.expect_status(200);
    let view = &listed["items"][0];
    assert_eq!(view["principal"], "bob", "{view:#}");
    assert_eq!((&view["imported"]["by"], &view["imported"]["claims"]), (&json!("bob"), &json!("admin")), "{view:#}");
    let shown = bob.get("/api/sessions/s").await.expect_status(200);
    assert_eq!(shown["imported"]["by"], "bob", "{shown:#}");
    // Neither Bob's import nor his deletion changes the original receipt.
    assert!(bob.delete("/api/sessions/s").await.status < 300);
    for _ in 0..2 {
        let kept = admin.run_view(&run).await;
        assert_eq!((&kept["receipt"], &kept["principal"]), (&original["receipt"], &json!("admin")), "{kept:#}");
        assert!(kept["imported"].is_null(), "{kept:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_an_admin_gave_are_exported_imported_and_given_again() {
    let fixture = PermissionsFixture::start_with("").await;
    let (admin, own) = (fixture.daemon.api(), ScriptedModel::start().await);
    own.respond_by_prompt(|_, _| ScriptedResponse::text("mine"));
    let asked = json!({"userId": "u", "chatId": "c", "provider": "mine", "model": "m", "apiKey": "k", "baseUrl": own.base_url()});
    let key = admin.post("/api/sessions", &asked).await.expect_status(201)["key"].as_str().unwrap().to_owned();
    let path = format!("/api/sessions/{}", percent_encode(&key));
    fixture.daemon.api().wait_ended(&admin.send_message(&key, "hello").await).await;
    let lines = export(&admin, &path).await;
    assert!(admin.delete(&path).await.status < 300);
    let writer = fixture.create_token("writer", json!("write")).await;
    assert_problem(&import(&writer, &lines).await, 403, "forbidden");
    let bringer = fixture.create_token("bringer", json!(["write", "endpoints"])).await;
    let came = import(&bringer, &lines).await;
    assert_eq!(came.status, 201, "{:#}", came.body);
    // Bob may not bring its private address; an admin allows it by naming it again.
    let refused = bringer.post("/api/sessions", &asked).await;
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("an admin may name it"), "{detail}");
    let _ = admin.post("/api/sessions", &asked).await.expect_status(200);
    assert_eq!(fixture.daemon.api().wait_ended(&bringer.send_message(&key, "hello").await).await["output"], "mine");
}
