//! `chat.send`, `agent.wait`, `node.event`.

use std::sync::Arc;
use std::time::Duration;

use quell_engine::cell::Progress;
use quell_engine::dispatch::{StopText, Submission, SubmitError, Submitted};
use quell_engine::store::StoreError;
use quell_kernel::queue::Refusal as Refused;
use quell_protocol::api::{OnBusy, SendAnswer};
use quell_protocol::{AgentId, RunId, SessionKey};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::Refusal;
use super::super::outbox::Weight;
use super::super::shapes;
use super::{Answer, Call, commands, params, same_session};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Send {
    session_key: SessionKey,
    message: String,
    idempotency_key: RunId,
    agent_id: Option<AgentId>,
    queue_mode: Option<String>,
    timeout_ms: Option<u64>,
    session_id: Option<String>,
    #[serde(default)]
    suppress_command_interpretation: bool,
}

/// Default timeout of `agent.wait` (research: openclaw.md 1.8).
const WAIT: Duration = Duration::from_secs(30);

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl From<SubmitError> for Refusal {
    fn from(error: SubmitError) -> Self {
        let text = error.to_string();
        match error {
            SubmitError::Conflict(_) => Self::invalid(text).with_details(json!({"reason": "chat-request-conflict"})),
            SubmitError::UnknownAgent(_) | SubmitError::Refused(Refused::NoAgent { .. }) => {
                Self::invalid(text).with_details(json!({"code": "UNKNOWN_AGENT_ID"}))
            }
            SubmitError::Empty
            | SubmitError::TooLong(_)
            | SubmitError::Refused(Refused::Busy | Refused::QueueFull { .. } | Refused::SubRun(_)) => {
                Self::invalid(text)
            }
            SubmitError::Refused(Refused::SpendLimit { opens, .. }) => {
                Self::unavailable(text).with_details(json!({"reason": "spend-limit", "opensAt": opens}))
            }
            SubmitError::Refused(Refused::Held) => Self::unavailable(text).with_details(json!({"reason": "held"})),
            SubmitError::Refused(Refused::ShuttingDown) | SubmitError::Closed => {
                Self::unavailable(text).with_details(json!({"reason": "gateway-restarting"}))
            }
            SubmitError::Store(_) | SubmitError::NotYet(_) => Self::unavailable(text),
        }
    }
}

pub(super) fn send(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let (door, peer, outbox) = (call.door.clone(), call.peer.clone(), Arc::clone(call.outbox));
    async move {
        let send: Send = params(value)?;
        same_session("chat.send", send.session_id.as_deref(), &send.session_key)?;
        let (text, key) = (clean(&send.message)?, send.idempotency_key.clone());
        if !send.suppress_command_interpretation
            && let Some(command) = commands::of(&text)?
        {
            let said = commands::obey(&door, &peer, &send.session_key, command).await?;
            let message = shapes::assistant(&said);
            let payload =
                json!({"runId": key, "sessionKey": send.session_key, "seq": 1, "state": "final", "message": message});
            outbox.event("chat", &payload, Weight::Fact);
            return Ok(json!({"runId": key, "sessionKey": send.session_key, "status": "ok"}));
        }
        let submission = Submission {
            session: send.session_key,
            text,
            agent: send.agent_id,
            idempotency_key: Some(send.idempotency_key),
            on_busy: on_busy(send.queue_mode.as_deref())?,
            timeout: send.timeout_ms.map(Duration::from_millis),
            stop_text: if send.suppress_command_interpretation { StopText::Literal } else { StopText::Recognise },
            errand: None,
        };
        match door.engine().submit(&peer.caller, submission).await? {
            Submitted::New(answer) => {
                if answer.message_id.is_some() {
                    // The active run has it: nothing more will be said under this id.
                    let payload = json!({"runId": key, "sessionKey": answer.session_key, "seq": 1, "state": "final"});
                    outbox.event("chat", &payload, Weight::Fact);
                }
                Ok(sent(&answer, "started"))
            }
            Submitted::Repeat(answer) if answer.state == "ended" => {
                let run = door.engine().run(&answer.run_id).await?;
                Ok(run.map_or_else(|| sent(&answer, "ok"), |run| shapes::outcome(&run)))
            }
            Submitted::Repeat(answer) => Ok(sent(&answer, "in_flight")),
            Submitted::Stopped(stop) => Ok(super::stop::answer(stop)),
        }
    }
}

fn sent(answer: &SendAnswer, status: &str) -> Value {
    let status = if answer.state == "steered" { "steered" } else { status };
    let mut sent =
        json!({"runId": answer.run_id, "sessionKey": answer.session_key, "status": status, "state": answer.state});
    if let Some(id) = &answer.message_id {
        sent["messageId"] = json!(id);
    }
    sent
}

fn on_busy(mode: Option<&str>) -> Result<OnBusy, Refusal> {
    match mode {
        None | Some("followup" | "collect" | "queue") => Ok(OnBusy::Queue),
        Some("steer") => Ok(OnBusy::Steer),
        Some("interrupt") => Ok(OnBusy::Interrupt),
        Some("reject") => Ok(OnBusy::Reject),
        Some(other) => Err(Refusal::invalid(format!(
            "queueMode is {other:?}; it may be steer, followup, collect, interrupt or reject"
        ))),
    }
}

/// NUL is refused, other control characters except line breaks and tabs are dropped.
fn clean(text: &str) -> Result<String, Refusal> {
    if text.contains('\0') {
        return Err(Refusal::invalid("the message holds a NUL character"));
    }
    Ok(text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect())
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wait {
    run_id: RunId,
    timeout_ms: Option<u64>,
}

pub(super) fn wait(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let door = call.door.clone();
    async move {
        let wait: Wait = params(value)?;
        if let Some(cell) = door.engine().live(&wait.run_id) {
            let limit = wait.timeout_ms.map_or(WAIT, Duration::from_millis);
            if tokio::time::timeout(limit, cell.reached(Progress::Ended)).await.is_err() {
                return Ok(json!({"runId": wait.run_id, "status": "pending"}));
            }
            return Ok(shapes::outcome(&cell.view()));
        }
        match door.engine().run(&wait.run_id).await? {
            Some(run) => Ok(shapes::outcome(&run)),
            None => Err(Refusal::invalid(format!("there is no run {:?}", wait.run_id))),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeEvent {
    event: String,
    #[serde(rename = "payloadJSON")]
    payload_json: Option<String>,
    payload: Option<Value>,
}

pub(super) fn node_event(call: &Call<'_>, value: &Value) -> Answer {
    let event: NodeEvent = params(value.clone())?;
    let wanted = match event.event.as_str() {
        "chat.subscribe" => true,
        "chat.unsubscribe" => false,
        // Nodes report much that Quell has no use for.
        _ => return Ok(json!({"ok": true})),
    };
    let payload = match event.payload_json {
        Some(text) => serde_json::from_str(&text)
            .map_err(|error| Refusal::invalid(format!("payloadJSON is not valid JSON: {error}")))?,
        None => event.payload.unwrap_or_default(),
    };
    let key = payload.get("sessionKey").and_then(Value::as_str).unwrap_or_default();
    let key = SessionKey::parse(key).map_err(|error| Refusal::invalid(format!("the {error}")))?;
    call.subscriptions.want_chat(key, wanted);
    Ok(json!({"ok": true}))
}
