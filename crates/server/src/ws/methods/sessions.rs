//! `sessions.*`: list, describe, resolve, reset, delete.

use std::sync::Arc;

use quell_engine::engine::SessionError;
use quell_kernel::turn::is_stand_in_request;
use quell_protocol::api::{HistoryMessage, RunView, SessionRow};
use quell_protocol::{AgentId, SessionKey};
use quell_store::{RunListFilter, SessionListFilter};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::RpcError;
use super::super::payloads;
use super::session_settings::settings_payload;
use super::{RpcResult, WsClient, check_session_id, parameters, parse_params};
use crate::http::stop_request;

/// Rows of a list if the client gives no limit.
const DEFAULT_PAGE_SIZE: usize = 100;
const MAX_PAGE_SIZE: usize = 1000;
/// Maximum characters of a title and of a preview.
const MAX_TITLE_CHARS: usize = 80;
const MAX_PREVIEW_CHARS: usize = 200;
/// Turns in which a message for the preview is looked for: a summary that was stopped has none.
const MAX_PREVIEWED_TURNS: usize = 8;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SessionsListParams {
    limit: Option<usize>,
    offset: usize,
    cursor: Option<String>,
    active_minutes: Option<u32>,
    #[serde(rename = "sortBy")]
    _sort_by: Option<SessionsSortOrder>,
    include_derived_titles: bool,
    include_last_message: bool,
    label: Option<String>,
    search: Option<String>,
    archived: Option<ArchivedFilter>,
    agent_id: Option<AgentId>,
    // Ignored: there are no sessions of these kinds.
    #[serde(rename = "includeGlobal")]
    _include_global: bool,
    #[serde(rename = "includeUnknown")]
    _include_unknown: bool,
}

/// Accepted and ignored: both orders are the same, because only a message updates a session.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum SessionsSortOrder {
    UpdatedAt,
    LastInteractionAt,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ArchivedFilter {
    Flag(bool),
    Word(ArchivedAllWord),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ArchivedAllWord {
    All,
}

impl SessionsListParams {
    /// True if the filter matches no session: none is archived, and none has a label.
    fn matches_nothing(&self) -> bool {
        self.label.is_some() || matches!(self.archived, Some(ArchivedFilter::Flag(true)))
    }

    fn limit(&self) -> Result<usize, RpcError> {
        let limit = self.limit.unwrap_or(DEFAULT_PAGE_SIZE);
        if limit == 0 || self.active_minutes == Some(0) {
            return Err(RpcError::invalid("limit and activeMinutes are at least 1"));
        }
        Ok(limit.min(MAX_PAGE_SIZE))
    }
}

pub(super) async fn list(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: SessionsListParams = parse_params(value)?;
    let limit = params.limit()?;
    let (found, next) =
        if params.matches_nothing() { (Vec::new(), None) } else { find_sessions(&client, &params, limit).await? };
    let mut rows = Vec::with_capacity(found.len());
    for row in &found {
        let mut row_payload = payloads::session_row(row, latest_run(&client, &row.key).await?.as_ref());
        let requested =
            RequestedTitles { derived_title: params.include_derived_titles, last_message: params.include_last_message };
        add_titles(&client, &mut row_payload, &row.key, requested).await?;
        rows.push(row_payload);
    }
    let agents = client.engine().list_agents();
    let model = agents.iter().find(|agent| agent.default).map_or("", |agent| agent.model.as_str());
    Ok(json!({
        "ts": payloads::now_ms(client.engine().clock()), "path": "", "count": rows.len(),
        "defaults": payloads::model_defaults(model), "sessions": rows, "nextCursor": next,
    }))
}

/// Finds the rows of a page and the cursor of the next one. There is a cursor only if the store alone selects the rows.
async fn find_sessions(
    client: &WsClient,
    params: &SessionsListParams,
    limit: usize,
) -> Result<(Vec<SessionRow>, Option<String>), RpcError> {
    let engine = client.engine();
    let visible_to = client.visible_to();
    let filter = |limit, cursor| SessionListFilter {
        search: params.search.clone(),
        limit,
        cursor,
        visible_to: visible_to.clone(),
    };
    if params.agent_id.is_none() && params.active_minutes.is_none() && params.offset == 0 {
        let list = engine.list_sessions(filter(limit, params.cursor.clone())).await?;
        return Ok((list.items, list.next_cursor));
    }
    let now = payloads::now_ms(engine.clock());
    let since = params.active_minutes.map(|minutes| now.saturating_sub(i64::from(minutes).saturating_mul(60_000)));
    let fits = |row: &SessionRow| {
        let used = payloads::rfc3339_to_ms(&row.last_used_at).as_i64().unwrap_or(i64::MAX);
        (params.agent_id.is_none() || row.agent == params.agent_id) && since.is_none_or(|since| used >= since)
    };
    let wanted = params.offset.saturating_add(limit);
    let (mut found, mut cursor) = (Vec::new(), params.cursor.clone());
    loop {
        let list = engine.list_sessions(filter(MAX_PAGE_SIZE, cursor)).await?;
        found.extend(list.items.into_iter().filter(fits));
        cursor = list.next_cursor;
        if cursor.is_none() || found.len() >= wanted {
            return Ok((found.into_iter().skip(params.offset).take(limit).collect(), None));
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct RequestedTitles {
    /// The first message of the user.
    derived_title: bool,
    last_message: bool,
}

/// Adds the title and the preview of a session, as far as requested.
async fn add_titles(
    client: &WsClient,
    row_payload: &mut Value,
    key: &SessionKey,
    requested: RequestedTitles,
) -> Result<(), RpcError> {
    if requested.derived_title {
        let first = client.engine().first_messages(key).await?;
        let message = first.iter().find(|message| message.role == "user" && is_said_message(message));
        row_payload["derivedTitle"] = json!(message.map(|message| truncate(&message.text, MAX_TITLE_CHARS)));
    }
    if requested.last_message {
        let message = last_said_message(client, key).await?;
        row_payload["lastMessagePreview"] = json!(message.map(|message| truncate(&message.text, MAX_PREVIEW_CHARS)));
    }
    Ok(())
}

/// True for a message with words that the user wrote or the assistant gave.
pub(super) fn is_said_message(message: &HistoryMessage) -> bool {
    let is_said = match message.role.as_str() {
        "user" => !is_stand_in_request(&message.text),
        role => role == "assistant",
    };
    is_said && !message.text.is_empty()
}

/// The newest message with words, from one of the newest turns.
async fn last_said_message(client: &WsClient, key: &SessionKey) -> Result<Option<HistoryMessage>, RpcError> {
    let mut before = i64::MAX;
    for _ in 0..MAX_PREVIEWED_TURNS {
        let newest = client.engine().newest_turns(key, before, 1).await?;
        let Some(turn) = newest.into_iter().next() else { return Ok(None) };
        before = turn.number;
        let message = turn.messages.into_iter().rev().find(is_said_message);
        if message.is_some() {
            return Ok(message);
        }
    }
    Ok(None)
}

/// Adds the model and the thinking of the session's next run.
pub(super) async fn add_settings(client: &WsClient, row_payload: &mut Value, key: &SessionKey) -> Result<(), RpcError> {
    let config = client.engine().session_view(key).await?.and_then(|view| view.config);
    if let Some(config) = config {
        payloads::add_fields(row_payload, &settings_payload(&config));
    }
    Ok(())
}

pub(super) fn truncate(text: &str, max_chars: usize) -> String {
    let text = text.trim();
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}\u{2026}", &text[..end]),
        None => text.to_owned(),
    }
}

pub(super) async fn latest_run(client: &WsClient, key: &SessionKey) -> Result<Option<RunView>, RpcError> {
    let filter = RunListFilter {
        session: Some(key.clone()),
        principal: None,
        visible_to: client.visible_to(),
        limit: 1,
        cursor: None,
    };
    Ok(client.engine().list_runs(filter).await?.items.into_iter().next())
}

/// Refuses an agent id that is not the session's: a key identifies one session whatever its agent is.
pub(super) fn check_session_agent(
    method: &str,
    agent: Option<&AgentId>,
    row: Option<&SessionRow>,
) -> Result<(), RpcError> {
    let (Some(agent), Some(own)) = (agent, row.and_then(|row| row.agent.as_ref())) else { return Ok(()) };
    if agent == own {
        return Ok(());
    }
    let details = parameters::unsupported_parameter(method, "agentId").details();
    Err(RpcError::invalid(format!("the session's agent is {own:?}, not {agent:?}")).with_details(details))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SessionParams {
    key: Option<SessionKey>,
    session_key: Option<SessionKey>,
    session_id: Option<SessionKey>,
    expected_session_id: Option<String>,
    agent_id: Option<AgentId>,
    allow_missing: Option<bool>,
    include_derived_titles: bool,
    include_last_message: bool,
    #[serde(rename = "reason")]
    _reason: Option<ResetReason>,
    #[serde(rename = "includeGlobal")]
    _include_global: bool,
    #[serde(rename = "includeUnknown")]
    _include_unknown: bool,
}

/// Why a session is reset. Both values empty its history.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResetReason {
    New,
    Reset,
}

impl SessionParams {
    fn key(&self) -> Result<SessionKey, RpcError> {
        let key = self.key.as_ref().or(self.session_key.as_ref()).or(self.session_id.as_ref());
        let key = key.cloned().ok_or_else(|| RpcError::invalid("missing key"))?;
        check_session_id("sessions.resolve", self.session_id.as_ref().map(SessionKey::as_str), &key)?;
        Ok(key)
    }

    /// The key of the session to reset or delete, after checking that it is the expected session.
    async fn session_to_end(&self, client: &WsClient, method: &str) -> Result<SessionKey, RpcError> {
        let key = self.key()?;
        check_session_id(method, self.expected_session_id.as_deref(), &key)?;
        if self.agent_id.is_some() {
            check_session_agent(method, self.agent_id.as_ref(), client.find_readable_session(&key).await?.as_ref())?;
        }
        Ok(key)
    }
}

/// Answers `sessions.describe` and `sessions.resolve`.
pub(super) async fn show(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: SessionParams = parse_params(value)?;
    let key = params.key()?;
    let row = client.find_readable_session(&key).await?;
    check_session_agent("sessions.resolve", params.agent_id.as_ref(), row.as_ref())?;
    let Some(row) = row else {
        return match params.allow_missing {
            Some(false) => Err(RpcError::invalid(format!("there is no session {key:?}"))),
            Some(true) | None => Ok(json!({"ok": false, "key": key, "session": null})),
        };
    };
    let mut row_payload = payloads::session_row(&row, latest_run(&client, &key).await?.as_ref());
    add_settings(&client, &mut row_payload, &key).await?;
    let requested =
        RequestedTitles { derived_title: params.include_derived_titles, last_message: params.include_last_message };
    add_titles(&client, &mut row_payload, &key, requested).await?;
    Ok(json!({"ok": true, "key": key, "session": row_payload}))
}

impl From<SessionError> for RpcError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::ForeignRunActive(_)
            | SessionError::NotOwner(_)
            | SessionError::ChatKey(_)
            | SessionError::Reserved(_)
            | SessionError::Private(_) => Self::not_owner(error.to_string()),
            SessionError::Store(error) => error.into(),
        }
    }
}

pub(super) async fn reset(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: SessionParams = parse_params(value)?;
    let key = params.session_to_end(&client, "sessions.reset").await?;
    let caller = &client.peer.caller;
    let done = client.engine().reset_session(caller, &key, &stop_request(caller, false, None)).await?;
    Ok(json!({"ok": done, "key": key, "reset": done}))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShareParams {
    key: Option<SessionKey>,
    session_key: Option<SessionKey>,
    shared: bool,
}

/// `sessions.share`: shares a session with every token, or makes it private again.
pub(super) async fn share(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: ShareParams = parse_params(value)?;
    let key = params.key.or(params.session_key).ok_or_else(|| RpcError::invalid("missing key"))?;
    let done = client.engine().share_session(&client.peer.caller, &key, params.shared).await?;
    Ok(json!({"ok": done, "key": key, "shared": params.shared}))
}

pub(super) async fn delete(client: Arc<WsClient>, value: Value) -> RpcResult {
    let params: SessionParams = parse_params(value)?;
    let key = params.session_to_end(&client, "sessions.delete").await?;
    let caller = &client.peer.caller;
    let done = client.engine().delete_session(caller, &key, &stop_request(caller, false, None)).await?;
    Ok(json!({"ok": true, "key": key, "deleted": done, "archived": []}))
}
