//! The Messages API: options of clients, for models and for agents.

use quell_test_support::test_daemon::start_daemon_with_dialects;

use crate::prelude::*;
use crate::test_engine::add_dialect_agents;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_option_that_a_provider_does_not_have_is_refused() {
    let (model, daemon) = start_daemon_with_dialects().await;
    let ask = json!({"role": "user", "content": "hi"});
    let body = json!({"model": "openai-responses/m", "max_tokens": 10, "messages": [ask], "stop_sequences": ["END"]});
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = json!(stream);
        let refused = daemon.api().post("/v1/messages", &body).await.expect_status(400);
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("stop_sequences"), "{refused:#}");
        assert!(refused["request_id"].is_string() && refused["type"] == "error", "{refused:#}");
    }
    assert_eq!(model.request_count(), 0);
}

#[rstest]
#[case::as_the_agent_is_configured(json!({}), json!({"type": "enabled", "budget_tokens": 2048}))]
#[case::not_at_all(json!({"type": "disabled"}), Value::Null)]
#[case::as_the_client_says(json!({"type": "enabled", "budget_tokens": 1500}), json!({"type": "enabled", "budget_tokens": 1500}))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_says_whether_an_agent_thinks(#[case] thinking: Value, #[case] sent: Value) {
    let server = TestServer::start_with(|config| add_dialect_agents(&mut config.engine)).await;
    server.model.script(ScriptedResponse::text("Done."));
    let ask = json!({"role": "user", "content": "hi"});
    let mut body = json!({"model": "agent/anthropic", "max_tokens": 4000, "messages": [ask]});
    if thinking != json!({}) {
        body["thinking"] = thinking;
    }
    server.http.post("/v1/messages", &body).await.expect_status(200);
    assert_eq!(server.model.recorded_requests()[0].body["thinking"], sent);
}

/// A call is demanded of the first message only, or the agent could never answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_gets_the_options_of_its_client() {
    let (model, daemon) = start_daemon_with_dialects().await;
    model.script(list_files_call()).script(ScriptedResponse::text("Done."));
    let tool = json!({"name": "look", "input_schema": {"type": "object"}});
    let body = json!({"model": "agent/main", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}],
        "top_p": 0.5, "stop_sequences": ["END"], "tools": [tool], "tool_choice": {"type": "any"}});
    let answer = daemon.api().post("/v1/messages", &body).await.expect_status(200);
    assert_eq!((&answer["content"][0]["text"], &answer["stop_reason"]), (&json!("Done."), &json!("end_turn")));
    let requests = model.recorded_requests();
    let options = |at: usize| ["tool_choice", "top_p", "stop"].map(|name| requests[at].body[name].clone());
    assert_eq!(options(0), [json!("required"), json!(0.5), json!(["END"])]);
    assert_eq!(options(1), [Value::Null, json!(0.5), json!(["END"])]);
    model.assert_histories_valid();
}
