//! Create agents: validation, persistence, permissions.

use quell_test_support::ws_client::WsTestClient;

use super::*;
use crate::test_server::TestServerConfig;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_made_at_run_time_works_as_a_configured_one_and_is_there_after_a_restart() {
    let server = TestServer::start().await;
    let fields = json!({
        "prompt": "You are the night watch.", "parent": "team/writer", "role": "watch", "tools": ["read_file", "send_message"],
        "temperature": 0.25, "maxTokens": 99, "language": "de-DE", "partial": "keep", "approvals": {"read_file": "ask"},
    });
    let created = create_agent(&server, "night/watch", fields).await;
    let expected = json!({
        "id": "night/watch", "model": "scripted/model", "models": ["scripted/model"], "parent": "team/writer",
        "children": [], "role": "watch", "computeStatus": "idle", "activeRuns": [], "default": false,
    });
    assert_eq!(created, expected);
    let parent = server.http.get(&agent_path("team/writer")).await.expect_status(200);
    assert_eq!(parent["children"], json!(["night/watch"]));
    let server = check_night_watch(server).await.restart().await;
    assert_eq!(agent_ids(&server.http).await, ["main", "night/watch", "team/writer"]);
    let mut shown = server.http.get(&agent_path("night/watch")).await.expect_status(200);
    assert!(shown["spend"]["tokens"].as_u64() > Some(0), "{shown:#}");
    shown.as_object_mut().unwrap().remove("spend");
    assert_eq!(shown, created);
    check_night_watch(server).await;
}

/// Every key of `[agents.X]` must exist in the body that creates an agent.
#[test]
fn a_body_knows_what_the_configuration_knows() {
    let configured = serde_json::to_value(AgentConfig::default()).unwrap();
    let text = json!({"isolate": "pid", "sandbox": "workspace", "partial": "keep", "thinking": "adaptive"});
    for (key, default) in configured.as_object().unwrap() {
        let mut letters = key.split('_');
        let first = letters.next().unwrap().to_owned();
        let camel = letters.fold(first, |name, word| name + word[..1].to_uppercase().as_str() + &word[1..]);
        let value = match key.as_str() {
            "price" => json!({"input": 1.0, "output": 1.0}),
            "mcp" | "delegates" => json!([]),
            "approvals" => json!({}),
            "agents_md" => json!(true),
            "parent" | "role" | "language" | "workdir" | "skills" => json!("x"),
            key if text[key].is_string() => text[key].clone(),
            _ if default.is_null() => json!(1),
            _ => default.clone(),
        };
        let mut body = agent_body("a", &json!({}));
        body[&camel] = value.clone();
        let read: quell_protocol::agents::NewAgent =
            serde_json::from_value(body).unwrap_or_else(|error| panic!("{camel}: {error}"));
        assert!(!serde_json::to_value(read).unwrap()[&camel].is_null(), "{camel} was {value}");
    }
}

/// The settings of the agent reach its model.
async fn check_night_watch(server: TestServer) -> TestServer {
    let view = run_agent(&server, "night/watch", "s", "anything?", "All quiet.").await;
    assert_eq!((&view["agent"], &view["output"]), (&json!("night/watch"), &json!("All quiet.")));
    let body = server.model.recorded_requests().pop().unwrap().body.clone();
    let system = body["messages"][0]["content"].as_str().unwrap();
    assert!(system.starts_with("You are the night watch.") && system.contains("de-DE"), "{system}");
    assert_eq!((&body["temperature"], &body["max_tokens"]), (&json!(0.25), &json!(99)), "{body:#}");
    let tools: Vec<&str> =
        body["tools"].as_array().unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(tools, ["read_file", "send_message"]);
    server
}

#[rstest]
#[case::model(json!({"model": "gone/model"}), 400, "no provider serves the model `gone/model`")]
#[case::no_provider(json!({"model": "model"}), 400, "models are named provider/model")]
#[case::parent(json!({"parent": "nobody"}), 400, "there is no agent \"nobody\" to be its parent")]
#[case::circle(json!({"parent": "new"}), 400, "its parents form a circle: new -> new")]
#[case::tool(json!({"tools": ["reed_file"]}), 400, "reed_file")]
#[case::server(json!({"mcp": ["web"]}), 400, "its MCP server \"web\" is not configured")]
#[case::partial(json!({"partial": "keeep"}), 400, "keeep")]
#[case::approval(json!({"approvals": {"shell": "maybe"}}), 400, "maybe")]
#[case::thinking(json!({"thinkingTokens": 2000}), 400, "are asked for thinking")]
#[case::few_tokens(json!({"thinkingTokens": 20}), 400, "20 is too few")]
#[case::workdir(json!({"workdir": "/dev/null/x"}), 400, "cannot be made")]
#[case::skills(json!({"skills": "/etc/skills"}), 400, "skills: \"/etc/skills\" is no folder below the workdir")]
#[case::no_daily_tokens(json!({"dailyTokens": 0}), 400, "daily_tokens 0 would let nothing through")]
#[case::unpriced_limit(json!({"dailyCost": 2.0}), 400, "daily_cost needs price")]
#[case::negative_limit(json!({"dailyCost": -2.0, "price": {"input": 1, "output": 1}}), 400, "daily_cost -2 is no limit")]
#[case::bad_price(json!({"price": {"input": -1, "output": 1}}), 400, "price -1 and 1")]
#[case::half_a_price(json!({"price": {"input": 1}}), 400, "missing field `output`")]
#[case::unknown_field(json!({"promt": "x"}), 400, "unknown field `promt`")]
#[case::snake(json!({"max_tokens": 5}), 400, "unknown field `max_tokens`")]
#[case::wrong_type(json!({"temperature": "hot"}), 400, "invalid type")]
#[case::reserved(json!({"id": "tree"}), 400, "\"tree\" cannot be the id of an agent")]
#[case::blank(json!({"id": " "}), 400, "agent id is empty")]
#[case::taken(json!({"id": "main"}), 409, "there is an agent \"main\" already")]
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_agent_is_refused_with_the_reason(#[case] wrong: Value, #[case] status: u16, #[case] why: &str) {
    let server = TestServer::start().await;
    let answer = server.http.post("/api/agents", &agent_body("new", &wrong)).await;
    assert_problem(&answer, status, if status == 409 { "conflict" } else { "invalid_request" });
    assert!(answer.body["detail"].as_str().unwrap().contains(why), "{:#}", answer.body);
    assert_eq!(agent_ids(&server.http).await, ["main", "team/writer"], "an agent was created");
    let workdir = &server.engine.config().work_dir.join("new");
    assert!(!workdir.exists(), "its workdir was created");
    let server = server.restart().await;
    assert_eq!(agent_ids(&server.http).await, ["main", "team/writer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_twenty_that_are_made_with_one_id_at_once_one_is_made() {
    let server = TestServer::start().await;
    let body = agent_body("only", &json!({}));
    let answers = join_all((0..20).map(|_| server.http.post("/api/agents", &body))).await;
    let mut made: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    made.sort_unstable();
    assert_eq!(made, [vec![201], vec![409; 19]].concat());
    assert_eq!(server.restart().await.http.get("/api/agents/only").await.status, 200);
}

/// An agent creation or deletion that was acknowledged survives a crash right after it.
#[tokio::test]
async fn answered_agent_changes_survive_a_crash() {
    let new = |name| quell_protocol::agents::NewAgent::new(parse_agent_id(name), "scripted/model".to_owned());
    let after_the_crash = async |test: &TestEngine| {
        let next = quell_test_support::crash_copies::start_on_copy(test).await;
        let there: Vec<String> = next.engine.list_agents().iter().map(|row| row.id.to_string()).collect();
        next.close().await;
        there
    };
    let test = TestEngine::start_shared().await;
    test.engine.create_agent(&root(), new("first")).await.unwrap();
    test.engine.create_agent(&root(), new("second")).await.unwrap();
    assert_eq!(after_the_crash(&test).await, ["first", "main", "second"]);
    test.engine.delete_agent(&root(), &parse_agent_id("first"), AgentRemoval::IfIdle).await.unwrap();
    assert_eq!(after_the_crash(&test).await, ["main", "second"]);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_closes_makes_and_deletes_no_agent() {
    let server = TestServer::start().await;
    create_agent(&server, "made", json!({})).await;
    server.engine.shut_down().await;
    assert_problem(&server.http.post("/api/agents", &agent_body("new", &json!({}))).await, 503, "shutting_down");
    assert_problem(&server.http.delete("/api/agents/made").await, 503, "shutting_down");
    assert_eq!(agent_ids(&server.restart().await.http).await, ["made", "main", "team/writer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_admin_makes_and_deletes_agents_and_everybody_looks() {
    let server = TestServer::start().await;
    create_agent(&server, "made", json!({})).await;
    for (name, scope) in [("r", "read"), ("w", "write")] {
        let api = server.api_with_new_token(name, scope).await;
        assert_problem(&api.post("/api/agents", &agent_body("new", &json!({}))).await, 403, "forbidden");
        assert_problem(&api.delete("/api/agents/made").await, 403, "forbidden");
        assert_problem(&api.delete("/api/agents/made?force").await, 403, "forbidden");
        assert_eq!(api.get("/api/agents/tree").await.status, 200);
    }
    assert_eq!(agent_ids(&server.http).await, ["made", "main", "team/writer"]);
    assert_problem(&server.http.with_token("wrong").get("/api/agents/tree").await, 401, "unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_provider_is_gone_is_kept_until_it_is_there_again() {
    let server = TestServer::start().await;
    create_agent(&server, "kept", json!({})).await;
    create_agent(&server, "below", json!({"parent": "kept"})).await;
    let rename_provider = |plan: &mut TestServerConfig| {
        let scripted = plan.engine.providers.remove("scripted").unwrap();
        plan.engine.providers.insert("other".to_owned(), scripted);
        plan.engine.agents.values_mut().for_each(|agent| agent.model = "other/model".into());
    };
    let server = server.restart_with(rename_provider).await;
    assert_eq!(agent_ids(&server.http).await, ["main", "team/writer"]);
    assert_problem(&server.http.get("/api/agents/kept").await, 404, "agent_not_found");
    let again = server.http.post("/api/agents", &json!({"id": "kept", "model": "other/model"})).await;
    assert_problem(&again, 409, "conflict");
    assert!(again.body["detail"].as_str().unwrap().contains("could not be built"), "{:#}", again.body);
    let server = server.restart().await;
    assert_eq!(agent_ids(&server.http).await, ["below", "kept", "main", "team/writer"], "an agent was lost");
    let add_kept = |plan: &mut TestServerConfig| {
        let main = plan.engine.agents[&parse_agent_id("main")].clone();
        plan.engine.agents.insert(parse_agent_id("kept"), main);
    };
    let server = server.restart_with(add_kept).await;
    let kept = server.http.get("/api/agents/kept").await.expect_status(200);
    assert_eq!(kept["children"], json!(["below"]), "the configured agent replaces the stored one");
    assert_problem(&server.http.delete("/api/agents/kept").await, 409, "conflict");
    let server = server.restart().await;
    let deleted = server.http.delete("/api/agents/kept").await.expect_status(200);
    assert_eq!(deleted["deleted"], json!(["below", "kept"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_agent_is_named_to_the_next_run_and_a_run_at_work_keeps_what_it_began_with() {
    let server = TestServer::start().await;
    let look = ScriptedResponse::tool_call("c1", "send_message", &json!({"to": "newcomer", "text": "who are you?"}));
    let first = ScriptedStream::new().text("wait").hold_headers("made");
    server.model.script(first).script(look.clone());
    let index = server.model.recorded_requests().len();
    let run = server.send_message("s", "go").await;
    server.model.wait_for_requests(index + 1).await;
    create_agent(&server, "newcomer", json!({"role": "new", "parent": "main"})).await;
    server.model.open_gate("made");
    server.wait_ended(&run).await;
    let descriptions = |index: usize| {
        let tools = server.model.recorded_requests()[index].body["tools"].clone();
        let all = tools.as_array().unwrap().iter().map(|tool| tool["function"]["description"].to_string());
        all.filter(|text| text.contains("may give work to are")).collect::<Vec<String>>()
    };
    assert!(descriptions(index).iter().all(|text| !text.contains("newcomer")), "{:?}", descriptions(index));
    // The next run sees the new agent and can message it.
    server.model.script(ScriptedResponse::text("I am new."));
    let view = server.run_scripted("s", "go", ScriptedResponse::text("It said so.")).await;
    assert_eq!(view["output"], "It said so.");
    assert_eq!(descriptions(index + 1).len(), 2);
    for text in descriptions(index + 1) {
        assert!(text.contains("main, newcomer (new), team/writer (writer)."), "{text}");
    }
    let _ = server.http.delete("/api/agents/newcomer").await.expect_status(200);
    server.model.script(look);
    let index = server.model.recorded_requests().len();
    let view = server.run_scripted("s", "once more", ScriptedResponse::text("It is gone.")).await;
    assert_eq!(view["output"], "It is gone.");
    assert!(descriptions(index).iter().all(|text| !text.contains("newcomer")));
    let result = server.model.recorded_requests()[index + 1].body["messages"].to_string();
    let why = "is no agent that you may give work to. You may give work to: main, team/writer.";
    assert!(result.contains(why), "{result}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_messages_of_one_session_to_a_new_agent_are_one_conversation() {
    let server = TestServer::start().await;
    create_agent(&server, "keeper", json!({"tools": [], "parent": "main"})).await;
    let tell = |text: &str| ScriptedResponse::tool_call("c1", "send_message", &json!({"to": "keeper", "text": text}));
    for text in ["the word is amber", "which word was it?"] {
        server.model.script(tell(text)).script(ScriptedResponse::text("noted"));
        let view = server.run_scripted("s", "talk to the keeper", ScriptedResponse::text("done")).await;
        assert_eq!(view["output"], "done");
    }
    let second = server.model.recorded_requests()[4].body["messages"].to_string();
    assert!(second.contains("the word is amber") && second.contains("which word was it?"), "{second}");
    assert!(second.contains("noted"), "its own answer is missing: {second}");
    let history = server.http.get("/api/sessions/agent%3Akeeper%3Afrom%3As/history").await.expect_status(200);
    assert_eq!(history["items"].as_array().unwrap().len(), 4, "{history:#}");
    // Another session has its own conversation with the agent, also after a restart.
    let server = server.restart().await;
    server.model.script(tell("hello")).script(ScriptedResponse::text("hm")).script(ScriptedResponse::text("done"));
    let before = server.model.recorded_requests().len();
    let run = server.send_message("another", "talk to the keeper").await;
    server.wait_ended(&run).await;
    assert!(!server.model.recorded_requests()[before + 1].body["messages"].to_string().contains("amber"));
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_learn_at_once_of_agents_that_come_and_go() {
    let server = TestServer::start().await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    create_agent(&server, "visitor", json!({"parent": "main"})).await;
    let created = client.wait_event_with("agents.changed", "change", "created").await;
    let idle = json!({"agentId": "visitor", "computeStatus": "idle", "activeRuns": [], "change": "created"});
    assert_eq!(created, idle);
    let agents = client.call("agents.list", json!({})).await["agents"].clone();
    let row = agents.as_array().unwrap().iter().find(|row| row["id"] == "visitor").unwrap().clone();
    assert_eq!((&row["parent"], &row["computeStatus"]), (&json!("main"), &json!("idle")));
    // Its runs are reported like those of any other agent.
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let run = send_to_agent(&server, "visitor", "s", "go").await;
    let waiting = loop {
        let event = client.wait_event_with("agents.changed", "agentId", "visitor").await;
        if event["computeStatus"] == "waiting_llm" {
            break event;
        }
    };
    assert_eq!(waiting["activeRuns"], json!([run]));
    let _ = server.http.delete("/api/agents/visitor?force").await.expect_status(200);
    let deleted = client.wait_event_with("agents.changed", "change", "deleted").await;
    assert_eq!((&deleted["agentId"], &deleted["computeStatus"]), (&json!("visitor"), &json!("idle")));
    let agents = client.call("agents.list", json!({})).await["agents"].clone();
    assert!(agents.as_array().unwrap().iter().all(|row| row["id"] != "visitor"));
    let last = client.events.iter().rposition(|event| event["payload"]["agentId"] == "visitor").unwrap();
    assert_eq!(client.events[last]["payload"]["change"], "deleted", "an event followed the deletion");
}
