//! Any node answers for all: messages, events, lists and stops reach the node of the session.

use quell_test_support::a2a_client::{A2aTestBinding, A2aTestClient, message, states_of};
use quell_test_support::ws_client::WsTestClient;
use quell_testkit::gateway_client::GatewayTestClient;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_to_any_node_runs_on_the_node_of_the_session() {
    let Some(cluster) = TestCluster::start(3, Bus::Nats).await else { return };
    let first = cluster.complete_run(0, "s").await;
    assert_eq!(cluster.owner("s"), "node-0");
    for node in [1, 2] {
        cluster.complete_run(node, "s").await;
        assert_eq!(cluster.owner("s"), "node-0");
        assert_eq!(cluster.api(node).run_view(&first).await["verdict"]["kind"], "completed");
    }
    let other = cluster.complete_run(2, "t").await;
    assert_eq!(cluster.owner("t"), "node-2");
    assert_eq!(cluster.api(0).run_view(&other).await["verdict"]["kind"], "completed");
    let history = cluster.api(1).get("/api/sessions/s/history").await.expect_status(200);
    assert_eq!(history["items"].as_array().unwrap().len(), 6, "{history:#}");
    cluster.model.assert_histories_valid();
}

#[rstest]
#[case::over_nats(Bus::Nats)]
#[case::through_the_database(Bus::Database)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_at_another_node_ends_the_processes_of_the_run(#[case] bus: Bus) {
    let Some(cluster) = TestCluster::start(3, bus).await else { return };
    let marker = ProcessMarker::new();
    let run = cluster.start_command(0, "s", &marker).await;
    let listed = cluster.api(1).get("/api/runs?state=active").await.expect_status(200);
    assert_eq!(listed["items"][0]["runId"], json!(run), "{listed:#}");
    let stopped = cluster.api(2).post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
    marker.wait_gone(WAIT_TIMEOUT).await;
    assert_fields(&stopped, &json!({"state": "ended", "aborted": true, "runIds": [run]}));
    assert_eq!(stopped["receipt"]["leftovers"], json!([]), "{stopped:#}");
    assert_eq!(cluster.api(1).run_view(&run).await["receipt"], stopped["receipt"]);
    cluster.wait_stops_forgotten().await;
    cluster.complete_run(1, "s").await;
    cluster.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_a_session_and_of_everything_reaches_all_nodes() {
    let Some(cluster) = TestCluster::start(3, Bus::Nats).await else { return };
    let markers = [ProcessMarker::new(), ProcessMarker::new()];
    let runs = [cluster.start_command(0, "s", &markers[0]).await, cluster.start_command(1, "t", &markers[1]).await];
    let of_session = cluster.api(2).post("/api/sessions/s/stop?wait=1", &json!({})).await.expect_status(200);
    assert_fields(&of_session, &json!({"aborted": true, "runIds": [runs[0]]}));
    markers[0].wait_gone(WAIT_TIMEOUT).await;
    let of_all = cluster.api(2).post("/api/stop?wait=1", &json!({"hold": true})).await.expect_status(200);
    assert_fields(&of_all, &json!({"aborted": true, "runIds": [runs[1]], "held": true}));
    markers[1].wait_gone(WAIT_TIMEOUT).await;
    for node in 0..3 {
        assert_problem(&cluster.api(node).post_run("u", &json!({"text": "hello"})).await, 503, "held");
    }
    cluster.api(1).delete("/api/hold").await.expect_status(200);
    cluster.model.script(ScriptedResponse::text("an answer"));
    let run = poll_until("another node takes runs again", async || {
        let answer = cluster.api(0).post_run("u", &json!({"text": "hello"})).await;
        (answer.status == 202).then(|| answer.body["runId"].as_str().unwrap().to_owned())
    })
    .await;
    assert_eq!(cluster.api(1).run_events(&run, 0).await.read_to_end().await.verdict(), "completed");
}

/// A client of OpenAI's API at one node, bound to a session of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_api_answers_in_the_session_of_another_node() {
    let Some(cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    cluster.complete_run(0, "s").await;
    let asked = cluster.model.request_count();
    cluster.model.script(ScriptedResponse::text("Four.")).script(ScriptedResponse::silent_mid_stream("begun"));
    let request = |stream: bool| {
        let body = json!({"model": "agent/main", "stream": stream, "messages": [{"role": "user", "content": "2+2?"}]});
        let api = cluster.api(1);
        api.request(Method::POST, "/v1/chat/completions").header("x-quell-session", "s").json(&body)
    };
    let answer = cluster.api(1).send(request(false)).await.expect_status(200);
    assert_eq!(answer["choices"][0]["message"]["content"], "Four.");
    assert_eq!(cluster.owner("s"), "node-0");
    let streamed = request(true).send().await.unwrap();
    let run = streamed.headers()["x-quell-run"].to_str().unwrap().to_owned();
    cluster.model.request_at(asked + 1).wait_paused().await;
    drop(streamed);
    cluster.model.request_at(asked + 1).wait_client_left().await;
    let view = cluster.api(0).wait_ended(&run).await;
    assert_fields(&view["verdict"], &json!({"kind": "aborted", "reason": "disconnect"}));
}

/// Made by one node; read, streamed again and cancelled at another one.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_background_response_is_streamed_and_cancelled_at_any_node(
    #[values("scripted/m", "agent/main")] model: &str,
    #[values(Bus::Nats, Bus::Database)] bus: Bus,
) {
    let Some(cluster) = TestCluster::start(2, bus).await else { return };
    cluster.model.script(ScriptedStream::new().text("one ").wait_for_gate("more").text("two"));
    cluster.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let create = async || {
        let body = json!({"model": model, "input": "Count.", "background": true});
        let response = cluster.api(0).post("/v1/responses", &body).await.expect_status(200);
        format!("/v1/responses/{}", response["id"].as_str().unwrap())
    };
    let path = create().await;
    poll_until("what has come of it, at the other node", async || {
        let shown = cluster.api(1).get(&path).await.expect_status(200);
        assert_eq!(shown["status"], "in_progress");
        (shown["output"][0]["content"][0]["text"] == "one ").then_some(())
    })
    .await;
    let again = cluster.api(1).request(Method::GET, &format!("{path}?stream=true&starting_after=1"));
    let again = again.send().await.unwrap();
    assert_eq!(again.headers()["content-type"], "text/event-stream; charset=utf-8");
    cluster.model.open_gate("more");
    let events = again.text().await.unwrap();
    assert!(!events.contains("response.created") && events.contains("event: response.completed"), "{events}");
    assert!(events.contains(r#""delta":"one ""#) && events.contains(r#""delta":"two""#), "{events}");
    let path = create().await;
    cluster.model.request_at(1).wait_paused().await;
    let cancel = format!("{path}/cancel");
    let cancelled = cluster.api(1).post(&cancel, &json!({})).await.expect_status(200);
    assert_eq!(cancelled["status"], "cancelled", "{cancelled:#}");
    cluster.model.request_at(1).wait_client_left().await;
    for node in [0, 1] {
        assert_eq!(cluster.api(node).post(&cancel, &json!({})).await.expect_status(200), cancelled);
        assert_eq!(cluster.api(node).get(&path).await.expect_status(200), cancelled);
    }
}

/// Made at one node; read, streamed and cancelled at another one, and only as a task of its agent.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_read_streamed_and_cancelled_at_any_node_and_as_one_of_its_agent(
    #[values(Bus::Nats, Bus::Database)] bus: Bus,
) {
    let aide = "[agents.aide]\nmodel = \"scripted/m\"\n";
    let Some(cluster) = TestCluster::start_in(2, bus, "", aide, &[]).await else { return };
    cluster.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let client = |node, binding| A2aTestClient::new(&cluster.api(node), binding);
    let here = client(0, A2aTestBinding::JsonRpc);
    let mut first = here.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let params = json!({"id": first.first_task().await["id"]});
    first.read_until("begun").await;
    let there = client(1, A2aTestBinding::Rest);
    let state = async || there.call("GetTask", &params).await.unwrap()["status"]["state"].clone();
    assert_eq!(state().await, "TASK_STATE_WORKING");
    let mut second = there.open_stream("SubscribeToTask", &params).await;
    second.first_task().await;
    second.read_until("begun").await;
    for method in ["GetTask", "SubscribeToTask", "CancelTask"] {
        for node in [0, 1] {
            let of_aide = client(node, A2aTestBinding::JsonRpc).with_agent("aide");
            assert_eq!(of_aide.error(method, &params).await, "TASK_NOT_FOUND", "{method} at the node {node}");
        }
    }
    assert_eq!(state().await, "TASK_STATE_WORKING", "a cancel at the path of another agent has stopped it");
    let cancelled = there.call("CancelTask", &params).await.unwrap();
    assert_eq!(cancelled["status"]["state"], "TASK_STATE_CANCELED", "{cancelled:#}");
    cluster.model.request_at(0).wait_client_left().await;
    for stream in [first, second] {
        assert_eq!(states_of(&stream.read_to_end().await), ["TASK_STATE_CANCELED"]);
    }
    assert_eq!(here.call("GetTask", &params).await.unwrap()["status"], cancelled["status"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_a_run_are_followed_at_any_node_with_the_same_numbers() {
    let Some(cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    let run = cluster.complete_run(0, "s").await;
    let here = cluster.api(0).run_events(&run, 0).await.read_to_end().await;
    let there = cluster.api(1).run_events(&run, 0).await.read_to_end().await;
    assert_eq!(here.receipt(), there.receipt());
    cluster.model.script(gated_response("go"));
    let live = cluster.api(0).send_message("s", "wait").await;
    let followed = cluster.api(1).run_events(&live, 0).await;
    cluster.model.open_gate("go");
    let followed = followed.read_to_end().await;
    assert_eq!(followed.verdict(), "completed");
    followed.assert_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_one_node_issues_are_accepted_by_all() {
    let Some(cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    let token = |node: usize| std::fs::read_to_string(cluster.homes[node].data_dir().join("token")).unwrap();
    assert_eq!(token(0), token(1), "the admin token");
    let made = cluster.api(0).post("/api/tokens", &json!({"name": "ann", "scope": "write"})).await.expect_status(201);
    let ann = cluster.api(1).with_token(made["token"].as_str().unwrap());
    poll_until("the other node knows the token", async || (ann.get("/api/me").await.status == 200).then_some(())).await;
    let link = cluster.api(0).post("/api/sign-in-link", &json!({})).await.expect_status(200);
    let code = link["path"].as_str().unwrap().strip_prefix("/sign-in/").unwrap();
    let anybody = cluster.api(1).with_token("");
    anybody.post("/api/sign-in", &json!({"code": code})).await.expect_status(200);
    assert_problem(
        &cluster.api(0).with_token("").post("/api/sign-in", &json!({"code": code})).await,
        401,
        "unauthorized",
    );
    cluster.api(1).delete("/api/tokens/ann").await.expect_status(204);
    let other = cluster.api(0).with_token(made["token"].as_str().unwrap());
    poll_until("no node accepts it any more", async || (other.get("/api/me").await.status == 401).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_is_listed_and_decided_at_any_node() {
    let Some(cluster) = TestCluster::start_with(
        2,
        Bus::Nats,
        "approvals = { shell = \"ask\" }\n[approvals]\nby_own_principal = true\n",
    )
    .await
    else {
        return;
    };
    cluster.model.script(shell_call("echo done"));
    cluster.model.script(ScriptedResponse::text("an answer"));
    let run = cluster.api(0).send_message("s", "work").await;
    let id = poll_until("the other node lists the approval", async || {
        let listed = cluster.api(1).get("/api/approvals").await.expect_status(200);
        listed["items"][0]["id"].as_str().map(str::to_owned)
    })
    .await;
    let path = format!("/api/approvals/{id}");
    cluster.api(1).post(&path, &json!({"decision": "allow"})).await.expect_status(200);
    assert_eq!(cluster.api(1).run_events(&run, 0).await.read_to_end().await.verdict(), "completed");
    assert_problem(&cluster.api(1).post("/api/approvals/none", &json!({"decision": "allow"})).await, 404, "not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_client_follows_a_session_of_another_node() {
    let Some(cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    cluster.complete_run(0, "s").await;
    assert_eq!(cluster.owner("s"), "node-0");
    let token = std::fs::read_to_string(cluster.homes[1].data_dir().join("token")).unwrap();
    let url = format!("http://{}", cluster.nodes[1].address());
    let mut client = WsTestClient::connect_to(&url, token.trim()).await;
    client.call("sessions.messages.subscribe", json!({"key": "s"})).await;
    cluster.complete_run(0, "s").await;
    let answer = client.wait_event("session.message").await["payload"]["message"].clone();
    assert_eq!(answer["role"], "assistant", "{answer}");
    let added = client.call("chat.inject", json!({"sessionKey": "s", "message": "by the way"})).await;
    let message = client.wait_event("session.message").await["payload"].clone();
    assert_eq!(message["runId"], added["runId"], "{message}");
    assert_eq!(message["message"]["content"][0]["text"], "by the way", "{message}");
    cluster.model.script(ScriptedResponse::text("a summary"));
    let compacted = client.call("sessions.compact", json!({"key": "s"})).await;
    assert_fields(&compacted, &json!({"ok": true, "compacted": true}));
    assert_eq!(cluster.owner("s"), "node-0", "it stays where it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daily_limit_counts_what_other_nodes_spend() {
    let Some(cluster) = TestCluster::start_with(2, Bus::Nats, "daily_tokens = 1\n").await else { return };
    cluster.complete_run(0, "s").await;
    poll_until("the other node refuses runs of the agent", async || {
        let answer = cluster.api(1).post_run("t", &json!({"text": "hello"})).await;
        (answer.problem_code() == Some("spend_limit")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_session_of_one_node_is_private_at_all() {
    let Some(cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    let mut tokens = Vec::new();
    for name in ["ann", "bob"] {
        let made =
            cluster.api(0).post("/api/tokens", &json!({"name": name, "scope": "write"})).await.expect_status(201);
        let token = made["token"].as_str().unwrap().to_owned();
        for node in 0..2 {
            let api = cluster.api(node).with_token(&token);
            poll_until("the node knows the token", async || (api.get("/api/me").await.status == 200).then_some(()))
                .await;
        }
        tokens.push(token);
    }
    let (ann, bob) = (cluster.api(1).with_token(&tokens[0]), cluster.api(0).with_token(&tokens[1]));
    cluster.model.script(ScriptedResponse::text("an answer"));
    let run = ann.send_message("s", "a secret").await;
    assert_eq!(ann.run_events(&run, 0).await.read_to_end().await.verdict(), "completed");
    for path in ["/api/sessions/s", "/api/sessions/s/history", "/api/sessions/s/export", "/api/sessions/s/memory"] {
        assert_eq!(bob.get(path).await.status, 404, "{path}");
    }
    assert_problem(&bob.get(&format!("/api/runs/{run}")).await, 404, "run_not_found");
    assert_problem(&bob.post_run("s", &json!({"text": "hello"})).await, 403, "forbidden");
    // The same key, deleted and created again by somebody else at the other node.
    ann.delete("/api/sessions/s").await.expect_status(204);
    cluster.model.script(ScriptedResponse::text("an answer"));
    let run = bob.send_message("s", "another secret").await;
    assert_eq!(bob.run_events(&run, 0).await.read_to_end().await.verdict(), "completed");
    assert_eq!(ann.get("/api/sessions/s/history").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_start_of_a_node_leaves_the_commands_of_others_alone() {
    let Some(mut cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    let marker = ProcessMarker::new();
    let run = cluster.start_command(0, "s", &marker).await;
    cluster.nodes[1].kill9().await;
    cluster.nodes[1] = cluster.homes[1].start(quell_exe()).await;
    assert_eq!(cluster.api(1).run_view(&run).await["state"], "running");
    marker.wait_for_count(1).await;
    cluster.api(1).post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
    marker.wait_gone(WAIT_TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_again_at_once_has_its_sessions_back() {
    let Some(mut cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    let marker = ProcessMarker::new();
    let run = cluster.start_command(0, "s", &marker).await;
    cluster.nodes[0].kill9().await;
    cluster.nodes[0] = cluster.homes[0].start(quell_exe()).await;
    let read = cluster.api(1).run_events(&run, 0).await.read_to_end().await;
    assert_eq!((read.verdict(), read.of_kind("run.ended").len()), ("aborted", 1));
    cluster.complete_run(1, "s").await;
    assert_eq!(cluster.owner("s"), "node-0", "its workdir is there");
}

impl TestCluster {
    /// Starts a run on the first node whose answer goes on when the gate `go` is opened.
    async fn start_gated_run(&self) -> String {
        self.model.script(gated_response("go"));
        let run = self.api(0).send_message("s", "wait").await;
        self.api(0).run_events(&run, 0).await.wait_for("text.delta").await;
        run
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_hears_of_the_agents_and_sessions_of_all_nodes() {
    let Some(cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    let run = cluster.start_gated_run().await;
    let mut client = GatewayTestClient::connect(&cluster.nodes[1]).await;
    client.call("sessions.subscribe", json!({})).await;
    // The agent has a run on this node, too, which ends. It is at work on the other one all the time.
    cluster.complete_run(1, "t").await;
    let agent_is = |status: &'static str, runs: Value| {
        move |frame: &Value| {
            let payload = &frame["payload"];
            frame["event"] == "agents.changed" && payload["computeStatus"] == status && payload["activeRuns"] == runs
        }
    };
    client.wait_for_frame(agent_is("waiting_llm", json!([run]))).await;
    cluster.model.script(ScriptedResponse::text("an answer"));
    let waiting = cluster.api(0).send_message("s", "another message").await;
    let session_is_busy = |frame: &Value| {
        let payload = &frame["payload"];
        frame["event"] == "sessions.changed"
            && payload["key"] == "s"
            && payload["activeRunIds"] == json!([run, waiting])
    };
    client.wait_for_frame(session_is_busy).await;
    cluster.model.open_gate("go");
    client.wait_for_frame(agent_is("idle", json!([]))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_a_run_of_another_node_takes_in_is_final_for_its_client() {
    let Some(cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    let run = cluster.start_gated_run().await;
    let mut client = GatewayTestClient::connect(&cluster.nodes[1]).await;
    let message = json!({"sessionKey": "s", "message": "more", "idempotencyKey": "k", "queueMode": "steer"});
    let request = client.send_request("chat.send", message).await;
    client.wait_for_frame(|frame| frame["event"] == "chat" && frame["payload"]["runId"] == "k").await;
    let (_, answer) = client.wait_for_frame(|frame| frame["id"] == request.as_str()).await;
    assert_fields(&answer["payload"], &json!({"status": "steered", "runId": run, "messageId": "k"}));
    cluster.model.script(ScriptedResponse::text("an answer"));
    cluster.model.open_gate("go");
    assert_eq!(cluster.api(1).run_events(&run, 0).await.read_to_end().await.verdict(), "completed");
}
