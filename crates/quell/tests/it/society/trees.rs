//! The tree of agents, drawn and stopped.

use quell_testkit::Behaviour;
use serde_json::{Value, json};

use super::{endless, make, send_to};
use crate::doors::{House, assert_problem};

#[tokio::test(flavor = "multi_thread")]
async fn the_tree_shows_every_agent_in_its_place_with_what_it_does() {
    let house = House::open().await;
    make(&house, "b", json!({"parent": "team/writer", "role": "second"})).await;
    make(&house, "a", json!({"parent": "b"})).await;
    make(&house, "alone", json!({})).await;
    let run = endless(&house, "b", "s").await;
    let tree = house.http.get("/api/agents/tree").await.expect_status(200);
    let node = |id: &str, children: Value| json!({"id": id, "model": "scripted/model", "computeStatus": "idle", "activeRuns": [], "children": children});
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

/// Four runs of the subtree in every phase, one of an agent beside it.
struct Scene {
    house: House,
    /// Its agent waits for the model.
    waiting: String,
    /// Queued behind it, of the agent at the top.
    queued: String,
    /// Waits for the answer of its sub-run.
    processing: String,
    /// Of an agent that is not below the top, in a session of its own.
    beside: String,
}

async fn scene() -> Scene {
    let house = House::open().await;
    make(&house, "top", json!({"delegates": ["beside"]})).await;
    make(&house, "low", json!({"parent": "top"})).await;
    make(&house, "beside", json!({})).await;
    let waiting = endless(&house, "low", "waiting").await;
    let queued = send_to(&house, "top", "waiting", "and then").await;
    let spawn = json!({"agent": "beside", "prompt": "look"});
    let index = house.model.seen().len();
    house.model.script(Behaviour::tool_call("c1", "spawn_agent", &spawn)).script(Behaviour::silent_mid_stream("looks"));
    let processing = send_to(&house, "top", "processing", "go").await;
    house.model.request(index + 1).resting().await;
    let beside = endless(&house, "beside", "beside").await;
    Scene { house, waiting, queued, processing, beside }
}

async fn state(house: &House, run: &str) -> Value {
    house.http.get(&format!("/api/runs/{run}")).await.expect_status(200)["state"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_the_tree_stops_every_run_of_the_agent_and_of_all_below_it() {
    let Scene { house, waiting, queued, processing, beside } = scene().await;
    let answer = house.http.post("/api/agent/top/abort?scope=tree", &json!({})).await.expect_status(200);
    assert_eq!((&answer["ok"], &answer["agentId"], &answer["aborted"]), (&json!(true), &json!("top"), &json!(true)));
    let stopped: Vec<&str> = answer["runIds"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    assert_eq!(stopped.len(), 4, "with the sub-run in an agent beside: {stopped:?}");
    for run in [&waiting, &queued, &processing] {
        assert!(stopped.contains(&run.as_str()));
        assert_eq!(state(&house, run).await, "ended", "it answers when they are over");
    }
    assert_eq!(state(&house, &beside).await, "running");
    let again = house.http.post("/api/agent/top/abort?scope=tree", &json!({})).await.expect_status(200);
    assert_eq!(again, json!({"ok": true, "agentId": "top", "aborted": false, "runIds": [], "reason": "idle"}));
    // It is a stop, no dismissal.
    house.model.script(Behaviour::text("here"));
    let next = send_to(&house, "low", "waiting", "go on").await;
    assert_eq!(house.ended(&next).await["output"], "here");
    let _ = house.http.post("/api/agent/beside/abort", &json!({})).await.expect_status(200);
    house.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_the_tree_stops_only_what_the_caller_may_stop() {
    let Scene { house, waiting, queued, .. } = scene().await;
    let bob = house.api("bob", "write").await;
    let answer = bob.post("/api/agent/top/abort?scope=tree", &json!({})).await.expect_status(200);
    assert_eq!(answer["aborted"], false);
    let body = json!({"text": "mine", "agent": "low"});
    let own = bob.post("/api/sessions/waiting/runs", &body).await.expect_status(202)["runId"].clone();
    let answer = bob.post("/api/agent/top/abort?scope=tree", &json!({})).await.expect_status(200);
    assert_eq!(answer["runIds"], json!([own]));
    assert_eq!((state(&house, &waiting).await, state(&house, &queued).await), (json!("running"), json!("queued")));
    let reader = house.api("reader", "read").await;
    assert_problem(&reader.post("/api/agent/top/abort?scope=tree", &json!({})).await, 403, "forbidden");
    assert_problem(&house.http.post("/api/agent/nobody/abort?scope=tree", &json!({})).await, 404, "agent_not_found");
    assert_problem(&house.http.post("/api/agent/top/abort?scope=forest", &json!({})).await, 400, "invalid_request");
    let _ = house.http.post("/api/stop?wait=1", &json!({})).await.expect_status(200);
}

/// The rows B4 and `?scope=run` stay what they are: one agent, not those below it.
#[tokio::test(flavor = "multi_thread")]
async fn the_other_scopes_stay_with_the_one_agent() {
    let Scene { house, waiting, queued, processing, .. } = scene().await;
    let calls = house.http.post("/api/agent/top/abort", &json!({})).await.expect_status(200);
    assert_eq!((&calls["aborted"], &calls["reason"]), (&json!(false), &json!("not_waiting_llm")));
    let runs = house.http.post("/api/agent/top/abort?scope=run", &json!({})).await.expect_status(200);
    assert_eq!(runs["aborted"], true);
    assert_eq!((state(&house, &queued).await, state(&house, &processing).await), (json!("ended"), json!("ended")));
    assert_eq!(state(&house, &waiting).await, "running", "it is the agent below");
    let _ = house.http.post("/api/stop?wait=1", &json!({})).await.expect_status(200);
}
