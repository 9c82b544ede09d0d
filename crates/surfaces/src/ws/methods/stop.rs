//! `chat.abort`, `sessions.abort`, `runs.stop`, `stop.all`, the hold.

use quell_engine::dispatch::Stop;
use quell_kernel::Push;
use quell_kernel::registry::{StopAsk, StopScope};
use quell_protocol::{RunId, SessionKey, StopReason};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::Refusal;
use super::{Answer, Call, params};

/// Row A9, word for word.
const MISSING: &str = "missing runId or sessionKey";

fn ask(call: &Call<'_>, force: bool, reason: Option<&str>) -> StopAsk {
    let push = if force { Push::Forced } else { Push::Gentle };
    let reason = reason.map_or(StopReason::User, StopReason::from_text);
    StopAsk { push, reason, surface: call.peer.caller.surface }
}

fn stop(call: &Call<'_>, scope: &StopScope, ask: &StopAsk) -> Stop {
    call.door.engine().stop(&call.peer.caller, scope, ask)
}

fn flag(params: &Value, name: &str) -> bool {
    params.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn reason(params: &Value) -> Option<&str> {
    params.get("reason").or_else(|| params.get("stopReason")).and_then(Value::as_str)
}

/// A malformed id never widens the stop: only an absent `runId` means the session (row A9).
pub(super) fn chat_abort(call: &Call<'_>, params: &Value) -> Answer {
    let key = params.get("sessionKey").and_then(Value::as_str).filter(|key| !key.is_empty());
    let key = key.and_then(|key| SessionKey::parse(key).ok()).ok_or_else(|| Refusal::invalid(MISSING))?;
    let ask = ask(call, flag(params, "force"), reason(params));
    let scope = match params.get("runId") {
        None => StopScope::whole_session(key),
        Some(id) => {
            let id = id.as_str().filter(|id| !id.is_empty()).ok_or_else(|| Refusal::invalid(MISSING))?;
            // A text that cannot be a run id names no run.
            let Ok(id) = RunId::parse(id) else { return Ok(nothing()) };
            StopScope::Run { id, session: Some(key) }
        }
    };
    Ok(answer(&stop(call, &scope, &ask)))
}

fn answer(stop: &Stop) -> Value {
    let mut answer = json!({"ok": true, "aborted": !stop.aborted.is_empty(), "runIds": stop.aborted});
    if !stop.withdrawn.is_empty() {
        let rows: Vec<Value> = stop.withdrawn.iter().map(|(id, text)| json!({"runId": id, "text": text})).collect();
        answer["withdrawn"] = json!(rows);
    }
    answer
}

fn nothing() -> Value {
    json!({"ok": true, "aborted": false, "runIds": []})
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionsAbort {
    key: Option<SessionKey>,
    session_key: Option<SessionKey>,
    run_id: Option<RunId>,
}

/// Here too a malformed `runId` does not mean the session.
pub(super) fn sessions_abort(call: &Call<'_>, value: &Value) -> Answer {
    if value.get("runId").is_some_and(Value::is_null) {
        return Err(Refusal::invalid(MISSING));
    }
    let asked: SessionsAbort = params(value.clone())?;
    let key = asked.key.or(asked.session_key);
    let scope = match (asked.run_id, key) {
        (Some(id), session) => StopScope::Run { id, session },
        (None, Some(key)) => StopScope::whole_session(key),
        (None, None) => return Err(Refusal::invalid("missing key or runId")),
    };
    let stop = stop(call, &scope, &ask(call, flag(value, "force"), reason(value)));
    let status = if stop.aborted.is_empty() { "no-active-run" } else { "aborted" };
    Ok(json!({"ok": true, "abortedRunId": stop.aborted.first(), "runIds": stop.aborted, "status": status}))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunsStop {
    run_id: RunId,
    session_key: Option<SessionKey>,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    wait: bool,
    reason: Option<String>,
}

pub(super) fn runs_stop(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let (door, peer) = (call.door.clone(), call.peer.clone());
    // The stop itself is done here, before anything is waited for.
    let begun = params(value).map(|asked: RunsStop| {
        let scope = StopScope::Run { id: asked.run_id.clone(), session: asked.session_key.clone() };
        (stop(call, &scope, &ask(call, asked.force, asked.reason.as_deref())), asked)
    });
    async move {
        let (stop, asked) = begun?;
        if asked.wait {
            for ticket in &stop.tickets {
                ticket.settled().await;
            }
        }
        let view = door.engine().run(&asked.run_id).await?;
        let view = view.filter(|view| asked.session_key.as_ref().is_none_or(|key| *key == view.session_key));
        let Some(view) = view else {
            return Err(Refusal::invalid(format!("there is no run {:?}", asked.run_id)));
        };
        if !peer.caller.is_admin() && view.principal != peer.caller.principal {
            return Err(Refusal::not_yours(format!("the run {:?} is not yours; an admin can stop it", asked.run_id)));
        }
        let (aborted, ids) = (!stop.aborted.is_empty(), stop.aborted);
        Ok(json!({
            "ok": true, "runId": view.run_id, "aborted": aborted, "runIds": ids, "state": view.state,
            "verdict": view.verdict, "receipt": view.receipt,
        }))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StopAll {
    force: bool,
    hold: bool,
    reason: Option<String>,
}

pub(super) fn all(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let (door, peer) = (call.door.clone(), call.peer.clone());
    let begun = params(value).map(|asked: StopAll| {
        if asked.hold {
            door.engine().hold_now();
        }
        (stop(call, &StopScope::Everything, &ask(call, asked.force, asked.reason.as_deref())), asked)
    });
    async move {
        let (stop, asked) = begun?;
        if asked.hold {
            door.engine().set_hold(&peer.caller, true, asked.reason).await?;
        }
        let held = door.engine().hold().await?.held;
        let mut answer = answer(&stop);
        answer["held"] = json!(held);
        Ok(answer)
    }
}

pub(super) fn hold_get(call: &Call<'_>) -> impl Future<Output = Answer> + use<> {
    let door = call.door.clone();
    async move { Ok(json!(door.engine().hold().await?)) }
}

#[derive(Debug, Deserialize)]
struct HoldSet {
    held: bool,
    reason: Option<String>,
}

pub(super) fn hold_set(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let (door, peer) = (call.door.clone(), call.peer.clone());
    async move {
        let asked: HoldSet = params(value)?;
        Ok(json!(door.engine().set_hold(&peer.caller, asked.held, asked.reason).await?))
    }
}
