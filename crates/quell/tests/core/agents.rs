//! Agents created and deleted at run time, over HTTP and WebSocket.

mod create;
mod delete;
mod tree;

use std::collections::BTreeSet;

use futures_util::future::join_all;
use quell_engine::engine::AgentRemoval;

use crate::prelude::*;

/// The body of a request that creates an agent on the scripted model, with more fields.
fn agent_body(id: &str, more: &Value) -> Value {
    let mut body = json!({"id": id, "model": "scripted/model"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn create_agent(server: &TestServer, id: &str, more: Value) -> Value {
    server.http.post("/api/agents", &agent_body(id, &more)).await.expect_status(201)
}

async fn agent_ids(api: &TestApiClient) -> Vec<String> {
    let list = api.get("/api/agents").await.expect_status(200);
    list["items"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

/// Sends a text to an agent and returns the run id.
async fn send_to_agent(server: &TestServer, agent: &str, session: &str, text: &str) -> String {
    server.http.start_run(session, &json!({"text": text, "agent": agent})).await
}

/// Sends a text to an agent, whose model answers with this text; returns the view of the ended run.
async fn run_agent(server: &TestServer, agent: &str, session: &str, text: &str, answer: &str) -> Value {
    server.model.script(ScriptedResponse::text(answer));
    let run = send_to_agent(server, agent, session, text).await;
    server.wait_ended(&run).await
}

/// Starts a run whose model streams one word and then falls silent. Waits until the run shows the word.
async fn start_endless_run(server: &TestServer, agent: &str, session: &str) -> String {
    let index = server.model.recorded_requests().len();
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let run = send_to_agent(server, agent, session, "go on for ever").await;
    server.model.request_at(index).wait_paused().await;
    server.http.run_events(&run, 0).await.wait_for("text.delta").await;
    run
}

fn agent_path(id: &str) -> String {
    format!("/api/agents/{}", percent_encode(id))
}
