//! Errors of a model call, with text for users and a stable code for programs.

use std::fmt;
use std::time::Duration;

use quell_kernel::model_chain::ProviderFailure;
use quell_kernel::turn::CODE_VISION;
use quell_scope::Cancelled;

/// Why a model call has no complete answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The run was stopped. This is an outcome, not an error.
    #[error("cancelled")]
    Cancelled,
    /// The provider refused the request, before or during its answer.
    #[error("provider `{provider}` refused{}: {message}; {}", HttpStatusSuffix(*.status), advice(*.status, *.retryable))]
    Rejected {
        provider: String,
        /// The HTTP status; none when the refusal came inside a stream without one.
        status: Option<u16>,
        /// The provider's own message, without secrets.
        message: String,
        /// True when the same request may succeed later.
        retryable: bool,
    },
    /// No answer at all: no connection, or it broke before the answer began.
    #[error("provider `{provider}` cannot be reached at {url} ({cause}); check base_url and that the server runs")]
    Unreachable {
        provider: String,
        /// The URL of the request, without secrets.
        url: String,
        cause: String,
    },
    /// The provider did not respond in time.
    #[error("provider `{provider}` was too slow: no {timeout} within {:?}; raise {} if that is normal for it", .after, .timeout.setting())]
    TimedOut {
        provider: String,
        /// The wait that took too long.
        timeout: ModelTimeout,
        /// The time limit.
        after: Duration,
    },
    /// The stream ended before the answer was complete. The text until then is not an answer.
    #[error("the answer of provider `{provider}` broke off ({cause}); send the message again")]
    Truncated { provider: String, cause: String },
    /// The response does not match the dialect.
    #[error("provider `{provider}` sent something unreadable: {problem}; check that base_url names an API of its kind")]
    BadStream { provider: String, problem: String },
    /// The model or its provider refused the pictures of the request.
    #[error(
        "provider `{provider}` did not take the pictures of this conversation: {message}; send the message without them, or \
             set vision = false for the agent when its model sees none"
    )]
    Vision {
        provider: String,
        /// The provider's own message, without secrets.
        message: String,
    },
    /// The client asks for something that the provider's API does not have. Nothing was sent.
    #[error("provider `{provider}` cannot be asked for `{option}`: {problem}")]
    UnsupportedOption {
        provider: String,
        /// The name of the option.
        option: &'static str,
        /// What the API does not have, and what to do.
        problem: &'static str,
    },
    /// The conversation is longer than the model accepts.
    #[error("the conversation is too long for the model: {message}")]
    ContextOverflow {
        /// The provider's own message, without secrets.
        message: String,
    },
}

/// The waits of a call that have a time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelTimeout {
    Connect,
    /// For the beginning of the answer.
    Headers,
    /// For the next bytes of the answer.
    Idle,
}

impl ModelError {
    /// The stable error code for programs.
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
            Self::Vision { .. } => CODE_VISION,
            Self::UnsupportedOption { .. } => "unsupported",
            Self::ContextOverflow { .. } => "context_overflow",
        }
    }

    /// The failure of the provider, if another provider may give the answer.
    #[must_use]
    pub fn provider_failure(&self) -> Option<ProviderFailure> {
        match self {
            Self::Rejected { status, message, retryable, .. } => {
                let is_quota = *status == Some(429) && !retryable;
                // Anthropic answers 400 then, and some servers none of these statuses.
                let words = message.to_lowercase();
                let names_credit =
                    ["credit balance", "insufficient_quota", "insufficient credit", "exceeded your current quota"];
                if is_quota || names_credit.iter().any(|name| words.contains(name)) {
                    return Some(ProviderFailure::OutOfCredit);
                }
                status.and_then(ProviderFailure::of_status)
            }
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Truncated { .. } => Some(ProviderFailure::Lost),
            Self::Cancelled
            | Self::BadStream { .. }
            | Self::Vision { .. }
            | Self::UnsupportedOption { .. }
            | Self::ContextOverflow { .. } => None,
        }
    }
}

impl From<Cancelled> for ModelError {
    fn from(Cancelled: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl ModelTimeout {
    fn setting(self) -> &'static str {
        match self {
            Self::Connect => "connect_timeout_s",
            Self::Headers => "header_timeout_s",
            Self::Idle => "idle_timeout_s",
        }
    }
}

impl fmt::Display for ModelTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connection",
            Self::Headers => "answer",
            Self::Idle => "further part of the answer",
        })
    }
}

/// What a person can do about a refusal.
fn advice(status: Option<u16>, retryable: bool) -> &'static str {
    match status {
        _ if retryable => "try again later",
        Some(401 | 403) => "check its API key",
        Some(402 | 429) => "check its billing and quota",
        Some(404) => "check base_url and the model's name",
        Some(300..=399) => "set base_url to where it points",
        _ => "check the model and the request's settings",
    }
}

struct HttpStatusSuffix(Option<u16>);

impl fmt::Display for HttpStatusSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(status) => write!(f, " (HTTP {status})"),
            None => Ok(()),
        }
    }
}
