//! What gateway clients read of sessions besides their rows: `sessions.get`, `sessions.preview`, `sessions.usage`,
//! `chat.metadata`.

use std::sync::Arc;

use quell_protocol::api::RunView;
use quell_protocol::{AgentId, SessionKey, Usage};
use quell_store::RunListFilter;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::RpcError;
use super::super::payloads;
use super::sessions::{is_said_message, truncate};
use super::{RpcResult, WsClient, commands, history, parse_params, queries};

/// Sessions in one preview, rows of each, and characters of each row.
const MAX_PREVIEW_SESSIONS: usize = 64;
const MAX_PREVIEW_ROWS: usize = 50;
const DEFAULT_PREVIEW_ROWS: usize = 12;
const MAX_PREVIEW_CHARS: usize = 2000;
const DEFAULT_PREVIEW_CHARS: usize = 240;
/// Runs of a session that are counted.
const MAX_COUNTED_RUNS: usize = 1000;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GetParams {
    key: SessionKey,
    agent_id: Option<AgentId>,
    limit: Option<usize>,
    offset: Option<usize>,
    cursor: Option<String>,
}

/// `sessions.get`: the rows of `chat.history`.
pub(super) async fn get(client: Arc<WsClient>, value: Value) -> RpcResult {
    let GetParams { key, agent_id, limit, offset, cursor } = parse_params(value)?;
    let params = json!({"sessionKey": key, "agentId": agent_id, "limit": limit, "offset": offset, "cursor": cursor});
    let history = history::history(client, params).await?;
    Ok(
        json!({"messages": history["messages"], "nextCursor": history["nextCursor"], "hasMore": !history["nextCursor"].is_null()}),
    )
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PreviewParams {
    keys: Vec<SessionKey>,
    limit: Option<usize>,
    max_chars: Option<usize>,
}

/// `sessions.preview`: the last words of several sessions. One that the caller may not read is `missing`.
pub(super) async fn preview(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: PreviewParams = parse_params(value)?;
    if params.keys.len() > MAX_PREVIEW_SESSIONS {
        let problem = format!("{} sessions are too many; {MAX_PREVIEW_SESSIONS} are the most", params.keys.len());
        return Err(RpcError::invalid(problem));
    }
    let rows = params.limit.unwrap_or(DEFAULT_PREVIEW_ROWS).clamp(1, MAX_PREVIEW_ROWS);
    let chars = params.max_chars.unwrap_or(DEFAULT_PREVIEW_CHARS).clamp(1, MAX_PREVIEW_CHARS);
    let mut previews = Vec::with_capacity(params.keys.len());
    for key in &params.keys {
        if client.find_readable_session(key).await?.is_none() {
            previews.push(json!({"key": key, "status": "missing", "items": []}));
            continue;
        }
        let mut items = Vec::new();
        let turns = client.engine().newest_turns(key, i64::MAX, rows).await?;
        for message in turns.iter().flat_map(|turn| turn.messages.iter().rev()) {
            if is_said_message(message) && items.len() < rows {
                items.push(json!({"role": message.role, "text": truncate(&message.text, chars)}));
            }
        }
        items.reverse();
        previews.push(json!({"key": key, "status": if items.is_empty() { "empty" } else { "ok" }, "items": items}));
    }
    Ok(json!({"ts": payloads::now_ms(client.engine().clock()), "previews": previews}))
}

#[derive(Debug, Deserialize)]
struct UsageParams {
    key: SessionKey,
}

/// `sessions.usage`: the tokens of the newest runs of one session.
pub(super) async fn usage(client: Arc<WsClient>, value: Value) -> RpcResult {
    let UsageParams { key } = parse_params(value)?;
    let Some(row) = client.find_readable_session(&key).await? else {
        return Err(RpcError::invalid(format!("there is no session {key:?}")));
    };
    let filter = RunListFilter {
        session: Some(key.clone()),
        principal: None,
        visible_to: client.visible_to(),
        limit: MAX_COUNTED_RUNS,
        cursor: None,
    };
    let runs = client.engine().list_runs(filter).await?.items;
    let totals = totals_of(&runs);
    let now = payloads::now_ms(client.engine().clock());
    Ok(json!({
        "updatedAt": now,
        "sessions": [{
            "key": key, "sessionId": key, "agentId": row.agent, "updatedAt": payloads::rfc3339_to_ms(&row.last_used_at),
            "usage": totals, "runs": runs.len(),
        }],
        "totals": totals,
    }))
}

fn totals_of(runs: &[RunView]) -> Value {
    let sum = |count: fn(&Usage) -> u64| runs.iter().map(|run| count(&run.usage)).fold(0, u64::saturating_add);
    let (input, output) = (sum(|usage| usage.input_tokens), sum(|usage| usage.output_tokens));
    json!({"input": input, "output": output, "totalTokens": input.saturating_add(output)})
}

/// `chat.metadata`: the commands and the models of a session's agent.
pub(super) fn chat_metadata(client: &WsClient, value: Value) -> RpcResult {
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct MetadataParams {
        agent_id: Option<AgentId>,
    }
    let MetadataParams { agent_id } = parse_params(value)?;
    let of_agent = json!({"agentId": agent_id});
    let mut metadata = commands::list(client, of_agent.clone())?;
    payloads::add_fields(&mut metadata, &queries::models_payload(client, of_agent)?);
    Ok(metadata)
}
