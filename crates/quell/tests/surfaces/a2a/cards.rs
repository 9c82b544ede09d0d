//! Agent cards, versions of the protocol, and tokens that are restricted.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn each_agent_has_a_card_that_may_be_cached() {
    let server = TestServer::start_with(|plan| {
        let main = plan.engine.agents[&parse_agent_id("main")].clone();
        let other = AgentConfig { role: Some("Reads contracts.".to_owned()), ..main };
        plan.engine.agents.insert(parse_agent_id("team/legal"), other);
    })
    .await;
    let default = server.http.get("/.well-known/agent-card.json").await.expect_status(200);
    let url = format!("http://{}/a2a/main", server.address);
    let interfaces = json!([
        {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
    ]);
    assert_eq!((&default["name"], &default["supportedInterfaces"]), (&json!("main"), &interfaces));
    assert_eq!(default, server.http.get("/a2a/main/.well-known/agent-card.json").await.expect_status(200));
    let path = "/a2a/team%2Flegal/.well-known/agent-card.json";
    let response = server.http.request(Method::GET, path).send().await.unwrap();
    let etag = response.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(response.headers()["cache-control"], "private, max-age=60");
    let card: Value = response.json().await.unwrap();
    assert_eq!(card["description"], "Reads contracts.");
    assert!(card["skills"][0]["description"].as_str().unwrap().contains("answer allow, approve, yes"), "{card:#}");
    let again = server.http.request(Method::GET, path).header("if-none-match", etag).send().await.unwrap();
    assert_eq!(again.status(), 304);
    // The address in the card works as it is.
    server.model.script(ScriptedResponse::text("read"));
    let legal = A2aTestClient::new(&server.http, A2aTestBinding::Rest).with_agent("team/legal");
    let task = legal.task("SendMessage", &message("read this", &json!({}))).await;
    assert_eq!(task["metadata"]["agent"], "team/legal", "{task:#}");
    let missing = server.http.get("/a2a/nobody/.well-known/agent-card.json").await;
    assert_eq!((missing.status, &missing.body["error"]["status"]), (404, &json!("NOT_FOUND")), "{:#}", missing.body);
    assert_eq!(server.http.with_token("").get("/.well-known/agent-card.json").await.status, 401);
}

#[rstest]
#[case(None, Some("VERSION_NOT_SUPPORTED"))]
#[case(Some(""), Some("VERSION_NOT_SUPPORTED"))]
#[case(Some("0.3"), Some("VERSION_NOT_SUPPORTED"))]
#[case(Some("2.0"), Some("VERSION_NOT_SUPPORTED"))]
#[case(Some("1.0"), None)]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_names_the_version_of_the_protocol(#[case] version: Option<&str>, #[case] refused: Option<&str>) {
    let server = TestServer::start().await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks"});
    let requests = [
        server.http.request(Method::POST, "/a2a/main").json(&list),
        server.http.request(Method::GET, "/a2a/main/tasks"),
    ];
    for request in requests {
        let request = version.iter().fold(request, |request, version| request.header("a2a-version", *version));
        let answered = result_of(request.send().await.unwrap()).await;
        assert_eq!(answered.err().as_deref(), refused);
    }
    let by_query = server.http.request(Method::GET, "/a2a/main/tasks?A2A-Version=1.0").send().await.unwrap();
    assert!(result_of(by_query).await.is_ok());
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_restricted_token_reaches_its_api_and_its_agents(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start_with(|plan| {
        let main = plan.engine.agents[&parse_agent_id("main")].clone();
        plan.engine.agents.insert(parse_agent_id("other"), main);
    })
    .await;
    let create = async |name: &str, restrictions: Value| {
        let body = json!({"name": name, "scope": "write", "restrictions": restrictions});
        let made = server.http.post("/api/tokens", &body).await.expect_status(201);
        A2aTestClient::new(&server.http.with_token(made["token"].as_str().unwrap()), binding)
    };
    let openai = create("openai", json!({"apis": ["openai"]})).await;
    assert_eq!(openai.api.get("/.well-known/agent-card.json").await.status, 403);
    assert_eq!(openai.error("ListTasks", &json!({})).await, "FORBIDDEN");
    let partner = create("partner", json!({"apis": ["a2a"], "agents": ["other"]})).await;
    assert_eq!(partner.error("SendMessage", &message("hi", &json!({}))).await, "FORBIDDEN");
    assert_eq!(partner.api.get("/.well-known/agent-card.json").await.status, 403);
    let other = partner.with_agent("other");
    server.model.script(ScriptedResponse::text("hi"));
    let task = other.task("SendMessage", &message("hi", &json!({}))).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task:#}");
    let reader = other.with_api(server.api_with_new_token("reader", "read").await);
    assert_eq!(reader.error("SendMessage", &message("hi", &json!({}))).await, "FORBIDDEN");
    let unpriced = create("unpriced", json!({"dailyCost": 1.0})).await;
    let refused = unpriced.request("SendMessage", &message("hi", &json!({}))).send().await.unwrap();
    assert!(refused.text().await.unwrap().contains("has no price"));
    assert_eq!(server.model.request_count(), 1);
}
