//! JSON Lines format of a session export (`quell sessions export`): a header line, then one line for each item of the
//! session.
//!
//! Each line after the header names its kind. A kind is one variant of [`ArchiveLineKind`] and one struct here. A
//! reader refuses a kind or a field that it does not know and names it, so that no data is lost unnoticed.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::word_enum::word_enum;
use crate::{AgentId, Principal, RunId, SessionKey};

/// Version of the format. A reader accepts this version and the earlier ones.
pub const ARCHIVE_VERSION: u32 = 1;

/// Value of `quell` in the header.
pub const SESSION_ARCHIVE: &str = "session";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArchiveHeader {
    /// [`SESSION_ARCHIVE`].
    pub quell: String,
    /// [`ARCHIVE_VERSION`] of the writer.
    pub version: u32,
    pub key: SessionKey,
    /// The agent of the last run.
    pub agent: AgentId,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    pub last_used_at: String,
}

word_enum! {
    /// Kind of a line after the header.
    ArchiveLineKind {
        /// A run that has ended: [`RunLine`].
        Run "run",
        /// A sealed turn: [`TurnLine`].
        Turn "turn",
        /// The point at which the history was emptied: [`ResetLine`].
        Reset "reset",
        /// The session's own configuration: [`ConfigLine`].
        Config "config",
        /// A note of the session: [`NoteLine`].
        Note "note",
    }
}

impl ArchiveLineKind {
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArchivedRunState {
    /// The run ended; its view has the receipt.
    Ended,
    /// The text was taken by another run, so that the message never became a run.
    Steered,
}

/// A run, as it was stored.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunLine {
    /// [`ArchiveLineKind::Run`].
    pub kind: ArchiveLineKind,
    pub id: RunId,
    pub agent: AgentId,
    pub principal: Principal,
    /// Hash over the parts of the request in which a repeat with the same id must agree.
    pub fingerprint: String,
    pub state: ArchivedRunState,
    /// The run that took the text, if it was steered.
    pub steered_into: Option<RunId>,
    /// RFC 3339.
    pub accepted_at: String,
    /// The last [`RunView`](crate::api::RunView), with its receipt.
    pub view: VerbatimJson,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TurnLine {
    /// [`ArchiveLineKind::Turn`].
    pub kind: ArchiveLineKind,
    pub run: RunId,
    /// The turn as it is stored.
    pub turn: VerbatimJson,
}

/// The point at which the history was emptied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResetLine {
    /// [`ArchiveLineKind::Reset`].
    pub kind: ArchiveLineKind,
    /// RFC 3339.
    pub at: String,
}

/// The session's own configuration. Its API keys are not exported and must be given again.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigLine {
    /// [`ArchiveLineKind::Config`].
    pub kind: ArchiveLineKind,
    /// A [`SessionRequest`](crate::session::SessionRequest) without its secrets, as it is stored.
    pub config: VerbatimJson,
}

/// A remembered note of the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoteLine {
    /// [`ArchiveLineKind::Note`].
    pub kind: ArchiveLineKind,
    /// Unique within the session.
    pub key: String,
    /// Any word, such as `core` or `conversation`.
    pub category: String,
    pub text: String,
    /// RFC 3339.
    pub at: String,
}

/// Stored JSON that keeps its bytes in a line: spaces, order of keys, spelling of numbers. Text that is not JSON on one
/// line is written as a JSON string, so that damaged data is exported unchanged, too.
#[derive(Clone)]
pub struct VerbatimJson(Box<RawValue>);

impl VerbatimJson {
    /// Accepts any text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let verbatim = || {
            let raw = RawValue::from_string(text.to_owned()).ok()?;
            let kept = raw.get() == text && !text.starts_with('"') && !text.contains(['\n', '\r']);
            kept.then_some(raw)
        };
        // The text of a JSON string is always JSON.
        Self(verbatim().unwrap_or_else(|| serde_json::value::to_raw_value(text).unwrap_or_default()))
    }

    /// The original text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let raw = self.0.get();
        serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned())
    }
}

impl fmt::Debug for VerbatimJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VerbatimJson")
    }
}

impl Serialize for VerbatimJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for VerbatimJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_goes_through_a_line_and_keeps_its_bytes() {
        for text in [
            r#"{"b":1.50,"a":{ "x" : "ü\u00e4\n" }}"#,
            "{\"broken\":",
            "",
            "two\nlines",
            "{\"a\":\n1}",
            " {\"spaces\":1} ",
            r#""a string""#,
            "null",
            "\u{2028}\r\u{0}",
        ] {
            let line = TurnLine {
                kind: ArchiveLineKind::Turn,
                run: RunId::parse("r").unwrap(),
                turn: VerbatimJson::new(text),
            };
            let written = serde_json::to_string(&line).unwrap();
            assert!(!written.contains('\n'), "{written}");
            let read: TurnLine = serde_json::from_str(&written).unwrap();
            assert_eq!(read.turn.to_text(), text, "{written}");
            assert_eq!(serde_json::to_string(&read).unwrap(), written);
        }
    }

    #[test]
    fn stored_json_stands_in_its_line_as_json() {
        let line = TurnLine {
            kind: ArchiveLineKind::Turn,
            run: RunId::parse("r").unwrap(),
            turn: VerbatimJson::new(r#"{"a": 1}"#),
        };
        assert_eq!(serde_json::to_string(&line).unwrap(), r#"{"kind":"turn","run":"r","turn":{"a": 1}}"#);
    }
}
