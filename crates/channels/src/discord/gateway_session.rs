//! Gateway session that is resumed after a reconnect or a restart.

use serde::{Deserialize, Serialize};

use super::message_parser::parse_snowflake;
use super::payload::ReadyEvent;
use crate::network::OwnAccount;
use crate::wire::text::single_line;

/// A longer session id or URL is not from Discord.
const MAX_TEXT_BYTES: usize = 2048;

#[derive(Debug, Clone, Default)]
pub(super) enum ResumeState {
    /// The cursor of the time before the restart was not read yet.
    #[default]
    NotLoaded,
    /// The next connection starts a session.
    NoSession,
    Open(GatewaySession),
}

/// A session. Its serialised form is the cursor, the part that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GatewaySession {
    #[serde(rename = "session")]
    pub(super) id: String,
    /// Where to resume the session; none if that failed, then the general URL is requested.
    #[serde(rename = "url")]
    pub(super) resume_url: Option<String>,
    #[serde(flatten)]
    pub(super) account: OwnAccount,
    /// Number of the last event that was received. A reconnect resumes after it.
    #[serde(rename = "seq")]
    pub(super) last_seq: u64,
    /// Number up to which all events are in the database. A restart resumes after it, and heartbeats confirm no later
    /// one, so that Discord still keeps the events after it.
    #[serde(skip)]
    pub(super) saved_seq: Option<u64>,
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
        let session: Self = serde_json::from_str(text).ok()?;
        Some(Self { saved_seq: Some(session.last_seq), ..session })
    }

    /// The cursor to save once everything received so far is in the database.
    pub(super) fn to_cursor(&self) -> String {
        // Strings and a number always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}
