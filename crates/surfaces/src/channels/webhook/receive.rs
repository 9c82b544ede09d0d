//! What comes in: a signed POST with one message. Everything in it is checked before anything of it is believed.

use axum::http::HeaderMap;
use quell_engine::hooks::signature::{SIGNATURE, TIMESTAMP};
use quell_protocol::{Attachment, AttachmentKind, Object};
use serde::Deserialize;
use url::Url;

use super::Webhook;
use crate::channels::seam::{self, Heard, Inbound, MessageId, Place};

/// The largest body.
pub const LARGEST: usize = 256 * 1024;
/// How many seconds a clock may be wrong, and a request may be old.
const TOLERANCE: u64 = 300;
/// The longest id, name or place, in bytes.
const LONGEST_ID: usize = 256;
/// The longest address of a file, in bytes.
const LONGEST_URL: usize = 2_048;
/// The most files with one message.
const MOST_FILES: usize = 10;

/// Why a message was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unwelcome {
    /// It is larger than anything that is taken.
    #[error("the body has more than {LARGEST} bytes")]
    TooLarge,
    /// It is not signed.
    #[error("the header {0} is missing or no text")]
    Unsigned(&'static str),
    /// It is signed by somebody else, or was changed on its way.
    #[error("the signature is not that of this body and timestamp with the channel's secret")]
    Forged,
    /// It is genuine and not from now: it may be somebody else's copy.
    #[error("the timestamp is {0} s away from this machine's time; {TOLERANCE} s are the most")]
    Untimely(u64),
    /// It is genuine and no message.
    #[error("{0}")]
    Malformed(String),
}

impl From<Unwelcome> for seam::Unwelcome {
    fn from(unwelcome: Unwelcome) -> Self {
        let says = unwelcome.to_string();
        match unwelcome {
            Unwelcome::TooLarge => Self::TooLarge(says),
            Unwelcome::Unsigned(_) | Unwelcome::Forged => Self::Unproven(says),
            Unwelcome::Untimely(_) => Self::Stale(says),
            Unwelcome::Malformed(_) => Self::Malformed(says),
        }
    }
}

impl Inbound for Webhook {
    fn largest(&self) -> usize {
        LARGEST
    }

    fn read(&self, headers: &HeaderMap, body: &[u8], now: i64) -> Result<Heard, seam::Unwelcome> {
        Ok(self.receive(headers, body, now)?)
    }
}

impl Webhook {
    /// Reads a message that was posted. `now` is the machine's time in seconds since 1970. The same message may be posted
    /// again: it has the same id then.
    ///
    /// # Errors
    /// [`Unwelcome`] says what is wrong, in words that the poster may read: before the signature was right they tell nothing
    /// of what the body should be.
    pub fn receive(&self, headers: &HeaderMap, body: &[u8], now: i64) -> Result<Heard, Unwelcome> {
        if body.len() > LARGEST {
            return Err(Unwelcome::TooLarge);
        }
        let header = |name: &'static str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.ok_or(Unwelcome::Unsigned(name))
        };
        let (timestamp, signature) = (header(TIMESTAMP)?, header(SIGNATURE)?);
        if !self.signer.knows(signature, timestamp, body) {
            return Err(Unwelcome::Forged);
        }
        let sent: i64 = timestamp.parse().map_err(|_| {
            Unwelcome::Malformed("the header quell-timestamp is no number of seconds since 1970".to_owned())
        })?;
        let away = now.abs_diff(sent);
        if away > TOLERANCE {
            return Err(Unwelcome::Untimely(away));
        }
        let Object(message): Object<Message> = serde_json::from_slice(body)
            .map_err(|error| Unwelcome::Malformed(format!("the body is not the JSON of a message: {error}")))?;
        message.heard().map_err(Unwelcome::Malformed)
    }
}

/// A message as it is posted. A field that is not known is a slip of the pen, and said to be one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Message {
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
    attachments: Vec<File>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    kind: AttachmentKind,
    source: String,
    name: Option<String>,
    media_type: Option<String>,
    bytes: Option<u64>,
}

impl Message {
    fn heard(self) -> Result<Heard, String> {
        for (field, value) in [("id", &self.id), ("sender", &self.sender), ("target", &self.target)] {
            check(field, value)?;
        }
        let rest = [("senderName", &self.sender_name), ("thread", &self.thread), ("scopeId", &self.scope_id)];
        for (field, value) in rest {
            value.as_deref().map_or(Ok(()), |value| check(field, value))?;
        }
        if self.text.trim().is_empty() && self.attachments.is_empty() {
            return Err("text is empty, and there are no attachments".to_owned());
        }
        if self.attachments.len() > MOST_FILES {
            return Err(format!("there are more than {MOST_FILES} attachments"));
        }
        let attachments: Result<_, String> = self.attachments.into_iter().map(File::attachment).collect();
        Ok(Heard {
            message: MessageId(self.id.clone()),
            id: self.id,
            sender: self.sender,
            sender_name: self.sender_name,
            place: Place { target: self.target, thread: self.thread },
            scope_id: self.scope_id,
            text: self.text,
            addressed: true,
            group: self.group,
            attachments: attachments?,
        })
    }
}

impl File {
    fn attachment(self) -> Result<Attachment, String> {
        let wrong = "the source of an attachment has to be an http:// or https:// URL";
        let url = Url::parse(&self.source).map_err(|error| format!("{wrong}: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong.to_owned());
        }
        let source = url.to_string();
        if source.len() > LONGEST_URL {
            return Err(format!("the source of an attachment has more than {LONGEST_URL} bytes"));
        }
        for (field, value) in [("name", &self.name), ("mediaType", &self.media_type)] {
            value.as_deref().map_or(Ok(()), |value| check(field, value))?;
        }
        Ok(Attachment { kind: self.kind, source, name: self.name, media_type: self.media_type, bytes: self.bytes })
    }
}

fn check(field: &str, value: &str) -> Result<(), String> {
    if value.trim().is_empty() {
        return Err(format!("{field} is empty"));
    }
    if value.len() > LONGEST_ID {
        return Err(format!("{field} has more than {LONGEST_ID} bytes"));
    }
    if value.chars().any(char::is_control) {
        return Err(format!("{field} has control characters"));
    }
    Ok(())
}
