//! Why a call of a network's API failed, and what that means for a message and for the listener.

use std::time::Duration;

use super::http_client::{NoHttpResponse, Repeatable};
use crate::network::{ListenError, NetworkError, SendError};

/// Pause after a rate limit without a given time.
pub(crate) const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(5);

/// A call that failed. The texts are for people and hold no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    NoResponse(NoHttpResponse),
    /// The call had no effect and may be repeated after the pause.
    #[error("{why}; again in {} s", after.as_secs())]
    RateLimited { why: String, after: Duration },
    /// The network rejects the account or its token.
    #[error("{0}")]
    AccountRejected(String),
    /// The network understood the call and refused it: a repetition would be refused, too.
    #[error("{why}")]
    Refused {
        /// The network's own name or number of the reason.
        code: String,
        why: String,
    },
    /// The network failed; the call may have had an effect.
    #[error("{0}")]
    ServerError(String),
    /// The response is not one of the network's: maybe of a proxy that answers after the network has acted.
    #[error("{0}")]
    InvalidResponse(String),
}

impl CallError {
    pub(crate) fn into_send_error(self, repeatable: Repeatable) -> SendError {
        match self {
            Self::NoResponse(no_response) => no_response.into_send_error(repeatable),
            Self::RateLimited { after, .. } => {
                SendError::NotDelivered { why: self.to_string(), retry_after: Some(after) }
            }
            Self::AccountRejected(why) | Self::Refused { why, .. } => SendError::Refused { why },
            Self::ServerError(why) | Self::InvalidResponse(why) => {
                SendError::Unknown { why, is_repeatable: repeatable == Repeatable::Yes }
            }
        }
    }

    /// The error of a step before the one that shows something.
    pub(crate) fn into_not_delivered(self) -> SendError {
        match self {
            Self::NoResponse(no_response) => {
                SendError::NotDelivered { why: no_response.to_string(), retry_after: None }
            }
            Self::ServerError(why) | Self::InvalidResponse(why) => SendError::NotDelivered { why, retry_after: None },
            certain => certain.into_send_error(Repeatable::No),
        }
    }

    pub(crate) fn into_listen_error(self) -> ListenError {
        match self {
            Self::NoResponse(no_response) => ListenError::Connection(no_response.to_string()),
            Self::RateLimited { why, after } => ListenError::Busy { why, after },
            Self::AccountRejected(why) | Self::Refused { why, .. } => ListenError::Refused(why),
            Self::ServerError(why) | Self::InvalidResponse(why) => ListenError::Connection(why),
        }
    }

    pub(crate) fn into_network_error(self) -> NetworkError {
        NetworkError(self.into_listen_error().to_string())
    }

    /// True if the network refused the call with this name or number.
    pub(crate) fn has_code(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { code, .. } if code == wanted)
    }
}
