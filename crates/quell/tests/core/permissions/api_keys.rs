//! Tokens that are restricted: to APIs, to agents, to models, and to a cost in a day; and what they have used.

use quell_engine::access::TokenSpec;
use quell_protocol::agents::Price;
use quell_protocol::api::AccessLevel;
use quell_test_support::ws_client::{WsTestClient, chat_send_params};
use quell_testkit::model::UsageReporting;

use super::*;
use crate::test_server::{TestServerConfig, assert_fields};

const PRICE: Price = Price { input: 3.0, output: 15.0 };

async fn create_key(server: &TestServer, name: &str, restrictions: Value) -> TestApiClient {
    server.http.with_token(&create_secret(server, name, restrictions).await)
}

async fn create_secret(server: &TestServer, name: &str, restrictions: Value) -> String {
    let body = json!({"name": name, "scope": "write", "restrictions": restrictions});
    let made = server.http.post("/api/tokens", &body).await.expect_status(201);
    assert_eq!(made["restrictions"], restrictions, "{made:#}");
    made["token"].as_str().unwrap().to_owned()
}

fn with_price(config: &mut TestServerConfig) {
    config.engine.agents.get_mut(&parse_agent_id("main")).unwrap().price = Some(PRICE);
}

fn answer_costing(input: u64, output: u64) -> ScriptedResponse {
    ScriptedStream::new().text("done").usage(UsageReporting::Always, input, output).into()
}

fn step_costing(input: u64, output: u64) -> ScriptedResponse {
    let call = ScriptedStream::new().tool_call("c1", "list_files", &json!({"path": "."}));
    call.usage(UsageReporting::Always, input, output).into()
}

async fn run_to_end(server: &TestServer, api: &TestApiClient, session: &str, answer: ScriptedResponse) -> Value {
    server.model.script(answer);
    server.wait_ended(&api.send_message(session, "go").await).await
}

async fn usage_of(server: &TestServer, name: &str) -> Value {
    let rows = server.http.get("/api/tokens").await.expect_status(200)["items"].clone();
    let row = rows.as_array().unwrap().iter().find(|row| row["name"] == name);
    row.unwrap_or_else(|| panic!("{name} in {rows:#}"))["usage"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_an_api_stops_its_runs_and_nothing_else() {
    let server = TestServer::start().await;
    let before = server.api_with_new_token("ann", "write").await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let run = before.send_message("s", "go").await;
    server.model.request_at(0).wait_paused().await;
    let _ = server.http.delete("/api/tokens/ann").await;
    let secret = create_secret(&server, "ann", json!({"apis": ["openai", "mcp"]})).await;
    let ann = server.http.with_token(&secret);
    for path in ["/api/sessions", "/api/agents", "/openapi.json", &format!("/api/runs/{run}/events")] {
        let refused = ann.get(path).await;
        assert_problem(&refused, 403, "forbidden");
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.starts_with("this token is only for openai, mcp;"), "{detail}");
    }
    assert_problem(&ann.post_run("s", &json!({"text": "x"})).await, 403, "forbidden");
    let sign_in = server.http.with_token("").post("/api/sign-in", &json!({"token": secret})).await;
    assert_problem(&sign_in, 403, "forbidden");
    let mut client = WsTestClient::open_socket(&server).await;
    let refused = client.handshake(&secret, json!({})).await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("this token is only for openai, mcp;"), "{refused}");
    let stopped = ann.post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
    assert_eq!(stopped["receipt"]["leftovers"], json!([]), "{stopped:#}");
    assert_eq!(ann.get(&format!("/api/runs/{run}")).await.expect_status(200)["state"], "ended");
    assert_eq!(ann.get("/api/me").await.expect_status(200)["principal"], "ann");
    let refusals = poll_until("the refusals in the audit log", async || {
        let list = server.http.get("/api/audit").await.expect_status(200);
        let rows = list["items"].as_array().unwrap().iter().filter(|row| row["action"] == "refused");
        let targets: Vec<String> = rows.map(|row| row["target"].to_string()).collect();
        (targets.iter().any(|target| target.contains("connect"))).then_some(targets)
    })
    .await;
    assert!(refusals.iter().any(|target| target.contains("GET /api/sessions")), "{refusals:?}");
}

fn chat_body(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hello"}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_openai_reaches_its_models_and_no_others() {
    let server = TestServer::start().await;
    let secret = create_secret(&server, "app", json!({"apis": ["openai"], "models": ["scripted/model"]})).await;
    let app = server.http.with_token(&secret);
    let ids = |listed: &Value| {
        let models = listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned());
        models.collect::<Vec<_>>()
    };
    assert_eq!(ids(&app.get("/v1/models").await.expect_status(200)), ["scripted/model"]);
    assert!(ids(&server.http.get("/v1/models").await.expect_status(200)).contains(&"agent/main".to_owned()));
    for model in ["agent/main", "scripted/other"] {
        let refused = app.post("/v1/chat/completions", &chat_body(model)).await;
        assert_eq!((refused.status, &refused.body["error"]["code"]), (403, &json!("forbidden")), "{:#}", refused.body);
        assert!(
            refused.body["error"]["message"].as_str().unwrap().starts_with("this token may not"),
            "{:#}",
            refused.body
        );
    }
    // Anthropic's clients send the same token in another header, which other routes do not read.
    let nobody = server.http.with_token("");
    let by_header = |method: Method, path: &str| nobody.request(method, path).header("x-api-key", &secret);
    server.model.script(ScriptedResponse::text("hi"));
    let chat = by_header(Method::POST, "/v1/chat/completions").json(&chat_body("scripted/model"));
    let answer = nobody.send(chat).await.expect_status(200);
    assert_eq!(answer["choices"][0]["message"]["content"], "hi");
    assert_eq!(nobody.send(by_header(Method::GET, "/api/me")).await.status, 401);
    let from_elsewhere = by_header(Method::GET, "/v1/models").header("origin", "https://evil.example");
    assert_eq!(nobody.send(from_elsewhere).await.status, 403);
    for apis in [json!(["mcp"]), json!(["a2a"])] {
        let other = create_key(&server, apis[0].as_str().unwrap(), json!({"apis": apis})).await;
        let refused = other.post("/v1/chat/completions", &chat_body("scripted/model")).await;
        assert_eq!(refused.status, 403, "{:#}", refused.body);
    }
    let limited = create_key(&server, "limited", json!({"dailyCost": 1.0})).await;
    let refused = limited.post("/v1/chat/completions", &chat_body("scripted/model")).await;
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("has no price"), "{:#}", refused.body);
    assert_eq!(server.model.request_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_agents_holds_on_every_surface() {
    let server = TestServer::start().await;
    let secret = create_secret(&server, "desk", json!({"agents": ["team/writer"]})).await;
    let desk = server.http.with_token(&secret);
    let refused = desk.post_run("s", &json!({"text": "x"})).await;
    assert_problem(&refused, 403, "forbidden");
    assert!(refused.body["detail"].as_str().unwrap().contains("may not run the agent \"main\""), "{:#}", refused.body);
    assert_problem(&desk.post_run("agent:main:x", &json!({"text": "x"})).await, 403, "forbidden");
    let mut client = WsTestClient::connect_operator(&server, &secret).await;
    let error = client.call_refused_as("FORBIDDEN", "chat.send", chat_send_params("agent:main:x", "go", "r1")).await;
    assert!(error["message"].as_str().unwrap().contains("may not run the agent"), "{error:#}");
    let schedule = json!({"every": "1h", "text": "x", "agent": "main"});
    assert_problem(&desk.post("/api/schedules", &schedule).await, 403, "forbidden");
    server.model.script(ScriptedResponse::text("written"));
    let sent = desk.post_run("w", &json!({"text": "write", "agent": "team/writer"})).await.expect_status(202);
    assert_eq!(server.wait_ended(sent["runId"].as_str().unwrap()).await["output"], "written");
    assert_eq!(server.model.request_count(), 1, "nothing else went out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_a_model_of_its_own_needs_that_model() {
    let server = TestServer::start().await;
    let setup = |chat: &str| json!({"userId": "u", "chatId": chat, "provider": "scripted", "model": "scripted/other"});
    let main_alone = create_key(&server, "a", json!({"agents": ["main"]})).await;
    let made = main_alone.post("/api/sessions", &setup("a")).await.expect_status(201);
    let ended = server.wait_ended(&main_alone.send_message(made["key"].as_str().unwrap(), "go").await).await;
    assert_fields(&ended["verdict"], &json!({"kind": "failed", "code": "forbidden"}));
    assert_eq!(server.model.request_count(), 0);
    let with_model = create_key(&server, "c", json!({"agents": ["main"], "models": ["scripted/*"]})).await;
    let made = with_model.post("/api/sessions", &setup("c")).await.expect_status(201);
    let ended = run_to_end(&server, &with_model, made["key"].as_str().unwrap(), ScriptedResponse::text("mine")).await;
    assert_eq!(ended["output"], "mine", "{ended:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daily_cost_stops_runs_and_refuses_new_ones() {
    let server = TestServer::start_with(with_price).await;
    let app_secret = create_secret(&server, "app", json!({"dailyCost": 0.02})).await;
    let app = server.http.with_token(&app_secret);
    let ended = run_to_end(&server, &app, "s", answer_costing(1000, 1000)).await;
    assert_eq!(ended["verdict"]["kind"], "completed");
    let sum = json!({"inputTokens": 1000, "outputTokens": 1000, "cost": 0.018});
    assert_eq!(usage_of(&server, "app").await, json!({"today": sum, "last30Days": sum}));
    // Another token of the same agent is not affected, and pays for itself.
    let other_secret = create_secret(&server, "other", json!({"dailyCost": 1.0})).await;
    let other = server.http.with_token(&other_secret);
    run_to_end(&server, &other, "o", answer_costing(10_000, 0)).await;
    server.model.script(step_costing(0, 200)).script(answer_costing(1, 1));
    let run = app.send_message("s", "on").await;
    assert_eq!(server.wait_ended(&run).await["verdict"], json!({"kind": "aborted", "reason": "daily_limit"}));
    assert_eq!(server.model.request_count(), 3, "it ended before its next model call");
    let refused = app.post_run("s", &json!({"text": "more"})).await;
    assert_problem(&refused, 429, "spend_limit");
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("\"app\"") && detail.contains("T00:00:00Z"), "{detail}");
    assert_eq!(usage_of(&server, "app").await["today"]["cost"], 0.021);
    let server = server.restart_with(with_price).await;
    assert_eq!(usage_of(&server, "app").await["last30Days"]["cost"], 0.021);
    let app = server.http.with_token(&app_secret);
    assert_problem(&app.post_run("s", &json!({"text": "more"})).await, 429, "spend_limit");
    let ended = run_to_end(&server, &server.http.with_token(&other_secret), "o", answer_costing(1, 1)).await;
    assert_eq!(ended["verdict"]["kind"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_a_daily_cost_uses_no_model_without_a_price() {
    let server = TestServer::start().await;
    let app = create_key(&server, "app", json!({"dailyCost": 1.0})).await;
    let refused = app.post_run("s", &json!({"text": "x"})).await;
    assert_problem(&refused, 403, "forbidden");
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("the model \"scripted/model\" has no price"), "{detail}");
    assert_eq!(server.model.request_count(), 0);
}

#[rstest]
#[case::admin("admin", json!({"apis": ["openai"]}), "scope admin")]
#[case::nothing("write", json!({"agents": []}), "an empty list")]
#[case::free("write", json!({"dailyCost": 0}), "no limit")]
#[case::model("write", json!({"models": ["gpt"]}), "provider/model")]
#[case::api("write", json!({"apis": ["soap"]}), "soap")]
#[case::unknown("write", json!({"users": ["x"]}), "users")]
#[tokio::test(flavor = "multi_thread")]
async fn a_restriction_that_cannot_work_is_refused(
    #[case] scope: &str,
    #[case] restrictions: Value,
    #[case] text: &str,
) {
    let server = TestServer::start().await;
    let body = json!({"name": "x", "scope": scope, "restrictions": restrictions});
    let refused = server.http.post("/api/tokens", &body).await;
    assert_problem(&refused, 400, "invalid_request");
    assert!(refused.body["detail"].as_str().unwrap().contains(text), "{:#}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_creates_and_lists_keys() {
    let fixture = PermissionsFixture::start_with("price = { input = 3.0, output = 15.0 }\n").await;
    let arguments = [
        "token",
        "create",
        "app",
        "--api",
        "openai,anthropic",
        "--api",
        "a2a",
        "--agents",
        "main",
        "--models",
        "scripted/*",
        "--daily-cost",
        "5.00",
        "--expires",
        "30d",
    ];
    let made = run_cli(fixture.daemon.home(), &arguments);
    assert!(
        made.code == 0 && made.err.contains("only openai,anthropic,a2a; agents main; models scripted/*; 5 a day"),
        "{made:?}"
    );
    let key = fixture.daemon.api().with_token(made.out.trim());
    assert_problem(&key.get("/api/sessions").await, 403, "forbidden");
    let desk =
        fixture.daemon.api().post("/api/tokens", &json!({"name": "desk", "scope": "write"})).await.expect_status(201);
    let desk = fixture.daemon.api().with_token(desk["token"].as_str().unwrap());
    fixture.model.script(answer_costing(1000, 100));
    fixture.daemon.api().wait_ended(&desk.send_message("s", "go").await).await;
    let listed = run_cli(fixture.daemon.home(), &["token", "list"]);
    assert!(listed.out.contains("openai,anthropic,a2a; agents main; models scripted/*; 5 a day"), "{listed:?}");
    assert!(listed.out.contains("1100 tokens, 0.0045"), "{listed:?}");
    let rows = run_cli(fixture.daemon.home(), &["token", "list", "--json"]);
    let rows: Value = serde_json::from_str(&rows.out).unwrap();
    assert_fields(&rows[0]["restrictions"], &json!({"apis": ["openai", "anthropic", "a2a"], "dailyCost": 5.0}));
    assert_eq!(rows[1]["usage"]["today"], json!({"inputTokens": 1000, "outputTokens": 100, "cost": 0.0045}));
    let refused = run_cli(fixture.daemon.home(), &["token", "create", "x", "--scope", "admin", "--api", "mcp"]);
    assert!(refused.code != 0 && refused.err.contains("scope admin"), "{refused:?}");
}

/// What a run has used before a crash counts for its token when the next daemon seals it.
#[tokio::test]
async fn a_crash_forgets_nothing_that_a_token_has_spent() {
    let spent = async |test: &TestEngine| {
        let rows = test.engine.list_tokens().await.unwrap();
        rows[0].usage.unwrap().today.input_tokens
    };
    let test = TestEngine::start_shared().await;
    // The name of a token is its principal, which sends the message.
    test.engine.create_token(&root(), TokenSpec::new("alice", AccessLevel::Write)).await.unwrap();
    test.model.script(step_costing(4000, 7)).script(ScriptedResponse::silent_mid_stream("begun"));
    let run = test.send(submission("s", "go")).await;
    test.wait_text(&run).await;
    assert!(spent(&test).await >= 4000, "an active run counts");
    let after = quell_test_support::crash_copies::start_on_copy(&test).await;
    let found = spent(&after).await;
    assert!(found >= 4000, "{found}");
    let again = quell_test_support::crash_copies::start_on_copy(&after).await;
    assert_eq!(spent(&again).await, found);
    test.stop(&run).wait_settled().await;
    test.close().await;
}
