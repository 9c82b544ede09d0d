//! Methods that stop: `chat.abort`, `sessions.abort`, `runs.stop`, `stop.all`, `hold.*`.

use std::sync::Arc;

use quell_engine::engine::{StopResult, build_stop_answer};
use quell_kernel::registry::{BackgroundPolicy, QueuedPolicy, StopScope};
use quell_protocol::api::{AccessLevel, StopAnswer};
use quell_protocol::{RunId, SessionKey};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::RpcError;
use super::{MethodOutcome, RpcResult, WsClient, parse_params, pending};
use crate::http::stop_request;

/// This text is part of the gateway's interface.
pub(super) const MISSING_TARGET: &str = "missing runId or sessionKey";

fn bool_param(params: &Value, name: &str) -> bool {
    params.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn reason_param(params: &Value) -> Option<&str> {
    params.get("reason").or_else(|| params.get("stopReason")).and_then(Value::as_str)
}

/// The answer to a stop, which has been carried out on this node: at once if no other one is concerned.
fn stop_outcome(mut stop: StopResult, build: impl FnOnce(StopAnswer) -> Value + Send + 'static) -> MethodOutcome {
    if stop.is_carried_out() {
        return MethodOutcome::Answered(build(build_stop_answer(&stop)));
    }
    pending(async move {
        stop.wait_carried_out().await;
        Ok(build(build_stop_answer(&stop)))
    })
}

/// `chat.abort`: a malformed id never widens a stop. Only an absent `runId` stops the session (row A9 of
/// docs/design/requirements.md).
pub(super) fn chat_abort(client: &WsClient, params: &Value) -> Result<MethodOutcome, RpcError> {
    let key = params.get("sessionKey").and_then(Value::as_str).filter(|key| !key.is_empty());
    let key = key.and_then(|key| SessionKey::parse(key).ok()).ok_or_else(|| RpcError::invalid(MISSING_TARGET))?;
    let caller = &client.peer.caller;
    let request = stop_request(caller, bool_param(params, "force"), reason_param(params));
    let scope = match params.get("runId") {
        None => StopScope::whole_session(key),
        Some(id) => {
            let id = id.as_str().filter(|id| !id.is_empty()).ok_or_else(|| RpcError::invalid(MISSING_TARGET))?;
            // A text that is not a valid run id is answered as an unknown run.
            let Ok(id) = RunId::parse(id) else { return Ok(MethodOutcome::Answered(nothing_stopped_payload())) };
            StopScope::Run { id, session: Some(key), agent: None }
        }
    };
    Ok(stop_outcome(client.engine().stop(caller, &scope, &request), stop_payload))
}

/// The answer that HTTP gives, with `ok` added.
fn full_stop_payload(stop: StopAnswer) -> Value {
    let mut answer = json!(stop);
    answer["ok"] = json!(true);
    answer
}

/// The answer of the gateway's own methods: without `ending`, which its clients do not know, and without an empty
/// `withdrawn`.
pub(super) fn stop_payload(stop: StopAnswer) -> Value {
    let has_texts = !stop.withdrawn.is_empty();
    let mut answer = full_stop_payload(stop);
    if let Some(fields) = answer.as_object_mut() {
        fields.retain(|name, _| name != "ending" && (has_texts || name != "withdrawn"));
    }
    answer
}

fn nothing_stopped_payload() -> Value {
    json!({"ok": true, "aborted": false, "runIds": []})
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionsAbortParams {
    key: Option<SessionKey>,
    session_key: Option<SessionKey>,
    run_id: Option<RunId>,
    clear_queued: Option<bool>,
}

/// `sessions.abort`: a malformed `runId` does not stop the session here, either.
pub(super) fn sessions_abort(client: &WsClient, value: &Value) -> Result<MethodOutcome, RpcError> {
    if value.get("runId").is_some_and(Value::is_null) {
        return Err(RpcError::invalid(MISSING_TARGET));
    }
    let params: SessionsAbortParams = parse_params(value.clone())?;
    let key = params.key.or(params.session_key);
    let scope = match (params.run_id, key) {
        (Some(id), session) => StopScope::Run { id, session, agent: None },
        (None, Some(key)) if params.clear_queued == Some(false) => {
            StopScope::Session { key, queued: QueuedPolicy::Keep, background: BackgroundPolicy::Stop }
        }
        (None, Some(key)) => StopScope::whole_session(key),
        (None, None) => return Err(RpcError::invalid("missing key or runId")),
    };
    let caller = &client.peer.caller;
    let request = stop_request(caller, bool_param(value, "force"), reason_param(value));
    Ok(stop_outcome(client.engine().stop(caller, &scope, &request), |stop| {
        let first = stop.run_ids.first().cloned();
        let status = if stop.aborted { "aborted" } else { "no-active-run" };
        let mut answer = stop_payload(stop);
        answer["abortedRunId"] = json!(first);
        answer["status"] = json!(status);
        answer
    }))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunsStopParams {
    run_id: RunId,
    session_key: Option<SessionKey>,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    wait: bool,
    reason: Option<String>,
}

pub(super) fn runs_stop(client: Arc<WsClient>, value: Value) -> impl Future<Output = RpcResult> {
    // The stop is carried out here, before the future is polled.
    let started = parse_params(value).map(|params: RunsStopParams| {
        let scope = StopScope::Run { id: params.run_id.clone(), session: params.session_key.clone(), agent: None };
        let caller = &client.peer.caller;
        let request = stop_request(caller, params.force, params.reason.as_deref());
        (client.engine().stop(caller, &scope, &request), params)
    });
    async move {
        let (mut stop, params) = started?;
        if params.wait {
            stop.wait_settled_everywhere().await;
        } else {
            stop.wait_carried_out().await;
        }
        let view = client.engine().find_run(&params.run_id).await?;
        let view = view.filter(|view| params.session_key.as_ref().is_none_or(|key| *key == view.session_key));
        let Some(view) = view else {
            return Err(RpcError::invalid(format!("there is no run {:?}", params.run_id)));
        };
        let caller = &client.peer.caller;
        if !caller.may_stop_all() && view.principal != caller.principal {
            return Err(RpcError::not_owner(format!("the run {:?} is not yours; an admin can stop it", params.run_id)));
        }
        let mut answer = full_stop_payload(build_stop_answer(&stop));
        answer["runId"] = json!(view.run_id);
        answer["state"] = json!(view.state);
        answer["verdict"] = json!(view.verdict);
        answer["receipt"] = json!(view.receipt);
        Ok(answer)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StopAllParams {
    force: bool,
    hold: bool,
    reason: Option<String>,
}

pub(super) fn stop_all(client: Arc<WsClient>, value: Value) -> impl Future<Output = RpcResult> {
    let started = parse_params(value).and_then(|params: StopAllParams| {
        if params.hold {
            client.peer.require_scope(AccessLevel::Admin)?;
            client.engine().hold_now();
        }
        let caller = &client.peer.caller;
        let request = stop_request(caller, params.force, params.reason.as_deref());
        Ok((client.engine().stop(caller, &StopScope::Everything, &request), params))
    });
    async move {
        let (mut stop, params) = started?;
        let (engine, caller) = (client.engine(), &client.peer.caller);
        let unstored = if params.hold { engine.set_hold(caller, true, params.reason).await.err() } else { None };
        stop.wait_carried_out().await;
        let mut answer = full_stop_payload(build_stop_answer(&stop));
        answer["held"] = json!(engine.is_held());
        if let Some(error) = unstored {
            answer["holdProblem"] = json!(error.to_string());
        }
        Ok(answer)
    }
}

pub(super) async fn hold_get(client: Arc<WsClient>) -> RpcResult {
    Ok(json!(client.engine().hold().await?))
}

#[derive(Debug, Deserialize)]
struct HoldSetParams {
    held: bool,
    reason: Option<String>,
}

pub(super) async fn hold_set(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: HoldSetParams = parse_params(value)?;
    Ok(json!(client.engine().set_hold(&client.peer.caller, params.held, params.reason).await?))
}
