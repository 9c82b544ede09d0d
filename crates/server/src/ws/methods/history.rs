//! `chat.history`: rows of a session since its last reset, by page, counted from the newest.

use std::sync::Arc;

use quell_engine::engine::NumberedTurn;
use quell_kernel::turn::is_stand_in_request;
use quell_protocol::api::{HistoryMessage, RunView};
use quell_protocol::{AgentId, RunId, SessionKey};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::RpcError;
use super::super::payloads::{self, TranscriptPosition};
use super::sessions::{add_settings, check_session_agent, latest_run};
use super::{RpcResult, WsClient, check_session_id, parse_params};

/// Default and maximum number of rows of a page, as in OpenClaw's gateway.
const DEFAULT_ROWS: usize = 200;
const MAX_ROWS: usize = 1000;
/// Messages whose fate one request may ask for, as in OpenClaw's gateway.
const MAX_RECEIPTS: usize = 50;
/// Number of turns in one read of the store.
const TURNS_PER_READ: usize = 32;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChatHistoryParams {
    session_key: SessionKey,
    session_id: Option<String>,
    agent_id: Option<AgentId>,
    limit: Option<usize>,
    offset: Option<usize>,
    cursor: Option<String>,
    max_bytes: Option<usize>,
    input_run_ids: Option<Vec<RunId>>,
}

pub(super) async fn history(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: ChatHistoryParams = parse_params(value)?;
    let key = &params.session_key;
    check_session_id("chat.history", params.session_id.as_deref(), key)?;
    let limit = params.limit.unwrap_or(DEFAULT_ROWS);
    if !(1..=MAX_ROWS).contains(&limit) {
        return Err(RpcError::invalid(format!("limit is {limit}; it may be 1 to {MAX_ROWS}")));
    }
    let engine = client.engine();
    if !engine.may_read_session(&client.peer.caller, key) {
        return Err(RpcError::invalid(format!("there is no session {key:?}")));
    }
    let session = engine.find_session(key).await?;
    check_session_agent("chat.history", params.agent_id.as_ref(), session.as_ref())?;
    // Read active runs before stored turns: a run that ends in between then appears twice instead of never.
    let active = engine.active_runs_of_session(key);
    let before = params.cursor.as_deref().map(TranscriptPosition::parse).transpose()?;
    let window = HistoryWindow {
        limit,
        offset: params.offset.unwrap_or(0),
        before,
        max_bytes: params.max_bytes.unwrap_or(usize::MAX),
    };
    let (rows, next) = read_page(&client, key, &active, &window).await?;
    let agents = engine.list_agents();
    let model = agents.iter().find(|agent| agent.default).map_or("", |agent| agent.model.as_str());
    let last = match active.first() {
        Some(run) => Some(run.clone()),
        None => latest_run(&client, key).await?,
    };
    let mut session_info = session.as_ref().map(|row| payloads::session_row(row, last.as_ref()));
    if let Some(row_payload) = &mut session_info {
        add_settings(&client, row_payload, key).await?;
    }
    let is_queued = |run: &&RunView| run.state == "queued" && !is_stand_in_request(&run.text);
    let queued: Vec<Value> = active.iter().filter(is_queued).map(payloads::pending_input).collect();
    let receipts = match &params.input_run_ids {
        Some(ids) => Some(input_receipts(&client, key, ids).await?),
        None => None,
    };
    let in_flight = active.iter().find(|run| run.state == "running").map(|run| {
        let text = engine.live_run(&run.run_id).map(|live_run| live_run.streaming_text()).unwrap_or_default();
        json!({"runId": run.run_id, "text": text, "sessionAbortable": true})
    });
    let mut answer = json!({
        "sessionKey": key,
        "sessionId": key,
        "messages": rows,
        "pendingInputs": {"items": queued, "total": queued.len()},
        "defaults": payloads::model_defaults(model),
        "thinkingLevel": session_info.as_ref().map_or(Value::Null, |row| row["thinkingLevel"].clone()),
        "sessionInfo": session_info,
        "fastMode": false,
        "verboseLevel": "off",
        "inFlightRun": in_flight,
        "nextCursor": next,
    });
    if let Some(receipts) = receipts {
        answer["inputReceipts"] = json!(receipts);
    }
    Ok(answer)
}

/// What has become of messages that the client has sent: each is `pending` in the queue, or `consumed` by a run. A
/// message that is not known is left out.
async fn input_receipts(client: &WsClient, key: &SessionKey, ids: &[RunId]) -> Result<Vec<Value>, RpcError> {
    if ids.len() > MAX_RECEIPTS {
        return Err(RpcError::invalid(format!("inputRunIds has {} ids; it may have {MAX_RECEIPTS}", ids.len())));
    }
    let mut receipts = Vec::new();
    for id in ids {
        let Some(run) = client.find_readable_run(id).await?.filter(|run| run.session_key == *key) else { continue };
        receipts.push(match run.state.as_str() {
            "queued" => json!({"runId": id, "state": "pending"}),
            _ => json!({"runId": id, "state": "consumed", "consumedByEventId": payloads::first_row_id(id)}),
        });
    }
    Ok(receipts)
}

/// The window of rows, counted from the newest.
struct HistoryWindow {
    limit: usize,
    offset: usize,
    /// Only rows before this position, so none of active runs.
    before: Option<TranscriptPosition>,
    /// Size of the rows as JSON. The newest row is returned however large it is.
    max_bytes: usize,
}

/// Reads the rows of a window, oldest first, and the cursor of the page before it.
async fn read_page(
    client: &WsClient,
    key: &SessionKey,
    active: &[RunView],
    window: &HistoryWindow,
) -> Result<(Vec<Value>, Option<String>), RpcError> {
    // One row more than the page tells whether there is a page before it.
    let wanted = window.offset.saturating_add(window.limit).saturating_add(1);
    let mut stored: Vec<(TranscriptPosition, Value)> = Vec::new();
    let mut below = window.before.map_or(i64::MAX, TranscriptPosition::exclusive_turn_bound);
    let mut newest: Vec<NumberedTurn> = Vec::new();
    loop {
        let turns = client.engine().newest_turns(key, below, TURNS_PER_READ).await?;
        let is_last = turns.len() < TURNS_PER_READ;
        below = turns.last().map_or(below, |turn| turn.number);
        for turn in &turns {
            stored.extend(
                turn_rows(turn).rev().filter(|(position, _)| window.before.is_none_or(|before| *position < before)),
            );
        }
        if newest.is_empty() {
            newest = turns;
        }
        if is_last || stored.len() >= wanted {
            break;
        }
    }
    let mut rows = if window.before.is_some() { Vec::new() } else { active_run_rows(active, &newest) };
    rows.reverse();
    rows.append(&mut stored);
    let rows: Vec<(TranscriptPosition, Value)> = rows.into_iter().skip(window.offset).take(window.limit + 1).collect();
    let fitting = count_fitting(&rows, window.max_bytes).min(window.limit);
    let more = rows.len() > fitting;
    let mut rows: Vec<(TranscriptPosition, Value)> = rows.into_iter().take(fitting).collect();
    rows.reverse();
    let next = rows.first().filter(|_| more).map(|(position, _)| position.to_string());
    Ok((rows.into_iter().map(|(_, row)| row).collect(), next))
}

/// The number of rows, from the first on, that are together not larger than this; at least one.
fn count_fitting(rows: &[(TranscriptPosition, Value)], max_bytes: usize) -> usize {
    if max_bytes == usize::MAX {
        return rows.len();
    }
    let mut left = max_bytes;
    let fits = |(_, row): &&(TranscriptPosition, Value)| {
        let taken = left.checked_sub(row.to_string().len());
        left = taken.unwrap_or(0);
        taken.is_some()
    };
    rows.iter().take_while(fits).count().max(1)
}

/// The rows of a turn, in order. Notes and requests that nobody wrote are for the model only, and clients of this
/// protocol have no row for thinking alone.
fn turn_rows(turn: &NumberedTurn) -> impl DoubleEndedIterator<Item = (TranscriptPosition, Value)> {
    let is_shown = |message: &HistoryMessage| {
        let is_stand_in = message.role == "user" && is_stand_in_request(&message.text);
        message.role != "note" && !is_stand_in && !message.is_thinking_alone()
    };
    let rows = turn.messages.iter().enumerate().filter(move |(_, message)| is_shown(message));
    rows.map(|(index, message)| {
        let position = TranscriptPosition { turn: turn.number, index };
        (position, payloads::message_row(message, position))
    })
}

/// The prompts of active runs: their turns are not sealed, or not stored yet.
fn active_run_rows(active: &[RunView], newest: &[NumberedTurn]) -> Vec<(TranscriptPosition, Value)> {
    let mut turn = newest.first().map_or(0, |turn| turn.number);
    let unsealed = active.iter().filter(|run| {
        run.state != "queued" && !is_stand_in_request(&run.text) && newest.iter().all(|turn| turn.run != run.run_id)
    });
    let row = |run: &RunView| {
        turn += 1;
        let position = TranscriptPosition { turn, index: 0 };
        (position, payloads::prompt_row(run, position))
    };
    unsealed.map(row).collect()
}
