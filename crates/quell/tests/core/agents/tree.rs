//! Show and stop the tree of agents.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_tree_shows_every_agent_in_its_place_with_what_it_does() {
    let server = TestServer::start().await;
    create_agent(&server, "b", json!({"parent": "team/writer", "role": "second"})).await;
    create_agent(&server, "a", json!({"parent": "b"})).await;
    create_agent(&server, "alone", json!({})).await;
    let run = start_endless_run(&server, "b", "s").await;
    let tree = server.http.get("/api/agents/tree").await.expect_status(200);
    let node = |id: &str, children: Value| {
        json!({
            "id": id, "model": "scripted/model", "models": ["scripted/model"], "computeStatus": "idle",
            "activeRuns": [], "children": children,
        })
    };
    let with = |mut node: Value, more: Value| {
        node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        node
    };
    let b = with(
        node("b", json!([node("a", json!([]))])),
        json!({"role": "second", "computeStatus": "waiting_llm", "activeRuns": [run]}),
    );
    let writer = with(node("team/writer", json!([b])), json!({"role": "writer"}));
    let main = with(node("main", json!([writer])), json!({"default": true}));
    assert_eq!(tree, json!({"items": [node("alone", json!([])), main]}));
}

/// Four runs of the subtree in every phase, and one of an unrelated agent.
struct AgentTreeFixture {
    server: TestServer,
    waiting: String,
    /// Queued behind `waiting`; belongs to the top agent.
    queued: String,
    /// Waits for the answer of its sub-run.
    processing: String,
    /// Belongs to an agent outside the subtree, in its own session.
    unrelated: String,
}

async fn start_tree() -> AgentTreeFixture {
    let server = TestServer::start().await;
    create_agent(&server, "top", json!({"delegates": ["beside"]})).await;
    create_agent(&server, "low", json!({"parent": "top"})).await;
    create_agent(&server, "beside", json!({})).await;
    let waiting = start_endless_run(&server, "low", "waiting").await;
    let queued = send_to_agent(&server, "top", "waiting", "and then").await;
    let spawn = json!({"agent": "beside", "prompt": "look"});
    let index = server.model.recorded_requests().len();
    server.model.script(ScriptedResponse::tool_call("c1", "spawn_agent", &spawn));
    server.model.script(ScriptedResponse::silent_mid_stream("looks"));
    let processing = send_to_agent(&server, "top", "processing", "go").await;
    server.model.request_at(index + 1).wait_paused().await;
    let unrelated = start_endless_run(&server, "beside", "beside").await;
    AgentTreeFixture { server, waiting, queued, processing, unrelated }
}

async fn run_state(server: &TestServer, run: &str) -> Value {
    server.http.run_view(run).await["state"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_the_tree_stops_every_run_of_the_agent_and_of_all_below_it() {
    let AgentTreeFixture { server, waiting, queued, processing, unrelated } = start_tree().await;
    let answer = server.http.post("/api/agent/top/abort?scope=tree", &json!({})).await.expect_status(200);
    assert_eq!((&answer["ok"], &answer["agentId"], &answer["aborted"]), (&json!(true), &json!("top"), &json!(true)));
    let stopped: Vec<&str> = answer["runIds"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    assert_eq!(stopped.len(), 4, "the sub-run of the unrelated agent counts too: {stopped:?}");
    for run in [&waiting, &queued, &processing] {
        assert!(stopped.contains(&run.as_str()));
        assert_eq!(run_state(&server, run).await, "ended", "the stop answered before the run was over");
    }
    assert_eq!(run_state(&server, &unrelated).await, "running");
    let again = server.http.post("/api/agent/top/abort?scope=tree", &json!({})).await.expect_status(200);
    assert_eq!(again, json!({"ok": true, "agentId": "top", "aborted": false, "runIds": [], "reason": "idle"}));
    // The agents still exist after the stop.
    assert_eq!(run_agent(&server, "low", "waiting", "go on", "here").await["output"], "here");
    let _ = server.http.post("/api/agent/beside/abort", &json!({})).await.expect_status(200);
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_the_tree_stops_only_what_the_caller_may_stop() {
    let AgentTreeFixture { server, waiting, queued, .. } = start_tree().await;
    let bob = server.api_with_new_token("bob", "write").await;
    let answer = bob.post("/api/agent/top/abort?scope=tree", &json!({})).await.expect_status(200);
    assert_eq!(answer["aborted"], false);
    let body = json!({"text": "mine", "agent": "low"});
    let _ = server.http.put("/api/sessions/waiting/sharing", &json!({"shared": true})).await.expect_status(200);
    let own = bob.post_run("waiting", &body).await.expect_status(202)["runId"].clone();
    let answer = bob.post("/api/agent/top/abort?scope=tree", &json!({})).await.expect_status(200);
    assert_eq!(answer["runIds"], json!([own]));
    assert_eq!(run_state(&server, &waiting).await, "running");
    assert_eq!(run_state(&server, &queued).await, "queued");
    let reader = server.api_with_new_token("reader", "read").await;
    assert_problem(&reader.post("/api/agent/top/abort?scope=tree", &json!({})).await, 403, "forbidden");
    assert_problem(&server.http.post("/api/agent/nobody/abort?scope=tree", &json!({})).await, 404, "agent_not_found");
    assert_problem(&server.http.post("/api/agent/top/abort?scope=forest", &json!({})).await, 400, "invalid_request");
    let _ = server.http.post("/api/stop?wait=1", &json!({})).await.expect_status(200);
}

/// Without `scope=tree`, the abort of model calls (row B4) and `?scope=run` affect the one agent only, not its
/// descendants.
#[tokio::test(flavor = "multi_thread")]
async fn the_other_scopes_stay_with_the_one_agent() {
    let AgentTreeFixture { server, waiting, queued, processing, .. } = start_tree().await;
    let calls = server.http.post("/api/agent/top/abort", &json!({})).await.expect_status(200);
    assert_eq!((&calls["aborted"], &calls["reason"]), (&json!(false), &json!("not_waiting_llm")));
    let runs = server.http.post("/api/agent/top/abort?scope=run", &json!({})).await.expect_status(200);
    assert_eq!(runs["aborted"], true);
    assert_eq!(run_state(&server, &queued).await, "ended");
    assert_eq!(run_state(&server, &processing).await, "ended");
    assert_eq!(run_state(&server, &waiting).await, "running", "a run of the descendant was stopped");
    let _ = server.http.post("/api/stop?wait=1", &json!({})).await.expect_status(200);
}
