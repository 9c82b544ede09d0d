//! What can go wrong with a call, and what that means for who listens and who sends.

use std::time::Duration;

use reqwest::StatusCode;
use serde::Deserialize;

use crate::channels::seam::{Lost, NotSent};
use crate::channels::wire::http::{Answer, NoAnswer, Repeatable};

/// How long a server is left alone that says that it was asked too often, and not for how long.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest pause that is believed.
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);
/// How much of a server's own words is shown.
const SHOWN: usize = 300;

/// A call that did not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// No answer came.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// The account is not taken.
    #[error("{0}")]
    Account(String),
    /// It was asked too often.
    #[error("the homeserver was asked too often; again in {} s", .0.as_secs())]
    Busy(Duration),
    /// The server understood and said no.
    #[error("the homeserver refuses: {code}: {why}")]
    Refused {
        /// `M_...`.
        code: String,
        /// In its own words.
        why: String,
    },
    /// The server failed at this one call.
    #[error("the homeserver failed: {0}")]
    Failed(String),
    /// Something else answered, or nothing that can be read.
    #[error("not an answer of a homeserver: {0}")]
    Odd(String),
}

/// The body of an error (client-server API: standard error response).
#[derive(Debug, Deserialize)]
struct ErrorBody {
    errcode: String,
    #[serde(default)]
    error: String,
    /// Of `M_LIMIT_EXCEEDED`, from servers that do not send the header yet.
    retry_after_ms: Option<u64>,
}

impl Fault {
    /// What an answer says went wrong; none where it is a success. `token_from` names where the access token was read from.
    pub(super) fn of(answer: &Answer, token_from: &str) -> Option<Self> {
        if answer.status.is_success() {
            return None;
        }
        let Ok(body) = serde_json::from_slice::<ErrorBody>(&answer.body) else {
            let after = answer.retry_after().map(sane);
            let is_limit = answer.status == StatusCode::TOO_MANY_REQUESTS;
            return Some(if is_limit { Self::Busy(after.unwrap_or(PAUSE)) } else { Self::Odd(answer.told()) });
        };
        let (code, why) = (shown(&body.errcode), shown(&body.error));
        Some(match (body.errcode.as_str(), answer.status) {
            ("M_LIMIT_EXCEEDED", _) | (_, StatusCode::TOO_MANY_REQUESTS) => {
                let told = answer.retry_after().or_else(|| body.retry_after_ms.map(Duration::from_millis));
                Self::Busy(told.map_or(PAUSE, sane))
            }
            ("M_UNKNOWN_TOKEN" | "M_MISSING_TOKEN", _) => Self::Account(format!(
                "the homeserver does not take the access token ({code}): log in again and put the new token into {token_from}"
            )),
            ("M_USER_DEACTIVATED" | "M_USER_LOCKED" | "M_USER_SUSPENDED", _) => {
                Self::Account(format!("the homeserver has locked the account ({code}): {why}"))
            }
            (_, status) if status.is_server_error() => Self::Failed(format!("{code}: {why}")),
            _ => Self::Refused { code, why },
        })
    }

    /// As the end of listening.
    pub(super) fn into_lost(self) -> Lost {
        match self {
            Self::NoAnswer(_) | Self::Failed(_) | Self::Odd(_) => Lost::Connection(self.to_string()),
            Self::Busy(after) => Lost::Busy { why: "the homeserver was asked too often".to_owned(), after },
            Self::Account(why) => Lost::Refused(why),
            Self::Refused { .. } => Lost::Refused(self.to_string()),
        }
    }

    /// As an error of sending something.
    pub(super) fn into_not_sent(self, repeatable: Repeatable) -> NotSent {
        let why = self.to_string();
        match self {
            Self::NoAnswer(no_answer) => no_answer.not_sent(repeatable),
            Self::Busy(after) => NotSent::Undelivered { why, after: Some(after) },
            Self::Account(_) | Self::Refused { .. } => NotSent::Refused { why },
            // A proxy that has lost its homeserver answers like this after the homeserver has acted.
            Self::Failed(_) | Self::Odd(_) => NotSent::Unknown { why, repeatable: repeatable == Repeatable::Yes },
        }
    }

    /// Whether it is this error of the server's.
    pub(super) fn is_code(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { code, .. } if code == wanted)
    }
}

fn sane(pause: Duration) -> Duration {
    pause.min(LONGEST_PAUSE)
}

/// A server's words, short and on one line.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect()
}
