//! The session of the gateway: what the next connection needs to go on where the last one broke, also after a restart.

use serde::{Deserialize, Serialize};

use super::message::{line, snowflake};
use super::payload::Ready;
use crate::channels::seam::Own;

/// A server that names its session longer than this is none of Discord's.
const LONGEST: usize = 2048;

/// What is known of the session.
#[derive(Debug, Clone, Default)]
pub(super) enum Memory {
    /// Nobody has looked yet for what was kept before the restart.
    #[default]
    Unasked,
    /// There is none: the next connection begins one.
    Nothing,
    /// It can be resumed.
    Open(Session),
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) id: String,
    /// Where it is resumed; where that did not work, the address for everybody is asked for.
    pub(super) url: Option<String>,
    pub(super) own: Own,
    /// The number of the last event that was heard. A connection that is made anew goes on from there.
    pub(super) heard: u64,
    /// The number up to which everything heard is in the database. A daemon that is started anew goes on from there, and
    /// heartbeats confirm no more than this, so that Discord still has what comes after it.
    pub(super) kept: Option<u64>,
}

/// What is kept over a restart.
#[derive(Debug, Serialize, Deserialize)]
struct Cursor {
    session: String,
    url: Option<String>,
    id: String,
    name: String,
    seq: u64,
}

impl Session {
    /// One that has just begun; nothing where the server does not name it.
    pub(super) fn begun(ready: Ready) -> Option<Self> {
        let id = snowflake(&ready.user.id)?.to_owned();
        let fits = ready.session_id.len() <= LONGEST && ready.resume_gateway_url.len() <= LONGEST;
        let own = Own { id, name: line(&ready.user.username) };
        let url = Some(ready.resume_gateway_url);
        fits.then_some(Self { id: ready.session_id, url, own, heard: 0, kept: None })
    }

    /// One from before a restart; nothing where it cannot be read.
    pub(super) fn from_cursor(text: &str) -> Option<Self> {
        let cursor: Cursor = serde_json::from_str(text).ok()?;
        let own = Own { id: cursor.id, name: cursor.name };
        Some(Self { id: cursor.session, url: cursor.url, own, heard: cursor.seq, kept: Some(cursor.seq) })
    }

    /// What is to be kept once everything heard so far is in the database.
    pub(super) fn cursor(&self) -> String {
        let (session, url, Own { id, name }) = (self.id.clone(), self.url.clone(), self.own.clone());
        // Strings and a number can always be written.
        serde_json::to_string(&Cursor { session, url, id, name, seq: self.heard }).unwrap_or_default()
    }
}
