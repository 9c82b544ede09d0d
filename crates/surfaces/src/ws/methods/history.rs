//! `chat.history`: the rows of a conversation after its last reset, counted from the newest.

use quell_engine::dispatch::NumberedTurn;
use quell_protocol::api::RunView;
use quell_protocol::{AgentId, SessionKey};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::Refusal;
use super::super::shapes::{self, Place};
use super::sessions::{agent_fits, last_run};
use super::{Answer, Call, params, same_session};
use crate::door::Door;

/// Rows when the client does not say, and the most (research: openclaw.md 1.7).
const ROWS: usize = 200;
const ROWS_MOST: usize = 1000;
/// Turns that are read in one go.
const TURNS: usize = 32;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct History {
    session_key: SessionKey,
    session_id: Option<String>,
    agent_id: Option<AgentId>,
    limit: Option<usize>,
    offset: Option<usize>,
    cursor: Option<String>,
}

pub(super) fn history(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let door = call.door.clone();
    async move {
        let asked: History = params(value)?;
        let key = &asked.session_key;
        same_session("chat.history", asked.session_id.as_deref(), key)?;
        let limit = asked.limit.unwrap_or(ROWS);
        if !(1..=ROWS_MOST).contains(&limit) {
            return Err(Refusal::invalid(format!("limit is {limit}; it may be 1 to {ROWS_MOST}")));
        }
        let engine = door.engine();
        let session = engine.session(key).await?;
        agent_fits("chat.history", asked.agent_id.as_ref(), session.as_ref())?;
        // Before the stored turns: a run that ends meanwhile is then seen twice, not never.
        let active = engine.active_runs_of(key);
        let before = asked.cursor.as_deref().map(Place::parse).transpose()?;
        let (rows, next) =
            page(&door, key, &active, &Window { limit, offset: asked.offset.unwrap_or(0), before }).await?;
        let agents = engine.agents();
        let model = agents.iter().find(|agent| agent.default).map_or("", |agent| agent.model.as_str());
        let last = match active.first() {
            Some(run) => Some(run.clone()),
            None => last_run(&door, key).await?,
        };
        let queued: Vec<Value> = active
            .iter()
            .filter(|run| run.state == "queued")
            .map(|run| json!({"runId": run.run_id, "text": run.text, "acceptedAt": run.accepted_at}))
            .collect();
        let in_flight = active.iter().find(|run| run.state == "running").map(|run| {
            let text = engine.live(&run.run_id).map(|cell| cell.streaming_text()).unwrap_or_default();
            json!({"runId": run.run_id, "text": text, "sessionAbortable": true})
        });
        Ok(json!({
            "sessionKey": key,
            "sessionId": key,
            "messages": rows,
            "pendingInputs": {"items": queued, "total": queued.len()},
            "defaults": shapes::defaults(model),
            "sessionInfo": session.as_ref().map(|row| shapes::session(row, last.as_ref())),
            "thinkingLevel": "off",
            "fastMode": false,
            "verboseLevel": "off",
            "inFlightRun": in_flight,
            "nextCursor": next,
        }))
    }
}

/// Which rows, counted from the newest.
struct Window {
    limit: usize,
    offset: usize,
    /// Only rows before this place, so without those of runs at work.
    before: Option<Place>,
}

/// The rows of a window, the oldest first, and the cursor of those before them.
async fn page(
    door: &Door,
    key: &SessionKey,
    active: &[RunView],
    window: &Window,
) -> Result<(Vec<Value>, Option<String>), Refusal> {
    // One more than the page tells whether there is anything before it.
    let wanted = window.offset.saturating_add(window.limit).saturating_add(1);
    let mut stored: Vec<(Place, Value)> = Vec::new();
    let mut below = window.before.map_or(i64::MAX, Place::turn_and_later);
    let mut newest: Vec<NumberedTurn> = Vec::new();
    loop {
        let turns = door.engine().newest_turns(key, below, TURNS).await?;
        let is_last = turns.len() < TURNS;
        below = turns.last().map_or(below, |turn| turn.number);
        for turn in &turns {
            stored.extend(rows_of(turn).rev().filter(|(place, _)| window.before.is_none_or(|before| *place < before)));
        }
        if newest.is_empty() {
            newest = turns;
        }
        if is_last || stored.len() >= wanted {
            break;
        }
    }
    let mut rows = if window.before.is_some() { Vec::new() } else { at_work(active, &newest) };
    rows.reverse();
    rows.append(&mut stored);
    let rows: Vec<(Place, Value)> = rows.into_iter().skip(window.offset).take(window.limit + 1).collect();
    let more = rows.len() > window.limit;
    let mut rows: Vec<(Place, Value)> = rows.into_iter().take(window.limit).collect();
    rows.reverse();
    let next = rows.first().filter(|_| more).map(|(place, _)| place.to_string());
    Ok((rows.into_iter().map(|(_, row)| row).collect(), next))
}

/// The rows of a turn, in order. Notes are for the model, and the clients of this protocol have no row for thinking alone.
fn rows_of(turn: &NumberedTurn) -> impl DoubleEndedIterator<Item = (Place, Value)> {
    let rows =
        turn.messages.iter().enumerate().filter(|(_, message)| message.role != "note" && !message.is_thinking_alone());
    rows.map(|(index, message)| {
        let place = Place { turn: turn.number, index };
        (place, shapes::message(message, place))
    })
}

/// What people said to runs that are at work: their turns are not sealed, or not in the database yet.
fn at_work(active: &[RunView], newest: &[NumberedTurn]) -> Vec<(Place, Value)> {
    let mut turn = newest.first().map_or(0, |turn| turn.number);
    let unsealed =
        active.iter().filter(|run| run.state != "queued" && newest.iter().all(|turn| turn.run != run.run_id));
    let row = |run: &RunView| {
        turn += 1;
        let place = Place { turn, index: 0 };
        (place, shapes::said(run, place))
    };
    unsealed.map(row).collect()
}
