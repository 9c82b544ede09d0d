//! A session as lines of JSON, the form of `quell sessions export`: a head, then one line for each thing that the session has.
//!
//! Each line but the head names its kind, and a kind is one variant of [`Kind`] and one struct here, so that there can be more
//! of them. What a reader does not know it refuses by name: nothing is dropped in silence.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::{AgentId, Principal, RunId, SessionKey};

/// The version of the form. A reader takes this one and those before it.
pub const VERSION: u32 = 1;

/// The word in the head's `quell`.
pub const SESSION: &str = "session";

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Head {
    /// [`SESSION`].
    pub quell: String,
    /// [`VERSION`] of the writer.
    pub version: u32,
    /// The session's key.
    pub key: SessionKey,
    /// The agent of its last run.
    pub agent: AgentId,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    pub last_used_at: String,
}

/// What a line holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A run that is over: [`RunLine`].
    Run,
    /// A sealed turn: [`TurnLine`].
    Turn,
    /// The boundary that a reset left: [`ResetLine`].
    Reset,
    /// What the session says itself of how it works: [`ConfigLine`].
    Config,
    /// A note that is remembered of it: [`NoteLine`].
    Note,
}

impl Kind {
    /// The kind of this name.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        match word {
            "run" => Some(Self::Run),
            "turn" => Some(Self::Turn),
            "reset" => Some(Self::Reset),
            "config" => Some(Self::Config),
            "note" => Some(Self::Note),
            _ => None,
        }
    }
}

/// How a run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It ended; its view has the receipt.
    Ended,
    /// Its text went into another run, and it never was one of its own.
    Steered,
}

/// A run, as it was stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunLine {
    /// [`Kind::Run`].
    pub kind: Kind,
    /// Its id.
    pub id: RunId,
    /// The agent that ran.
    pub agent: AgentId,
    /// Who asked.
    pub principal: Principal,
    /// Hash of what a repeat with the same id must agree in.
    pub fingerprint: String,
    /// How it is over.
    pub state: RunState,
    /// The run that took its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steered_into: Option<RunId>,
    /// RFC 3339.
    pub accepted_at: String,
    /// Its last [`RunView`](crate::api::RunView), with its receipt.
    pub view: Verbatim,
}

/// A sealed turn.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TurnLine {
    /// [`Kind::Turn`].
    pub kind: Kind,
    /// The run that left it.
    pub run: RunId,
    /// As it is stored.
    pub turn: Verbatim,
}

/// The boundary that a reset left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResetLine {
    /// [`Kind::Reset`].
    pub kind: Kind,
    /// RFC 3339.
    pub at: String,
}

/// What the session says itself of how it works. Its keys are not in it and are given anew.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigLine {
    /// [`Kind::Config`].
    pub kind: Kind,
    /// A [`SessionRequest`](crate::session::SessionRequest) without its secrets, as it is stored.
    pub config: Verbatim,
}

/// A note that is remembered of the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoteLine {
    /// [`Kind::Note`].
    pub kind: Kind,
    /// Its key, once in a session.
    pub key: String,
    /// A free word.
    pub category: String,
    /// What is remembered.
    pub text: String,
    /// RFC 3339.
    pub at: String,
}

/// Stored JSON that keeps its bytes through a line: spaces, order of keys, spelling of numbers. What is no JSON on one line
/// stands there as a string, so that damage, too, comes out as it went in.
#[derive(Clone)]
pub struct Verbatim(Box<RawValue>);

impl Verbatim {
    /// Takes any text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let as_it_is = || {
            let raw = RawValue::from_string(text.to_owned()).ok()?;
            let kept = raw.get() == text && !text.starts_with('"') && !text.contains(['\n', '\r']);
            kept.then_some(raw)
        };
        // The text of a JSON string is always JSON.
        Self(as_it_is().unwrap_or_else(|| serde_json::value::to_raw_value(text).unwrap_or_default()))
    }

    /// The text that was taken.
    #[must_use]
    pub fn text(&self) -> String {
        let raw = self.0.get();
        serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned())
    }
}

impl fmt::Debug for Verbatim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verbatim")
    }
}

impl Serialize for Verbatim {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Verbatim {
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
            let line = TurnLine { kind: Kind::Turn, run: RunId::parse("r").unwrap(), turn: Verbatim::of(text) };
            let written = serde_json::to_string(&line).unwrap();
            assert!(!written.contains('\n'), "{written}");
            let read: TurnLine = serde_json::from_str(&written).unwrap();
            assert_eq!(read.turn.text(), text, "{written}");
            assert_eq!(serde_json::to_string(&read).unwrap(), written);
        }
    }

    #[test]
    fn stored_json_stands_in_its_line_as_json() {
        let line = TurnLine { kind: Kind::Turn, run: RunId::parse("r").unwrap(), turn: Verbatim::of(r#"{"a": 1}"#) };
        assert_eq!(serde_json::to_string(&line).unwrap(), r#"{"kind":"turn","run":"r","turn":{"a": 1}}"#);
    }
}
