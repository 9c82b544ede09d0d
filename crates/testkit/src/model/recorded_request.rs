//! Requests as the server received them.

use std::time::Instant;

use serde_json::Value;
use tokio::sync::watch;

use crate::history_check::corpus::ModelDialect;
use crate::history_check::{HistoryViolation, list_of};

/// How the response to a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// The whole stream was sent.
    Complete,
    /// A plain status was sent; 400 for an invalid history.
    Status(u16),
    /// The client closed its connection first.
    ClientLeft,
}

#[derive(Debug, Clone, Default)]
pub struct ResponseProgress {
    /// When the first byte of the body was sent.
    pub first_byte: Option<Instant>,
    /// True while the response waits at a gate or is silent; everything before that is sent.
    pub paused: bool,
    /// When the server noticed that the client had disconnected before the end of the response.
    pub client_left: Option<Instant>,
    /// None while it has not ended.
    pub outcome: Option<ResponseOutcome>,
}

#[derive(Debug)]
pub struct RecordedRequest {
    /// Index in the order of arrival, from 0.
    pub index: usize,
    pub dialect: ModelDialect,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Value,
    /// Text of the last user message.
    pub last_user_text: String,
    /// Every word `marker:NAME` in user messages, as NAME, in order. A marker names the run of a request.
    pub markers: Vec<String>,
    pub violations: Vec<HistoryViolation>,
    pub(super) progress: watch::Sender<ResponseProgress>,
}

impl RecordedRequest {
    /// The header of this lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The messages, items or contents, as the dialect names them.
    pub fn messages(&self) -> &[Value] {
        list_of(&self.body, self.dialect.messages_field())
    }

    pub fn progress(&self) -> ResponseProgress {
        self.progress.borrow().clone()
    }

    pub(super) fn update_progress(&self, change: impl FnOnce(&mut ResponseProgress)) {
        self.progress.send_modify(change);
    }
}
