//! `agent`: start a run, and answer twice: when it is accepted, and when it has ended.

use std::pin::Pin;
use std::sync::Arc;

use quell_protocol::{AgentId, RunId, SessionKey, Verdict};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::RpcError;
use super::super::payloads;
use super::{RpcResult, WsClient, chat, parse_params};

/// The work that leads to the second answer.
pub(super) type LastAnswer = Pin<Box<dyn Future<Output = RpcResult> + Send>>;

/// The work that leads to the first answer.
pub(super) type FirstAnswer = Pin<Box<dyn Future<Output = Result<(Value, LastAnswer), RpcError>> + Send>>;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentParams {
    message: String,
    idempotency_key: RunId,
    agent_id: Option<AgentId>,
    session_key: Option<SessionKey>,
    session_id: Option<SessionKey>,
    /// Seconds; zero is no limit of its own.
    timeout: Option<u64>,
    #[serde(default)]
    attachments: Value,
}

/// Sends the message as `chat.send` does. Without a session it goes to the main one of the agent.
pub(super) async fn start(client: Arc<WsClient>, value: Value) -> Result<(Value, LastAnswer), RpcError> {
    let params: AgentParams = parse_params(value)?;
    let key = match params.session_key.or(params.session_id) {
        Some(key) => key,
        None => {
            let agent = client.resolve_agent(params.agent_id.as_ref())?;
            SessionKey::parse(format!("agent:{agent}:main")).map_err(|error| RpcError::invalid(error.to_string()))?
        }
    };
    let run = params.idempotency_key;
    let message = json!({
        "sessionKey": key, "message": params.message, "idempotencyKey": run, "agentId": params.agent_id,
        "attachments": params.attachments, "timeoutMs": params.timeout.map(|seconds| seconds.saturating_mul(1000)),
    });
    let sent = client.dispatch("chat.send", message).await?;
    let mut accepted = sent.clone();
    accepted["sessionKey"] = json!(key);
    accepted["acceptedAt"] = json!(payloads::now_ms(client.engine().clock()));
    let is_started = matches!(sent["status"].as_str(), Some("started" | "in_flight"));
    if !is_started {
        // A command, a stop, or a repeat of a run that is over: nothing more comes.
        accepted["status"] = sent.get("status").cloned().unwrap_or_else(|| json!("ok"));
        let last = if accepted["status"] == "steered" {
            Ok(accepted.clone())
        } else {
            last_payload(&client, &run, &key).await
        };
        let last = last.or_else(|_| Ok(accepted.clone()));
        accepted["status"] = json!("accepted");
        return Ok((accepted, Box::pin(std::future::ready(last))));
    }
    accepted["status"] = json!("accepted");
    let last = async move {
        chat::wait_for_end(&client, &run, None).await?;
        last_payload(&client, &run, &key).await
    };
    Ok((accepted, Box::pin(last)))
}

/// The outcome of a run with its text.
async fn last_payload(client: &WsClient, id: &RunId, key: &SessionKey) -> RpcResult {
    let run =
        client.find_readable_run(id).await?.ok_or_else(|| RpcError::invalid(format!("there is no run {id:?}")))?;
    let mut last = payloads::run_outcome(&run);
    last["sessionKey"] = json!(key);
    if run.verdict == Some(Verdict::Completed) {
        last["summary"] = json!("completed");
    }
    let texts: Vec<Value> =
        run.output.iter().filter(|text| !text.is_empty()).map(|text| json!({"text": text, "mediaUrl": null})).collect();
    last["result"] = json!({"payloads": texts, "meta": {"agentMeta": {"sessionId": key, "usage": run.usage}}});
    Ok(last)
}
