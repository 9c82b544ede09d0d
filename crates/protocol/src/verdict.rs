//! How a run ended, who asked for it, and from where.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::Principal;

/// The one outcome of a run. The first verdict wins and never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    /// The work returned an answer.
    Completed,
    /// The work could not go on.
    Failed {
        /// Stable word for programs, such as `model_error`, `truncated`, `bug`.
        code: String,
        /// What happened, for people.
        message: String,
    },
    /// Somebody or some limit stopped it.
    Aborted {
        /// Why.
        reason: StopReason,
        /// Who, where a person or program asked; absent when Quell itself did (time-out, budget, shutdown).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<By>,
    },
}

impl Verdict {
    /// `completed`, `failed` or `aborted`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed { .. } => "failed",
            Self::Aborted { .. } => "aborted",
        }
    }
}

/// Why a run was stopped: one of the words below, or the text that the caller gave (at most 256 characters are kept).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// A person or program asked without giving a text (`chat.abort`, HTTP, page, Esc, CLI).
    User,
    /// A stop text in a chat (`/stop`, a stop word).
    Command,
    /// The run's time was used up.
    Timeout,
    /// The run's steps were used up.
    Steps,
    /// The run's tokens were used up.
    Tokens,
    /// The run's agent has spent what it may in a day.
    DailyLimit,
    /// A newer message took its place.
    Superseded,
    /// The daemon shuts down.
    Shutdown,
    /// The daemon died; found at the next start.
    DaemonStopped,
    /// The protocol of the door says that a lost connection ends the run.
    Disconnect,
    /// The caller's own words.
    Other(String),
}

impl StopReason {
    const WORDS: [(Self, &'static str); 10] = [
        (Self::User, "user"),
        (Self::Command, "command"),
        (Self::Timeout, "timeout"),
        (Self::Steps, "max_steps"),
        (Self::Tokens, "max_tokens"),
        (Self::DailyLimit, "daily_limit"),
        (Self::Superseded, "superseded"),
        (Self::Shutdown, "shutdown"),
        (Self::DaemonStopped, "daemon_stopped"),
        (Self::Disconnect, "disconnect"),
    ];

    /// Reads a reason as it stands on the wire. Blank text is [`StopReason::User`]; control characters are dropped and more
    /// than 256 characters are cut, so that a reason can stand in a log line and a header.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let text = text.trim();
        if text.is_empty() {
            return Self::User;
        }
        let known = Self::WORDS.iter().find(|(_, word)| *word == text);
        known.map_or_else(
            || Self::Other(text.chars().filter(|c| !c.is_control()).take(256).collect()),
            |(reason, _)| reason.clone(),
        )
    }

    /// The reason as it stands on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        if let Self::Other(text) = self {
            return text;
        }
        Self::WORDS.iter().find(|(reason, _)| reason == self).map_or("user", |(_, word)| word)
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for StopReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for StopReason {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_text(&String::deserialize(deserializer)?))
    }
}

impl utoipa::PartialSchema for StopReason {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        String::schema()
    }
}

impl utoipa::ToSchema for StopReason {}

/// Who asked for a stop, and through which door.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct By {
    /// The asking principal.
    pub principal: Principal,
    /// The door it came through.
    pub surface: Surface,
}

/// The doors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Surface {
    /// HTTP API.
    Http,
    /// WebSocket gateway.
    Ws,
    /// Command line verb.
    Cli,
    /// Terminal UI.
    Tui,
    /// Web page.
    Page,
    /// Chat network.
    Channel,
    /// OpenAI-compatible door.
    Openai,
    /// The daemon itself.
    Daemon,
    /// A program that embeds the engine.
    Embedded,
}

impl Surface {
    /// The door in a word, as it stands on the wire.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Ws => "ws",
            Self::Cli => "cli",
            Self::Tui => "tui",
            Self::Page => "page",
            Self::Channel => "channel",
            Self::Openai => "openai",
            Self::Daemon => "daemon",
            Self::Embedded => "embedded",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_is_the_same_word_everywhere() {
        use Surface::{Channel, Cli, Daemon, Embedded, Http, Openai, Page, Tui, Ws};
        for door in [Http, Ws, Cli, Tui, Page, Channel, Openai, Daemon, Embedded] {
            assert_eq!(serde_json::to_value(door).unwrap(), door.word());
        }
    }
}
