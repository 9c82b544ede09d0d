//! `chat.abort`, `sessions.abort`, `runs.stop`, `stop.all`, the hold.

use quell_engine::dispatch::{Stop, stop_answer};
use quell_kernel::Push;
use quell_kernel::registry::{Background, Queued, StopAsk, StopScope};
use quell_protocol::api::StopAnswer;
use quell_protocol::{RunId, SessionKey, StopReason};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::Refusal;
use super::{Answer, Call, params};

/// Row A9, word for word.
pub(super) const MISSING: &str = "missing runId or sessionKey";

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
    Ok(answer(stop_answer(stop(call, &scope, &ask))))
}

/// As HTTP answers it, with `ok`.
fn in_full(stop: StopAnswer) -> Value {
    let mut answer = json!(stop);
    answer["ok"] = json!(true);
    answer
}

/// For the gateway's own verbs: what there is none of is absent, and so is what its clients do not know.
pub(super) fn answer(stop: StopAnswer) -> Value {
    let has_texts = !stop.withdrawn.is_empty();
    let mut answer = in_full(stop);
    if let Some(fields) = answer.as_object_mut() {
        fields.retain(|name, _| name != "ending" && (has_texts || name != "withdrawn"));
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
    clear_queued: Option<bool>,
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
        (None, Some(key)) if asked.clear_queued == Some(false) => {
            StopScope::Session { key, queued: Queued::Keep, background: Background::Stop }
        }
        (None, Some(key)) => StopScope::whole_session(key),
        (None, None) => return Err(Refusal::invalid("missing key or runId")),
    };
    let stop = stop(call, &scope, &ask(call, flag(value, "force"), reason(value)));
    let first = stop.aborted.first().cloned();
    let status = if stop.did_something() { "aborted" } else { "no-active-run" };
    let mut answer = answer(stop_answer(stop));
    answer["abortedRunId"] = json!(first);
    answer["status"] = json!(status);
    Ok(answer)
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
            stop.settled().await;
        }
        let view = door.engine().run(&asked.run_id).await?;
        let view = view.filter(|view| asked.session_key.as_ref().is_none_or(|key| *key == view.session_key));
        let Some(view) = view else {
            return Err(Refusal::invalid(format!("there is no run {:?}", asked.run_id)));
        };
        if !peer.caller.is_admin() && view.principal != peer.caller.principal {
            return Err(Refusal::not_yours(format!("the run {:?} is not yours; an admin can stop it", asked.run_id)));
        }
        let mut answer = in_full(stop_answer(stop));
        answer["runId"] = json!(view.run_id);
        answer["state"] = json!(view.state);
        answer["verdict"] = json!(view.verdict);
        answer["receipt"] = json!(view.receipt);
        Ok(answer)
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
        let engine = door.engine();
        let unstored = if asked.hold { engine.set_hold(&peer.caller, true, asked.reason).await.err() } else { None };
        let mut answer = in_full(stop_answer(stop));
        answer["held"] = json!(engine.is_held());
        if let Some(error) = unstored {
            answer["holdProblem"] = json!(error.to_string());
        }
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
