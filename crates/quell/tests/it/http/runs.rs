//! Sending: idempotency, policies while busy, the queue's cap, stop text, the hold, time-outs.

use quell_testkit::Behaviour;
use rstest::rstest;
use serde_json::json;

use crate::doors::{House, assert_problem, gated};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_taken_answered_and_kept() {
    let house = House::open().await;
    house.model.script(gated("go"));
    let answer = house.post_run("s", &json!({"text": "hello"})).await.expect_status(202);
    let run = answer["runId"].as_str().unwrap();
    assert_eq!(answer["sessionKey"], "s");
    assert!(["queued", "running"].contains(&answer["state"].as_str().unwrap()), "{answer}");
    house.model.open_gate("go");
    let view = house.ended(run).await;
    assert_eq!(view["output"], "begun and done");
    assert_eq!(view["receipt"]["leftovers"], json!([]));
    assert_eq!(view["receipt"]["turn"]["recorded"], true);
    assert_eq!(view["result"], json!({"success": true, "cancelled": false, "loopCount": 1}));
    let history = house.http.get("/api/sessions/s/history").await.expect_status(200);
    let texts: Vec<_> = history["items"].as_array().unwrap().iter().map(|row| row["text"].clone()).collect();
    assert_eq!(texts, ["hello", "begun and done"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_answers_the_state_and_any_difference_is_a_conflict() {
    let house = House::open().await;
    house.model.script(gated("go"));
    let body = json!({"text": "hello", "idempotencyKey": "my:key-1"});
    let first = house.post_run("s", &body).await.expect_status(202);
    assert_eq!(first["runId"], "my:key-1");
    house.model.request(0).resting().await;
    let second = house.post_run("s", &body).await.expect_status(200);
    assert_eq!((&second["runId"], &second["state"]), (&json!("my:key-1"), &json!("running")));
    let others = [
        ("s", json!({"text": "other", "idempotencyKey": "my:key-1"})),
        ("t", json!({"text": "hello", "idempotencyKey": "my:key-1"})),
        ("s", json!({"text": "hello", "idempotencyKey": "my:key-1", "agent": "main"})),
    ];
    for (session, other) in &others {
        assert_problem(&house.post_run(session, other).await, 409, "conflict");
    }
    let anna = house.api("anna", "write").await;
    assert_problem(&anna.post("/api/sessions/s/runs", &body).await, 409, "conflict");
    house.model.open_gate("go");
    house.forgotten("my:key-1").await;
    // The database still knows.
    let third = house.post_run("s", &body).await.expect_status(200);
    assert_eq!(third["state"], "ended");
    for (session, other) in &others {
        assert_problem(&house.post_run(session, other).await, 409, "conflict");
    }
    assert_eq!(house.model.seen().len(), 1, "one run, whatever was repeated");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_of_an_ended_run_is_answered_also_while_held() {
    let house = House::open().await;
    house.model.script(Behaviour::text("done"));
    let body = json!({"text": "hello", "idempotencyKey": "k"});
    let _ = house.post_run("s", &body).await.expect_status(202);
    house.forgotten("k").await;
    let _ = house.http.put("/api/hold", &json!({})).await.expect_status(200);
    assert_eq!(house.post_run("s", &body).await.expect_status(200)["state"], "ended");
    let other = json!({"text": "other", "idempotencyKey": "k"});
    assert_problem(&house.post_run("s", &other).await, 409, "conflict");
    assert_problem(&house.post_run("s", &json!({"text": "hello", "idempotencyKey": "l"})).await, 503, "held");
}

#[tokio::test(flavor = "multi_thread")]
async fn twins_at_once_are_one_run() {
    let house = House::open().await;
    house.model.script(Behaviour::text("done"));
    let body = json!({"text": "hello", "idempotencyKey": "twin"});
    let (a, b) = tokio::join!(house.post_run("s", &body), house.post_run("s", &body));
    let mut statuses = [a.status, b.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 202]);
    house.ended("twin").await;
    assert_eq!(house.model.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_a_message_waits_its_turn() {
    let house = House::open().await;
    house.model.script(gated("go")).script(Behaviour::text("second"));
    let first = house.send("s", "one").await;
    house.model.request(0).resting().await;
    let answer = house.post_run("s", &json!({"text": "two"})).await.expect_status(202);
    assert_eq!(answer["state"], "queued");
    let second = answer["runId"].as_str().unwrap();
    let active = house.http.get("/api/runs?state=active").await.expect_status(200);
    let states: Vec<_> = active["items"].as_array().unwrap().iter().map(|run| run["state"].clone()).collect();
    assert_eq!(states, ["running", "queued"]);
    house.model.open_gate("go");
    assert_eq!(house.ended(second).await["output"], "second");
    assert_eq!(house.ended(&first).await["output"], "begun and done");
    house.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn reject_refuses_while_busy() {
    let house = House::open().await;
    let run = house.streaming_run("s").await;
    let body = json!({"text": "two", "onBusy": "reject"});
    assert_problem(&house.post_run("s", &body).await, 409, "busy");
    let _ = house.http.post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
    house.model.script(Behaviour::text("done"));
    assert_eq!(house.post_run("s", &body).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupt_aborts_the_old_run_and_then_starts() {
    let house = House::open().await;
    let old = house.streaming_run("s").await;
    house.model.script(Behaviour::text("new answer"));
    let answer = house.post_run("s", &json!({"text": "instead", "onBusy": "interrupt"})).await.expect_status(202);
    let new = house.ended(answer["runId"].as_str().unwrap()).await;
    assert_eq!(new["output"], "new answer");
    let old = house.ended(&old).await;
    assert_eq!((&old["verdict"]["kind"], &old["verdict"]["reason"]), (&json!("aborted"), &json!("superseded")));
    house.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steered_message_reaches_the_active_run_or_the_next() {
    let house = House::open().await;
    let run = house.streaming_run("s").await;
    let body = json!({"text": "also this", "onBusy": "steer", "idempotencyKey": "steer-1"});
    let answer = house.post_run("s", &body).await.expect_status(202);
    let want = json!({"runId": run, "sessionKey": "s", "state": "steered", "messageId": "steer-1"});
    assert_eq!(answer, want);
    house.model.script(Behaviour::text("did both"));
    let _ = house.http.post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
    // The run took no further step: the message is a run of its own.
    let view = house.ended("steer-1").await;
    assert_eq!(view["output"], "did both");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_of_a_message_that_a_run_took_over_do_not_hang() {
    let house = House::open().await;
    let call = json!({"path": "."});
    let first = quell_testkit::model::Stream::new().text("begun").wait_for("go").tool_call("c1", "list_files", &call);
    house.model.script(first).script(Behaviour::text("both"));
    let run = house.send("s", "one").await;
    house.model.request(0).resting().await;
    let body = json!({"text": "two", "onBusy": "steer", "idempotencyKey": "steer-2"});
    let _ = house.post_run("s", &body).await.expect_status(202);
    let mut events = house.http.events("steer-2", 0).await;
    assert_eq!(events.next().await.unwrap().kind, "run.queued");
    house.model.open_gate("go");
    assert_eq!(house.ended(&run).await["output"], "both");
    assert!(events.next().await.is_none(), "nothing is said under its own id any more");
    let last = house.model.seen().pop().unwrap();
    assert_eq!(last.last_user_text, "two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses() {
    let house = House::with(|plan| plan.engine.limits.queued_per_session = 2).await;
    house.streaming_run("s").await;
    house.send("s", "one").await;
    house.send("s", "two").await;
    assert_problem(&house.post_run("s", &json!({"text": "three"})).await, 429, "queue_full");
    house.finished_run("another session").await;
    let stopped = house.post_run("s", &json!({"text": "/stop"})).await.expect_status(200);
    assert_eq!(stopped["runIds"].as_array().unwrap().len(), 3, "a stop text waits behind no queue");
}

#[rstest]
#[case::slash("/stop")]
#[case::word("  STOP!  ")]
#[case::korean("멈춰")]
#[tokio::test(flavor = "multi_thread")]
async fn stop_text_stops_and_makes_no_run(#[case] text: &str) {
    let house = House::open().await;
    let run = house.streaming_run("s").await;
    let queued = house.send("s", "later").await;
    let answer = house.post_run("s", &json!({"text": text})).await.expect_status(200);
    assert_eq!(answer["aborted"], true);
    assert_eq!(answer["runIds"].as_array().unwrap().len(), 2);
    assert_eq!(answer["withdrawn"], json!([{"runId": queued, "text": "later"}]));
    let view = house.ended(&run).await;
    assert_eq!(view["verdict"]["reason"], "command");
    let again = house.post_run("s", &json!({"text": text})).await.expect_status(200);
    assert_eq!((&again["aborted"], &again["runIds"]), (&json!(false), &json!([])));
    let runs = house.http.get("/api/runs").await.expect_status(200);
    assert_eq!(runs["items"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn literal_turns_stop_text_off() {
    let house = House::open().await;
    house.model.script(Behaviour::text("you said stop"));
    let answer = house.post_run("s", &json!({"text": "/stop", "literal": true})).await.expect_status(202);
    assert_eq!(house.ended(answer["runId"].as_str().unwrap()).await["output"], "you said stop");
    assert_eq!(house.model.seen()[0].last_user_text, "/stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_has_the_time_it_was_given() {
    let house = House::open().await;
    house.model.script(Behaviour::SilentBeforeHeaders);
    let answer = house.post_run("s", &json!({"text": "x", "timeoutMs": 50})).await.expect_status(202);
    let view = house.ended(answer["runId"].as_str().unwrap()).await;
    assert_eq!(view["verdict"], json!({"kind": "aborted", "reason": "timeout"}));
    house.model.script(Behaviour::text("done"));
    let answer = house.post_run("s", &json!({"text": "x", "timeoutMs": u64::MAX})).await.expect_status(202);
    assert_eq!(house.ended(answer["runId"].as_str().unwrap()).await["output"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_does_not_stop_its_run() {
    let house = House::open().await;
    house.model.script(gated("go"));
    let run = house.send("s", "x").await;
    let mut events = house.http.events(&run, 0).await;
    events.until("text.delta").await;
    drop(events);
    house.model.connections(1).await;
    house.model.open_gate("go");
    assert_eq!(house.ended(&run).await["verdict"]["kind"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_refuses_new_runs_and_survives_a_restart() {
    let house = House::open().await;
    let active = house.streaming_run("s").await;
    let waiting = house.send("s", "later").await;
    assert_eq!(house.http.get("/api/hold").await.expect_status(200), json!({"held": false}));
    let held = house.http.put("/api/hold", &json!({"held": true, "reason": "audit"})).await.expect_status(200);
    assert_eq!((&held["held"], &held["reason"], &held["by"]), (&json!(true), &json!("audit"), &json!("admin")));
    assert!(held["since"].is_string());
    assert_problem(&house.post_run("t", &json!({"text": "x"})).await, 503, "held");
    let view = house.http.get(&format!("/api/runs/{active}")).await.expect_status(200);
    assert_eq!(view["state"], "running", "active runs go on");
    let _ = house.http.post(&format!("/api/runs/{active}/stop?wait=1"), &json!({})).await.expect_status(200);
    let view = house.http.get(&format!("/api/runs/{waiting}")).await.expect_status(200);
    assert_eq!(view["state"], "queued", "queued ones wait");
    let house = house.reopen().await;
    assert_eq!(house.http.get("/api/hold").await.expect_status(200)["reason"], "audit");
    assert_problem(&house.post_run("t", &json!({"text": "x"})).await, 503, "held");
    assert_eq!(house.http.delete("/api/hold").await.expect_status(200), json!({"held": false}));
    house.finished_run("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lifting_a_hold_lets_the_waiting_go_on() {
    let house = House::open().await;
    house.model.script(gated("go")).script(Behaviour::text("second"));
    house.send("s", "one").await;
    house.model.request(0).resting().await;
    let second = house.send("s", "two").await;
    let _ = house.http.put("/api/hold", &json!({})).await.expect_status(200);
    house.model.open_gate("go");
    let _ = house.http.put("/api/hold", &json!({"held": false})).await.expect_status(200);
    assert_eq!(house.ended(&second).await["output"], "second");
}
