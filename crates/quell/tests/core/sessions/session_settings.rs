//! Settings that a session brings along: its MCP endpoint, settings that do not fit its agent, a provider that
//! is gone. Their errors belong to that session alone.

use quell_testkit::mcp::FakeMcpServer;

use super::http::get_session;
use super::*;

fn request_with_endpoint(server: &FakeMcpServer, key: &str) -> SessionRequest {
    let mut asked = session_request("u", "c");
    (asked.mcp_url, asked.mcp_api_key) = (Some(server.url()), Some(Secret::new(key.to_owned())));
    asked
}

fn echo_call(id: &str) -> ScriptedResponse {
    ScriptedResponse::tool_call(id, "mcp__echo", &json!({"text": "hello"}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_calls_the_endpoint_of_its_session_with_its_key_also_while_that_is_changed() {
    let fixture = SessionFixture::start().await;
    let (old, new) = (FakeMcpServer::start().await, FakeMcpServer::start().await);
    let (session, _) = fixture.open(request_with_endpoint(&old, "sk-old")).await.unwrap();
    let then = ScriptedStream::new().text("wait").wait_for_gate("changed");
    let then = then.tool_call("c2", "mcp__echo", &json!({"text": "again"}));
    fixture.script_marker("first", [echo_call("c1"), then.into(), ScriptedResponse::text("done")]);
    let run = fixture.send(submission(session.as_str(), "marker:first")).await;
    fixture.wait_text(&run).await;
    fixture.open(request_with_endpoint(&new, "sk-new")).await.unwrap();
    fixture.model.open_gate("changed");
    fixture.wait_ended(&run).await;
    // The run kept the endpoint and the key that it started with.
    assert_eq!(old.authorizations_of("tools/call"), vec![Some("Bearer sk-old".to_owned()); 2]);
    fixture.script_marker("second", [echo_call("c3"), ScriptedResponse::text("done")]);
    fixture.run_message(session.as_str(), "marker:second").await;
    let authorizations = new.authorizations_of("tools/call");
    assert_eq!(authorizations, [Some("Bearer sk-new".to_owned())], "the next run has the old endpoint");
    assert_eq!(old.received_count("tools/call"), 2);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_something_else_keeps_the_connection_to_its_endpoint() {
    let fixture = SessionFixture::start().await;
    let server = FakeMcpServer::start().await;
    let mut asked = request_with_endpoint(&server, "sk");
    for (marker, language) in [("first", "ko-KR"), ("second", "de-DE")] {
        asked.language = Some(language.to_owned());
        let (session, _) = fixture.open(asked.clone()).await.unwrap();
        fixture.script_marker(marker, [echo_call(marker), ScriptedResponse::text("done")]);
        fixture.run_message(session.as_str(), &format!("marker:{marker}")).await;
    }
    assert_eq!((server.received_count("tools/call"), server.received_count("initialize")), (2, 1));
    fixture.close().await;
}

#[rstest]
#[case::temperature(json!({"temperature": 0.5}), "no temperature but 1")]
#[case::tokens(json!({"maxTokens": 2000}), "less than max_tokens")]
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_its_agent_cannot_work_with_is_refused_and_not_stored(#[case] extra: Value, #[case] says: &str) {
    let server = TestServer::start_with(|config| {
        let anthropic = quell_llm::ProviderConfig::new(quell_llm::ProviderKind::ANTHROPIC);
        config.engine.providers.insert("thinker".to_owned(), anthropic);
        let main = config.engine.agents.values_mut().next().unwrap();
        (main.model, main.thinking_tokens) = ("thinker/model".into(), Some(4000));
    })
    .await;
    let mut asked = json!({"userId": "u", "chatId": "c", "provider": "thinker"});
    // The defaults are accepted: a model that thinks gets no temperature.
    let _ = server.http.post("/api/sessions", &asked).await.expect_status(201);
    let shown = async || get_session(&server.http, "u:c:thinker").await["config"].clone();
    let before = shown().await;
    assert!(before.get("temperature").is_none(), "{before}");
    asked.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let refused = server.http.post("/api/sessions", &asked).await;
    assert_problem(&refused, 422, "agent_configuration_error");
    assert!(refused.expect_status(422)["detail"].as_str().unwrap().contains(says));
    assert_eq!(shown().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_callers_invalid_request_is_no_error_for_other_callers() {
    let (fixture, undo_gate) = SessionFixture::start_undo_gated().await;
    fixture.open(session_request("u", "c")).await.unwrap();
    fixture.advance_time(PAST_IDLE_LIMIT);
    // All callers wait for the cleanup; the first one then asks for an invalid configuration.
    let mut bad = session_request("u", "c");
    bad.temperature = Some(7.5);
    let asked = (0..20).map(|number| if number == 10 { session_request("u", "c") } else { bad.clone() });
    let (opened, ()) = tokio::join!(join_all(asked.map(|asked| fixture.open(asked))), async {
        fixture.wait_waiting_callers(20).await;
        undo_gate.add_permits(10);
    });
    for (number, opened) in opened.into_iter().enumerate() {
        match opened {
            Ok((_, got)) => assert!(number == 10 && got == OpenSessionOutcome::Unchanged, "{number}: {got:?}"),
            Err(error) => {
                assert!(number != 10 && matches!(error, OpenSessionError::Configuration(_)), "{number}: {error}")
            }
        }
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_provider_is_gone_says_so_before_its_next_run_fails() {
    let mine = ScriptedModel::start().await;
    let add = |config: &mut crate::test_server::TestServerConfig| {
        let mut provider = quell_llm::ProviderConfig::new(quell_llm::ProviderKind::OPENAI);
        provider.base_url = Some(mine.base_url());
        config.engine.providers.insert("mine".to_owned(), provider);
    };
    let server = TestServer::start_with(add).await;
    let asked = json!({"userId": "u", "chatId": "c", "provider": "mine", "model": "small"});
    let _ = server.http.post("/api/sessions", &asked).await.expect_status(201);
    let server = server.restart().await;
    let shown = get_session(&server.http, "u:c:mine").await;
    assert!(shown["configProblem"].as_str().is_some_and(|problem| problem.contains("mine")), "{shown}");
    let run = server.send_message("u:c:mine", "hello").await;
    assert_eq!(server.wait_ended(&run).await["verdict"]["code"], "agent_configuration_error");
}

/// The limit of the new agent counts, from the last use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_another_agent_from_now_on_may_be_idle_for_as_long_as_that_one_says() {
    let fixture = SessionFixture::start_configured(|config| {
        let hasty = AgentConfig { idle_s: Some(60), ..config.agents[&parse_agent_id("main")].clone() };
        config.agents.insert(parse_agent_id("hasty"), hasty);
    })
    .await;
    let hasty = SessionRequest { agent: Some(parse_agent_id("hasty")), ..session_request("u", "c") };
    for asked in [session_request("u", "c"), hasty.clone(), hasty] {
        fixture.open(asked).await.unwrap();
        fixture.advance_time(Duration::from_secs(50));
        assert_eq!(fixture.session_state("u:c:scripted").await, "ready", "an earlier use counted");
    }
    fixture.advance_time(Duration::from_secs(12));
    fixture.wait_alive(0).await;
    assert_eq!(fixture.session_state("u:c:scripted").await, "expired");
    fixture.close().await;
}
