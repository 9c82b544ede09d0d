//! Send or edit one message piece and retry where a retry cannot show it twice.

use std::time::Duration;

use quell_engine::channel_origin::DeliveryError;
use tokio::time::{Instant, sleep, timeout_at};

use crate::format::MessagePiece;
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
    /// A few times.
    FewTries,
    /// Until the caller drops the future: a server that restarts comes back.
    UntilCancelled,
}

/// Sends one piece with its key. Dropping the future gives up the request.
pub(super) async fn send_piece(
    network: &dyn Network,
    address: &ChatAddress,
    piece: &MessagePiece,
    key: &str,
    persistence: SendPersistence,
) -> Result<MessageId, SendError> {
    retry_with_key(|| network.send(address, piece, key), persistence).await
}

/// Sends one piece with its key before all other pieces that wait in the network, with few tries.
pub(super) async fn send_urgent_piece(
    network: &dyn Network,
    address: &ChatAddress,
    piece: &MessagePiece,
    key: &str,
) -> Result<MessageId, SendError> {
    retry_with_key(|| network.send_urgent(address, piece, key), SendPersistence::FewTries).await
}

async fn retry_with_key<T>(mut call: impl FnMut() -> T, persistence: SendPersistence) -> Result<MessageId, SendError>
where
    T: Future<Output = Result<MessageId, SendError>>,
{
    let mut attempts = 0;
    loop {
        let error = match call().await {
            Ok(message) => return Ok(message),
            Err(error) => error,
        };
        attempts += 1;
        match retry_delay(&error, attempts, RetrySafety::OnlyWithKey, persistence) {
            Some(pause) => sleep(pause).await,
            None => return Err(error),
        }
    }
}

/// Sends one piece with its key before `deadline`. A retry that would start after it is not made.
pub(super) async fn send_piece_before(
    network: &dyn Network,
    address: &ChatAddress,
    piece: &MessagePiece,
    key: &str,
    deadline: Instant,
) -> Result<MessageId, SendError> {
    let mut attempts = 0;
    loop {
        let error = match timeout_at(deadline, network.send(address, piece, key)).await {
            Ok(Ok(message)) => return Ok(message),
            Ok(Err(error)) => error,
            Err(_elapsed) => {
                return Err(SendError::Unknown { why: "no answer in time".to_owned(), is_repeatable: false });
            }
        };
        attempts += 1;
        let pause = retry_delay(&error, attempts, RetrySafety::OnlyWithKey, SendPersistence::FewTries);
        match pause.filter(|pause| Instant::now() + *pause < deadline) {
            Some(pause) => sleep(pause).await,
            None => return Err(error),
        }
    }
}

/// Replaces the content of a message. An edit is idempotent, so it is retried even if its effect is unknown.
pub(super) async fn edit_message(
    drafts: &dyn Drafts,
    address: &ChatAddress,
    message: &MessageId,
    piece: &MessagePiece,
    persistence: SendPersistence,
) -> Result<(), SendError> {
    retry_idempotent(|| drafts.edit(address, message, piece), persistence).await
}

/// Retries an idempotent call, such as adding a reaction.
pub(super) async fn retry_idempotent<T>(
    mut call: impl FnMut() -> T,
    persistence: SendPersistence,
) -> Result<(), SendError>
where
    T: Future<Output = Result<(), SendError>>,
{
    let mut attempts = 0;
    loop {
        let Err(error) = call().await else { return Ok(()) };
        attempts += 1;
        match retry_delay(&error, attempts, RetrySafety::Idempotent, persistence) {
            Some(pause) => sleep(pause).await,
            None => return Err(error),
        }
    }
}

/// Whether a retry after a lost response can have a second effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RetrySafety {
    Idempotent,
    OnlyWithKey,
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
    match error {
        SendError::NotDelivered { retry_after, .. } if may_retry || persistence == SendPersistence::UntilCancelled => {
            // A retry before the requested time would only lengthen the wait.
            Some(retry_after.unwrap_or(backoff)).filter(|pause| *pause <= MAX_RETRY_AFTER)
        }
        SendError::NotDelivered { .. } | SendError::Refused { .. } => None,
        SendError::Unknown { is_repeatable, .. } => {
            (may_retry && (*is_repeatable || retry_safety == RetrySafety::Idempotent)).then_some(backoff)
        }
    }
}

/// Waits before the next try of a call without a key.
///
/// # Errors
/// The given error, if a retry would not help or could show the message twice.
pub(super) async fn wait_before_retry(error: SendError, attempts: u32) -> Result<(), SendError> {
    match retry_delay(&error, attempts, RetrySafety::OnlyWithKey, SendPersistence::UntilCancelled) {
        Some(pause) => {
            sleep(pause).await;
            Ok(())
        }
        None => Err(error),
    }
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
