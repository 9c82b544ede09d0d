//! Send or edit one message piece and retry where a retry cannot show it twice.

use std::time::Duration;

use quell_engine::channel_origin::DeliveryError;
use tokio::time::{Instant, sleep};

use super::channel::ActiveChannel;
use crate::format::{MessagePiece, split_message};
use crate::network::{ChatAddress, Drafts, MessageId, Network, SendError};

/// Tries of a call whose effect is unknown.
const MAX_TRIES: u32 = 5;
/// The first pause; each further one is twice as long, up to the maximum.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(500);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(15);
/// Give up when the network asks to wait longer than this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// How long to retry a piece that is certainly not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendPersistence {
    FewTries,
    /// A few times. A retry that would start after this moment is not made.
    FewTriesBefore(Instant),
    /// Until the caller drops the future: a server that restarts comes back.
    UntilCancelled,
}

/// Whether a retry after a lost response can have a second effect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RetrySafety {
    Idempotent,
    OnlyWithKey,
}

/// Sends a text in pieces. The key of each piece begins with `key`.
pub(super) async fn send_text(
    channel: &ActiveChannel,
    address: &ChatAddress,
    text: &str,
    key: &str,
    persistence: SendPersistence,
) -> Result<(), SendError> {
    for (number, piece) in split_message(text, &channel.limits.message_format).iter().enumerate() {
        send_piece(&*channel.network, address, piece, &format!("{key}-{number}"), persistence).await?;
    }
    Ok(())
}

/// Sends one piece with its key. Dropping the future gives up the request.
pub(super) async fn send_piece(
    network: &dyn Network,
    address: &ChatAddress,
    piece: &MessagePiece,
    key: &str,
    persistence: SendPersistence,
) -> Result<MessageId, SendError> {
    retry(|| network.send(address, piece, key), RetrySafety::OnlyWithKey, persistence).await
}

/// Replaces the content of a message. An edit is idempotent, so it is retried even if its effect is unknown.
pub(super) async fn edit_message(
    drafts: &dyn Drafts,
    address: &ChatAddress,
    message: &MessageId,
    piece: &MessagePiece,
) -> Result<(), SendError> {
    retry(|| drafts.edit(address, message, piece), RetrySafety::Idempotent, SendPersistence::UntilCancelled).await
}

/// Makes a call, and makes it again where that cannot show a message twice.
pub(super) async fn retry<T, F>(
    mut call: impl FnMut() -> F,
    retry_safety: RetrySafety,
    persistence: SendPersistence,
) -> Result<T, SendError>
where
    F: Future<Output = Result<T, SendError>>,
{
    let mut attempts = 0;
    loop {
        let error = match call().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        attempts += 1;
        match retry_delay(&error, attempts, retry_safety, persistence) {
            Some(pause) => sleep(pause).await,
            None => return Err(error),
        }
    }
}

/// The pause before the next try; `None` to give up.
fn retry_delay(
    error: &SendError,
    attempts: u32,
    retry_safety: RetrySafety,
    persistence: SendPersistence,
) -> Option<Duration> {
    let backoff = FIRST_RETRY_DELAY.saturating_mul(1 << (attempts - 1).min(8)).min(MAX_RETRY_DELAY);
    let may_retry = attempts < MAX_TRIES;
    let pause = match error {
        SendError::NotDelivered { retry_after, .. } if may_retry || persistence == SendPersistence::UntilCancelled => {
            // A retry before the requested time would only lengthen the wait.
            Some(retry_after.unwrap_or(backoff)).filter(|pause| *pause <= MAX_RETRY_AFTER)
        }
        SendError::NotDelivered { .. } | SendError::Refused { .. } => None,
        SendError::Unknown { is_repeatable, .. } => {
            (may_retry && (*is_repeatable || retry_safety == RetrySafety::Idempotent)).then_some(backoff)
        }
    };
    pause.filter(|pause| match persistence {
        SendPersistence::FewTriesBefore(deadline) => Instant::now() + *pause < deadline,
        SendPersistence::FewTries | SendPersistence::UntilCancelled => true,
    })
}

/// The result of a delivery that failed after `sent` of `total` pieces.
pub(super) fn delivery_error(error: SendError, sent: usize, total: usize) -> DeliveryError {
    match error {
        SendError::Unknown { why, .. } => DeliveryError::Unknown(why),
        SendError::NotDelivered { why, .. } | SendError::Refused { why } if sent == 0 => {
            DeliveryError::NotDelivered(why)
        }
        SendError::NotDelivered { why, .. } | SendError::Refused { why } => {
            DeliveryError::PartlyDelivered { sent, of: total, why }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyed_send(error: &SendError, attempts: u32) -> Option<Duration> {
        retry_delay(error, attempts, RetrySafety::OnlyWithKey, SendPersistence::UntilCancelled)
    }

    fn idempotent_edit(error: &SendError, attempts: u32) -> Option<Duration> {
        retry_delay(error, attempts, RetrySafety::Idempotent, SendPersistence::FewTries)
    }

    fn unknown_error(is_repeatable: bool) -> SendError {
        SendError::Unknown { why: "lost".to_owned(), is_repeatable }
    }

    #[test]
    fn an_unknown_send_is_repeated_only_with_an_idempotency_key() {
        assert_eq!(keyed_send(&unknown_error(false), 1), None);
        assert_eq!(keyed_send(&unknown_error(true), 1), Some(FIRST_RETRY_DELAY));
        assert_eq!(keyed_send(&unknown_error(true), MAX_TRIES), None);
        assert_eq!(idempotent_edit(&unknown_error(false), 1), Some(FIRST_RETRY_DELAY));
        assert_eq!(idempotent_edit(&SendError::Refused { why: "no".to_owned() }, 1), None);
    }

    #[test]
    fn an_undelivered_send_is_repeated_until_the_server_is_back() {
        let undelivered = SendError::NotDelivered { why: "reset".to_owned(), retry_after: None };
        assert_eq!(keyed_send(&undelivered, 3), Some(4 * FIRST_RETRY_DELAY));
        assert_eq!(keyed_send(&undelivered, 100), Some(MAX_RETRY_DELAY));
        assert_eq!(idempotent_edit(&undelivered, MAX_TRIES), None);
    }

    #[test]
    fn a_network_says_how_long_to_wait_and_is_not_asked_before() {
        let busy = |seconds| SendError::NotDelivered {
            why: "429".to_owned(),
            retry_after: Some(Duration::from_secs(seconds)),
        };
        assert_eq!(keyed_send(&busy(90), 1), Some(Duration::from_secs(90)));
        assert_eq!(keyed_send(&busy(3600), 1), None);
    }

    #[test]
    fn a_delivery_error_states_what_was_delivered() {
        let refused = SendError::Refused { why: "blocked".to_owned() };
        assert_eq!(delivery_error(refused.clone(), 0, 3), DeliveryError::NotDelivered("blocked".to_owned()));
        assert!(matches!(delivery_error(refused, 2, 3), DeliveryError::PartlyDelivered { sent: 2, of: 3, .. }));
        assert!(matches!(delivery_error(unknown_error(false), 2, 3), DeliveryError::Unknown(_)));
    }
}
