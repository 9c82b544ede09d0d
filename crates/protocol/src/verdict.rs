//! Verdict of a run, stop reasons, and the origin of a request.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::Principal;
use crate::word_enum::word_enum;

/// How a run ended. The first verdict stands and never changes.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    /// The run produced an answer.
    Completed,
    /// The run could not continue.
    Failed {
        /// Stable word for programs, such as `model_error`, `truncated`, `bug`.
        code: String,
        /// Text for people: what happened.
        message: String,
    },
    /// The run was stopped by a person, a program or a limit.
    Aborted {
        reason: StopReason,
        /// The principal who asked for the stop, and the surface. Absent if Quell itself stopped the run (time-out,
        /// budget, shutdown).
        by: Option<Requester>,
    },
}

impl Verdict {
    /// `completed`, `failed` or `aborted`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed { .. } => "failed",
            Self::Aborted { .. } => "aborted",
        }
    }
}

/// Reason of a stop: one of the words below, or the text that the caller gave (at most 256 characters are kept).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// A person or program asked without giving a text (`chat.abort`, HTTP, page, Esc, CLI).
    User,
    /// A stop text in a chat (`/stop`, a stop word).
    Command,
    /// The time limit of the run was reached.
    Timeout,
    /// The step limit of the run was reached.
    Steps,
    /// The token limit of the run was reached.
    Tokens,
    /// The daily limit of the run's agent or token was reached.
    DailyLimit,
    /// A newer message replaced the run.
    Superseded,
    Shutdown,
    /// The daemon died during the run, and the next start found it.
    DaemonStopped,
    /// The connection was lost, and the protocol of the surface says that this ends the run.
    Disconnect,
    /// The text that the caller gave.
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

    /// The limit that was used up: `steps`, `tokens` or `day`. `None` if somebody or something stopped the run.
    #[must_use]
    pub fn used_up_limit(&self) -> Option<&'static str> {
        match self {
            Self::Steps => Some("steps"),
            Self::Tokens => Some("tokens"),
            Self::DailyLimit => Some("day"),
            Self::User
            | Self::Command
            | Self::Timeout
            | Self::Superseded
            | Self::Shutdown
            | Self::DaemonStopped
            | Self::Disconnect
            | Self::Other(_) => None,
        }
    }

    /// Parses a reason from the wire. Blank text is [`StopReason::User`]. Control characters are removed, and at most
    /// 256 characters are kept, so that a reason fits into a log line and a header.
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

    /// The reason on the wire.
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

/// The principal who asked, and the surface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = By)]
pub struct Requester {
    pub principal: Principal,
    /// The surface through which the request came.
    pub surface: Surface,
}

word_enum! {
    /// Surfaces: where a message or a stop comes from.
    Surface {
        Http "http",
        Ws "ws",
        /// A command of the command line.
        Cli "cli",
        Tui "tui",
        Page "page",
        Channel "channel",
        /// The OpenAI-compatible API.
        Openai "openai",
        /// The Anthropic-compatible API.
        Anthropic "anthropic",
        /// An editor that speaks the Agent Client Protocol.
        Acp "acp",
        /// A client of Quell's own MCP server.
        Mcp "mcp",
        /// Another agent that speaks A2A.
        A2a "a2a",
        Daemon "daemon",
        /// A program that embeds the engine.
        Embedded "embedded",
    }
}
