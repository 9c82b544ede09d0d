//! Every way to stop over HTTP.

use quell_process::{WardenExe, base_environment};

use crate::prelude::*;

#[rstest]
#[case::absent(None)]
#[case::empty(Some(""))]
#[case::object(Some("{}"))]
#[tokio::test(flavor = "multi_thread")]
async fn stop_bodies_may_be_absent_empty_or_an_empty_object(#[case] body: Option<&'static str>) {
    let (server, run) = TestServer::start_streaming().await;
    let fill = |request: reqwest::RequestBuilder| match body {
        Some(body) => request.body(body),
        None => request,
    };
    let request = fill(server.http.request(Method::POST, &format!("/api/runs/{run}/stop?wait=1")));
    assert_fields(&server.http.send(request).await.expect_status(200), &json!({"aborted": true, "runIds": [run]}));
    for path in ["/api/sessions/s/stop", "/api/stop", "/api/agent/main/abort", "/api/sessions/s/reset"] {
        assert_eq!(server.http.send(fill(server.http.request(Method::POST, path))).await.status, 200, "{path}");
    }
    assert_eq!(server.http.send(fill(server.http.request(Method::PUT, "/api/hold"))).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_stop_bodies_are_refused_and_stop_nothing() {
    let (server, run) = TestServer::start_streaming().await;
    for path in [format!("/api/runs/{run}/stop"), "/api/sessions/s/stop".into(), "/api/stop".into()] {
        assert_problem(&send_text(&server.http, Method::POST, &path, "{").await, 400, "malformed_json");
        for body in [r#"{"froce":true}"#, r#"{"force":1}"#, "null"] {
            assert_problem(&send_text(&server.http, Method::POST, &path, body).await, 400, "invalid_request");
        }
    }
    server.assert_running(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_wait_the_ticket_is_answered_at_once() {
    let (server, run) = TestServer::start_streaming().await;
    for wait in ["", "?wait=0", "?wait=false"] {
        let answer = server.http.post(&format!("/api/runs/{run}/stop{wait}"), &json!({"reason": "enough"})).await;
        // The run may be over already: then the answer is 200 with the receipt.
        assert!(matches!(answer.status, 200 | 202), "{}", answer.status);
        assert_fields(&answer.body, &json!({"runId": run, "verdict": {"reason": "enough"}}));
        let over = answer.body["state"] == "ended";
        assert_eq!((over, over), (answer.status == 200, answer.body["receipt"].is_object()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_wait_the_receipt_is_answered() {
    let (server, run) = TestServer::start_streaming().await;
    let answer = server.http.stop_run(&run).await;
    let receipt = &answer["receipt"];
    assert_fields(receipt, &json!({"runId": run, "rung": "cancel", "leftovers": [], "turn": {"recorded": true}}));
    for time in ["requestedAt", "deliveredAt", "settledAt"] {
        assert!(receipt[time]["at"].is_string() && receipt[time]["ms"].is_number(), "{time} of {receipt:#}");
    }
    let request = receipt["resources"].as_array().unwrap().iter().find(|row| row["kind"] == "model_request").unwrap();
    assert!(request["releasedAt"]["ms"].as_f64().unwrap() >= 0.0, "{request}");
    server.model.request_at(0).wait_client_left().await;
    server.run_to_end("s").await;
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_run_answers_its_real_verdict() {
    let server = TestServer::start().await;
    let run = server.run_to_end("s").await;
    for wait_for_store in [false, true] {
        if wait_for_store {
            server.wait_forgotten(&run).await;
        }
        let answer = server.http.post(&format!("/api/runs/{run}/stop"), &json!({})).await.expect_status(200);
        assert_eq!(answer["verdict"], json!({"kind": "completed"}));
        let ended = json!({"aborted": false, "runIds": [], "state": "ended", "receipt": {"runId": run}});
        assert_fields(&answer, &ended);
    }
    let anna = server.api_with_new_token("anna", "write").await;
    assert_problem(&anna.post(&format!("/api/runs/{run}/stop"), &json!({})).await, 403, "forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_runs_are_not_found() {
    let server = TestServer::start().await;
    for run in ["nobody", "a%2Fb", "%20"] {
        assert_problem(&server.http.post(&format!("/api/runs/{run}/stop"), &json!({})).await, 404, "run_not_found");
        assert_problem(&server.http.get(&format!("/api/runs/{run}")).await, 404, "run_not_found");
        assert_problem(&server.http.get(&format!("/api/runs/{run}/events")).await, 404, "run_not_found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_comes_first_is_kept_for_its_run() {
    let server = TestServer::start().await;
    assert_problem(&server.http.post("/api/runs/early/stop", &json!({})).await, 404, "run_not_found");
    let _ = server.post_run("s", &json!({"text": "x", "idempotencyKey": "early"})).await.expect_status(202);
    assert_eq!(server.wait_ended("early").await["verdict"]["kind"], "aborted");
    assert!(server.model.recorded_requests().is_empty(), "no model request was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_key_is_checked_against_the_run() {
    let (server, run) = TestServer::start_streaming().await;
    let path = format!("/api/runs/{run}/stop?wait=1");
    assert_problem(&server.http.post(&path, &json!({"sessionKey": "t"})).await, 404, "run_not_found");
    assert_problem(&server.http.post(&path, &json!({"sessionKey": ""})).await, 400, "invalid_request");
    server.assert_running(&run).await;
    assert_eq!(server.http.post(&path, &json!({"sessionKey": "s"})).await.expect_status(200)["aborted"], true);
    server.wait_forgotten(&run).await;
    assert_problem(&server.http.post(&path, &json!({"sessionKey": "t"})).await, 404, "run_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_run_is_stopped_and_leaves_no_turn() {
    let (server, run) = TestServer::start_streaming().await;
    let queued = server.send_message("s", "two").await;
    let answer = server.http.post(&format!("/api/runs/{queued}/stop"), &json!({})).await.expect_status(200);
    assert_fields(&answer, &json!({"aborted": true, "receipt": {"turn": {"recorded": false}}}));
    server.http.stop_run(&run).await;
    let history = server.http.get("/api/sessions/s/history").await.expect_status(200);
    assert!(!history.to_string().contains("two"), "{history:#}");
    assert_eq!(server.model.recorded_requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_stop_covers_its_queue_unless_told_not_to() {
    let (server, run) = TestServer::start_streaming().await;
    server.model.script(gated_response("go"));
    let queued = server.send_message("s", "two").await;
    let kept = server.http.post("/api/sessions/s/stop?wait=1", &json!({"keepQueued": true, "force": true})).await;
    assert_eq!(kept.expect_status(200), json!({"aborted": true, "runIds": [run], "withdrawn": []}));
    server.model.request_at(1).wait_paused().await;
    let third = server.send_message("s", "three").await;
    let all = json!({"reason": "done here"});
    let answer = server.http.post("/api/sessions/s/stop?wait=1", &all).await.expect_status(200);
    let ids: Vec<&Value> = answer["runIds"].as_array().unwrap().iter().collect();
    assert!(ids.contains(&&json!(queued)) && ids.contains(&&json!(third)), "{answer}");
    assert_eq!(answer["withdrawn"], json!([{"runId": third, "text": "three"}]));
    let again = server.http.post("/api/sessions/s/stop", &json!({})).await.expect_status(200);
    assert_eq!(again, json!({"aborted": false, "runIds": [], "withdrawn": []}));
    assert_eq!(server.http.post("/api/sessions/nobody/stop", &json!({})).await.expect_status(200)["aborted"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_stops_with_one_call_and_stays_held() {
    let server = TestServer::start().await;
    let mut runs = vec![server.start_streaming_run("a").await, server.start_streaming_run("b").await];
    runs.push(server.send_message("a", "queued").await);
    let body = json!({"hold": true, "force": true, "reason": "fire"});
    let answer = server.http.post("/api/stop?wait=1", &body).await.expect_status(200);
    assert_fields(&answer, &json!({"aborted": true, "held": true}));
    assert_eq!(answer["runIds"].as_array().unwrap().len(), 3);
    assert_eq!(answer["withdrawn"][0]["text"], "queued");
    assert_eq!(server.http.get("/api/runs?state=active").await.expect_status(200)["items"], json!([]));
    for run in runs {
        assert_eq!(server.wait_ended(&run).await["verdict"]["reason"], "fire");
    }
    assert_problem(&server.post_run("a", &json!({"text": "x"})).await, 503, "held");
    let again = server.http.post("/api/stop", &json!({})).await.expect_status(200);
    assert_eq!(again, json!({"aborted": false, "runIds": [], "withdrawn": [], "held": true}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_gets_in_when_all_streams_are_taken() {
    let server = TestServer::start_with(|plan| plan.server.max_connections = 1).await;
    server.model.script(gated_response("never"));
    let run = server.send_message("s", "x").await;
    let mut events = server.http.run_events(&run, 0).await;
    events.wait_for("text.delta").await;
    assert_problem(&server.http.get(&format!("/api/runs/{run}/events")).await, 503, "too_many_connections");
    let socket = server.http.request(Method::GET, "/ws").header("connection", "upgrade").header("upgrade", "websocket");
    assert_problem(&server.http.send(socket).await, 503, "too_many_connections");
    assert_eq!(server.http.stop_run(&run).await["state"], "ended");
    events.read_to_end().await.assert_valid();
    // The connection slot is free again.
    server.http.run_events(&run, 0).await.read_to_end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_not_over_shows_what_it_holds_and_when_its_stop_came() {
    let server = TestServer::start_with(|plan| {
        plan.engine.warden_exe = WardenExe::Path(quell_exe().into());
        plan.engine.environment = base_environment(std::env::vars_os());
        // The gentle stop lasts until it is forced.
        (plan.engine.stop_timeouts.term, plan.engine.stop_timeouts.grace) = (WAIT_TIMEOUT, WAIT_TIMEOUT * 2);
    })
    .await;
    let marker = ProcessMarker::new();
    server.model.script(shell_call(commands::ignores_signals(&marker)));
    let run = server.send_message("s", "do it").await;
    server.http.run_events(&run, 0).await.wait_for("tool.output").await;
    let path = format!("/api/runs/{run}");
    // The output of a command may arrive before its warden has reported the process id.
    let has_pid = |view: &Value| view["held"].as_array().unwrap().iter().any(|row| row["pid"].is_number());
    let live = poll_until("a process id", async || Some(server.http.run_view(&run).await).filter(has_pid)).await;
    let held = |view: &Value, kind: &str| {
        let rows: Vec<Value> = view["held"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["kind"] == kind).unwrap_or_else(|| panic!("no {kind} in {view:#}"))
    };
    assert_eq!(held(&live, "model_request")["how"], "finished");
    assert!(held(&live, "process")["pid"].is_number() && held(&live, "process").get("releasedAt").is_none());
    assert!(live.get("requestedAt").is_none());
    let _ = server.http.post(&format!("{path}/stop"), &json!({})).await.expect_status(202);
    let ending = server.http.get(&path).await.expect_status(200);
    assert_fields(&ending, &json!({"state": "ending", "requestedAt": {"ms": 0.0}}));
    assert!(ending["deliveredAt"]["ms"].as_f64().unwrap() >= 0.0);
    assert!(held(&ending, "process")["openedAt"]["ms"].as_f64().unwrap() < 0.0);
    server.http.post(&format!("{path}/stop?wait=1"), &json!({"force": true})).await.expect_status(200);
    let ended = server.wait_ended(&run).await;
    let only_while_live = (ended.get("held"), ended.get("requestedAt"));
    assert_eq!(only_while_live, (None, None), "an ended run shows these in its receipt only");
    assert!(ended["receipt"]["resources"].as_array().unwrap().len() >= 3);
    marker.disarm();
}
