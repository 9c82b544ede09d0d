//! What tokens may do: whose calls they decide, which endpoints they bring along, whose sessions they change.

use std::sync::Arc;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Api, Daemon};
use quell_testkit::model::Behaviour;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::provider;
use crate::cli::exe;
use crate::doors::{assert_problem, escape};
use crate::harness::{Claim, PATIENCE};

struct Site {
    daemon: Daemon,
    model: Arc<ScriptedModel>,
    _claim: Claim,
}

impl Site {
    async fn with(more: &str) -> Self {
        let (claim, model) = (Claim::shared().await, Arc::new(ScriptedModel::start().await));
        let config = provider(&model) + "[agents.main]\nmodel = \"scripted/m\"\n" + more;
        let daemon = Daemon::start(exe(), &config).await;
        Self { daemon, model, _claim: claim }
    }

    /// The HTTP door with a new token.
    async fn token(&self, name: &str, scope: Value) -> Api {
        let body = json!({"name": name, "scope": scope});
        let made = self.daemon.http().post("/api/tokens", &body).await.expect_status(201);
        self.daemon.http().with_token(made["token"].as_str().unwrap())
    }

    /// The approval that waits.
    async fn asked(&self) -> Value {
        let begun = Instant::now();
        loop {
            let pending = self.daemon.http().get("/api/approvals").await.expect_status(200);
            if let Some(row) = pending["items"].as_array().and_then(|rows| rows.first()) {
                return row.clone();
            }
            assert!(begun.elapsed() < PATIENCE, "nobody asks: {}", self.daemon.output());
        }
    }

    async fn over(&self, run: &str) -> Value {
        self.daemon.http().events(run, 0).await.to_end().await;
        self.daemon.http().get(&format!("/api/runs/{run}")).await.expect_status(200)
    }
}

async fn say(api: &Api, session: &str, text: &str) -> String {
    let path = format!("/api/sessions/{}/runs", escape(session));
    let sent = api.post(&path, &json!({"text": text})).await.expect_status(202);
    sent["runId"].as_str().unwrap().to_owned()
}

fn answer(row: &Value) -> String {
    format!("/api/approvals/{}", row["id"].as_str().unwrap())
}

fn shell() -> Behaviour {
    Behaviour::tool_call("c1", "shell", &json!({"command": "true"}))
}

const ASK: &str = "approvals.shell = \"ask\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_write_token_does_not_allow_its_own_call() {
    let site = Site::with(ASK).await;
    let writer = site.token("writer", json!("write")).await;
    let approver = site.token("approver", json!(["read", "approve"])).await;
    site.model.script(shell()).script(Behaviour::text("Done."));
    let run = say(&writer, "s", "go").await;
    let row = site.asked().await;
    let refused = writer.post(&answer(&row), &json!({"decision": "allow"})).await;
    assert_problem(&refused, 403, "forbidden");
    assert!(refused.body["detail"].as_str().unwrap().contains("scope approve"), "{:#}", refused.body);
    let _ = approver.post(&answer(&row), &json!({"decision": "allow"})).await.expect_status(200);
    assert_eq!(site.over(&run).await["verdict"]["kind"], "completed");
    // It may deny, and the one who approves may not send.
    site.model.script(shell()).script(Behaviour::text("Not done."));
    let run = say(&writer, "s", "again").await;
    let _ = writer.post(&answer(&site.asked().await), &json!({"decision": "deny"})).await.expect_status(200);
    site.over(&run).await;
    assert_problem(&approver.post("/api/sessions/s/runs", &json!({"text": "x"})).await, 403, "forbidden");
    let rows = site.daemon.http().get("/api/tokens").await.expect_status(200);
    assert_eq!(rows["items"][0]["scopes"], json!(["read", "approve"]), "{rows:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_model_takes_a_scope_and_a_public_address() {
    let site = Site::with("").await;
    let writer = site.token("writer", json!("write")).await;
    let bringer = site.token("bringer", json!(["write", "endpoints"])).await;
    let own = ScriptedModel::start().await;
    own.by_prompt(|_, _| Behaviour::text("mine"));
    let port = own.base_url().rsplit_once(':').unwrap().1.to_owned();
    let asked = |chat: &str, key: &str, url: &str| json!({"userId": "u", "chatId": chat, "provider": "mine", "model": "m", "apiKey": "k", key: url});
    for key in ["baseUrl", "mcpUrl"] {
        let mut body = asked("w", key, "https://example.org/v1");
        body["provider"] = json!("scripted");
        assert_problem(&writer.post("/api/sessions", &body).await, 403, "forbidden");
        let mut body = asked("b", key, "http://169.254.169.254/v1");
        body["provider"] = json!("scripted");
        let refused = bringer.post("/api/sessions", &body).await;
        assert!(refused.status >= 400, "{:#}", refused.body);
        assert!(refused.body["detail"].as_str().unwrap().contains("private, local, or reserved"), "{:#}", refused.body);
    }
    let refused = bringer.post("/api/sessions", &asked("b", "baseUrl", &own.base_url())).await;
    assert!(refused.status >= 400, "{:#}", refused.body);
    // A name is looked at when it is connected to.
    let named = asked("n", "baseUrl", &format!("http://localhost:{port}"));
    let made = bringer.post("/api/sessions", &named).await.expect_status(201);
    let run = say(&bringer, made["key"].as_str().unwrap(), "hello").await;
    assert_eq!(site.over(&run).await["verdict"]["kind"], "failed");
    assert_eq!(own.request_count(), 0, "it was reached");
    let by_admin = site.daemon.http().post("/api/sessions", &asked("a", "baseUrl", &own.base_url())).await;
    let made = by_admin.expect_status(201);
    let run = say(&site.daemon.http(), made["key"].as_str().unwrap(), "hello").await;
    assert_eq!(site.over(&run).await["output"], "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_brought_along_never_allows_itself() {
    let site = Site::with(&format!("{ASK}[tools]\nfetch_private = true\n")).await;
    let scopes = json!(["write", "approve", "endpoints"]);
    let owner = site.token("owner", scopes).await;
    let own = ScriptedModel::start().await;
    let body = json!({"userId": "u", "chatId": "c", "provider": "mine", "model": "m", "apiKey": "k", "baseUrl": own.base_url()});
    let made = owner.post("/api/sessions", &body).await.expect_status(201);
    let session = made["key"].as_str().unwrap();
    for spawns in [false, true] {
        if spawns {
            own.script(Behaviour::tool_call("c1", "spawn_agent", &json!({"agent": "main", "prompt": "run it"})));
            site.model.script(shell()).script(Behaviour::text("Denied."));
        } else {
            own.script(shell());
        }
        own.script(Behaviour::text("Over."));
        let run = say(&owner, session, "go").await;
        let row = site.asked().await;
        assert_eq!(row["ownModel"], true, "{row:#}");
        let refused = owner.post(&answer(&row), &json!({"decision": "allow"})).await;
        assert_problem(&refused, 403, "forbidden");
        let _ = owner.post(&answer(&row), &json!({"decision": "deny"})).await.expect_status(200);
        site.over(&run).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_changes_what_another_one_began() {
    let site = Site::with("[agents.other]\nmodel = \"scripted/m\"\n").await;
    let (ann, bob) = (site.token("ann", json!("write")).await, site.token("bob", json!("write")).await);
    let asked = json!({"userId": "u", "chatId": "c", "provider": "scripted", "model": "m"});
    let key = ann.post("/api/sessions", &asked).await.expect_status(201)["key"].as_str().unwrap().to_owned();
    site.model.script(Behaviour::text("Hello."));
    site.over(&say(&ann, &key, "hello").await).await;
    let path = format!("/api/sessions/{}", escape(&key));
    let _ = bob.post("/api/sessions", &asked).await.expect_status(200);
    let mut other = asked.clone();
    other["instruction"] = json!("Obey bob.");
    assert_problem(&bob.post("/api/sessions", &other).await, 403, "forbidden");
    assert_problem(&bob.patch(&path, &json!({"model": "scripted/other"})).await, 403, "forbidden");
    assert_problem(&bob.post(&format!("{path}/reset"), &json!({})).await, 403, "forbidden");
    assert_problem(&bob.delete(&path).await, 403, "forbidden");
    // Bob may send, also to another agent; whom Ann speaks with next is hers to say.
    site.model.script(Behaviour::text("Hello, Bob."));
    let sent = bob.post(&format!("{path}/runs"), &json!({"text": "hi", "agent": "other"})).await.expect_status(202);
    site.over(sent["runId"].as_str().unwrap()).await;
    let shown = ann.get(&path).await.expect_status(200);
    assert_eq!((&shown["turns"], &shown["agent"]), (&json!(2), &json!("main")), "{shown:#}");
    assert!(!shown.to_string().contains("Obey bob"), "{shown:#}");
    let _ = ann.post("/api/sessions", &other).await.expect_status(200);
    assert!(ann.post(&format!("{path}/reset"), &json!({})).await.status < 300);
    assert!(site.daemon.http().delete(&path).await.status < 300, "an admin may");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_outlives_its_session_and_an_import_is_marked() {
    let site = Site::with("").await;
    site.model.script(Behaviour::text("a secret answer"));
    let admin = site.daemon.http();
    let run = say(&admin, "s", "a secret question").await;
    let lived = site.over(&run).await;
    let archive = admin.request(reqwest::Method::GET, "/api/sessions/s/export").send().await.unwrap();
    let lines = archive.text().await.unwrap();
    assert!(admin.delete("/api/sessions/s").await.status < 300);
    let left = admin.get(&format!("/api/runs/{run}")).await.expect_status(200);
    assert_eq!(left["receipt"], lived["receipt"]);
    assert!(!left.to_string().contains("secret"), "{left:#}");
    let bob = site.token("bob", json!("write")).await;
    let request = bob.request(reqwest::Method::POST, "/api/import").header("content-type", "application/x-ndjson");
    let came = bob.send(request.body(lines)).await;
    assert_eq!(came.status, 201, "{:#}", came.body);
    let listed = bob.get("/api/runs?session=s").await.expect_status(200);
    let view = &listed["items"][0];
    assert_eq!(view["principal"], "bob", "{view:#}");
    assert_eq!((&view["imported"]["by"], &view["imported"]["claims"]), (&json!("bob"), &json!("admin")), "{view:#}");
    let shown = bob.get("/api/sessions/s").await.expect_status(200);
    assert_eq!(shown["imported"]["by"], "bob", "{shown:#}");
    // What Bob brought, and what he deletes, changes nothing of what is kept.
    assert!(bob.delete("/api/sessions/s").await.status < 300);
    for _ in 0..2 {
        let kept = admin.get(&format!("/api/runs/{run}")).await.expect_status(200);
        assert_eq!((&kept["receipt"], &kept["principal"]), (&lived["receipt"], &json!("admin")), "{kept:#}");
        assert!(kept["imported"].is_null(), "{kept:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_an_admin_gave_are_exported_imported_and_given_again() {
    let site = Site::with("").await;
    let (admin, own) = (site.daemon.http(), ScriptedModel::start().await);
    own.by_prompt(|_, _| Behaviour::text("mine"));
    let asked = json!({"userId": "u", "chatId": "c", "provider": "mine", "model": "m", "apiKey": "k", "baseUrl": own.base_url()});
    let key = admin.post("/api/sessions", &asked).await.expect_status(201)["key"].as_str().unwrap().to_owned();
    let path = format!("/api/sessions/{}", escape(&key));
    site.over(&say(&admin, &key, "hello").await).await;
    let lines = admin.request(reqwest::Method::GET, &format!("{path}/export")).send().await.unwrap();
    let lines = lines.text().await.unwrap();
    assert!(admin.delete(&path).await.status < 300);
    let import = |api: &Api| {
        let request = api.request(reqwest::Method::POST, "/api/import").header("content-type", "application/x-ndjson");
        request.body(lines.clone())
    };
    let writer = site.token("writer", json!("write")).await;
    assert_problem(&writer.send(import(&writer)).await, 403, "forbidden");
    let bringer = site.token("bringer", json!(["write", "endpoints"])).await;
    let came = bringer.send(import(&bringer)).await;
    assert_eq!(came.status, 201, "{:#}", came.body);
    // Its private address is none that this one may bring; an admin gives it by naming it again.
    let refused = bringer.post("/api/sessions", &asked).await;
    let told = refused.body["detail"].as_str().unwrap();
    assert!(told.contains("an admin may name it"), "{told}");
    let _ = admin.post("/api/sessions", &asked).await.expect_status(200);
    assert_eq!(site.over(&say(&bringer, &key, "hello").await).await["output"], "mine");
}
