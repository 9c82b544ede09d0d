//! One piece to a network, tried again where that shows it once.

use std::time::Duration;

use quell_engine::channel::Undelivered;
use tokio::time::{Instant, sleep, timeout_at};

use super::channel::Channel;
use crate::channels::format::Piece;
use crate::channels::seam::{Drafts, MessageId, NotSent, Place};

/// How often something is tried whose effect is not known.
const TRIES: u32 = 5;
/// The first pause; each further one is twice as long, up to the last.
const PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(15);
/// A network that wants to be left alone for longer is given up.
const LONGEST_WISH: Duration = Duration::from_secs(600);

/// How long a piece that is certainly not shown is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// A few times.
    Short,
    /// Until the caller gives up: a server that restarts comes back.
    Long,
}

/// Sends one piece with its key. Dropped, it gives the request up.
///
/// # Errors
/// Why it was not sent, or that nobody knows.
pub(super) async fn send(
    channel: &Channel,
    place: &Place,
    (piece, key): (&Piece, &str),
    patience: Patience,
) -> Result<MessageId, NotSent> {
    with_key(|| channel.network.send(place, piece, key), patience).await
}

/// Sends one piece with its key before all that waits in the network, for somebody who has no patience.
///
/// # Errors
/// Why it was not sent, or that nobody knows.
pub(super) async fn send_first(
    channel: &Channel,
    place: &Place,
    (piece, key): (&Piece, &str),
) -> Result<MessageId, NotSent> {
    with_key(|| channel.network.send_first(place, piece, key), Patience::Short).await
}

async fn with_key<T>(mut act: impl FnMut() -> T, patience: Patience) -> Result<MessageId, NotSent>
where
    T: Future<Output = Result<MessageId, NotSent>>,
{
    let mut tried = 0;
    loop {
        let error = match act().await {
            Ok(message) => return Ok(message),
            Err(error) => error,
        };
        tried += 1;
        match pause(&error, tried, (Repeats::WithKey, patience)) {
            Some(pause) => sleep(pause).await,
            None => return Err(error),
        }
    }
}

/// Sends one piece with its key, for somebody who waits: what cannot be done by then is not tried.
///
/// # Errors
/// Why it was not sent, or that nobody knows.
pub(super) async fn send_by(
    channel: &Channel,
    place: &Place,
    (piece, key): (&Piece, &str),
    deadline: Instant,
) -> Result<MessageId, NotSent> {
    let mut tried = 0;
    loop {
        let error = match timeout_at(deadline, channel.network.send(place, piece, key)).await {
            Ok(Ok(message)) => return Ok(message),
            Ok(Err(error)) => error,
            Err(_elapsed) => return Err(NotSent::Unknown { why: "no answer in time".to_owned(), repeatable: false }),
        };
        tried += 1;
        let pause = pause(&error, tried, (Repeats::WithKey, Patience::Short));
        match pause.filter(|pause| Instant::now() + *pause < deadline) {
            Some(pause) => sleep(pause).await,
            None => return Err(error),
        }
    }
}

/// Puts a piece in the place of a message. Doing it again changes nothing, so it is tried again whatever happened.
///
/// # Errors
/// Why it was not done, or that nobody knows.
pub(super) async fn edit(
    drafts: &dyn Drafts,
    place: &Place,
    message: &MessageId,
    (piece, patience): (&Piece, Patience),
) -> Result<(), NotSent> {
    repeated(|| drafts.edit(place, message, piece), patience).await
}

/// Does a thing that changes nothing when it is done again, such as putting a sign on a message.
///
/// # Errors
/// Why it was not done, or that nobody knows.
pub(super) async fn repeated<T>(mut act: impl FnMut() -> T, patience: Patience) -> Result<(), NotSent>
where
    T: Future<Output = Result<(), NotSent>>,
{
    let mut tried = 0;
    loop {
        let Err(error) = act().await else { return Ok(()) };
        tried += 1;
        match pause(&error, tried, (Repeats::Always, patience)) {
            Some(pause) => sleep(pause).await,
            None => return Err(error),
        }
    }
}

/// Whether doing a thing again after a lost answer shows it once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeats {
    Always,
    WithKey,
}

/// How long to wait before the next try; nothing when there is none.
fn pause(error: &NotSent, tried: u32, (repeats, patience): (Repeats, Patience)) -> Option<Duration> {
    let usual = PAUSE.saturating_mul(1 << (tried - 1).min(8)).min(LAST_PAUSE);
    let again = tried < TRIES;
    match error {
        NotSent::Undelivered { after, .. } if again || patience == Patience::Long => {
            // Whoever asks too early is told to wait longer.
            Some(after.unwrap_or(usual)).filter(|pause| *pause <= LONGEST_WISH)
        }
        NotSent::Undelivered { .. } | NotSent::Refused { .. } => None,
        NotSent::Unknown { repeatable, .. } => (again && (*repeatable || repeats == Repeats::Always)).then_some(usual),
    }
}

/// Waits before the next try of something without a key, or hands the error back.
///
/// # Errors
/// The error, when trying again would not help or could show it twice.
pub(super) async fn wait_after(error: NotSent, tried: u32) -> Result<(), NotSent> {
    match pause(&error, tried, (Repeats::WithKey, Patience::Long)) {
        Some(pause) => {
            sleep(pause).await;
            Ok(())
        }
        None => Err(error),
    }
}

/// What became of an answer of which `sent` of `of` pieces are shown.
pub(super) fn undelivered(error: NotSent, sent: usize, of: usize) -> Undelivered {
    match error {
        NotSent::Unknown { why, .. } => Undelivered::Unknown(why),
        NotSent::Undelivered { why, .. } | NotSent::Refused { why } if sent == 0 => Undelivered::Nothing(why),
        NotSent::Undelivered { why, .. } | NotSent::Refused { why } => Undelivered::Partly { sent, of, why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONCE: (Repeats, Patience) = (Repeats::WithKey, Patience::Long);
    const EDIT: (Repeats, Patience) = (Repeats::Always, Patience::Short);

    fn unknown(repeatable: bool) -> NotSent {
        NotSent::Unknown { why: "lost".to_owned(), repeatable }
    }

    #[test]
    fn what_may_be_shown_already_is_not_sent_again_unless_its_key_makes_it_one() {
        assert_eq!(pause(&unknown(false), 1, ONCE), None);
        assert_eq!(pause(&unknown(true), 1, ONCE), Some(PAUSE));
        assert_eq!(pause(&unknown(true), TRIES, ONCE), None);
        assert_eq!(pause(&unknown(false), 1, EDIT), Some(PAUSE));
        assert_eq!(pause(&NotSent::Refused { why: "no".to_owned() }, 1, EDIT), None);
    }

    #[test]
    fn what_is_certainly_not_shown_is_tried_until_the_server_is_back() {
        let undelivered = NotSent::Undelivered { why: "reset".to_owned(), after: None };
        assert_eq!(pause(&undelivered, 3, ONCE), Some(4 * PAUSE));
        assert_eq!(pause(&undelivered, 100, ONCE), Some(LAST_PAUSE));
        assert_eq!(pause(&undelivered, TRIES, EDIT), None);
    }

    #[test]
    fn a_network_says_how_long_to_wait_and_is_not_asked_before() {
        let busy = |seconds| NotSent::Undelivered { why: "429".to_owned(), after: Some(Duration::from_secs(seconds)) };
        assert_eq!(pause(&busy(90), 1, ONCE), Some(Duration::from_secs(90)));
        assert_eq!(pause(&busy(3600), 1, ONCE), None);
    }

    #[test]
    fn what_became_of_an_answer_is_told_as_it_is() {
        let refused = NotSent::Refused { why: "blocked".to_owned() };
        assert_eq!(undelivered(refused.clone(), 0, 3), Undelivered::Nothing("blocked".to_owned()));
        assert!(matches!(undelivered(refused, 2, 3), Undelivered::Partly { sent: 2, of: 3, .. }));
        assert!(matches!(undelivered(unknown(false), 2, 3), Undelivered::Unknown(_)));
    }
}
