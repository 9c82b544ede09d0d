//! Everything that only looks, and the ends of sessions.

use quell_engine::dispatch::SessionError;
use quell_engine::store::{RunFilter, SessionFilter};
use quell_kernel::Push;
use quell_kernel::registry::StopAsk;
use quell_protocol::api::{RunView, Scope};
use quell_protocol::{RunId, SessionKey, StopReason};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::Refusal;
use super::super::shapes;
use super::{Answer, Call, params};

/// Rows of a list when the client does not say.
const PAGE: usize = 100;

/// Methods whose answer needs no waiting.
pub(super) fn plain(call: &Call<'_>, method: &str, _params: &Value) -> Answer {
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
            let models: Vec<Value> =
                engine.agents().iter().map(|agent| shapes::model(&agent.model, &agent.id)).collect();
            Ok(json!({"models": models}))
        }
        "commands.list" => {
            needs(Scope::Read)?;
            let stop = json!({"name": "stop", "description": "Stop this session's runs", "textAliases": ["/stop"], "scope": "text"});
            Ok(json!({"commands": [stop]}))
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

pub(super) fn subscribe(call: &Call<'_>) -> Value {
    call.subscriptions.want_sessions();
    json!({"subscribed": true})
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Key {
    key: Option<SessionKey>,
    session_key: Option<SessionKey>,
}

fn key(value: Value) -> Result<SessionKey, Refusal> {
    let asked: Key = params(value)?;
    asked.key.or(asked.session_key).ok_or_else(|| Refusal::invalid("missing key"))
}

pub(super) fn subscribe_messages(call: &Call<'_>, value: &Value) -> Answer {
    let key = key(value.clone())?;
    call.subscriptions.want_chat(key.clone(), true);
    Ok(json!({"subscribed": true, "key": key}))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListSessions {
    search: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(super) fn sessions(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let door = call.door.clone();
    async move {
        let asked: ListSessions = params(value)?;
        let limit = asked.limit.unwrap_or(PAGE).clamp(1, 1000);
        let filter = SessionFilter { search: asked.search, limit, cursor: asked.cursor };
        let list = door.engine().sessions(filter).await?;
        let mut rows = Vec::with_capacity(list.items.len());
        for row in &list.items {
            rows.push(shapes::session(row, last_run(&door, &row.key).await?.as_ref()));
        }
        let agents = door.engine().agents();
        let model = agents.iter().find(|agent| agent.default).map_or("", |agent| agent.model.as_str());
        Ok(json!({
            "ts": shapes::now_ms(door.engine().clock()), "path": "", "count": rows.len(),
            "defaults": shapes::defaults(model), "sessions": rows, "nextCursor": list.next_cursor,
        }))
    }
}

pub(super) async fn last_run(door: &crate::door::Door, key: &SessionKey) -> Result<Option<RunView>, Refusal> {
    let filter = RunFilter { session: Some(key.clone()), principal: None, limit: 1, cursor: None };
    Ok(door.engine().runs(filter).await?.items.into_iter().next())
}

pub(super) fn session(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let door = call.door.clone();
    async move {
        let key = key(value)?;
        let row = door.engine().session(&key).await?;
        let last = last_run(&door, &key).await?;
        let session = row.map(|row| shapes::session(&row, last.as_ref()));
        Ok(json!({"ok": session.is_some(), "key": key, "session": session}))
    }
}

impl From<SessionError> for Refusal {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::SomebodyElses(_) => Self::not_yours(error.to_string()),
            SessionError::Store(error) => error.into(),
        }
    }
}

fn end(call: &Call<'_>) -> StopAsk {
    StopAsk { push: Push::Gentle, reason: StopReason::User, surface: call.peer.caller.surface }
}

pub(super) fn reset(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let (door, peer, ask) = (call.door.clone(), call.peer.clone(), end(call));
    async move {
        let key = key(value)?;
        let done = door.engine().reset_session(&peer.caller, &key, &ask).await?;
        Ok(json!({"ok": done, "key": key, "reset": done}))
    }
}

pub(super) fn delete(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let (door, peer, ask) = (call.door.clone(), call.peer.clone(), end(call));
    async move {
        let key = key(value)?;
        let done = door.engine().delete_session(&peer.caller, &key, &ask).await?;
        Ok(json!({"ok": true, "key": key, "deleted": done, "archived": []}))
    }
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
