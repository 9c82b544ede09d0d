//! Gateway session that is resumed after a reconnect or a restart.

use serde::{Deserialize, Serialize};

use super::message_parser::parse_snowflake;
use super::payload::ReadyEvent;
use crate::network::OwnAccount;
use crate::wire::text::single_line;

/// A longer session id or URL is not from Discord.
const MAX_TEXT_BYTES: usize = 2048;

/// State of the session.
#[derive(Debug, Clone, Default)]
pub(super) enum ResumeState {
    /// The cursor of the time before the restart was not read yet.
    #[default]
    NotLoaded,
    /// The next connection starts a session.
    NoSession,
    /// The session can be resumed.
    Open(GatewaySession),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GatewaySession {
    pub(super) id: String,
    /// Where to resume the session; none if that failed, then the general URL is requested.
    pub(super) resume_url: Option<String>,
    pub(super) account: OwnAccount,
    /// Number of the last event that was received. A reconnect resumes after it.
    pub(super) last_seq: u64,
    /// Number up to which all events are in the database. A restart resumes after it, and heartbeats confirm no later
    /// one, so that Discord still keeps the events after it.
    pub(super) saved_seq: Option<u64>,
}

/// The part of the session that survives a restart.
#[derive(Debug, Serialize, Deserialize)]
struct GatewayCursor {
    session: String,
    url: Option<String>,
    id: String,
    name: String,
    seq: u64,
}

impl GatewaySession {
    /// A session that has just started; none if its ids are not valid.
    pub(super) fn from_ready(ready: ReadyEvent) -> Option<Self> {
        let id = parse_snowflake(&ready.user.id)?.to_owned();
        let is_valid = ready.session_id.len() <= MAX_TEXT_BYTES && ready.resume_gateway_url.len() <= MAX_TEXT_BYTES;
        let account = OwnAccount { id, name: single_line(&ready.user.username) };
        let url = Some(ready.resume_gateway_url);
        is_valid.then_some(Self { id: ready.session_id, resume_url: url, account, last_seq: 0, saved_seq: None })
    }

    /// A session from before a restart; none if the text cannot be parsed.
    pub(super) fn from_cursor(text: &str) -> Option<Self> {
        let cursor: GatewayCursor = serde_json::from_str(text).ok()?;
        let account = OwnAccount { id: cursor.id, name: cursor.name };
        Some(Self {
            id: cursor.session,
            resume_url: cursor.url,
            account,
            last_seq: cursor.seq,
            saved_seq: Some(cursor.seq),
        })
    }

    /// The cursor to save once everything received so far is in the database.
    pub(super) fn to_cursor(&self) -> String {
        let (session, url, OwnAccount { id, name }) = (self.id.clone(), self.resume_url.clone(), self.account.clone());
        // Strings and a number always serialise.
        serde_json::to_string(&GatewayCursor { session, url, id, name, seq: self.last_seq }).unwrap_or_default()
    }
}
