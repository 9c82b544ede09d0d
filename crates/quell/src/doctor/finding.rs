//! Result of a check: status, sentence, remedy.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FindingStatus {
    Ok,
    /// It works, but maybe not as expected.
    Warn,
    Fail,
}

impl FindingStatus {
    /// A glyph and a word, so that the meaning never depends on colour.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Ok => "✓ ok  ",
            Self::Warn => "! warn",
            Self::Fail => "✗ fail",
        }
    }

    /// ANSI colour: green and amber. Red is reserved for stops.
    pub(super) fn color(self) -> &'static str {
        match self {
            Self::Ok => "32",
            Self::Warn => "33",
            Self::Fail => "1;33",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct DoctorFinding {
    pub(super) state: FindingStatus,
    pub(super) says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl DoctorFinding {
    pub(super) fn ok(says: impl Into<String>) -> Self {
        Self { state: FindingStatus::Ok, says: says.into(), remedy: None }
    }

    pub(super) fn warn(says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: FindingStatus::Warn, says: says.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn fail(says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: FindingStatus::Fail, says: says.into(), remedy: Some(remedy.into()) }
    }

    /// The environment variable with the key of a provider or server is not set.
    pub(super) fn missing_key(name: &str, variable: &str) -> Self {
        Self::fail(
            format!("{name}: api_key_env names {variable}, which is not set or empty here"),
            format!("export {variable}=..., or remove api_key_env if the server needs no key"),
        )
    }
}
