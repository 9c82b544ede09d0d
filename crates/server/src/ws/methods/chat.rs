//! Methods of a chat: `chat.send`, `agent.wait`, `node.event`.

use std::sync::Arc;
use std::time::Duration;

use quell_engine::engine::{RunFollow, RunWork, StopTextMode, Submission, SubmitError, SubmitOutcome};
use quell_engine::live_run::RunProgress;
use quell_kernel::admission::AdmissionError;
use quell_kernel::attachment::{FILES_ONLY_TEXT, MessageFile};
use quell_kernel::stop_text;
use quell_protocol::api::{OnBusy, RunView, SendAnswer};
use quell_protocol::{AgentId, RunId, SessionKey};
use quell_store::StoreError;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::RpcError;
use super::super::outbox::DropPolicy;
use super::super::payloads;
use super::attachments::{AttachmentParams, decode_attachments};
use super::{RpcResult, WsClient, check_session_id, commands, parse_params};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChatSendParams {
    session_key: SessionKey,
    message: String,
    idempotency_key: RunId,
    agent_id: Option<AgentId>,
    queue_mode: Option<String>,
    timeout_ms: Option<u64>,
    session_id: Option<String>,
    #[serde(default)]
    suppress_command_interpretation: bool,
    /// Read only for a message that is no stop.
    #[serde(default)]
    attachments: Value,
}

/// Default timeout of `agent.wait`, as in OpenClaw's gateway.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

impl From<StoreError> for RpcError {
    fn from(error: StoreError) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl From<SubmitError> for RpcError {
    fn from(error: SubmitError) -> Self {
        let text = error.to_string();
        match error {
            SubmitError::Conflict(_) => Self::invalid(text).with_details(json!({"reason": "chat-request-conflict"})),
            SubmitError::UnknownAgent(_) | SubmitError::Refused(AdmissionError::NoAgent { .. }) => {
                Self::invalid(text).with_details(json!({"code": "UNKNOWN_AGENT_ID"}))
            }
            SubmitError::Empty
            | SubmitError::TooLong(_)
            | SubmitError::ReservedSession(_)
            | SubmitError::Refused(
                AdmissionError::Busy | AdmissionError::QueueFull { .. } | AdmissionError::SubRun(_),
            ) => Self::invalid(text),
            SubmitError::Refused(
                AdmissionError::SpendLimit { opens, .. } | AdmissionError::KeySpendLimit { opens, .. },
            ) => Self::unavailable(text).with_details(json!({"reason": "spend-limit", "opensAt": opens})),
            SubmitError::Refused(AdmissionError::Held) => {
                Self::unavailable(text).with_details(json!({"reason": "held"}))
            }
            SubmitError::Refused(AdmissionError::ShuttingDown) | SubmitError::Closed => {
                Self::unavailable(text).with_details(json!({"reason": "gateway-restarting"}))
            }
            SubmitError::PrivateSession(_) | SubmitError::KeyRefused(_) => Self::not_owner(text),
            SubmitError::Store(_)
            | SubmitError::NotReady(_)
            | SubmitError::NotDue
            // Only requests of model APIs are counted.
            | SubmitError::Refused(AdmissionError::TooManyClientRuns { .. }) => Self::unavailable(text),
        }
    }
}

pub(super) async fn send(client: Arc<WsClient>, value: Value) -> RpcResult {
    let send: ChatSendParams = parse_params(value)?;
    check_session_id("chat.send", send.session_id.as_deref(), &send.session_key)?;
    let (text, key) = (strip_control_characters(&send.message)?, send.idempotency_key.clone());
    if !send.suppress_command_interpretation
        && let Some(command) = commands::parse_command(&text)?
    {
        let reply = commands::run_command(&client, &send.session_key, command).await?;
        let message = payloads::assistant_message(&reply);
        let payload =
            json!({"runId": key, "sessionKey": send.session_key, "seq": 1, "state": "final", "message": message});
        client.outbox.push_event("chat", &payload, DropPolicy::MustDeliver);
        return Ok(json!({"runId": key, "sessionKey": send.session_key, "status": "ok"}));
    }
    let is_stop = !send.suppress_command_interpretation && stop_text::is_stop_phrase(&text);
    // A stop has no use for files, so none of them can refuse it.
    let files = if is_stop { Arc::default() } else { parse_attachments(send.attachments)? };
    let on_busy = match parse_queue_mode(send.queue_mode.as_deref())? {
        // A message that the active run takes in has text alone.
        OnBusy::Steer if !files.is_empty() => OnBusy::Queue,
        on_busy => on_busy,
    };
    let submission = Submission {
        session: send.session_key,
        text: if text.trim().is_empty() && !files.is_empty() { FILES_ONLY_TEXT.to_owned() } else { text },
        work: RunWork::Answer { files },
        agent: send.agent_id,
        idempotency_key: Some(send.idempotency_key),
        on_busy,
        timeout: send.timeout_ms.map(Duration::from_millis),
        stop_text_mode: if send.suppress_command_interpretation {
            StopTextMode::Literal
        } else {
            StopTextMode::Recognise
        },
        channel_origin: None,
    };
    match client.engine().submit(&client.peer.caller, submission).await? {
        SubmitOutcome::Accepted(answer) => {
            if answer.message_id.is_some() {
                // The active run took the message in: no more events come under this id.
                let payload = json!({"runId": key, "sessionKey": answer.session_key, "seq": 1, "state": "final"});
                client.outbox.push_event("chat", &payload, DropPolicy::MustDeliver);
            }
            Ok(send_response(&answer, "started"))
        }
        SubmitOutcome::Duplicate(answer) if answer.state == "ended" => {
            let run = client.engine().find_run(&answer.run_id).await?;
            Ok(run.map_or_else(|| send_response(&answer, "ok"), |run| payloads::run_outcome(&run)))
        }
        SubmitOutcome::Duplicate(answer) => Ok(send_response(&answer, "in_flight")),
        SubmitOutcome::Stopped(stop) => Ok(super::stop::stop_payload(stop)),
    }
}

fn parse_attachments(attachments: Value) -> Result<Arc<[MessageFile]>, RpcError> {
    let attachments: Option<Vec<AttachmentParams>> = parse_params(attachments)?;
    decode_attachments(&attachments.unwrap_or_default())
}

fn send_response(answer: &SendAnswer, status: &str) -> Value {
    let status = if answer.state == "steered" { "steered" } else { status };
    let mut response =
        json!({"runId": answer.run_id, "sessionKey": answer.session_key, "status": status, "state": answer.state});
    if let Some(id) = &answer.message_id {
        response["messageId"] = json!(id);
    }
    response
}

fn parse_queue_mode(mode: Option<&str>) -> Result<OnBusy, RpcError> {
    match mode {
        None | Some("followup" | "collect" | "queue") => Ok(OnBusy::Queue),
        Some("steer") => Ok(OnBusy::Steer),
        Some("interrupt") => Ok(OnBusy::Interrupt),
        Some("reject") => Ok(OnBusy::Reject),
        Some(other) => Err(RpcError::invalid(format!(
            "queueMode is {other:?}; it may be steer, followup, collect, interrupt or reject"
        ))),
    }
}

/// Refuses NUL, and drops other control characters except line breaks and tabs.
pub(super) fn strip_control_characters(text: &str) -> Result<String, RpcError> {
    if text.contains('\0') {
        return Err(RpcError::invalid("the message holds a NUL character"));
    }
    Ok(text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect())
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentWaitParams {
    run_id: RunId,
    timeout_ms: Option<u64>,
}

pub(super) async fn wait(client: Arc<WsClient>, value: Value) -> RpcResult {
    let wait: AgentWaitParams = parse_params(value)?;
    let limit = wait.timeout_ms.map_or(DEFAULT_WAIT, Duration::from_millis);
    match wait_for_end(&client, &wait.run_id, Some(limit)).await? {
        Some(run) => Ok(payloads::run_outcome(&run)),
        None => Ok(json!({"runId": wait.run_id, "status": "pending"})),
    }
}

/// Waits until a run has ended; `None` if it has not at the limit.
pub(super) async fn wait_for_end(
    client: &WsClient,
    id: &RunId,
    limit: Option<Duration>,
) -> Result<Option<RunView>, RpcError> {
    let unknown = || RpcError::invalid(format!("there is no run {id:?}"));
    let run = client.find_readable_run(id).await?.ok_or_else(unknown)?;
    let end = async {
        if let Some(live_run) = client.engine().live_run(id) {
            live_run.wait_for_progress(RunProgress::Ended).await;
            return Ok(Some(live_run.view()));
        }
        if let Some(RunFollow::Remote(mut follower)) = client.engine().follow_run(id, u64::MAX).await? {
            while follower.next().await.is_some() {}
        }
        client.engine().find_run(id).await?.ok_or_else(unknown).map(Some)
    };
    let limited = async {
        match limit {
            Some(limit) => tokio::time::timeout(limit, end).await.unwrap_or(Ok(None)),
            None => end.await,
        }
    };
    tokio::select! {
        biased;
        () = client.engine().wait_run_withdrawn(&client.peer.caller, &run.principal, &run.session_key) => Err(unknown()),
        ended = limited => ended,
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeEventParams {
    event: String,
    #[serde(rename = "payloadJSON")]
    payload_json: Option<String>,
    payload: Option<Value>,
}

pub(super) fn node_event(client: &WsClient, value: Value) -> RpcResult {
    let event: NodeEventParams = parse_params(value)?;
    let wanted = match event.event.as_str() {
        "chat.subscribe" => true,
        "chat.unsubscribe" => false,
        // Quell has no use for the other events of nodes.
        _ => return Ok(json!({"ok": true})),
    };
    let payload = match event.payload_json {
        Some(text) => serde_json::from_str(&text)
            .map_err(|error| RpcError::invalid(format!("payloadJSON is not valid JSON: {error}")))?,
        None => event.payload.unwrap_or_default(),
    };
    let key = payload.get("sessionKey").and_then(Value::as_str).unwrap_or_default();
    let key = SessionKey::parse(key).map_err(|error| RpcError::invalid(format!("the {error}")))?;
    client.subscriptions.set_chat_subscription(key, wanted);
    Ok(json!({"ok": true}))
}
