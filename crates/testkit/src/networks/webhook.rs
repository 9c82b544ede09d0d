//! A receiver for Quell's webhook channel: it accepts posts exactly as docs/channels/webhook.md describes them and
//! refuses all others. People write to Quell through it.

mod delivery_rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;

use bytes::Bytes;
use ring::hmac;
use serde_json::Value;

use crate::daemon::http_client;
use crate::fake_server::{FakePort, SharedState, start_http_server};
use crate::or_fail::OrFail as _;

/// The secret that both sides share.
pub const TOKEN: &str = "the secret of the testkit's webhook";

/// Fault that is injected into one post.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FakeWebhookFault {
    /// Not executed; answered with this status, and with `Retry-After` in seconds if given.
    Status(u16, Option<u64>),
    /// Not executed; answered with an HTML page that names the path, as servers often do.
    HtmlPage(u16),
    /// Not executed; the connection is closed.
    Drop,
    /// Executed; the connection is closed without an answer.
    LoseAnswer,
}

/// A message as it is shown now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookMessageView {
    pub id: String,
    pub thread: Option<String>,
    /// Its text after all edits.
    pub text: String,
    /// The text without formatting.
    pub plain: String,
    pub edits: usize,
    pub revision: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RecordedDelivery {
    pub event: String,
    /// Its id; a repeated post has the same id.
    pub id: String,
    pub body: Value,
}

#[derive(Debug, Clone, Default)]
pub struct FakeReceiverState {
    pub messages_by_target: BTreeMap<String, Vec<WebhookMessageView>>,
    /// All posts in order, including refused ones.
    pub deliveries: Vec<RecordedDelivery>,
    pub refusals: Vec<String>,
    /// Files by path, for messages that refer to them.
    pub files: BTreeMap<String, Bytes>,
    /// Message ids by the id of the event that created them.
    ids_by_event: BTreeMap<String, String>,
    faults: VecDeque<FakeWebhookFault>,
    /// Answers name no ids, so that Quell uses its own.
    pub omits_ids: bool,
    next_id: u64,
}

impl FakeReceiverState {
    /// The texts that a target shows now.
    pub fn texts(&self, target: &str) -> Vec<&str> {
        self.messages_by_target.get(target).into_iter().flatten().map(|shown| shown.text.as_str()).collect()
    }
}

/// The receiver. Dropping it closes every connection.
#[derive(Debug)]
pub struct FakeWebhookReceiver {
    port: FakePort,
    state: SharedState<FakeReceiverState>,
}

impl Deref for FakeWebhookReceiver {
    type Target = SharedState<FakeReceiverState>;

    fn deref(&self) -> &Self::Target {
        &self.state
    }
}

impl FakeWebhookReceiver {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let state = SharedState::default();
        Self { port: start_http_server(&state, delivery_rules::answer_request), state }
    }

    /// Value for `reply_url`. Its path is secret, as it often is for real receivers.
    pub fn reply_url(&self) -> String {
        format!("{}{}", self.base_url(), delivery_rules::POST_PATH)
    }

    pub fn base_url(&self) -> String {
        self.port.url()
    }

    /// Injects a fault into the next post; several faults are queued.
    pub fn inject_fault(&self, fault: FakeWebhookFault) -> &Self {
        self.update(|state| state.faults.push_back(fault));
        self
    }

    /// Adds a file to the server; returns its URL.
    pub fn add_file(&self, path: &str, bytes: &'static [u8]) -> String {
        self.update(|state| state.files.insert(path.to_owned(), Bytes::from_static(bytes)));
        format!("{}{path}", self.base_url())
    }

    /// Headers of a signed post to Quell; `at` is in seconds since 1970.
    pub fn signed_headers(body: &str, at: i64) -> [(&'static str, String); 3] {
        let signature = sign(TOKEN, &at.to_string(), body.as_bytes());
        [
            ("content-type", "application/json".to_owned()),
            ("quell-timestamp", at.to_string()),
            ("quell-signature", signature),
        ]
    }

    /// Posts a message to Quell as a user; returns status and body.
    pub async fn post_message(&self, url: &str, message: &Value) -> (u16, String) {
        let body = message.to_string();
        let mut request = http_client().post(url);
        for (name, value) in Self::signed_headers(&body, delivery_rules::unix_now()) {
            request = request.header(name, value);
        }
        let answer = request.body(body).send().await.or_fail(url);
        (answer.status().as_u16(), answer.text().await.unwrap_or_default())
    }

    /// The messages that a target shows now.
    pub fn messages(&self, target: &str) -> Vec<WebhookMessageView> {
        self.with_state(|state| state.messages_by_target.get(target).cloned().unwrap_or_default())
    }
}

/// docs/channels/webhook.md: `v1=` and the HMAC-SHA256, hexadecimal, of the timestamp, a dot and the body.
fn sign(secret: &str, timestamp: &str, body: &[u8]) -> String {
    let signed = [timestamp.as_bytes(), b".", body].concat();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), &signed);
    tag.as_ref().iter().fold("v1=".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}
