//! Verify and parse posted messages. The signature is checked before the body is parsed.

use quell_engine::hooks::signature::{SIGNATURE_HEADER, TIMESTAMP_HEADER};
use quell_protocol::{Attachment, AttachmentKind, Object};
use reqwest::header::HeaderMap;
use serde::Deserialize;
use url::Url;

use super::WebhookNetwork;
use crate::network::{self, ChatAddress, InboundEndpoint, InboundMessage, MessageId};

/// Largest body.
pub const MAX_BODY_BYTES: usize = 256 * 1024;
/// Greatest difference between the timestamp and the time of this machine, in seconds.
const TIMESTAMP_TOLERANCE_SECS: u64 = 300;
/// Longest id, name or target, in bytes.
const MAX_ID_BYTES: usize = 256;
/// Longest URL of an attachment, in bytes.
const MAX_URL_BYTES: usize = 2_048;
const MAX_ATTACHMENTS: usize = 10;

/// Reason why a posted message was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WebhookRejection {
    #[error("the body has more than {MAX_BODY_BYTES} bytes")]
    TooLarge,
    #[error("the header {0} is missing or no text")]
    Unsigned(&'static str),
    /// Signed with another secret, or changed on the way.
    #[error("the signature is not that of this body and timestamp with the channel's secret")]
    Forged,
    /// Validly signed but old: it may be a replay.
    #[error("the timestamp is {0} s away from this machine's time; {TIMESTAMP_TOLERANCE_SECS} s are the most")]
    Stale(u64),
    /// Validly signed, but not a message.
    #[error("{0}")]
    Malformed(String),
}

impl From<WebhookRejection> for network::InboundRejection {
    fn from(rejection: WebhookRejection) -> Self {
        let text = rejection.to_string();
        match rejection {
            WebhookRejection::TooLarge => Self::TooLarge(text),
            WebhookRejection::Unsigned(_) | WebhookRejection::Forged => Self::Unauthenticated(text),
            WebhookRejection::Stale(_) => Self::Stale(text),
            WebhookRejection::Malformed(_) => Self::Malformed(text),
        }
    }
}

impl InboundEndpoint for WebhookNetwork {
    fn max_body_bytes(&self) -> usize {
        MAX_BODY_BYTES
    }

    fn parse_request(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: i64,
    ) -> Result<InboundMessage, network::InboundRejection> {
        Ok(self.parse_post(headers, body, now)?)
    }
}

impl WebhookNetwork {
    /// Verifies and parses a posted message. `now` is the time of this machine in seconds since 1970. The same message
    /// may be posted again: it then has the same id.
    ///
    /// # Errors
    /// [`WebhookRejection`], in a text that the sender may read. Before the signature is verified it says nothing about
    /// the expected body.
    pub fn parse_post(&self, headers: &HeaderMap, body: &[u8], now: i64) -> Result<InboundMessage, WebhookRejection> {
        if body.len() > MAX_BODY_BYTES {
            return Err(WebhookRejection::TooLarge);
        }
        let header = |name: &'static str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.ok_or(WebhookRejection::Unsigned(name))
        };
        let (timestamp, signature) = (header(TIMESTAMP_HEADER)?, header(SIGNATURE_HEADER)?);
        if !self.signer.verify(signature, timestamp, body) {
            return Err(WebhookRejection::Forged);
        }
        let sent: i64 = timestamp.parse().map_err(|_| {
            WebhookRejection::Malformed("the header quell-timestamp is no number of seconds since 1970".to_owned())
        })?;
        let clock_difference = now.abs_diff(sent);
        if clock_difference > TIMESTAMP_TOLERANCE_SECS {
            return Err(WebhookRejection::Stale(clock_difference));
        }
        let Object(message): Object<PostedMessage> = serde_json::from_slice(body)
            .map_err(|error| WebhookRejection::Malformed(format!("the body is not the JSON of a message: {error}")))?;
        message.into_inbound().map_err(WebhookRejection::Malformed)
    }
}

/// A message as it is posted. Unknown fields are refused, since they are probably typing errors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PostedMessage {
    id: String,
    sender: String,
    sender_name: Option<String>,
    target: String,
    thread: Option<String>,
    scope_id: Option<String>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    group: bool,
    #[serde(default)]
    attachments: Vec<PostedFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PostedFile {
    kind: AttachmentKind,
    source: String,
    name: Option<String>,
    media_type: Option<String>,
    bytes: Option<u64>,
}

impl PostedMessage {
    fn into_inbound(self) -> Result<InboundMessage, String> {
        for (field, value) in [("id", &self.id), ("sender", &self.sender), ("target", &self.target)] {
            validate_field(field, value)?;
        }
        let rest = [("senderName", &self.sender_name), ("thread", &self.thread), ("scopeId", &self.scope_id)];
        for (field, value) in rest {
            value.as_deref().map_or(Ok(()), |value| validate_field(field, value))?;
        }
        if self.text.trim().is_empty() && self.attachments.is_empty() {
            return Err("text is empty, and there are no attachments".to_owned());
        }
        if self.attachments.len() > MAX_ATTACHMENTS {
            return Err(format!("there are more than {MAX_ATTACHMENTS} attachments"));
        }
        let attachments: Result<_, String> = self.attachments.into_iter().map(PostedFile::into_attachment).collect();
        Ok(InboundMessage {
            message_id: MessageId(self.id.clone()),
            id: self.id,
            sender: self.sender,
            sender_name: self.sender_name,
            address: ChatAddress { target: self.target, thread: self.thread },
            scope_id: self.scope_id,
            text: self.text,
            is_addressed: true,
            is_group: self.group,
            attachments: attachments?,
        })
    }
}

impl PostedFile {
    fn into_attachment(self) -> Result<Attachment, String> {
        let wrong = "the source of an attachment has to be an http:// or https:// URL";
        let url = Url::parse(&self.source).map_err(|error| format!("{wrong}: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong.to_owned());
        }
        let source = url.to_string();
        if source.len() > MAX_URL_BYTES {
            return Err(format!("the source of an attachment has more than {MAX_URL_BYTES} bytes"));
        }
        for (field, value) in [("name", &self.name), ("mediaType", &self.media_type)] {
            value.as_deref().map_or(Ok(()), |value| validate_field(field, value))?;
        }
        Ok(Attachment { kind: self.kind, source, name: self.name, media_type: self.media_type, bytes: self.bytes })
    }
}

fn validate_field(field: &str, value: &str) -> Result<(), String> {
    if value.trim().is_empty() {
        return Err(format!("{field} is empty"));
    }
    if value.len() > MAX_ID_BYTES {
        return Err(format!("{field} has more than {MAX_ID_BYTES} bytes"));
    }
    if value.chars().any(char::is_control) {
        return Err(format!("{field} has control characters"));
    }
    Ok(())
}
