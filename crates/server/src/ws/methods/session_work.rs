//! `sessions.compact` and `chat.inject`: change a conversation on request. Each is a run, which a stop ends as any other.

use std::sync::Arc;

use quell_engine::engine::SessionWorkError;
use quell_protocol::api::RunView;
use quell_protocol::{AgentId, RunId, SessionKey, Verdict};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::RpcError;
use super::sessions::check_session_agent;
use super::{RpcResult, WsClient, chat, parse_params};

impl From<SessionWorkError> for RpcError {
    fn from(error: SessionWorkError) -> Self {
        match error {
            SessionWorkError::Submit(error) => error.into(),
            SessionWorkError::NotOwner(error) => error.into(),
            SessionWorkError::UnknownSession(_)
            | SessionWorkError::NothingToSummarise(_)
            | SessionWorkError::Busy(_) => Self::invalid(error.to_string()),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CompactParams {
    key: SessionKey,
    agent_id: Option<AgentId>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StartedRun {
    run_id: RunId,
}

/// Summarises the conversation of a session, and answers at the end of that run. The node of the session starts it; the
/// node of the client waits for its end, because a model may take long.
pub(super) async fn compact(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: CompactParams = parse_params(value.clone())?;
    let key = &params.key;
    let started = match client.call_session_owner("sessions.compact", value, key).await {
        Some(answer) => answer?,
        None => match start_compaction(&client, &params).await {
            Ok(run) => json!({"runId": run}),
            Err(CompactionRefusal::Nothing(reason)) => {
                return Ok(json!({"ok": true, "key": key, "compacted": false, "reason": reason}));
            }
            Err(CompactionRefusal::Error(refusal)) => return Err(refusal),
        },
    };
    // Another node has started nothing, and says why; or this one is asked by another node.
    if started.get("compacted").is_some() || client.is_forwarded {
        return Ok(started);
    }
    let StartedRun { run_id } = parse_params(started)?;
    let run = chat::wait_for_end(&client, &run_id, None).await?;
    Ok(compaction_payload(key, &run_id, run.as_ref()))
}

enum CompactionRefusal {
    Nothing(String),
    Error(RpcError),
}

async fn start_compaction(client: &WsClient, params: &CompactParams) -> Result<RunId, CompactionRefusal> {
    let (engine, caller) = (client.engine(), &client.peer.caller);
    check_agent(client, "sessions.compact", params.agent_id.as_ref(), &params.key)
        .await
        .map_err(CompactionRefusal::Error)?;
    match engine.compact_session(caller, &params.key).await {
        Ok(started) => Ok(started.run_id),
        Err(nothing @ SessionWorkError::NothingToSummarise(_)) => Err(CompactionRefusal::Nothing(nothing.to_string())),
        Err(error) => Err(CompactionRefusal::Error(error.into())),
    }
}

fn compaction_payload(key: &SessionKey, id: &RunId, run: Option<&RunView>) -> Value {
    let mut payload = json!({"ok": true, "key": key, "compacted": true, "runId": id});
    let reason = match run.and_then(|run| run.verdict.as_ref()) {
        Some(Verdict::Completed) => return payload,
        Some(Verdict::Failed { message, .. }) => message.clone(),
        Some(Verdict::Aborted { reason, .. }) => format!("it was stopped: {}", reason.as_str()),
        None => "its end is not known".to_owned(),
    };
    payload["ok"] = json!(false);
    payload["compacted"] = json!(false);
    payload["reason"] = json!(reason);
    payload
}

async fn check_agent(
    client: &WsClient,
    method: &str,
    agent: Option<&AgentId>,
    key: &SessionKey,
) -> Result<(), RpcError> {
    let session = client.find_readable_session(key).await?;
    check_session_agent(method, agent, session.as_ref())
}

/// Longest label of an added message, in characters, as in OpenClaw's gateway.
const MAX_LABEL_CHARS: usize = 100;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InjectParams {
    session_key: SessionKey,
    agent_id: Option<AgentId>,
    message: String,
    label: Option<String>,
}

/// Adds a message to a conversation, in the assistant's name, and answers once it is stored.
pub(super) async fn inject(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: InjectParams = parse_params(value)?;
    let key = &params.session_key;
    check_agent(&client, "chat.inject", params.agent_id.as_ref(), key).await?;
    let message = chat::strip_control_characters(&params.message)?;
    let message = match params.label.as_deref().map(str::trim).filter(|label| !label.is_empty()) {
        Some(label) if label.chars().count() > MAX_LABEL_CHARS => {
            return Err(RpcError::invalid(format!("the label may have {MAX_LABEL_CHARS} characters")));
        }
        Some(label) => format!("[{label}]\n\n{message}"),
        None => message,
    };
    let added = client.engine().add_assistant_message(&client.peer.caller, key, message).await?;
    let run = chat::wait_for_end(&client, &added.run_id, None).await?;
    match run.and_then(|run| run.verdict) {
        // Row 0 of its turn is for the model only.
        Some(Verdict::Completed) => {
            Ok(json!({"ok": true, "messageId": format!("{}:1", added.run_id), "runId": added.run_id}))
        }
        Some(Verdict::Failed { message, .. }) => {
            Err(RpcError::unavailable(format!("the message was not added: {message}")))
        }
        Some(Verdict::Aborted { reason, .. }) => {
            Err(RpcError::invalid(format!("the message was not added, because of a stop: {}", reason.as_str())))
        }
        None => Err(RpcError::unavailable("it is not known whether the message was added")),
    }
}
