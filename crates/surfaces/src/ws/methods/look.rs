//! Everything that only looks, but for sessions.

use std::collections::BTreeSet;

use quell_engine::store::RunFilter;
use quell_protocol::api::Scope;
use quell_protocol::{AgentId, RunId, SessionKey};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::Refusal;
use super::super::shapes;
use super::{Answer, Call, commands, params};

/// Rows of a list when the client does not say.
const PAGE: usize = 100;

/// Methods whose answer needs no waiting.
pub(super) fn plain(call: &Call<'_>, method: &str, value: Value) -> Answer {
    let engine = call.door.engine();
    let needs = |scope| call.peer.needs(scope);
    match method {
        "health" => Ok(json!({"ok": engine.is_open(), "ts": shapes::now_ms(engine.clock())})),
        "status" => {
            needs(Scope::Read)?;
            let runs = engine.active_runs();
            Ok(json!({
                "version": env!("CARGO_PKG_VERSION"),
                "open": engine.is_open(),
                "activeRuns": runs.len(),
                "processes": runs.iter().map(|run| run.processes).sum::<u32>(),
                "backgroundProcesses": engine.living_processes(),
                "connections": call.door.stream_count(),
            }))
        }
        "agents.list" => {
            needs(Scope::Read)?;
            Ok(agents(call))
        }
        "models.list" => {
            needs(Scope::Read)?;
            models(call, value)
        }
        "commands.list" => {
            needs(Scope::Read)?;
            commands::list(call, value)
        }
        // Quell has no questions: the true answer is an empty list.
        "question.list" => Ok(json!({"questions": []})),
        other => Err(Refusal::invalid(format!("unknown method: {other}"))),
    }
}

fn agents(call: &Call<'_>) -> Value {
    let agents = call.door.engine().agents();
    let default = agents.iter().find(|agent| agent.default).map(|agent| agent.id.clone());
    let rows: Vec<Value> = agents
        .iter()
        .map(|agent| {
            json!({
                "id": agent.id, "name": agent.id, "model": agent.model, "parent": agent.parent, "children": agent.children,
                "role": agent.role, "computeStatus": agent.compute_status, "activeRuns": agent.active_runs,
            })
        })
        .collect();
    json!({"defaultId": default, "mainKey": "main", "scope": "per-sender", "agents": rows})
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListModels {
    agent_id: Option<AgentId>,
    view: Option<String>,
}

/// The models that agents work with, or one does, each once. None but configured ones are known, whichever `view` is asked for.
fn models(call: &Call<'_>, value: Value) -> Answer {
    let asked: ListModels = params(value)?;
    if let Some(view) = asked.view.as_deref().filter(|view| !matches!(*view, "default" | "configured")) {
        return Err(Refusal::invalid(format!("view is {view:?}; it may be default or configured")));
    }
    let agents = call.door.engine().agents();
    if let Some(id) = asked.agent_id.as_ref().filter(|id| agents.iter().all(|agent| agent.id != **id)) {
        return Err(no_agent(id));
    }
    let wanted = agents.iter().filter(|agent| asked.agent_id.as_ref().is_none_or(|id| *id == agent.id));
    let models: BTreeSet<&str> = wanted.map(|agent| agent.model.as_str()).collect();
    Ok(json!({"models": models.into_iter().map(shapes::model).collect::<Vec<_>>()}))
}

/// The agent is not one of this daemon's.
pub(super) fn no_agent(id: &AgentId) -> Refusal {
    Refusal::invalid(format!("there is no agent {id:?}")).with_details(json!({"code": "UNKNOWN_AGENT_ID"}))
}

pub(super) fn subscribe(call: &Call<'_>) -> Value {
    call.subscriptions.want_sessions();
    json!({"subscribed": true})
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListRuns {
    state: Option<String>,
    session_key: Option<SessionKey>,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(super) fn runs(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let door = call.door.clone();
    async move {
        let asked: ListRuns = params(value)?;
        if let Some(other) = asked.state.as_deref().filter(|state| !matches!(*state, "active" | "all")) {
            return Err(Refusal::invalid(format!("state is {other:?}; it may be active or all")));
        }
        if asked.state.as_deref() == Some("active") {
            let mut runs = door.engine().active_runs();
            runs.retain(|run| asked.session_key.as_ref().is_none_or(|key| *key == run.session_key));
            return Ok(json!({"items": runs}));
        }
        let limit = asked.limit.unwrap_or(PAGE).clamp(1, 1000);
        let filter = RunFilter { session: asked.session_key, principal: None, limit, cursor: asked.cursor };
        Ok(json!(door.engine().runs(filter).await?))
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GetRun {
    run_id: RunId,
}

pub(super) fn run(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let door = call.door.clone();
    async move {
        let asked: GetRun = params(value)?;
        let run = door.engine().run(&asked.run_id).await?;
        run.map(|run| json!(run)).ok_or_else(|| Refusal::invalid(format!("there is no run {:?}", asked.run_id)))
    }
}
