//! Sessions: the list with its filters, one of them, and their ends.

use quell_engine::dispatch::SessionError;
use quell_engine::store::{RunFilter, SessionFilter};
use quell_kernel::Push;
use quell_kernel::registry::StopAsk;
use quell_protocol::api::{HistoryMessage, RunView, SessionRow};
use quell_protocol::{AgentId, SessionKey, StopReason};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::Refusal;
use super::super::shapes;
use super::{Answer, Call, parameters, params, same_session};
use crate::door::Door;

/// Rows of a list when the client does not say.
const PAGE: usize = 100;
const PAGE_MOST: usize = 1000;
/// Characters of a title and of a preview.
const TITLE: usize = 80;
const PREVIEW: usize = 200;

/// `sessions.messages.subscribe` would have to send `session.message` and `session.tool`.
pub(super) fn no_messages() -> Refusal {
    let message = "sessions.messages.subscribe is not supported: there are no session.message events; `chat` and `agent` \
                   events come without a subscription";
    Refusal::invalid(message)
        .with_details(json!({"code": "UNSUPPORTED_METHOD", "method": "sessions.messages.subscribe"}))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct List {
    limit: Option<usize>,
    offset: usize,
    cursor: Option<String>,
    active_minutes: Option<u32>,
    #[serde(rename = "sortBy")]
    _sort_by: Option<Order>,
    include_derived_titles: bool,
    include_last_message: bool,
    label: Option<String>,
    search: Option<String>,
    archived: Option<Archived>,
    agent_id: Option<AgentId>,
    // There are none of these kinds.
    #[serde(rename = "includeGlobal")]
    _include_global: bool,
    #[serde(rename = "includeUnknown")]
    _include_unknown: bool,
}

/// Here a session is used by those who write to it and by nothing else: both are one order.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Order {
    UpdatedAt,
    LastInteractionAt,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Archived {
    Flag(bool),
    Word(AllOfThem),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AllOfThem {
    All,
}

impl List {
    /// No session is archived, and none has a label.
    fn wants_none(&self) -> bool {
        self.label.is_some() || matches!(self.archived, Some(Archived::Flag(true)))
    }

    fn limit(&self) -> Result<usize, Refusal> {
        let limit = self.limit.unwrap_or(PAGE);
        if limit == 0 || self.active_minutes == Some(0) {
            return Err(Refusal::invalid("limit and activeMinutes are at least 1"));
        }
        Ok(limit.min(PAGE_MOST))
    }
}

pub(super) fn list(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let door = call.door.clone();
    async move {
        let asked: List = params(value)?;
        let limit = asked.limit()?;
        let (found, next) = if asked.wants_none() { (Vec::new(), None) } else { find(&door, &asked, limit).await? };
        let mut rows = Vec::with_capacity(found.len());
        for row in &found {
            let mut shown = shapes::session(row, last_run(&door, &row.key).await?.as_ref());
            titles(&door, &mut shown, &row.key, (asked.include_derived_titles, asked.include_last_message)).await?;
            rows.push(shown);
        }
        let agents = door.engine().agents();
        let model = agents.iter().find(|agent| agent.default).map_or("", |agent| agent.model.as_str());
        Ok(json!({
            "ts": shapes::now_ms(door.engine().clock()), "path": "", "count": rows.len(),
            "defaults": shapes::defaults(model), "sessions": rows, "nextCursor": next,
        }))
    }
}

/// The rows of the page, and the cursor behind it, which there is where nothing but the store has chosen among the rows.
async fn find(door: &Door, asked: &List, limit: usize) -> Result<(Vec<SessionRow>, Option<String>), Refusal> {
    let engine = door.engine();
    let filter = |limit, cursor| SessionFilter { search: asked.search.clone(), limit, cursor };
    if asked.agent_id.is_none() && asked.active_minutes.is_none() && asked.offset == 0 {
        let list = engine.sessions(filter(limit, asked.cursor.clone())).await?;
        return Ok((list.items, list.next_cursor));
    }
    let now = shapes::now_ms(engine.clock());
    let since = asked.active_minutes.map(|minutes| now.saturating_sub(i64::from(minutes).saturating_mul(60_000)));
    let fits = |row: &SessionRow| {
        let used = shapes::ms_of(&row.last_used_at).as_i64().unwrap_or(i64::MAX);
        (asked.agent_id.is_none() || row.agent == asked.agent_id) && since.is_none_or(|since| used >= since)
    };
    let wanted = asked.offset.saturating_add(limit);
    let (mut found, mut cursor) = (Vec::new(), asked.cursor.clone());
    loop {
        let list = engine.sessions(filter(PAGE_MOST, cursor)).await?;
        found.extend(list.items.into_iter().filter(fits));
        cursor = list.next_cursor;
        if cursor.is_none() || found.len() >= wanted {
            return Ok((found.into_iter().skip(asked.offset).take(limit).collect(), None));
        }
    }
}

/// Adds what a session began with and what was said last, as far as it is asked for.
async fn titles(door: &Door, shown: &mut Value, key: &SessionKey, (title, last): (bool, bool)) -> Result<(), Refusal> {
    if title {
        let first = door.engine().first_messages(key).await?;
        let said = first.iter().find(|message| message.role == "user");
        shown["derivedTitle"] = json!(said.map(|message| clip(&message.text, TITLE)));
    }
    if last {
        let newest = door.engine().newest_turns(key, i64::MAX, 1).await?;
        let of_people = |message: &&HistoryMessage| {
            matches!(message.role.as_str(), "user" | "assistant") && !message.text.is_empty()
        };
        let said = newest.iter().flat_map(|turn| turn.messages.iter().rev()).find(of_people);
        shown["lastMessagePreview"] = json!(said.map(|message| clip(&message.text, PREVIEW)));
    }
    Ok(())
}

fn clip(text: &str, most: usize) -> String {
    let text = text.trim();
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}\u{2026}", &text[..end]),
        None => text.to_owned(),
    }
}

pub(super) async fn last_run(door: &Door, key: &SessionKey) -> Result<Option<RunView>, Refusal> {
    let filter = RunFilter { session: Some(key.clone()), principal: None, limit: 1, cursor: None };
    Ok(door.engine().runs(filter).await?.items.into_iter().next())
}

/// A key names one session, whatever its agent is: another agent's name beside it is a mistake.
pub(super) fn agent_fits(method: &str, agent: Option<&AgentId>, row: Option<&SessionRow>) -> Result<(), Refusal> {
    let (Some(agent), Some(own)) = (agent, row.and_then(|row| row.agent.as_ref())) else { return Ok(()) };
    if agent == own {
        return Ok(());
    }
    let details = parameters::unsupported(method, "agentId").details();
    Err(Refusal::invalid(format!("the session's agent is {own:?}, not {agent:?}")).with_details(details))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct One {
    key: Option<SessionKey>,
    session_key: Option<SessionKey>,
    session_id: Option<SessionKey>,
    expected_session_id: Option<String>,
    agent_id: Option<AgentId>,
    allow_missing: Option<bool>,
    include_derived_titles: bool,
    include_last_message: bool,
    #[serde(rename = "reason")]
    _reason: Option<Why>,
    #[serde(rename = "includeGlobal")]
    _include_global: bool,
    #[serde(rename = "includeUnknown")]
    _include_unknown: bool,
}

/// Why a session is reset. Its history is emptied either way.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Why {
    New,
    Reset,
}

impl One {
    fn key(&self) -> Result<SessionKey, Refusal> {
        let key = self.key.as_ref().or(self.session_key.as_ref()).or(self.session_id.as_ref());
        let key = key.cloned().ok_or_else(|| Refusal::invalid("missing key"))?;
        same_session("sessions.resolve", self.session_id.as_ref().map(SessionKey::as_str), &key)?;
        Ok(key)
    }

    /// The session that is to end, if it is the one that is meant.
    async fn to_end(&self, door: &Door, method: &str) -> Result<SessionKey, Refusal> {
        let key = self.key()?;
        same_session(method, self.expected_session_id.as_deref(), &key)?;
        if self.agent_id.is_some() {
            agent_fits(method, self.agent_id.as_ref(), door.engine().session(&key).await?.as_ref())?;
        }
        Ok(key)
    }
}

/// `sessions.describe` and `sessions.resolve`.
pub(super) fn show(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let door = call.door.clone();
    async move {
        let asked: One = params(value)?;
        let key = asked.key()?;
        let row = door.engine().session(&key).await?;
        agent_fits("sessions.resolve", asked.agent_id.as_ref(), row.as_ref())?;
        let Some(row) = row else {
            return match asked.allow_missing {
                Some(false) => Err(Refusal::invalid(format!("there is no session {key:?}"))),
                Some(true) | None => Ok(json!({"ok": false, "key": key, "session": null})),
            };
        };
        let mut shown = shapes::session(&row, last_run(&door, &key).await?.as_ref());
        titles(&door, &mut shown, &key, (asked.include_derived_titles, asked.include_last_message)).await?;
        Ok(json!({"ok": true, "key": key, "session": shown}))
    }
}

impl From<SessionError> for Refusal {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::SomebodyElses(_) | SessionError::NotYours(_) => Self::not_yours(error.to_string()),
            SessionError::Store(error) => error.into(),
        }
    }
}

fn end(call: &Call<'_>) -> StopAsk {
    StopAsk { push: Push::Gentle, reason: StopReason::User, surface: call.peer.caller.surface }
}

pub(super) fn reset(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let (door, peer, ask) = (call.door.clone(), call.peer.clone(), end(call));
    async move {
        let asked: One = params(value)?;
        let key = asked.to_end(&door, "sessions.reset").await?;
        let done = door.engine().reset_session(&peer.caller, &key, &ask).await?;
        Ok(json!({"ok": done, "key": key, "reset": done}))
    }
}

pub(super) fn delete(call: &Call<'_>, value: Value) -> impl Future<Output = Answer> + use<> {
    let (door, peer, ask) = (call.door.clone(), call.peer.clone(), end(call));
    async move {
        let asked: One = params(value)?;
        let key = asked.to_end(&door, "sessions.delete").await?;
        let done = door.engine().delete_session(&peer.caller, &key, &ask).await?;
        Ok(json!({"ok": true, "key": key, "deleted": done, "archived": []}))
    }
}
