//! Create, configure and show sessions over HTTP.

use super::*;

/// A request for a session with these fields besides; a null removes a field.
fn request_body(extra: &Value) -> Value {
    let mut body = json!({"userId": "u:1", "chatId": "c", "provider": "scripted"});
    let fields = body.as_object_mut().unwrap();
    fields.extend(extra.as_object().unwrap().clone());
    fields.retain(|_, value| !value.is_null());
    body
}

/// Asks for the session of [`request_body`] with these settings besides, and expects this status.
async fn open(server: &TestServer, extra: Value, status: u16) -> Value {
    server.http.post("/api/sessions", &request_body(&extra)).await.expect_status(status)
}

/// Sends a message to that session, which the scripted model answers; returns the model request.
async fn run_session(server: &TestServer) -> ModelRequestHandle {
    server.run_scripted(ENCODED_KEY, "hello", ScriptedResponse::text("done")).await;
    server.model.recorded_requests().pop().unwrap()
}

const ENCODED_KEY: &str = "u%3A1:c:scripted";

pub(super) async fn get_session(api: &TestApiClient, key: &str) -> Value {
    api.get(&format!("/api/sessions/{}", percent_encode(key))).await.expect_status(200)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_created_once_and_got_from_then_on() {
    let server = TestServer::start().await;
    let reader = server.api_with_new_token("reader", "read").await;
    assert_problem(&reader.post("/api/sessions", &request_body(&json!({}))).await, 403, "forbidden");
    let made = open(&server, json!({}), 201).await;
    assert_eq!(made, json!({"key": ENCODED_KEY, "state": "ready", "created": true}));
    let got = open(&server, json!({}), 200).await;
    assert_eq!(got, json!({"key": ENCODED_KEY, "state": "ready", "created": false}));
    let listed = server.http.get("/api/sessions").await.expect_status(200);
    let row = &listed["items"][0];
    assert_fields(row, &json!({"key": ENCODED_KEY, "state": "ready", "turns": 0}));
    assert!(row["lastUsedAt"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn its_configuration_is_shown_with_its_sources_and_without_its_keys() {
    let server = TestServer::start_with(|config| {
        let main = config.engine.agents.values_mut().next().unwrap();
        main.language = Some("de-DE".to_owned());
    })
    .await;
    let asked = json!({"apiKey": "sk-secret-1", "mcpApiKey": "sk-secret-2", "mcpUrl": "http://127.0.0.1:9/mcp?token=sk-secret-3", "maxTokens": 99});
    open(&server, asked, 201).await;
    let shown = get_session(&server.http, ENCODED_KEY).await;
    let config = &shown["config"];
    let expected = json!({
        "userId": "u:1",
        "temperature": {"value": 0.7, "from": "default"},
        "maxTokens": {"value": 99, "from": "session"},
        "language": {"value": "de-DE", "from": "agent"},
        "model": {"value": "scripted/model", "from": "agent"},
        "apiKey": "***", "mcpApiKey": "***", "mcpUrl": "http://127.0.0.1:9/mcp?***", "idleS": 1800,
    });
    assert_fields(config, &expected);
    // The keys appear nowhere: not in the session, not in the list, not in the files.
    let listed = server.http.get("/api/sessions").await.expect_status(200);
    assert!(!format!("{shown}{listed}").contains("sk-secret"));
    for entry in std::fs::read_dir(&server.engine.config().data_dir).unwrap().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        let found = bytes.windows(9).any(|part| part == b"sk-secret");
        assert!(!found, "a key is in {}", entry.path().display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_calls_its_own_provider_with_its_own_key_and_settings() {
    let server = TestServer::start().await;
    let mine = ScriptedModel::start().await;
    mine.script(ScriptedResponse::text("from mine"));
    let asked = json!({
        "userId": "u", "chatId": "c", "provider": "mine", "apiKey": "sk-mine", "baseUrl": mine.base_url(),
        "model": "small", "instruction": "Be brief.", "language": "ko-KR",
    });
    let _ = server.http.post("/api/sessions", &asked).await.expect_status(201);
    let run = server.send_message("u:c:mine", "hello").await;
    assert_eq!(server.wait_ended(&run).await["output"], "from mine");
    let seen = mine.recorded_requests().pop().unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer sk-mine"));
    assert_eq!((&seen.body["model"], &seen.body["temperature"]), (&json!("small"), &json!(0.7)));
    let tokens = seen.body.get("max_tokens").or_else(|| seen.body.get("max_completion_tokens"));
    assert_eq!(tokens, Some(&json!(60_000)));
    let system = seen.messages()[0].to_string();
    assert!(system.contains("Be brief.") && system.contains("ko-KR"), "{system}");
    assert_eq!(server.model.request_count(), 0);
    // Another model of the same provider keeps the session and its history.
    mine.script(ScriptedResponse::text("larger"));
    let swap = json!({"userId": "u", "chatId": "c", "provider": "mine", "model": "large"});
    let _ = server.http.post("/api/sessions", &swap).await.expect_status(200);
    server.wait_ended(&server.send_message("u:c:mine", "again").await).await;
    let seen = mine.recorded_requests().pop().unwrap();
    assert_eq!((&seen.body["model"], seen.header("authorization")), (&json!("large"), Some("Bearer sk-mine")));
    assert!(format!("{:?}", seen.messages()).contains("from mine"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sessions_own_settings_and_keys_survive_a_restart() {
    let server = TestServer::start().await;
    open(&server, json!({"apiKey": "sk-mine", "instruction": "Be brief."}), 201).await;
    let server = server.restart().await;
    assert_eq!(get_session(&server.http, ENCODED_KEY).await["state"], "expired");
    let seen = run_session(&server).await;
    assert_eq!(seen.header("authorization"), Some("Bearer sk-mine"));
    assert!(seen.messages()[0].to_string().contains("Be brief."));
    assert_eq!(get_session(&server.http, ENCODED_KEY).await["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_use_without_a_message_is_a_use_after_a_restart_too() {
    let server = TestServer::start().await;
    open(&server, json!({}), 201).await;
    let last_used = async |server: &TestServer| get_session(&server.http, ENCODED_KEY).await["lastUsedAt"].to_string();
    let made = last_used(&server).await;
    open(&server, json!({}), 200).await;
    let used = last_used(&server).await;
    assert!(used > made, "{used} is not later than {made}");
    let stored = last_used(&server.restart().await).await;
    assert!(stored >= used, "{used} was forgotten: {stored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configured_key_does_not_go_to_a_place_that_a_session_names() {
    let server = TestServer::start_with(|config| {
        for provider in config.engine.providers.values_mut() {
            provider.api_key = Some("sk-configured".into());
        }
    })
    .await;
    let elsewhere = ScriptedModel::start().await;
    elsewhere.script(ScriptedResponse::text("thank you"));
    open(&server, json!({"baseUrl": elsewhere.base_url()}), 201).await;
    server.wait_ended(&server.send_message(ENCODED_KEY, "hello").await).await;
    assert_eq!(elsewhere.recorded_requests().pop().unwrap().header("authorization"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_session_does_not_go_to_a_place_that_is_named_later() {
    let server = TestServer::start().await;
    let (mine, elsewhere) = (ScriptedModel::start().await, ScriptedModel::start().await);
    let asked = json!({
        "apiKey": "sk-mine", "baseUrl": mine.base_url(), "mcpUrl": "http://127.0.0.1:9/mcp", "mcpApiKey": "sk-mcp",
    });
    open(&server, asked, 201).await;
    // The same address again keeps its key.
    open(&server, json!({"baseUrl": mine.base_url()}), 200).await;
    assert_eq!(get_session(&server.http, ENCODED_KEY).await["config"]["apiKey"], "***");
    let moved = json!({"baseUrl": elsewhere.base_url(), "mcpUrl": "http://127.0.0.1:10/mcp"});
    open(&server, moved, 200).await;
    let config = get_session(&server.http, ENCODED_KEY).await["config"].clone();
    assert!(config.get("apiKey").is_none() && config.get("mcpApiKey").is_none(), "{config}");
    elsewhere.script(ScriptedResponse::text("thank you"));
    server.wait_ended(&server.send_message(ENCODED_KEY, "hello").await).await;
    assert_eq!(elsewhere.recorded_requests().pop().unwrap().header("authorization"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_whose_sealing_key_is_lost_can_be_given_again() {
    let server = TestServer::start().await;
    open(&server, json!({"apiKey": "sk-old", "instruction": "Be brief."}), 201).await;
    // As in a database that was restored without that file.
    std::fs::remove_file(server.engine.config().data_dir.join("session.key")).unwrap();
    let server = server.restart().await;
    let shown = get_session(&server.http, ENCODED_KEY).await;
    let problem = shown["configProblem"].as_str().unwrap();
    assert!(problem.contains("give them again") && problem.contains("session.key"), "{problem}");
    assert!(!problem.contains("damaged") && shown.get("config").is_none(), "{shown}");
    let run = server.send_message(ENCODED_KEY, "hello").await;
    assert_eq!(server.wait_ended(&run).await["verdict"]["code"], "agent_configuration_error");
    let refused = server.http.post("/api/sessions", &request_body(&json!({"language": "ko-KR"}))).await;
    assert_problem(&refused, 422, "agent_configuration_error");
    open(&server, json!({"apiKey": "sk-new"}), 200).await;
    let seen = run_session(&server).await;
    assert_eq!(seen.header("authorization"), Some("Bearer sk-new"));
    assert!(seen.messages()[0].to_string().contains("Be brief."), "the instruction is lost");
}

#[rstest]
#[case::model(json!({"provider": "nobody", "model": "m"}), 422, "no provider serves the model")]
#[case::no_model(json!({"provider": "openai", "apiKey": "k"}), 422, "give `model`")]
#[case::agent(json!({"agent": "nobody"}), 422, "no agent")]
#[case::server(json!({"mcpServers": ["nobody"]}), 422, "[mcp.nobody]")]
#[case::endpoint(json!({"mcpUrl": "nowhere"}), 422, "no URL")]
#[case::key_for_nothing(json!({"mcpApiKey": "k"}), 422, "without mcpUrl")]
#[case::place(json!({"baseUrl": "nowhere"}), 422, "no URL")]
#[case::password(json!({"baseUrl": "http://u:sk-secret@127.0.0.1:9/v1"}), 422, "baseUrl holds a user or a password")]
#[case::mcp_password(json!({"mcpUrl": "http://u:sk-secret@127.0.0.1:9/mcp"}), 422, "mcpUrl holds a user or a password")]
#[case::temperature(json!({"temperature": 7.5}), 422, "from 0 to 2")]
#[case::tokens(json!({"maxTokens": 0}), 422, "at least 1")]
#[case::blank(json!({"userId": " "}), 400, "none of them blank")]
#[case::missing(json!({"chatId": null}), 400, "chatId")]
#[case::misspelt(json!({"maxToken": 1}), 400, "maxToken")]
#[case::control(json!({"userId": "u\n"}), 400, "a control character")]
#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_request_is_refused_with_the_reason(#[case] extra: Value, #[case] status: u16, #[case] says: &str) {
    let server = TestServer::start().await;
    let refused = server.http.post("/api/sessions", &request_body(&extra)).await;
    assert_problem(&refused, status, if status == 400 { "invalid_request" } else { "agent_configuration_error" });
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains(says), "{detail}");
    assert_eq!(server.http.get("/api/sessions").await.expect_status(200)["items"], json!([]));
    // A session that existed before keeps its configuration.
    open(&server, json!({}), 201).await;
    if extra.get("provider").is_none() {
        let before = get_session(&server.http, ENCODED_KEY).await;
        open(&server, extra, status).await;
        assert_eq!(get_session(&server.http, ENCODED_KEY).await["config"], before["config"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_creation_and_configuration_are_audited() {
    let server = TestServer::start().await;
    open(&server, json!({}), 201).await;
    open(&server, json!({}), 200).await;
    open(&server, json!({"language": "ko-KR"}), 200).await;
    // A session that is not in memory is configured like any other.
    let server = server.restart().await;
    open(&server, json!({"language": "ko-KR"}), 200).await;
    let server = server.restart().await;
    open(&server, json!({"language": "de-DE"}), 200).await;
    // A task of the engine writes the list after the answers.
    let details = poll_until("three entries", async || {
        let list = server.http.get("/api/audit").await.expect_status(200);
        let of_session = list["items"].as_array().unwrap().iter().filter(|row| row["action"] == "configure_session");
        let details: Vec<Value> = of_session.map(|row| row["detail"].clone()).collect();
        (details.len() >= 3).then_some(details)
    })
    .await;
    assert_eq!(details, ["made", "configured anew", "configured anew"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_agent_was_deleted_can_be_asked_for_and_shows_who_answers_next() {
    let server = TestServer::start().await;
    let _ = server.http.post("/api/agents", &json!({"id": "aide", "model": "scripted/model"})).await.expect_status(201);
    open(&server, json!({"agent": "aide"}), 201).await;
    // A message that names another agent changes the session's agent, and that is shown.
    server.model.script(ScriptedResponse::text("done"));
    let answer = server.post_run(ENCODED_KEY, &json!({"text": "hello", "agent": "main"})).await.expect_status(202);
    server.wait_ended(answer["runId"].as_str().unwrap()).await;
    assert_eq!(get_session(&server.http, ENCODED_KEY).await["config"]["agent"], "main");
    open(&server, json!({"agent": "aide", "language": "ko-KR"}), 200).await;
    assert_eq!(get_session(&server.http, ENCODED_KEY).await["config"]["agent"], "aide");
    let _ = server.http.delete("/api/agents/aide").await.expect_status(200);
    assert_eq!(get_session(&server.http, ENCODED_KEY).await["config"]["agent"], "main");
    // It can be configured without naming an agent, in memory and after a restart.
    open(&server, json!({"language": "de-DE"}), 200).await;
    let server = server.restart().await;
    open(&server, json!({"language": "en-US"}), 200).await;
}

/// The settings already name the agent that is asked for; the message has changed who answers next.
#[tokio::test(flavor = "multi_thread")]
async fn a_patch_to_the_earlier_agent_counts_after_a_message_to_another() {
    let server = TestServer::start().await;
    let _ = server.http.post("/api/agents", &json!({"id": "aide", "model": "scripted/model"})).await.expect_status(201);
    open(&server, json!({"agent": "aide"}), 201).await;
    let path = format!("/api/sessions/{}", percent_encode(ENCODED_KEY));
    for _ in 0..2 {
        server.model.script(ScriptedResponse::text("done")).script(ScriptedResponse::text("done"));
        let named = server.post_run(ENCODED_KEY, &json!({"text": "hello", "agent": "main"})).await.expect_status(202);
        assert_eq!(server.wait_ended(named["runId"].as_str().unwrap()).await["agent"], "main");
        assert_eq!(server.http.get(&path).await.expect_status(200)["config"]["agent"], "main");
        let _ = server.http.patch(&path, &json!({"agent": "aide"})).await.expect_status(200);
        assert_eq!(server.http.get(&path).await.expect_status(200)["config"]["agent"], "aide");
        let next = server.send_message(ENCODED_KEY, "hello").await;
        assert_eq!(server.wait_ended(&next).await["agent"], "aide");
    }
}
