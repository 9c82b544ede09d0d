//! Agents that come and go at run time, as people and programs see it through the doors.

mod deleting;
mod making;
mod trees;

use quell_testkit::Behaviour;
use quell_testkit::daemon::Api;
use serde_json::{Value, json};

use crate::doors::{House, escape};

/// An agent on the scripted model, with more said of it.
fn agent(id: &str, more: &Value) -> Value {
    let mut body = json!({"id": id, "model": "scripted/model"});
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    body
}

async fn make(house: &House, id: &str, more: Value) -> Value {
    house.http.post("/api/agents", &agent(id, &more)).await.expect_status(201)
}

async fn ids(api: &Api) -> Vec<String> {
    let list = api.get("/api/agents").await.expect_status(200);
    list["items"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

/// Sends a text to an agent and answers the id of its run.
async fn send_to(house: &House, agent: &str, session: &str, text: &str) -> String {
    let answer = house.post_run(session, &json!({"text": text, "agent": agent})).await.expect_status(202);
    answer["runId"].as_str().unwrap().to_owned()
}

/// Starts a run of an agent whose model says a word and is silent then; waits until the run shows it.
async fn endless(house: &House, agent: &str, session: &str) -> String {
    let index = house.model.seen().len();
    house.model.script(Behaviour::silent_mid_stream("begun"));
    let run = send_to(house, agent, session, "go on for ever").await;
    house.model.request(index).resting().await;
    house.http.events(&run, 0).await.until("text.delta").await;
    run
}

fn path(id: &str) -> String {
    format!("/api/agents/{}", escape(id))
}
