//! What a failed attempt means: the error for people, and whether another attempt can help. It sends nothing.

use std::error::Error;
use std::io;
use std::time::Duration;

use quell_kernel::retry::retryable_status;

use super::answer::{Bad, Partial};
use super::error::{ModelError, Wait};
use super::provider::Provider;
use super::report::Report;
use super::sse::Oversize;
use crate::address::AddressRefused;
use crate::scope::Cancelled;

/// The status for "too many requests".
const TOO_MANY_REQUESTS: u16 = 429;

/// Why an attempt failed, and what that means for the next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) error: ModelError,
    pub(super) again: Again,
}

/// Whether there is a next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Never,
    /// After the usual delay, or after the server's wish if that is longer.
    After(Option<Duration>),
}

impl Failure {
    fn last(error: ModelError) -> Self {
        Self { error, again: Again::Never }
    }

    fn passing(error: ModelError) -> Self {
        Self { error, again: Again::After(None) }
    }

    /// What the failure of a request that shows pictures means. One that they caused comes back as often as they are shown.
    pub(super) fn of_pictures(self) -> Self {
        match self.error {
            ModelError::Rejected { provider, status, message, .. } if blames_pictures(status, &message) => {
                Self::last(ModelError::Vision { provider, message })
            }
            error => Self { error, ..self },
        }
    }
}

impl From<Cancelled> for Failure {
    fn from(cancelled: Cancelled) -> Self {
        Self::last(cancelled.into())
    }
}

impl Provider {
    /// The request could not be sent, or its connection broke before an answer began.
    pub(super) fn no_answer(&self, error: &reqwest::Error) -> Failure {
        if error.is_connect() && error.is_timeout() {
            return Failure::passing(self.timed_out(Wait::Connect, self.connect_timeout));
        }
        let unreachable =
            ModelError::Unreachable { provider: self.name.clone(), place: self.place(), cause: root_cause(error) };
        if is_tls(error) || is_refused_address(error) {
            Failure::last(unreachable)
        } else {
            Failure::passing(unreachable)
        }
    }

    /// No answer began in time.
    pub(super) fn no_headers(&self) -> Failure {
        Failure::passing(self.timed_out(Wait::Headers, self.header_timeout))
    }

    /// The answer fell silent.
    pub(super) fn silent(&self, after: Duration) -> Failure {
        Failure::last(self.timed_out(Wait::Idle, after))
    }

    /// An error answer.
    pub(super) fn refused(&self, status: u16, report: &Report, wish: Option<Duration>) -> Failure {
        if status != TOO_MANY_REQUESTS && report.is_overflow() {
            return Failure::last(self.overflow(report));
        }
        let retryable = retryable_status(status) && !report.is_out_of_quota();
        let again = if retryable { Again::After(wish) } else { Again::Never };
        Failure { error: self.rejected(Some(status), report, retryable), again }
    }

    /// The answer began and ended too early.
    pub(super) fn truncated(&self, cause: impl Into<String>) -> Failure {
        Failure::last(ModelError::Truncated { provider: self.name.clone(), cause: cause.into() })
    }

    /// What came is not what the dialect says.
    pub(super) fn unreadable(&self, problem: impl Into<String>) -> Failure {
        let problem = self.redact(problem.into());
        Failure::last(ModelError::BadStream { provider: self.name.clone(), problem })
    }

    /// An event or a line is too large.
    pub(super) fn oversize(&self, oversize: Oversize) -> Failure {
        self.unreadable(oversize.to_string())
    }

    /// An event that is no part of an answer. Once anything of the answer was told, it is too late to try again.
    pub(super) fn bad(&self, bad: Bad, partial: &Partial) -> Failure {
        match bad {
            Bad::Unreadable(problem) => self.unreadable(problem),
            Bad::Reported(report) if report.is_overflow() => Failure::last(self.overflow(&report)),
            Bad::Reported(report) => {
                let retryable = report.status.is_some_and(retryable_status) && !report.is_out_of_quota();
                let again = if retryable && partial.is_untold() { Again::After(None) } else { Again::Never };
                Failure { error: self.rejected(report.status, &report, retryable), again }
            }
        }
    }

    fn rejected(&self, status: Option<u16>, report: &Report, retryable: bool) -> ModelError {
        let message = self.redact(report.message.clone());
        ModelError::Rejected { provider: self.name.clone(), status, message, retryable }
    }

    fn overflow(&self, report: &Report) -> ModelError {
        ModelError::ContextOverflow { message: self.redact(report.message.clone()) }
    }

    fn timed_out(&self, what: Wait, after: Duration) -> ModelError {
        ModelError::TimedOut { provider: self.name.clone(), what, after }
    }
}

/// True when a refusal names pictures. Where the status could mean much else, it has to say that they are not supported: OpenRouter
/// answers 404 when no model takes them, llama.cpp 500.
fn blames_pictures(status: Option<u16>, message: &str) -> bool {
    let words = message.to_lowercase();
    let names = ["image", "vision", "picture", "multimodal", "multi-modal"].iter().any(|word| words.contains(word));
    match status {
        None | Some(400 | 413 | 415 | 422) => names,
        Some(404 | 500..=599) => names && words.contains("support"),
        Some(_) => false,
    }
}

/// The innermost cause, which is the one that says something: reqwest's own text is only "error sending request", and it
/// names the URL, which may hold a secret.
pub(super) fn root_cause(error: &reqwest::Error) -> String {
    match causes(error).last() {
        Some(cause) => cause.to_string(),
        None => "no further reason given".to_owned(),
    }
}

/// The name is at an address that a session may not reach: it will be there the next time, too.
fn is_refused_address(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(<dyn Error>::is::<AddressRefused>)
}

/// True when TLS itself failed: a certificate does not become valid by asking again.
fn is_tls(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|cause| {
        let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause.is::<rustls::Error>() || wrapped.is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>)
    })
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause| (*cause).source())
}

#[cfg(test)]
mod tests;
