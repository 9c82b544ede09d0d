//! Submit messages: idempotency, busy policies, queue limit, stop text, hold, timeouts.

use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_taken_answered_and_kept() {
    let server = TestServer::start().await;
    server.model.script(gated_response("go"));
    let answer = server.post_run("s", &json!({"text": "hello"})).await.expect_status(202);
    let run = answer["runId"].as_str().unwrap();
    assert_eq!(answer["sessionKey"], "s");
    assert!(["queued", "running"].contains(&answer["state"].as_str().unwrap()), "{answer}");
    server.model.open_gate("go");
    let view = server.wait_ended(run).await;
    let receipt = json!({"leftovers": [], "turn": {"recorded": true}});
    assert_fields(&view, &json!({"output": "begun and done", "receipt": receipt}));
    assert_eq!(view["result"], json!({"success": true, "cancelled": false, "loopCount": 1}));
    let history = server.http.get("/api/sessions/s/history").await.expect_status(200);
    let texts: Vec<_> = history["items"].as_array().unwrap().iter().map(|row| row["text"].clone()).collect();
    assert_eq!(texts, ["hello", "begun and done"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_answers_the_state_also_while_held_and_any_difference_is_a_conflict() {
    let server = TestServer::start().await;
    server.model.script(gated_response("go"));
    let body = json!({"text": "hello", "idempotencyKey": "my:key-1"});
    assert_eq!(server.post_run("s", &body).await.expect_status(202)["runId"], "my:key-1");
    server.model.request_at(0).wait_paused().await;
    let second = server.post_run("s", &body).await.expect_status(200);
    assert_fields(&second, &json!({"runId": "my:key-1", "state": "running"}));
    let others = [
        ("s", json!({"text": "other", "idempotencyKey": "my:key-1"})),
        ("t", json!({"text": "hello", "idempotencyKey": "my:key-1"})),
        ("s", json!({"text": "hello", "idempotencyKey": "my:key-1", "agent": "main"})),
    ];
    let assert_conflicts = async || {
        for (session, other) in &others {
            assert_problem(&server.post_run(session, other).await, 409, "conflict");
        }
    };
    assert_conflicts().await;
    let _ = server.http.put("/api/sessions/s/sharing", &json!({"shared": true})).await.expect_status(200);
    assert_problem(&server.api_with_new_token("anna", "write").await.post_run("s", &body).await, 409, "conflict");
    server.model.open_gate("go");
    server.wait_forgotten("my:key-1").await;
    // The run is known from the database.
    let _ = server.http.put("/api/hold", &json!({})).await.expect_status(200);
    assert_eq!(server.post_run("s", &body).await.expect_status(200)["state"], "ended");
    assert_conflicts().await;
    assert_problem(&server.post_run("s", &json!({"text": "hello", "idempotencyKey": "l"})).await, 503, "held");
    assert_eq!(server.model.recorded_requests().len(), 1, "a repeated message started another run");
}

#[tokio::test(flavor = "multi_thread")]
async fn twins_at_once_are_one_run() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("done"));
    let body = json!({"text": "hello", "idempotencyKey": "twin"});
    let (a, b) = tokio::join!(server.post_run("s", &body), server.post_run("s", &body));
    let mut statuses = [a.status, b.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 202]);
    server.wait_ended("twin").await;
    assert_eq!(server.model.recorded_requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_a_message_waits_its_turn() {
    let server = TestServer::start().await;
    server.model.script(gated_response("go")).script(ScriptedResponse::text("second"));
    let first = server.send_message("s", "one").await;
    server.model.request_at(0).wait_paused().await;
    let answer = server.post_run("s", &json!({"text": "two"})).await.expect_status(202);
    assert_eq!(answer["state"], "queued");
    let second = answer["runId"].as_str().unwrap();
    let active = server.http.get("/api/runs?state=active").await.expect_status(200);
    let states: Vec<_> = active["items"].as_array().unwrap().iter().map(|run| run["state"].clone()).collect();
    assert_eq!(states, ["running", "queued"]);
    server.model.open_gate("go");
    assert_eq!(server.wait_ended(second).await["output"], "second");
    assert_eq!(server.wait_ended(&first).await["output"], "begun and done");
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn reject_refuses_while_busy() {
    let (server, run) = TestServer::start_streaming().await;
    let body = json!({"text": "two", "onBusy": "reject"});
    assert_problem(&server.post_run("s", &body).await, 409, "busy");
    server.http.stop_run(&run).await;
    server.model.script(ScriptedResponse::text("done"));
    assert_eq!(server.post_run("s", &body).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupt_aborts_the_old_run_and_then_starts() {
    let server = TestServer::start().await;
    let old = server.start_streaming_run("s").await;
    server.model.script(ScriptedResponse::text("new answer"));
    let new = server.http.start_run("s", &json!({"text": "instead", "onBusy": "interrupt"})).await;
    assert_eq!(server.wait_ended(&new).await["output"], "new answer");
    assert_fields(&server.wait_ended(&old).await["verdict"], &json!({"kind": "aborted", "reason": "superseded"}));
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steered_message_reaches_the_active_run_or_the_next() {
    let (server, run) = TestServer::start_streaming().await;
    let body = json!({"text": "also this", "onBusy": "steer", "idempotencyKey": "steer-1"});
    let want = json!({"runId": run, "sessionKey": "s", "state": "steered", "messageId": "steer-1"});
    assert_eq!(server.post_run("s", &body).await.expect_status(202), want);
    server.model.script(ScriptedResponse::text("did both"));
    server.http.stop_run(&run).await;
    // The run took no further step, so the message becomes a run of its own.
    assert_eq!(server.wait_ended("steer-1").await["output"], "did both");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_of_a_message_that_a_run_took_over_do_not_hang() {
    let server = TestServer::start().await;
    let first = ScriptedStream::new().text("begun").wait_for_gate("go");
    server.model.script(first.tool_call("c1", "list_files", &json!({"path": "."})));
    server.model.script(ScriptedResponse::text("both"));
    let run = server.send_message("s", "one").await;
    server.model.request_at(0).wait_paused().await;
    let body = json!({"text": "two", "onBusy": "steer", "idempotencyKey": "steer-2"});
    let _ = server.post_run("s", &body).await.expect_status(202);
    let mut events = server.http.run_events("steer-2", 0).await;
    assert_eq!(events.next().await.unwrap().kind, "run.queued");
    server.model.open_gate("go");
    assert_eq!(server.wait_ended(&run).await["output"], "both");
    assert!(events.next().await.is_none(), "an event came under the id of the steered message");
    assert_eq!(without_time(&server.model.recorded_requests().pop().unwrap().last_user_text), "two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses() {
    let server = TestServer::start_with(|plan| plan.engine.limits.queued_per_session = 2).await;
    server.start_streaming_run("s").await;
    server.send_message("s", "one").await;
    server.send_message("s", "two").await;
    assert_problem(&server.post_run("s", &json!({"text": "three"})).await, 429, "queue_full");
    server.run_to_end("another session").await;
    let stopped = server.post_run("s", &json!({"text": "/stop"})).await.expect_status(200);
    assert_eq!(stopped["runIds"].as_array().unwrap().len(), 3, "a stop text must not wait in the queue");
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_text_stops_and_makes_no_run() {
    let (server, run) = TestServer::start_streaming().await;
    let text = " 멈춰! ";
    let queued = server.send_message("s", "later").await;
    let answer = server.post_run("s", &json!({"text": text})).await.expect_status(200);
    assert_fields(&answer, &json!({"aborted": true, "withdrawn": [{"runId": queued, "text": "later"}]}));
    assert_eq!(answer["runIds"].as_array().unwrap().len(), 2);
    assert_eq!(server.wait_ended(&run).await["verdict"]["reason"], "command");
    let again = server.post_run("s", &json!({"text": text})).await.expect_status(200);
    assert_fields(&again, &json!({"aborted": false, "runIds": []}));
    assert_eq!(server.http.get("/api/runs").await.expect_status(200)["items"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn literal_turns_stop_text_off() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("you said stop"));
    let run = server.http.start_run("s", &json!({"text": "/stop", "literal": true})).await;
    assert_eq!(server.wait_ended(&run).await["output"], "you said stop");
    assert_eq!(without_time(&server.model.recorded_requests()[0].last_user_text), "/stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_has_the_time_it_was_given() {
    let server = TestServer::start().await;
    // Not by script: on a busy machine the time is over before the model is asked.
    server.model.respond_by_prompt(|_, _| ScriptedResponse::SilentBeforeHeaders);
    let run = server.http.start_run("s", &json!({"text": "x", "timeoutMs": 50})).await;
    assert_eq!(server.wait_ended(&run).await["verdict"], json!({"kind": "aborted", "reason": "timeout"}));
    server.model.script(ScriptedResponse::text("done"));
    let run = server.http.start_run("s", &json!({"text": "x", "timeoutMs": u64::MAX})).await;
    assert_eq!(server.wait_ended(&run).await["output"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_does_not_stop_its_run() {
    let server = TestServer::start().await;
    server.model.script(gated_response("go"));
    let run = server.send_message("s", "x").await;
    server.http.run_events(&run, 0).await.wait_for("text.delta").await;
    server.model.wait_for_connections(1).await;
    server.model.open_gate("go");
    assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_refuses_new_runs_and_survives_a_restart() {
    let server = TestServer::start().await;
    let active = server.start_streaming_run("s").await;
    let waiting = server.send_message("s", "later").await;
    assert_eq!(server.http.get("/api/hold").await.expect_status(200), json!({"held": false, "revision": 0}));
    let held = server.http.put("/api/hold", &json!({"held": true, "reason": "audit"})).await.expect_status(200);
    assert_fields(&held, &json!({"held": true, "reason": "audit", "by": "admin"}));
    assert!(held["since"].is_string());
    assert_problem(&server.post_run("t", &json!({"text": "x"})).await, 503, "held");
    server.assert_running(&active).await;
    server.http.stop_run(&active).await;
    assert_eq!(server.http.run_view(&waiting).await["state"], "queued", "queued runs wait");
    let server = server.restart().await;
    assert_eq!(server.http.get("/api/hold").await.expect_status(200)["reason"], "audit");
    assert_problem(&server.post_run("t", &json!({"text": "x"})).await, 503, "held");
    let lifts = [server.http.put("/api/hold", &json!({"held": false})).await, server.http.delete("/api/hold").await];
    for (lifted, revision) in lifts.into_iter().zip(2..) {
        assert_eq!(lifted.expect_status(200), json!({"held": false, "revision": revision}));
    }
    server.run_to_end("t").await;
}
