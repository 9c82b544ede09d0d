//! Verify and parse posted messages. The signature is checked before the body is parsed.

use quell_engine::hooks::signature::{SIGNATURE_HEADER, TIMESTAMP_HEADER};
use quell_protocol::{Attachment, AttachmentKind, Object};
use reqwest::header::HeaderMap;
use serde::Deserialize;
use url::Url;

use super::WebhookNetwork;
use crate::network::{ChatAddress, InboundEndpoint, InboundMessage, InboundRejection, MessageId};

pub(super) const MAX_BODY_BYTES: usize = 256 * 1024;
/// Greatest difference between the timestamp and the time of this machine, in seconds.
const TIMESTAMP_TOLERANCE_SECS: u64 = 300;
/// Longest id, name or target, in bytes.
const MAX_ID_BYTES: usize = 256;
/// Longest URL of an attachment, in bytes.
const MAX_URL_BYTES: usize = 2_048;
const MAX_ATTACHMENTS: usize = 10;

impl InboundEndpoint for WebhookNetwork {
    fn max_body_bytes(&self) -> usize {
        MAX_BODY_BYTES
    }

    /// Before the signature is verified, the text of a rejection says nothing about the expected body.
    fn parse_request(&self, headers: &HeaderMap, body: &[u8], now: i64) -> Result<InboundMessage, InboundRejection> {
        if body.len() > MAX_BODY_BYTES {
            return Err(InboundRejection::TooLarge(format!("the body has more than {MAX_BODY_BYTES} bytes")));
        }
        let header = |name: &'static str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.ok_or_else(|| InboundRejection::Unauthenticated(format!("the header {name} is missing or no text")))
        };
        let (timestamp, signature) = (header(TIMESTAMP_HEADER)?, header(SIGNATURE_HEADER)?);
        if !self.signer.verify(signature, timestamp, body) {
            let why = "the signature is not that of this body and timestamp with the channel's secret";
            return Err(InboundRejection::Unauthenticated(why.to_owned()));
        }
        let sent: i64 = timestamp.parse().map_err(|_| {
            InboundRejection::Malformed("the header quell-timestamp is no number of seconds since 1970".to_owned())
        })?;
        let clock_difference = now.abs_diff(sent);
        if clock_difference > TIMESTAMP_TOLERANCE_SECS {
            return Err(InboundRejection::Stale(format!(
                "the timestamp is {clock_difference} s away from this machine's time; {TIMESTAMP_TOLERANCE_SECS} s are the most"
            )));
        }
        let Object(message): Object<PostedMessage> = serde_json::from_slice(body)
            .map_err(|error| InboundRejection::Malformed(format!("the body is not the JSON of a message: {error}")))?;
        message.into_inbound().map_err(InboundRejection::Malformed)
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
