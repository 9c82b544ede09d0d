//! Spend limits per agent and day: runs stop at them, new messages are refused, nobody else is touched, and nothing is forgotten
//! or counted twice.

use quell_engine::agent::AgentConfig;
use quell_protocol::AgentId;
use quell_protocol::society::Price;
use quell_testkit::Behaviour;
use quell_testkit::model::{Stream, UsageFrame};
use rstest::rstest;
use serde_json::{Value, json};

use crate::doors::{House, Plan, assert_problem, escape};
use crate::ws::{Client, message};

/// Changes the agent `main`.
fn main_agent(change: impl Fn(&mut AgentConfig)) -> impl FnOnce(&mut Plan) {
    move |plan| change(plan.engine.agents.get_mut(&AgentId::parse("main").unwrap()).unwrap())
}

fn limit(tokens: u64) -> impl FnOnce(&mut Plan) {
    main_agent(move |main| main.daily_tokens = Some(tokens))
}

/// An answer that costs this many tokens.
fn costs(input: u64, output: u64) -> Behaviour {
    Stream::new().text("done").usage(UsageFrame::Always, input, output).into()
}

/// A step that goes on with another, at this price.
fn step(input: u64, output: u64) -> Behaviour {
    let looks = Stream::new().tool_call("c1", "list_files", &json!({"path": "."}));
    looks.usage(UsageFrame::Always, input, output).into()
}

async fn spend(house: &House, agent: &str) -> Value {
    house.http.get(&format!("/api/agents/{}", escape(agent))).await.expect_status(200)["spend"].clone()
}

/// Sends a message to `main` whose run is expected to complete.
async fn completed(house: &House, session: &str, answer: Behaviour) {
    house.model.script(answer);
    let run = house.send(session, "go").await;
    assert_eq!(house.ended(&run).await["verdict"]["kind"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stops_at_the_limit_and_new_messages_are_refused_until_tomorrow() {
    let house = House::with(limit(100)).await;
    completed(&house, "s", costs(30, 9)).await;
    house.model.script(step(50, 10)).script(step(1, 1)).script(costs(1, 1));
    let run = house.send("s", "look around").await;
    let view = house.ended(&run).await;
    assert_eq!(view["verdict"], json!({"kind": "aborted", "reason": "daily_limit"}));
    assert_eq!(view["result"]["error"], "Daily limit reached");
    assert_eq!(view["receipt"]["leftovers"], json!([]));
    assert_eq!(house.model.seen().len(), 3, "99 were spent before the third call, 101 behind it");
    let today = spend(&house, "main").await;
    assert_eq!((&today["tokens"], &today["dailyTokens"]), (&json!(101), &json!(100)));
    let refused = house.post_run("s", &json!({"text": "and now?"})).await;
    assert_problem(&refused, 429, "spend_limit");
    let detail = refused.body["detail"].as_str().unwrap();
    let opens = detail.split_whitespace().find(|word| word.ends_with("T00:00:00Z")).unwrap();
    assert!(opens > today["day"].as_str().unwrap() && detail.contains("\"main\""), "{detail}");
    let mut client = Client::operator(&house, &house.token).await;
    let error = client.refused("chat.send", message("s", "and now?", "r9")).await;
    assert_eq!(error["details"], json!({"reason": "spend-limit", "opensAt": opens}), "{error:#}");
    // A repeat of what was taken is answered, and a stop is never refused.
    let stop = client.call("chat.send", message("s", "/stop", "r10")).await;
    assert_eq!(stop["aborted"], false, "{stop}");
    assert_eq!(house.model.seen().len(), 3, "nothing went out");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_model_is_told_why_the_run_was_stopped() {
    let house = House::with(limit(50)).await;
    house.model.script(step(60, 0));
    let run = house.send("s", "look around").await;
    assert_eq!(house.ended(&run).await["verdict"]["reason"], "daily_limit");
    // Another agent goes on in the same session.
    house.model.script(costs(1, 1));
    let next = house.post_run("s", &json!({"text": "you do it", "agent": "team/writer"})).await.expect_status(202);
    house.ended(next["runId"].as_str().unwrap()).await;
    let told = house.model.seen()[1].body["messages"].to_string();
    assert!(told.contains("because what may be spent in a day was used up"), "{told}");
    house.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_touches_no_other_agent() {
    let house = House::with(|plan| {
        let writer = AgentId::parse("team/writer").unwrap();
        plan.engine.agents.get_mut(&writer).unwrap().daily_tokens = Some(10);
    })
    .await;
    let spawn = |text: &str| Behaviour::tool_call("c1", "send_message", &json!({"to": "team/writer", "text": text}));
    house.model.script(spawn("write")).script(costs(90, 9)).script(costs(1, 1));
    let run = house.send("s", "let it be written").await;
    assert_eq!(house.ended(&run).await["verdict"]["kind"], "completed");
    house.model.script(spawn("again")).script(costs(2, 2));
    let run = house.send("s", "once more").await;
    assert_eq!(house.ended(&run).await["verdict"]["kind"], "completed", "the parent goes on");
    let told = house.model.seen()[4].body["messages"].to_string();
    assert!(
        told.contains("The agent team/writer was not started") && told.contains("it takes new messages from"),
        "{told}"
    );
    assert_eq!(spend(&house, "team/writer").await["tokens"], 99);
    assert_eq!(house.http.get("/api/agents/main").await.expect_status(200)["spend"]["dailyTokens"], Value::Null);
    house.model.assert_histories_valid();
}

/// Two runs at once: what one has used and not finished counts for the other.
#[tokio::test(flavor = "multi_thread")]
async fn what_runs_at_work_have_used_is_spent() {
    let house = House::with(limit(100_000)).await;
    let opens_late = Stream::new().tool_call("c1", "list_files", &json!({"path": "."})).usage(UsageFrame::Always, 1, 1);
    house.model.script(opens_late.hold_headers("first"));
    let first = house.send("a", "go").await;
    house.model.requests(1).await;
    let waits = Stream::new().text("begun").usage(UsageFrame::Always, 200_000, 0).wait_for("second");
    house.model.script(step(200_000, 0)).script(waits);
    let second = house.send("b", "go").await;
    // It is over its limit behind its first step; the other one learns at its own next call.
    assert_eq!(house.ended(&second).await["verdict"]["reason"], "daily_limit");
    house.model.open_gate("first");
    assert_eq!(house.ended(&first).await["verdict"]["reason"], "daily_limit");
    assert_eq!(house.model.seen().len(), 2);
    assert_eq!(spend(&house, "main").await["tokens"], 200_002);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waits_is_not_worked_on_over_the_limit() {
    let house = House::with(limit(40_000)).await;
    house.model.script(Stream::new().text("done").usage(UsageFrame::Always, 50_000, 0).hold_headers("go"));
    let first = house.send("s", "go").await;
    let queued = house.send("s", "and then").await;
    house.model.open_gate("go");
    assert_eq!(house.ended(&first).await["verdict"]["kind"], "completed", "what was answered is answered");
    assert_eq!(house.ended(&queued).await["verdict"]["reason"], "daily_limit");
    assert_eq!(house.model.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_spent_is_remembered_and_counted_once() {
    let house = House::with(limit(1000)).await;
    completed(&house, "s", costs(300, 50)).await;
    completed(&house, "t", costs(100, 50)).await;
    assert_eq!(spend(&house, "main").await["tokens"], 500);
    // A session that is deleted gives nothing back.
    assert_eq!(house.http.delete("/api/sessions/s").await.status, 204);
    let mut house = house;
    for _ in 0..3 {
        house = house.reopen_with(limit(1000)).await;
        assert_eq!(spend(&house, "main").await["tokens"], 500);
    }
    completed(&house, "u", costs(500, 0)).await;
    assert_problem(&house.post_run("u", &json!({"text": "x"})).await, 429, "spend_limit");
    let house = house.reopen_with(limit(1000)).await;
    assert_problem(&house.post_run("u", &json!({"text": "x"})).await, 429, "spend_limit");
    // Who raises the limit, opens it.
    let house = house.reopen_with(limit(2000)).await;
    completed(&house, "u", costs(1, 0)).await;
    assert_eq!(spend(&house, "main").await["tokens"], 1001);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_deleted_under_its_run_gives_nothing_back() {
    let house = House::with(limit(1000)).await;
    let waits = Stream::new().text("begun").wait_for("never");
    house.model.script(step(400, 0)).script(waits);
    let run = house.send("s", "go").await;
    house.model.request(1).resting().await;
    house.http.events(&run, 0).await.until("text.delta").await;
    assert_eq!(house.http.delete("/api/sessions/s").await.status, 204);
    let before = spend(&house, "main").await["tokens"].as_u64().unwrap();
    assert!(before > 400, "the step that was cut is estimated: {before}");
    gone(&house, &run).await;
    assert_eq!(spend(&house, "main").await["tokens"], before);
    let house = house.reopen_with(limit(1000)).await;
    assert_eq!(spend(&house, "main").await["tokens"], before);
}

/// Waits until a run is in no memory any more.
async fn gone(house: &House, run: &str) {
    let (engine, id) = (house.engine.clone(), quell_protocol::RunId::parse(run).unwrap());
    quell_testkit::leaks::settled(crate::harness::PATIENCE, move || match engine.live(&id) {
        Some(_) => Err(format!("{id} is in memory")),
        None => Ok(()),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_in_money_counts_by_the_price() {
    let price = Some(Price { input: 3.0, output: 15.0 });
    let house = House::with(main_agent(move |main| (main.daily_cost, main.price) = (Some(0.02), price))).await;
    completed(&house, "s", costs(1000, 1000)).await;
    let today = spend(&house, "main").await;
    let cost = today["cost"].as_f64().unwrap();
    assert!((cost - 0.018).abs() < 1e-12, "{today}");
    assert_eq!((&today["dailyCost"], &today["tokens"]), (&json!(0.02), &json!(2000)));
    completed(&house, "s", costs(0, 200)).await;
    assert_problem(&house.post_run("s", &json!({"text": "x"})).await, 429, "spend_limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_made_at_run_time_has_its_limit_and_does_not_lose_its_day_by_being_made_again() {
    let house = House::open().await;
    let price = json!({"input": 1.0, "output": 2.0});
    let body = json!({
        "id": "guest", "model": "scripted/model", "dailyTokens": 20, "dailyCost": 5.0, "price": price, "tools": [],
    });
    let _ = house.http.post("/api/agents", &body).await.expect_status(201);
    house.model.script(costs(20, 5));
    let sent = house.post_run("s", &json!({"text": "x", "agent": "guest"})).await.expect_status(202);
    house.ended(sent["runId"].as_str().unwrap()).await;
    let today = spend(&house, "guest").await;
    assert_eq!((&today["tokens"], &today["dailyTokens"], &today["dailyCost"]), (&json!(25), &json!(20), &json!(5.0)));
    assert_problem(&house.post_run("s", &json!({"text": "x", "agent": "guest"})).await, 429, "spend_limit");
    let _ = house.http.delete("/api/agents/guest?force").await.expect_status(200);
    let _ = house.http.post("/api/agents", &body).await.expect_status(201);
    assert_problem(&house.post_run("s", &json!({"text": "x", "agent": "guest"})).await, 429, "spend_limit");
    let house = house.reopen().await;
    assert_problem(&house.post_run("s", &json!({"text": "x", "agent": "guest"})).await, 429, "spend_limit");
}

#[rstest]
#[case::zero(json!({"dailyTokens": 0}), "daily_tokens 0 would let nothing through")]
#[case::unpriced(json!({"dailyCost": 2.0}), "daily_cost needs price")]
#[case::negative(json!({"dailyCost": -2.0, "price": {"input": 1, "output": 1}}), "daily_cost -2 is no limit")]
#[case::bad_price(json!({"price": {"input": -1, "output": 1}}), "price -1 and 1")]
#[case::half_a_price(json!({"price": {"input": 1}}), "missing field `output`")]
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_cannot_work_is_refused(#[case] more: Value, #[case] why: &str) {
    let house = House::open().await;
    let mut body = json!({"id": "guest", "model": "scripted/model"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = house.http.post("/api/agents", &body).await;
    assert_problem(&answer, 400, "invalid_request");
    assert!(answer.body["detail"].as_str().unwrap().contains(why), "{:#}", answer.body);
}

/// A daemon that dies has counted nothing of the run at work; the next one counts what the journal knows, and once.
#[tokio::test]
async fn a_crash_forgets_nothing_that_was_spent_and_counts_it_once() {
    use crate::harness::{Claim, Ground, House, agent, copy_of, message};
    let spent = |house: &House| house.engine.agent_view(&agent("main")).unwrap().spend.tokens;
    let house = House::shared().await;
    house.model.script(step(4000, 7)).script(Behaviour::silent_mid_stream("begun"));
    let run = house.send(message("s", "go")).await;
    // The tool between the two calls did not start before its line was written, and all lines before it.
    house.text_came(&run).await;
    let after = House::on(Ground::Own(copy_of(house.dir.path())), Claim::shared().await, |_| {}).await;
    let found = spent(&after);
    assert!((4007..=spent(&house)).contains(&found), "{found} of {}", spent(&house));
    let again = House::on(Ground::Own(copy_of(after.dir.path())), Claim::shared().await, |_| {}).await;
    assert_eq!(spent(&again), found);
    house.stop(&run).settled().await;
    house.close().await;
}
