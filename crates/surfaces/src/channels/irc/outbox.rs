//! What waits to be sent while a connection stands. A message can be taken back until the socket has taken the first byte of
//! its last line; whoever sends it learns what became of it.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context as Waking, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;
use tokio::sync::{Notify, oneshot};

use super::message::Line;
use super::reach::Reach;
use crate::channels::seam::NotSent;

/// How many messages wait at the most, and how many more of those that go first. The flow answers 64 at a time.
const MOST_MESSAGES: usize = 256;
const MOST_FIRST: usize = 64;
/// How many answers to the server wait at the most: one that asks and does not read is left.
const MOST_ANSWERS: usize = 64;
/// When to try again what found no connection, or no place: a server that was started anew is found again in this time.
const AGAIN: Duration = Duration::from_secs(10);

/// What became of a message.
type Fate = Result<(), NotSent>;

/// The way out. It is open while a connection stands.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    open: Option<Queues>,
    /// The number of the next connection or message: none is given twice.
    next: u64,
}

#[derive(Debug)]
struct Queues {
    connection: u64,
    reach: Reach,
    answers: VecDeque<Line>,
    messages: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    turn: Turn,
    lines: VecDeque<Line>,
    /// True when a line of it has gone.
    begun: bool,
    fate: oneshot::Sender<Fate>,
}

/// When a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Before all that go last, also between the lines of one.
    First,
    /// Behind all that wait.
    Last,
}

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing.
    Nothing,
    /// Something that the server asked for, or that the connection lives by.
    Answer,
    /// A message of ours.
    Message,
}

/// An open way out. Dropping it closes it, and whoever still waits learns it.
#[derive(Debug)]
pub(super) struct Open<'a> {
    outbox: &'a Outbox,
    connection: u64,
}

/// A message on its way. Dropping it takes it back, as far as it has not gone.
#[derive(Debug)]
pub(super) struct OnItsWay<'a> {
    outbox: &'a Outbox,
    number: u64,
    fate: oneshot::Receiver<Fate>,
}

/// A line of which the socket has taken something.
#[derive(Debug)]
pub(super) struct Begun {
    /// What it has not taken.
    pub(super) rest: Bytes,
    /// Who waits for it, if it is the last of a message.
    fate: Option<oneshot::Sender<Fate>>,
}

impl Outbox {
    /// Opens it for a new connection.
    pub(super) fn open(&self, reach: Reach) -> Open<'_> {
        let mut state = self.state();
        let connection = state.number();
        let queues = Queues { connection, reach, answers: VecDeque::new(), messages: VecDeque::new() };
        if let Some(earlier) = state.open.replace(queues) {
            earlier.close();
        }
        Open { outbox: self, connection }
    }

    /// Puts a message among those that wait.
    ///
    /// # Errors
    /// [`NotSent`]: there is no connection, it does not reach the target, or too much waits.
    pub(super) fn put(&self, target: &str, text: &str, turn: Turn) -> Result<OnItsWay<'_>, NotSent> {
        let mut state = self.state();
        let number = state.number();
        let undelivered = |why: &str| Err(NotSent::Undelivered { why: why.to_owned(), after: Some(AGAIN) });
        let Some(open) = &mut state.open else {
            return undelivered("there is no connection to the server");
        };
        let lines = open.reach.lines(target, text).map_err(|why| NotSent::Refused { why })?;
        let first = open.messages.iter().take_while(|waiting| waiting.turn == Turn::First).count();
        let (at, is_full) = match turn {
            Turn::First => (first, first >= MOST_FIRST),
            Turn::Last => (open.messages.len(), open.messages.len() >= MOST_MESSAGES),
        };
        if is_full {
            return undelivered("too many messages wait for the server");
        }
        let (fate, told) = oneshot::channel();
        open.messages.insert(at, Waiting { number, turn, lines: lines.into(), begun: false, fate });
        drop(state);
        self.changed.notify_one();
        Ok(OnItsWay { outbox: self, number, fate: told })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked with the lock left whole queues behind: each change of them is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl OnItsWay<'_> {
    /// Waits until it has gone.
    ///
    /// # Cancel safety
    /// Dropped, it is taken back as far as it has not gone.
    pub(super) async fn gone(mut self) -> Fate {
        let lost = || NotSent::Unknown { why: "the connection broke off".to_owned(), repeatable: false };
        (&mut self.fate).await.unwrap_or_else(|_| Err(lost()))
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        if let Some(open) = &mut self.outbox.state().open {
            open.messages.retain(|waiting| waiting.number != self.number);
        }
    }
}

impl Open<'_> {
    /// Sends a line in front of all messages.
    ///
    /// # Errors
    /// [`TooMany`] when too many wait already.
    pub(super) fn answer(&self, line: Line) -> Result<(), TooMany> {
        let mut state = self.outbox.state();
        if let Some(open) = self.own(&mut state) {
            if open.answers.len() >= MOST_ANSWERS {
                return Err(TooMany);
            }
            open.answers.push_back(line);
        }
        drop(state);
        self.outbox.changed.notify_one();
        Ok(())
    }

    /// Whom the connection reaches has changed.
    pub(super) fn reaches(&self, reach: Reach) {
        if let Some(open) = self.own(&mut self.outbox.state()) {
            open.reach = reach;
        }
    }

    /// What waits now.
    pub(super) fn next(&self) -> Next {
        match self.own(&mut self.outbox.state()) {
            Some(open) if !open.answers.is_empty() => Next::Answer,
            Some(open) if !open.messages.is_empty() => Next::Message,
            _ => Next::Nothing,
        }
    }

    /// Waits until something else may wait.
    ///
    /// # Cancel safety
    /// Safe: a change that nobody has waited for is kept.
    pub(super) async fn changed(&self) {
        self.outbox.changed.notified().await;
    }

    /// Gives the socket the beginning of the next line. The line waits, and can be taken back, until the socket takes it.
    /// None when nothing waits any more.
    pub(super) fn poll_begin<W: AsyncWrite + Unpin>(
        &self,
        waking: &mut Waking<'_>,
        writer: &mut W,
    ) -> Poll<io::Result<Option<Begun>>> {
        let mut state = self.outbox.state();
        let Some(open) = self.own(&mut state) else { return Poll::Ready(Ok(None)) };
        let front = open.answers.front().or_else(|| open.messages.front()?.lines.front());
        let Some(mut rest) = front.map(|line| line.bytes().clone()) else { return Poll::Ready(Ok(None)) };
        let taken = ready!(Pin::new(writer).poll_write(waking, &rest))?;
        if taken == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        rest.advance(taken);
        Poll::Ready(Ok(Some(Begun { rest, fate: open.take_front() })))
    }

    /// The queues, unless another connection has taken the place of this one.
    fn own<'s>(&self, state: &'s mut State) -> Option<&'s mut Queues> {
        state.open.as_mut().filter(|open| open.connection == self.connection)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let closed = self.outbox.state().open.take_if(|open| open.connection == self.connection);
        if let Some(closed) = closed {
            closed.close();
        }
    }
}

impl Queues {
    /// Takes the first line out, and who waits for it if it is the last of a message.
    fn take_front(&mut self) -> Option<oneshot::Sender<Fate>> {
        if self.answers.pop_front().is_some() {
            return None;
        }
        let first = self.messages.front_mut()?;
        first.begun = true;
        first.lines.pop_front();
        if !first.lines.is_empty() {
            return None;
        }
        self.messages.pop_front().map(|message| message.fate)
    }

    /// Tells all who wait that nothing more goes.
    fn close(self) {
        for waiting in self.messages {
            let why = "the connection to the server broke off".to_owned();
            let fate = match waiting.begun {
                true => NotSent::Unknown { why, repeatable: false },
                false => NotSent::Undelivered { why, after: Some(AGAIN) },
            };
            // Who has gone away does not want to know.
            let _ = waiting.fate.send(Err(fate));
        }
    }
}

impl Begun {
    /// All of it has been written.
    pub(super) fn written(self) {
        if let Some(fate) = self.fate {
            // Who has gone away does not want to know.
            let _ = fate.send(Ok(()));
        }
    }
}

/// The server asks for more than it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_connection_that_was_replaced_closes_nothing_but_itself() {
        let outbox = Outbox::default();
        let earlier = outbox.open(Reach::new("quell"));
        let lost = outbox.put("#tea", "one", Turn::Last).unwrap();
        let later = outbox.open(Reach::new("quell"));
        assert!(matches!(lost.gone().now_or_never(), Some(Err(NotSent::Undelivered { .. }))));
        let waits = outbox.put("#tea", "two", Turn::Last).unwrap();
        assert_eq!((earlier.next(), later.next()), (Next::Nothing, Next::Message));
        drop(earlier);
        assert_eq!(later.next(), Next::Message);
        drop(later);
        assert!(matches!(waits.gone().now_or_never(), Some(Err(NotSent::Undelivered { .. }))));
        assert!(matches!(outbox.put("#tea", "three", Turn::Last), Err(NotSent::Undelivered { after: Some(_), .. })));
    }
    /// With two seconds for each line, the answer to a stop came minutes behind somebody else's long answer.
    #[test]
    fn what_goes_first_goes_between_the_lines_of_a_long_message() {
        let outbox = Outbox::default();
        let open = outbox.open(Reach::new("quell"));
        let _long = outbox.put("#tea", "one\ntwo\nthree", Turn::Last).unwrap();
        let _other = outbox.put("#tea", "four", Turn::Last).unwrap();
        let mut gone = Vec::new();
        let mut line = || {
            let mut waking = Waking::from_waker(std::task::Waker::noop());
            assert!(matches!(open.poll_begin(&mut waking, &mut gone), Poll::Ready(Ok(Some(_)))));
        };
        line();
        let _stopping = outbox.put("#bar", "stopping", Turn::First).unwrap();
        let _stopped = outbox.put("#bar", "stopped", Turn::First).unwrap();
        (0..5).for_each(|_| line());
        assert_eq!(open.next(), Next::Nothing);
        let gone = String::from_utf8(gone).unwrap();
        let texts: Vec<&str> = gone.lines().filter_map(|line| line.rsplit(':').next()).collect();
        assert_eq!(texts, ["one", "stopping", "stopped", "two", "three", "four"]);
    }
}
