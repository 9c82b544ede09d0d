//! What a check found: how it stands, in a sentence, and what to do about it in one line.

use serde::Serialize;

/// How something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Nothing to do.
    Ok,
    /// It works, but not as a person may expect.
    Warn,
    /// It does not work.
    Fail,
}

impl State {
    /// A glyph and a word: never colour alone.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Ok => "✓ ok  ",
            Self::Warn => "! warn",
            Self::Fail => "✗ fail",
        }
    }

    /// The terminal's colour: quiet green and amber. Red belongs to stopping alone.
    pub(super) fn color(self) -> &'static str {
        match self {
            Self::Ok => "32",
            Self::Warn => "33",
            Self::Fail => "1;33",
        }
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) state: State,
    pub(super) says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(says: impl Into<String>) -> Self {
        Self { state: State::Ok, says: says.into(), remedy: None }
    }

    pub(super) fn warn(says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Warn, says: says.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn fail(says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Fail, says: says.into(), remedy: Some(remedy.into()) }
    }
}
