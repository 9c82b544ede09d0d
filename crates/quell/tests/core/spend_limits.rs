//! Daily spend limits of agents: runs stop at them, new messages are refused, other agents are not affected, and spend
//! is neither lost nor counted twice.

use quell_protocol::agents::Price;
use quell_test_support::crash_copies::start_on_copy;
use quell_test_support::ws_client::{WsTestClient, chat_send_params};
use quell_testkit::model::UsageReporting;

use crate::prelude::*;
use crate::test_server::{TestServerConfig, assert_fields};

fn with_main_agent(change: impl Fn(&mut AgentConfig)) -> impl FnOnce(&mut TestServerConfig) {
    move |config| change(config.engine.agents.get_mut(&parse_agent_id("main")).unwrap())
}

fn with_token_limit(tokens: u64) -> impl FnOnce(&mut TestServerConfig) {
    with_main_agent(move |main| main.daily_tokens = Some(tokens))
}

/// An answer that uses this many tokens.
fn answer_costing(input: u64, output: u64) -> ScriptedResponse {
    ScriptedStream::new().text("done").usage(UsageReporting::Always, input, output).into()
}

/// A tool call that leads to a further step and uses this many tokens.
fn step_costing(input: u64, output: u64) -> ScriptedResponse {
    let call = ScriptedStream::new().tool_call("c1", "list_files", &json!({"path": "."}));
    call.usage(UsageReporting::Always, input, output).into()
}

async fn agent_spend(server: &TestServer, agent: &str) -> Value {
    server.http.get(&format!("/api/agents/{}", percent_encode(agent))).await.expect_status(200)["spend"].clone()
}

/// Sends a message to `main` and expects its run to complete.
async fn run_completed(server: &TestServer, session: &str, answer: ScriptedResponse) {
    assert_eq!(server.run_scripted(session, "go", answer).await["verdict"]["kind"], "completed");
}

/// Sends a message and expects it to be refused by the limit.
async fn assert_over_limit(server: &TestServer, body: &Value) {
    assert_problem(&server.post_run("s", body).await, 429, "spend_limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stops_at_the_limit_and_new_messages_are_refused_until_tomorrow() {
    let server = TestServer::start_with(with_token_limit(100)).await;
    run_completed(&server, "s", answer_costing(30, 9)).await;
    server.model.script(step_costing(50, 10)).script(step_costing(1, 1)).script(answer_costing(1, 1));
    let run = server.send_message("s", "look around").await;
    let view = server.wait_ended(&run).await;
    assert_eq!(view["verdict"], json!({"kind": "aborted", "reason": "daily_limit"}));
    assert_fields(&view, &json!({"result": {"error": "Daily limit reached"}, "receipt": {"leftovers": []}}));
    assert_eq!(server.model.recorded_requests().len(), 3, "99 were spent before the third call, 101 after it");
    let today = agent_spend(&server, "main").await;
    assert_fields(&today, &json!({"tokens": 101, "dailyTokens": 100}));
    let refused = server.post_run("s", &json!({"text": "and now?"})).await;
    assert_problem(&refused, 429, "spend_limit");
    let detail = refused.body["detail"].as_str().unwrap();
    let opens = detail.split_whitespace().find(|word| word.ends_with("T00:00:00Z")).unwrap();
    assert!(opens > today["day"].as_str().unwrap() && detail.contains("\"main\""), "{detail}");
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let error = client.call_refused("chat.send", chat_send_params("s", "and now?", "r9")).await;
    assert_eq!(error["details"], json!({"reason": "spend-limit", "opensAt": opens}), "{error:#}");
    // A stop is never refused.
    let stop = client.call("chat.send", chat_send_params("s", "/stop", "r10")).await;
    assert_eq!(stop["aborted"], false, "{stop}");
    assert_eq!(server.model.recorded_requests().len(), 3, "nothing went out");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_model_is_told_why_the_run_was_stopped() {
    let server = TestServer::start_with(with_token_limit(50)).await;
    let view = server.run_scripted("s", "look around", step_costing(60, 0)).await;
    assert_eq!(view["verdict"]["reason"], "daily_limit");
    // Another agent continues in the same session.
    server.model.script(answer_costing(1, 1));
    let next = server.post_run("s", &json!({"text": "you do it", "agent": "team/writer"})).await.expect_status(202);
    server.wait_ended(next["runId"].as_str().unwrap()).await;
    let messages = server.model.recorded_requests()[1].body["messages"].to_string();
    assert!(messages.contains("because what may be spent in a day was used up"), "{messages}");
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_touches_no_other_agent() {
    let server = TestServer::start_with(|config| {
        config.engine.agents.get_mut(&parse_agent_id("team/writer")).unwrap().daily_tokens = Some(10);
    })
    .await;
    let spawn =
        |text: &str| ScriptedResponse::tool_call("c1", "send_message", &json!({"to": "team/writer", "text": text}));
    server.model.script(spawn("write")).script(answer_costing(90, 9)).script(answer_costing(1, 1));
    let run = server.send_message("s", "let it be written").await;
    assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed");
    server.model.script(spawn("again")).script(answer_costing(2, 2));
    let run = server.send_message("s", "once more").await;
    assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed", "the parent goes on");
    let messages = server.model.recorded_requests()[4].body["messages"].to_string();
    assert!(
        messages.contains("The agent team/writer was not started") && messages.contains("it takes new messages from"),
        "{messages}"
    );
    assert_eq!(agent_spend(&server, "team/writer").await["tokens"], 99);
    assert_eq!(server.http.get("/api/agents/main").await.expect_status(200)["spend"]["dailyTokens"], Value::Null);
    server.model.assert_histories_valid();
}

/// The tokens of an unfinished run count for other runs of the agent.
#[tokio::test(flavor = "multi_thread")]
async fn usage_of_active_runs_counts_as_spent() {
    let server = TestServer::start_with(with_token_limit(100_000)).await;
    let held_call =
        ScriptedStream::new().tool_call("c1", "list_files", &json!({"path": "."})).usage(UsageReporting::Always, 1, 1);
    server.model.script(held_call.hold_headers("first"));
    let first = server.send_message("a", "go").await;
    server.model.wait_for_requests(1).await;
    let waits = ScriptedStream::new().text("begun").usage(UsageReporting::Always, 200_000, 0).wait_for_gate("second");
    server.model.script(step_costing(200_000, 0)).script(waits);
    let second = server.send_message("b", "go").await;
    // The second run is over the limit after its first step; the first run learns it at its next call.
    assert_eq!(server.wait_ended(&second).await["verdict"]["reason"], "daily_limit");
    server.model.open_gate("first");
    assert_eq!(server.wait_ended(&first).await["verdict"]["reason"], "daily_limit");
    assert_eq!(server.model.recorded_requests().len(), 2);
    assert_eq!(agent_spend(&server, "main").await["tokens"], 200_002);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waits_is_not_worked_on_over_the_limit() {
    let server = TestServer::start_with(with_token_limit(40_000)).await;
    server.model.script(ScriptedStream::new().text("done").usage(UsageReporting::Always, 50_000, 0).hold_headers("go"));
    let first = server.send_message("s", "go").await;
    let queued = server.send_message("s", "and then").await;
    server.model.open_gate("go");
    assert_eq!(server.wait_ended(&first).await["verdict"]["kind"], "completed", "an answer that was received is kept");
    assert_eq!(server.wait_ended(&queued).await["verdict"]["reason"], "daily_limit");
    assert_eq!(server.model.recorded_requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn spend_survives_restarts_and_is_counted_once() {
    let server = TestServer::start_with(with_token_limit(1000)).await;
    run_completed(&server, "s", answer_costing(300, 50)).await;
    run_completed(&server, "t", answer_costing(100, 50)).await;
    assert_eq!(agent_spend(&server, "main").await["tokens"], 500);
    // Deleting a session gives nothing back.
    assert_eq!(server.http.delete("/api/sessions/s").await.status, 204);
    let mut server = server;
    for _ in 0..3 {
        server = server.restart_with(with_token_limit(1000)).await;
        assert_eq!(agent_spend(&server, "main").await["tokens"], 500);
    }
    run_completed(&server, "u", answer_costing(500, 0)).await;
    assert_over_limit(&server, &json!({"text": "x"})).await;
    let server = server.restart_with(with_token_limit(1000)).await;
    assert_over_limit(&server, &json!({"text": "x"})).await;
    // A higher limit lets messages through again.
    let server = server.restart_with(with_token_limit(2000)).await;
    run_completed(&server, "u", answer_costing(1, 0)).await;
    assert_eq!(agent_spend(&server, "main").await["tokens"], 1001);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_deleted_under_its_run_gives_nothing_back() {
    let server = TestServer::start_with(with_token_limit(1000)).await;
    let waits = ScriptedStream::new().text("begun").wait_for_gate("never");
    server.model.script(step_costing(400, 0)).script(waits);
    let run = server.send_message("s", "go").await;
    server.model.request_at(1).wait_paused().await;
    server.http.run_events(&run, 0).await.wait_for("text.delta").await;
    assert_eq!(server.http.delete("/api/sessions/s").await.status, 204);
    let before = agent_spend(&server, "main").await["tokens"].as_u64().unwrap();
    assert!(before > 400, "the interrupted step is estimated: {before}");
    let (engine, id) = (server.engine.clone(), parse_run_id(&run));
    leaks::wait_for_true("the run has left the memory", move || engine.live_run(&id).is_none()).await;
    assert_eq!(agent_spend(&server, "main").await["tokens"], before);
    let server = server.restart_with(with_token_limit(1000)).await;
    assert_eq!(agent_spend(&server, "main").await["tokens"], before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_in_money_counts_by_the_price() {
    let price = Some(Price { input: 3.0, output: 15.0 });
    let server =
        TestServer::start_with(with_main_agent(move |main| (main.daily_cost, main.price) = (Some(0.02), price))).await;
    run_completed(&server, "s", answer_costing(1000, 1000)).await;
    let today = agent_spend(&server, "main").await;
    let cost = today["cost"].as_f64().unwrap();
    assert!((cost - 0.018).abs() < 1e-12, "{today}");
    assert_fields(&today, &json!({"dailyCost": 0.02, "tokens": 2000}));
    run_completed(&server, "s", answer_costing(0, 200)).await;
    assert_over_limit(&server, &json!({"text": "x"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_made_at_run_time_has_its_limit_and_does_not_lose_its_day_by_being_made_again() {
    let server = TestServer::start().await;
    let price = json!({"input": 1.0, "output": 2.0});
    let body = json!({
        "id": "guest", "model": "scripted/model", "dailyTokens": 20, "dailyCost": 5.0, "price": price, "tools": [],
    });
    let _ = server.http.post("/api/agents", &body).await.expect_status(201);
    server.model.script(answer_costing(20, 5));
    let sent = server.post_run("s", &json!({"text": "x", "agent": "guest"})).await.expect_status(202);
    server.wait_ended(sent["runId"].as_str().unwrap()).await;
    let today = agent_spend(&server, "guest").await;
    assert_fields(&today, &json!({"tokens": 25, "dailyTokens": 20, "dailyCost": 5.0}));
    assert_over_limit(&server, &json!({"text": "x", "agent": "guest"})).await;
    let _ = server.http.delete("/api/agents/guest?force").await.expect_status(200);
    let _ = server.http.post("/api/agents", &body).await.expect_status(201);
    assert_over_limit(&server, &json!({"text": "x", "agent": "guest"})).await;
    let server = server.restart().await;
    assert_over_limit(&server, &json!({"text": "x", "agent": "guest"})).await;
}

/// The next daemon counts what the journal knows about the interrupted run, and counts it once.
#[tokio::test]
async fn a_crash_forgets_nothing_that_was_spent_and_counts_it_once() {
    let tokens_spent = |test: &TestEngine| test.engine.agent_view(&parse_agent_id("main")).unwrap().spend.tokens;
    let test = TestEngine::start_shared().await;
    test.model.script(step_costing(4000, 7)).script(ScriptedResponse::silent_mid_stream("begun"));
    let run = test.send(submission("s", "go")).await;
    // The tool starts only after all journal lines before it, its own included, are written.
    test.wait_text(&run).await;
    let after = start_on_copy(&test).await;
    let found = tokens_spent(&after);
    assert!((4007..=tokens_spent(&test)).contains(&found), "{found} of {}", tokens_spent(&test));
    let again = start_on_copy(&after).await;
    assert_eq!(tokens_spent(&again), found);
    test.stop(&run).wait_settled().await;
    test.close().await;
}
