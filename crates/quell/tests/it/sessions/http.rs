//! Sessions over HTTP: `POST /api/sessions` and what is shown of one.

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::Api;
use quell_testkit::model::Behaviour;
use rstest::rstest;
use serde_json::{Value, json};

use crate::doors::{House, assert_problem, escape};
use crate::harness::PATIENCE;

fn body(extra: &Value) -> Value {
    let mut body = json!({"userId": "u:1", "chatId": "c", "provider": "scripted"});
    let extra = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(extra);
    body
}

const KEY: &str = "u%3A1:c:scripted";

async fn show(api: &Api, key: &str) -> Value {
    api.get(&format!("/api/sessions/{}", escape(key))).await.expect_status(200)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_created_once_and_got_from_then_on() {
    let house = House::open().await;
    let made = house.http.post("/api/sessions", &body(&json!({}))).await.expect_status(201);
    assert_eq!(made, json!({"key": KEY, "state": "ready", "created": true}));
    let got = house.http.post("/api/sessions", &body(&json!({}))).await.expect_status(200);
    assert_eq!(got, json!({"key": KEY, "state": "ready", "created": false}));
    let listed = house.http.get("/api/sessions").await.expect_status(200);
    let row = &listed["items"][0];
    assert_eq!((&row["key"], &row["state"], &row["turns"]), (&json!(KEY), &json!("ready"), &json!(0)));
    assert!(row["lastUsedAt"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn its_configuration_is_shown_with_its_sources_and_without_its_keys() {
    let house = House::with(|plan| {
        let main = plan.engine.agents.values_mut().next().unwrap();
        main.language = Some("de-DE".to_owned());
    })
    .await;
    let asked = json!({"apiKey": "sk-secret-1", "mcpApiKey": "sk-secret-2", "mcpUrl": "http://127.0.0.1:9/mcp?token=sk-secret-3", "maxTokens": 99});
    let _ = house.http.post("/api/sessions", &body(&asked)).await.expect_status(201);
    let shown = show(&house.http, KEY).await;
    let config = &shown["config"];
    assert_eq!(config["userId"], "u:1");
    assert_eq!(config["temperature"], json!({"value": 0.7, "from": "default"}));
    assert_eq!(config["maxTokens"], json!({"value": 99, "from": "session"}));
    assert_eq!(config["language"], json!({"value": "de-DE", "from": "agent"}));
    assert_eq!(config["model"], json!({"value": "scripted/model", "from": "agent"}));
    assert_eq!((&config["apiKey"], &config["mcpApiKey"]), (&json!("***"), &json!("***")));
    assert_eq!(config["mcpUrl"], "http://127.0.0.1:9/mcp?***");
    assert_eq!(config["idleS"], 1800);
    // Nowhere: not in what is shown, not in the list, not in the files.
    let listed = house.http.get("/api/sessions").await.expect_status(200);
    assert!(!format!("{shown}{listed}").contains("sk-secret"));
    for entry in std::fs::read_dir(&house.engine.config().data_dir).unwrap().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        let found = bytes.windows(9).any(|part| part == b"sk-secret");
        assert!(!found, "a key is in {}", entry.path().display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_calls_its_own_provider_with_its_own_key_and_settings() {
    let house = House::open().await;
    let mine = ScriptedModel::start().await;
    mine.script(Behaviour::text("from mine"));
    let asked = json!({
        "userId": "u", "chatId": "c", "provider": "mine", "apiKey": "sk-mine", "baseUrl": mine.base_url(),
        "model": "small", "instruction": "Be brief.", "language": "ko-KR",
    });
    let _ = house.http.post("/api/sessions", &asked).await.expect_status(201);
    let run = house.send("u:c:mine", "hello").await;
    assert_eq!(house.ended(&run).await["output"], "from mine");
    let seen = mine.seen().pop().unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer sk-mine"));
    assert_eq!((&seen.body["model"], &seen.body["temperature"]), (&json!("small"), &json!(0.7)));
    let tokens = seen.body.get("max_tokens").or_else(|| seen.body.get("max_completion_tokens"));
    assert_eq!(tokens, Some(&json!(60_000)));
    let system = seen.messages()[0].to_string();
    assert!(system.contains("Be brief.") && system.contains("ko-KR"), "{system}");
    assert_eq!(house.model.request_count(), 0);
    // Another model of the same provider: the session and its history stay.
    mine.script(Behaviour::text("larger"));
    let swap = json!({"userId": "u", "chatId": "c", "provider": "mine", "model": "large"});
    let _ = house.http.post("/api/sessions", &swap).await.expect_status(200);
    let run = house.send("u:c:mine", "again").await;
    house.ended(&run).await;
    let seen = mine.seen().pop().unwrap();
    assert_eq!((&seen.body["model"], seen.header("authorization")), (&json!("large"), Some("Bearer sk-mine")));
    assert!(format!("{:?}", seen.messages()).contains("from mine"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_says_itself_survives_a_restart_with_its_keys() {
    let house = House::open().await;
    let asked = body(&json!({"apiKey": "sk-mine", "instruction": "Be brief."}));
    let _ = house.http.post("/api/sessions", &asked).await.expect_status(201);
    let house = house.reopen().await;
    assert_eq!(show(&house.http, KEY).await["state"], "expired");
    house.model.script(Behaviour::text("done"));
    let run = house.send(KEY, "hello").await;
    house.ended(&run).await;
    let seen = house.model.seen().pop().unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer sk-mine"));
    assert!(seen.messages()[0].to_string().contains("Be brief."));
    assert_eq!(show(&house.http, KEY).await["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_use_without_a_message_is_a_use_after_a_restart_too() {
    let house = House::open().await;
    let _ = house.http.post("/api/sessions", &body(&json!({}))).await.expect_status(201);
    let made = show(&house.http, KEY).await["lastUsedAt"].as_str().unwrap().to_owned();
    let _ = house.http.post("/api/sessions", &body(&json!({}))).await.expect_status(200);
    let used = show(&house.http, KEY).await["lastUsedAt"].as_str().unwrap().to_owned();
    assert!(used > made, "{used} is not later than {made}");
    let house = house.reopen().await;
    let stored = show(&house.http, KEY).await["lastUsedAt"].as_str().unwrap().to_owned();
    assert!(stored >= used, "{used} was forgotten: {stored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configured_key_does_not_go_to_a_place_that_a_session_names() {
    let house = House::with(|plan| {
        for provider in plan.engine.providers.values_mut() {
            provider.api_key = Some("sk-of-the-house".into());
        }
    })
    .await;
    let elsewhere = ScriptedModel::start().await;
    elsewhere.script(Behaviour::text("thank you"));
    let asked = body(&json!({"baseUrl": elsewhere.base_url()}));
    let _ = house.http.post("/api/sessions", &asked).await.expect_status(201);
    let run = house.send(KEY, "hello").await;
    house.ended(&run).await;
    assert_eq!(elsewhere.seen().pop().unwrap().header("authorization"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_session_does_not_go_to_a_place_that_is_named_later() {
    let house = House::open().await;
    let (mine, elsewhere) = (ScriptedModel::start().await, ScriptedModel::start().await);
    let asked = json!({
        "apiKey": "sk-mine", "baseUrl": mine.base_url(), "mcpUrl": "http://127.0.0.1:9/mcp", "mcpApiKey": "sk-mcp",
    });
    let _ = house.http.post("/api/sessions", &body(&asked)).await.expect_status(201);
    // The same place again keeps its key.
    let _ = house.http.post("/api/sessions", &body(&json!({"baseUrl": mine.base_url()}))).await.expect_status(200);
    assert_eq!(show(&house.http, KEY).await["config"]["apiKey"], "***");
    let moved = json!({"baseUrl": elsewhere.base_url(), "mcpUrl": "http://127.0.0.1:10/mcp"});
    let _ = house.http.post("/api/sessions", &body(&moved)).await.expect_status(200);
    let config = show(&house.http, KEY).await["config"].clone();
    assert!(config.get("apiKey").is_none() && config.get("mcpApiKey").is_none(), "{config}");
    elsewhere.script(Behaviour::text("thank you"));
    let run = house.send(KEY, "hello").await;
    house.ended(&run).await;
    assert_eq!(elsewhere.seen().pop().unwrap().header("authorization"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_whose_sealing_key_is_lost_can_be_given_again() {
    let house = House::open().await;
    let asked = body(&json!({"apiKey": "sk-old", "instruction": "Be brief."}));
    let _ = house.http.post("/api/sessions", &asked).await.expect_status(201);
    // As in a restored database without that file.
    std::fs::remove_file(house.engine.config().data_dir.join("session.key")).unwrap();
    let house = house.reopen().await;
    let problem = show(&house.http, KEY).await["configProblem"].as_str().unwrap().to_owned();
    assert!(problem.contains("give them again") && problem.contains("session.key"), "{problem}");
    assert!(!problem.contains("damaged"), "{problem}");
    assert_problem(
        &house.http.post("/api/sessions", &body(&json!({"language": "ko-KR"}))).await,
        422,
        "agent_configuration_error",
    );
    let _ = house.http.post("/api/sessions", &body(&json!({"apiKey": "sk-new"}))).await.expect_status(200);
    house.model.script(Behaviour::text("done"));
    let run = house.send(KEY, "hello").await;
    house.ended(&run).await;
    let seen = house.model.seen().pop().unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer sk-new"));
    assert!(seen.messages()[0].to_string().contains("Be brief."), "what needs no key is lost");
}

#[rstest]
#[case::model(json!({"provider": "nobody", "model": "m"}), "no provider serves the model")]
#[case::no_model(json!({"provider": "openai", "apiKey": "k"}), "give `model`")]
#[case::agent(json!({"agent": "nobody"}), "no agent")]
#[case::server(json!({"mcpServers": ["nobody"]}), "[mcp.nobody]")]
#[case::endpoint(json!({"mcpUrl": "nowhere"}), "no URL")]
#[case::key_for_nothing(json!({"mcpApiKey": "k"}), "without mcpUrl")]
#[case::place(json!({"baseUrl": "nowhere"}), "no URL")]
#[case::password(json!({"baseUrl": "http://u:sk-secret@127.0.0.1:9/v1"}), "baseUrl holds a user or a password")]
#[case::mcp_password(json!({"mcpUrl": "http://u:sk-secret@127.0.0.1:9/mcp"}), "mcpUrl holds a user or a password")]
#[case::temperature(json!({"temperature": 7.5}), "from 0 to 2")]
#[case::tokens(json!({"maxTokens": 0}), "at least 1")]
#[tokio::test(flavor = "multi_thread")]
async fn what_no_session_can_be_made_of_is_an_agent_configuration_error(#[case] extra: Value, #[case] says: &str) {
    let house = House::open().await;
    let refused = house.http.post("/api/sessions", &body(&extra)).await;
    assert_problem(&refused, 422, "agent_configuration_error");
    let refused = refused.expect_status(422);
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains(says), "{detail}");
    assert_eq!(house.http.get("/api/sessions").await.expect_status(200)["items"], json!([]));
    // One that was there stays as it was.
    let _ = house.http.post("/api/sessions", &body(&json!({}))).await.expect_status(201);
    if extra.get("provider").is_none() {
        let before = show(&house.http, KEY).await;
        let _ = house.http.post("/api/sessions", &body(&extra)).await.expect_status(422);
        assert_eq!(show(&house.http, KEY).await["config"], before["config"]);
    }
}

#[rstest]
#[case::blank(json!({"userId": " ", "chatId": "c", "provider": "scripted"}))]
#[case::missing(json!({"userId": "u", "provider": "scripted"}))]
#[case::misspelt(json!({"userId": "u", "chatId": "c", "provider": "scripted", "maxToken": 1}))]
#[case::control(json!({"userId": "u\n", "chatId": "c", "provider": "scripted"}))]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_none_is_refused(#[case] asked: Value) {
    let house = House::open().await;
    assert_problem(&house.http.post("/api/sessions", &asked).await, 400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_may_only_look_makes_no_session() {
    let house = House::open().await;
    let reader = house.api("reader", "read").await;
    assert_problem(&reader.post("/api/sessions", &body(&json!({}))).await, 403, "forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_made_or_configured_a_session_is_in_the_audit_list() {
    let house = House::open().await;
    let _ = house.http.post("/api/sessions", &body(&json!({}))).await.expect_status(201);
    let _ = house.http.post("/api/sessions", &body(&json!({}))).await.expect_status(200);
    let _ = house.http.post("/api/sessions", &body(&json!({"language": "ko-KR"}))).await.expect_status(200);
    // One that is not in memory is configured like any other.
    let house = house.reopen().await;
    let _ = house.http.post("/api/sessions", &body(&json!({"language": "ko-KR"}))).await.expect_status(200);
    let house = house.reopen().await;
    let _ = house.http.post("/api/sessions", &body(&json!({"language": "de-DE"}))).await.expect_status(200);
    // The list is written by a task of the engine, behind the answers.
    let details = async {
        loop {
            let list = house.http.get("/api/audit").await.expect_status(200);
            let rows = list["items"].as_array().unwrap().clone();
            let of_session = rows.iter().filter(|row| row["action"] == "configure_session");
            let details: Vec<String> = of_session.map(|row| row["detail"].as_str().unwrap().to_owned()).collect();
            if details.len() >= 3 {
                return details;
            }
        }
    };
    let details = tokio::time::timeout(PATIENCE, details).await.expect("three entries");
    assert_eq!(details, ["made", "configured anew", "configured anew"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_agent_was_deleted_can_be_asked_for_and_shows_who_answers_next() {
    let house = House::open().await;
    let _ = house.http.post("/api/agents", &json!({"id": "aide", "model": "scripted/model"})).await.expect_status(201);
    let _ = house.http.post("/api/sessions", &body(&json!({"agent": "aide"}))).await.expect_status(201);
    // A message names another agent: the next one goes there, too, and that is shown.
    house.model.script(Behaviour::text("done"));
    let answer = house.post_run(KEY, &json!({"text": "hello", "agent": "main"})).await.expect_status(202);
    house.ended(answer["runId"].as_str().unwrap()).await;
    assert_eq!(show(&house.http, KEY).await["config"]["agent"], "main");
    let _ = house
        .http
        .post("/api/sessions", &body(&json!({"agent": "aide", "language": "ko-KR"})))
        .await
        .expect_status(200);
    assert_eq!(show(&house.http, KEY).await["config"]["agent"], "aide");
    let _ = house.http.delete("/api/agents/aide").await.expect_status(200);
    assert_eq!(show(&house.http, KEY).await["config"]["agent"], "main");
    // In memory and not, it can be configured without naming another agent.
    let _ = house.http.post("/api/sessions", &body(&json!({"language": "de-DE"}))).await.expect_status(200);
    let house = house.reopen().await;
    let _ = house.http.post("/api/sessions", &body(&json!({"language": "en-US"}))).await.expect_status(200);
}
