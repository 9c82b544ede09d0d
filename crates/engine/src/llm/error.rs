//! How a model call can fail, in words for the person who has to do something about it.

use std::fmt;
use std::time::Duration;

use quell_kernel::turn::VISION;

use crate::scope::Cancelled;

/// Why there is no complete answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The run was stopped. Not an error: an outcome.
    #[error("cancelled")]
    Cancelled,
    /// The provider answered that it will not, before or in the middle of its answer.
    #[error("provider `{provider}` refused{}: {message}; {}", Status(*.status), hint(*.status, *.retryable))]
    Rejected {
        /// Who refused.
        provider: String,
        /// The HTTP status; none when the refusal came inside a stream and named none.
        status: Option<u16>,
        /// The provider's own words, without secrets.
        message: String,
        /// True when the same request may succeed later.
        retryable: bool,
    },
    /// No answer at all: no connection, or it broke before the answer began.
    #[error("provider `{provider}` cannot be reached at {place} ({cause}); check base_url and that the server runs")]
    Unreachable {
        /// Who was called.
        provider: String,
        /// Where.
        place: String,
        /// What went wrong.
        cause: String,
    },
    /// The provider was silent for too long.
    #[error("provider `{provider}` was too slow: no {what} within {:?}; raise {} if that is normal for it", .after, .what.setting())]
    TimedOut {
        /// Who was silent.
        provider: String,
        /// What was waited for.
        what: Wait,
        /// How long.
        after: Duration,
    },
    /// The stream ended before the answer did. What came is not an answer.
    #[error("the answer of provider `{provider}` broke off ({cause}); send the message again")]
    Truncated {
        /// Whose answer.
        provider: String,
        /// How it ended.
        cause: String,
    },
    /// What came is not what the dialect says.
    #[error("provider `{provider}` sent something unreadable: {problem}; check that base_url names an API of its kind")]
    BadStream {
        /// Who sent it.
        provider: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The model, or its provider, did not take the pictures of the request.
    #[error(
        "provider `{provider}` did not take the pictures of this conversation: {message}; send the message without them, or \
             set vision = false for the agent when its model sees none"
    )]
    Vision {
        /// Who refused.
        provider: String,
        /// The provider's own words, without secrets.
        message: String,
    },
    /// The conversation is longer than the model takes.
    #[error("the conversation is too long for the model: {message}")]
    ContextOverflow {
        /// The provider's own words, without secrets.
        message: String,
    },
}

/// What a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The connection.
    Connect,
    /// The beginning of the answer.
    Headers,
    /// The next bytes of the answer.
    Idle,
}

impl ModelError {
    /// The stable word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Rejected { status: Some(429), .. } => "rate_limit",
            Self::Rejected { .. } => "model_error",
            Self::Unreachable { .. } => "unreachable",
            Self::TimedOut { .. } => "timed_out",
            Self::Truncated { .. } => "truncated",
            Self::BadStream { .. } => "bad_stream",
            Self::Vision { .. } => VISION,
            Self::ContextOverflow { .. } => "context_overflow",
        }
    }
}

impl From<Cancelled> for ModelError {
    fn from(Cancelled: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl Wait {
    fn setting(self) -> &'static str {
        match self {
            Self::Connect => "connect_timeout_s",
            Self::Headers => "header_timeout_s",
            Self::Idle => "idle_timeout_s",
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connection",
            Self::Headers => "answer",
            Self::Idle => "further part of the answer",
        })
    }
}

/// What the person can do about a refusal.
fn hint(status: Option<u16>, retryable: bool) -> &'static str {
    match status {
        _ if retryable => "try again later",
        Some(401 | 403) => "check its API key",
        Some(402 | 429) => "check its billing and quota",
        Some(404) => "check base_url and the model's name",
        Some(300..=399) => "set base_url to where it points",
        _ => "check the model and the request's settings",
    }
}

struct Status(Option<u16>);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(status) => write!(f, " (HTTP {status})"),
            None => Ok(()),
        }
    }
}
