//! Classify a failed attempt: the error to report, and whether to retry.

use std::error::Error;
use std::io;
use std::time::Duration;

use quell_kernel::retry::is_retryable_status;
use quell_net::{AddressRefused, error_sources, root_cause, without_secrets};
use quell_scope::Cancelled;
use reqwest::Url;

use super::error::{ModelError, ModelTimeout};
use super::error_report::ProviderErrorReport;
use super::partial_answer::{PartialAnswer, ResponseError};
use super::provider::Provider;

/// The HTTP status "too many requests".
const TOO_MANY_REQUESTS: u16 = 429;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct AttemptFailure {
    pub(super) error: ModelError,
    pub(super) retry: RetryDecision,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryDecision {
    Never,
    /// After the usual delay, or after the server's `Retry-After` if that is longer.
    After(Option<Duration>),
}

impl AttemptFailure {
    fn permanent(error: ModelError) -> Self {
        Self { error, retry: RetryDecision::Never }
    }

    fn transient(error: ModelError) -> Self {
        Self { error, retry: RetryDecision::After(None) }
    }

    /// Classifies a failed request that shows pictures. A refusal of the pictures is permanent: a retry would be
    /// refused, too.
    pub(super) fn classify_picture_refusal(self) -> Self {
        match self.error {
            ModelError::Rejected { provider, status, message, .. } if is_picture_refusal(status, &message) => {
                Self::permanent(ModelError::Vision { provider, message })
            }
            error => Self { error, ..self },
        }
    }
}

impl From<Cancelled> for AttemptFailure {
    fn from(cancelled: Cancelled) -> Self {
        Self::permanent(cancelled.into())
    }
}

impl Provider {
    /// The request to `url` could not be sent, or its connection broke before an answer began.
    pub(super) fn send_failure(&self, url: &Url, error: &reqwest::Error) -> AttemptFailure {
        if error.is_connect() && error.is_timeout() {
            return AttemptFailure::transient(self.timeout_error(ModelTimeout::Connect, self.connect_timeout));
        }
        let (provider, url) = (self.name.clone(), without_secrets(url));
        let unreachable = ModelError::Unreachable { provider, url, cause: root_cause(error) };
        if is_tls_error(error) || is_address_refused(error) {
            AttemptFailure::permanent(unreachable)
        } else {
            AttemptFailure::transient(unreachable)
        }
    }

    /// No answer began in time.
    pub(super) fn header_timeout_failure(&self) -> AttemptFailure {
        AttemptFailure::transient(self.timeout_error(ModelTimeout::Headers, self.header_timeout))
    }

    /// The answer stalled for too long.
    pub(super) fn idle_timeout_failure(&self, after: Duration) -> AttemptFailure {
        AttemptFailure::permanent(self.timeout_error(ModelTimeout::Idle, after))
    }

    /// The provider answered with an error status.
    pub(super) fn refusal_failure(
        &self,
        status: u16,
        report: &ProviderErrorReport,
        server_delay: Option<Duration>,
    ) -> AttemptFailure {
        if status != TOO_MANY_REQUESTS && report.is_overflow() {
            return AttemptFailure::permanent(self.overflow_error(report));
        }
        let retryable = is_retryable_status(status) && !report.is_out_of_quota();
        let retry = if retryable { RetryDecision::After(server_delay) } else { RetryDecision::Never };
        AttemptFailure { error: self.rejected_error(Some(status), report, retryable), retry }
    }

    /// The answer began and ended too early.
    pub(super) fn truncated_failure(&self, cause: impl Into<String>) -> AttemptFailure {
        AttemptFailure::permanent(ModelError::Truncated { provider: self.name.clone(), cause: cause.into() })
    }

    /// The data does not match the dialect.
    pub(super) fn unreadable_failure(&self, problem: impl Into<String>) -> AttemptFailure {
        let problem = self.redact_secrets(problem.into());
        AttemptFailure::permanent(ModelError::BadStream { provider: self.name.clone(), problem })
    }

    /// An event that is no valid part of an answer. Once a part of the answer reached the sink, there is no retry.
    pub(super) fn response_failure(&self, error: ResponseError, partial: &PartialAnswer) -> AttemptFailure {
        match error {
            ResponseError::Unreadable(problem) => self.unreadable_failure(problem),
            ResponseError::Reported(report) if report.is_overflow() => {
                AttemptFailure::permanent(self.overflow_error(&report))
            }
            ResponseError::Reported(report) => {
                let retryable = report.status.is_some_and(is_retryable_status) && !report.is_out_of_quota();
                let retry =
                    if retryable && partial.is_empty() { RetryDecision::After(None) } else { RetryDecision::Never };
                AttemptFailure { error: self.rejected_error(report.status, &report, retryable), retry }
            }
        }
    }

    fn rejected_error(&self, status: Option<u16>, report: &ProviderErrorReport, retryable: bool) -> ModelError {
        let message = self.redact_secrets(report.message.clone());
        ModelError::Rejected { provider: self.name.clone(), status, message, retryable }
    }

    fn overflow_error(&self, report: &ProviderErrorReport) -> ModelError {
        ModelError::ContextOverflow { message: self.redact_secrets(report.message.clone()) }
    }

    fn timeout_error(&self, timeout: ModelTimeout, after: Duration) -> ModelError {
        ModelError::TimedOut { provider: self.name.clone(), timeout, after }
    }
}

/// True when a refusal names pictures. For a status with other common causes, the message must also say that they are
/// not supported: OpenRouter answers 404 when no model supports them, llama.cpp 500.
fn is_picture_refusal(status: Option<u16>, message: &str) -> bool {
    let words = message.to_lowercase();
    let names = ["image", "vision", "picture", "multimodal", "multi-modal"].iter().any(|word| words.contains(word));
    match status {
        None | Some(400 | 413 | 415 | 422) => names,
        Some(404 | 500..=599) => names && words.contains("support"),
        Some(_) => false,
    }
}

/// True when the address is one that a session may not reach. A retry would not help.
fn is_address_refused(error: &(dyn Error + 'static)) -> bool {
    error_sources(error).any(<dyn Error>::is::<AddressRefused>)
}

/// True when TLS itself failed: a retry does not make a certificate valid.
fn is_tls_error(error: &(dyn Error + 'static)) -> bool {
    error_sources(error).any(|cause| {
        let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause.is::<rustls::Error>() || wrapped.is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>)
    })
}

#[cfg(test)]
mod tests;
