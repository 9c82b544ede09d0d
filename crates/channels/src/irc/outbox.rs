//! Queue of outgoing messages of a connection, with cancellation until the first byte is written.
//!
//! A message can be cancelled until the socket accepts the first byte of its last line. The sender learns the outcome.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;
use tokio::sync::{Notify, oneshot};

use super::message::OutgoingIrcLine;
use super::send_limits::IrcSendLimits;
use crate::network::{ListenError, SendError};

/// Largest number of waiting messages, normal and urgent. The flow sends 64 at a time.
const MAX_MESSAGES: usize = 256;
const MAX_URGENT_MESSAGES: usize = 64;
/// Largest number of waiting replies to the server. A server that asks for more without reading is disconnected.
const MAX_SERVER_REPLIES: usize = 64;
/// When to retry after a lost connection or a full queue. A server that restarts is usually back by then.
const RETRY_AFTER: Duration = Duration::from_secs(10);

type IrcSendOutcome = Result<(), SendError>;

/// The queue of one account. It is open while a connection stands.
#[derive(Debug, Default)]
pub(super) struct IrcOutbox {
    state: Mutex<IrcOutboxState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct IrcOutboxState {
    queues: Option<IrcOutboxQueues>,
    /// The last number of a connection or message; each number is used once.
    last_number: u64,
}

#[derive(Debug)]
struct IrcOutboxQueues {
    connection_number: u64,
    send_limits: IrcSendLimits,
    replies_to_server: VecDeque<OutgoingIrcLine>,
    messages: VecDeque<QueuedIrcMessage>,
}

#[derive(Debug)]
struct QueuedIrcMessage {
    message_number: u64,
    priority: IrcSendPriority,
    lines: VecDeque<OutgoingIrcLine>,
    /// True after a line of it was written.
    has_begun: bool,
    outcome_sender: oneshot::Sender<IrcSendOutcome>,
}

/// Position of a message in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IrcSendPriority {
    /// Before all normal messages, also between the lines of one.
    Urgent,
    /// After all waiting messages.
    Normal,
}

/// The kind of the next waiting line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextWrite {
    Nothing,
    /// A reply to the server, or a line that keeps the connection.
    ServerReply,
    Message,
}

/// The open queue of one connection. Dropping it closes the queue and fails all waiting messages.
#[derive(Debug)]
pub(super) struct OpenOutbox<'a> {
    outbox: &'a IrcOutbox,
    connection_number: u64,
}

/// A queued message. Dropping it cancels the lines that were not written yet.
#[derive(Debug)]
pub(super) struct PendingSend<'a> {
    outbox: &'a IrcOutbox,
    message_number: u64,
    outcome_receiver: oneshot::Receiver<IrcSendOutcome>,
}

/// A line whose first bytes the socket has accepted.
#[derive(Debug)]
pub(super) struct PartialLine {
    /// The bytes that are still to be written.
    pub(super) remaining: Bytes,
    /// Set for the last line of a message.
    outcome_sender: Option<oneshot::Sender<IrcSendOutcome>>,
}

impl IrcOutbox {
    /// Opens the queue for a new connection; closes the one of an earlier connection.
    pub(super) fn open(&self, send_limits: IrcSendLimits) -> OpenOutbox<'_> {
        let mut state = self.lock_state();
        let connection = state.allocate_number();
        let queues = IrcOutboxQueues {
            connection_number: connection,
            send_limits,
            replies_to_server: VecDeque::new(),
            messages: VecDeque::new(),
        };
        if let Some(earlier) = state.queues.replace(queues) {
            earlier.fail_all();
        }
        OpenOutbox { outbox: self, connection_number: connection }
    }

    /// Queues a message.
    ///
    /// # Errors
    /// There is no connection, the target cannot be reached, or the queue is full.
    pub(super) fn queue_message(
        &self,
        target: &str,
        text: &str,
        priority: IrcSendPriority,
    ) -> Result<PendingSend<'_>, SendError> {
        let mut state = self.lock_state();
        let number = state.allocate_number();
        let not_delivered =
            |why: &str| Err(SendError::NotDelivered { why: why.to_owned(), retry_after: Some(RETRY_AFTER) });
        let Some(queues) = &mut state.queues else {
            return not_delivered("there is no connection to the server");
        };
        let lines = queues.send_limits.privmsg_lines(target, text).map_err(|why| SendError::Refused { why })?;
        let urgent_count =
            queues.messages.iter().take_while(|waiting| waiting.priority == IrcSendPriority::Urgent).count();
        let (index, is_full) = match priority {
            IrcSendPriority::Urgent => (urgent_count, urgent_count >= MAX_URGENT_MESSAGES),
            IrcSendPriority::Normal => (queues.messages.len(), queues.messages.len() >= MAX_MESSAGES),
        };
        if is_full {
            return not_delivered("too many messages wait for the server");
        }
        let (outcome_sender, outcome_receiver) = oneshot::channel();
        queues.messages.insert(
            index,
            QueuedIrcMessage {
                message_number: number,
                priority,
                lines: lines.into(),
                has_begun: false,
                outcome_sender,
            },
        );
        drop(state);
        self.changed.notify_one();
        Ok(PendingSend { outbox: self, message_number: number, outcome_receiver })
    }

    fn lock_state(&self) -> MutexGuard<'_, IrcOutboxState> {
        // The queues are valid after a panic with the lock held: each change of them is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IrcOutboxState {
    fn allocate_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

impl PendingSend<'_> {
    /// Waits until the message was written.
    ///
    /// # Cancel safety
    /// Dropping it cancels the lines that were not written yet.
    pub(super) async fn wait_until_sent(mut self) -> IrcSendOutcome {
        let lost = || SendError::Unknown { why: "the connection broke off".to_owned(), is_repeatable: false };
        (&mut self.outcome_receiver).await.unwrap_or_else(|_| Err(lost()))
    }
}

impl Drop for PendingSend<'_> {
    fn drop(&mut self) {
        if let Some(queues) = &mut self.outbox.lock_state().queues {
            queues.messages.retain(|waiting| waiting.message_number != self.message_number);
        }
    }
}

impl OpenOutbox<'_> {
    /// Queues a line that the server waits for, such as a `PONG`, before all messages.
    ///
    /// # Errors
    /// Too many such lines wait.
    pub(super) fn queue_reply_to_server(&self, line: OutgoingIrcLine) -> Result<(), ListenError> {
        let mut state = self.outbox.lock_state();
        if let Some(queues) = self.own_queues(&mut state) {
            if queues.replies_to_server.len() >= MAX_SERVER_REPLIES {
                let why = "the server sends requests and does not read the replies";
                return Err(ListenError::Connection(why.to_owned()));
            }
            queues.replies_to_server.push_back(line);
        }
        drop(state);
        self.outbox.changed.notify_one();
        Ok(())
    }

    pub(super) fn set_send_limits(&self, send_limits: &IrcSendLimits) {
        if let Some(queues) = self.own_queues(&mut self.outbox.lock_state()) {
            queues.send_limits.clone_from(send_limits);
        }
    }

    /// The kind of the next line.
    pub(super) fn next_write(&self) -> NextWrite {
        match self.own_queues(&mut self.outbox.lock_state()) {
            Some(queues) if !queues.replies_to_server.is_empty() => NextWrite::ServerReply,
            Some(queues) if !queues.messages.is_empty() => NextWrite::Message,
            _ => NextWrite::Nothing,
        }
    }

    /// Waits until the queue may have changed.
    ///
    /// # Cancel safety
    /// Safe: a change is kept until somebody waits for it.
    pub(super) async fn wait_for_change(&self) {
        self.outbox.changed.notified().await;
    }

    /// Writes the beginning of the next line. The line stays in the queue and can be cancelled until the socket accepts
    /// a byte. Returns none if nothing waits.
    pub(super) fn poll_write_next<W: AsyncWrite + Unpin>(
        &self,
        cx: &mut Context<'_>,
        writer: &mut W,
    ) -> Poll<io::Result<Option<PartialLine>>> {
        let mut state = self.outbox.lock_state();
        let Some(queues) = self.own_queues(&mut state) else { return Poll::Ready(Ok(None)) };
        let front = queues.replies_to_server.front().or_else(|| queues.messages.front()?.lines.front());
        let Some(mut rest) = front.map(|line| line.bytes().clone()) else { return Poll::Ready(Ok(None)) };
        let written_bytes = ready!(Pin::new(writer).poll_write(cx, &rest))?;
        if written_bytes == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        rest.advance(written_bytes);
        Poll::Ready(Ok(Some(PartialLine { remaining: rest, outcome_sender: queues.pop_front_line() })))
    }

    /// The queues, unless another connection has replaced this one.
    fn own_queues<'s>(&self, state: &'s mut IrcOutboxState) -> Option<&'s mut IrcOutboxQueues> {
        state.queues.as_mut().filter(|queues| queues.connection_number == self.connection_number)
    }
}

impl Drop for OpenOutbox<'_> {
    fn drop(&mut self) {
        let closed =
            self.outbox.lock_state().queues.take_if(|queues| queues.connection_number == self.connection_number);
        if let Some(closed) = closed {
            closed.fail_all();
        }
    }
}

impl IrcOutboxQueues {
    /// Removes the first line. Returns the outcome sender if it was the last line of a message.
    fn pop_front_line(&mut self) -> Option<oneshot::Sender<IrcSendOutcome>> {
        if self.replies_to_server.pop_front().is_some() {
            return None;
        }
        let first = self.messages.front_mut()?;
        first.has_begun = true;
        first.lines.pop_front();
        if !first.lines.is_empty() {
            return None;
        }
        self.messages.pop_front().map(|message| message.outcome_sender)
    }

    /// Reports to all waiting senders that the connection is lost.
    fn fail_all(self) {
        for waiting in self.messages {
            let why = "the connection to the server broke off".to_owned();
            let error = match waiting.has_begun {
                true => SendError::Unknown { why, is_repeatable: false },
                false => SendError::NotDelivered { why, retry_after: Some(RETRY_AFTER) },
            };
            // The receiver may be gone; that is fine.
            let _ = waiting.outcome_sender.send(Err(error));
        }
    }
}

impl PartialLine {
    /// Reports that all of the line was written.
    pub(super) fn complete(self) {
        if let Some(outcome_sender) = self.outcome_sender {
            // The receiver may be gone; that is fine.
            let _ = outcome_sender.send(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_connection_that_was_replaced_closes_nothing_but_itself() {
        let outbox = IrcOutbox::default();
        let earlier = outbox.open(IrcSendLimits::new("quell"));
        let lost = outbox.queue_message("#tea", "one", IrcSendPriority::Normal).unwrap();
        let later = outbox.open(IrcSendLimits::new("quell"));
        assert!(matches!(lost.wait_until_sent().now_or_never(), Some(Err(SendError::NotDelivered { .. }))));
        let waits = outbox.queue_message("#tea", "two", IrcSendPriority::Normal).unwrap();
        assert_eq!((earlier.next_write(), later.next_write()), (NextWrite::Nothing, NextWrite::Message));
        drop(earlier);
        assert_eq!(later.next_write(), NextWrite::Message);
        drop(later);
        assert!(matches!(waits.wait_until_sent().now_or_never(), Some(Err(SendError::NotDelivered { .. }))));
        assert!(matches!(
            outbox.queue_message("#tea", "three", IrcSendPriority::Normal),
            Err(SendError::NotDelivered { retry_after: Some(_), .. })
        ));
    }
    /// Regression: with two seconds for each line, the reply to a stop came minutes after a long answer to another
    /// user.
    #[test]
    fn urgent_messages_go_between_the_lines_of_a_long_one() {
        let outbox = IrcOutbox::default();
        let open = outbox.open(IrcSendLimits::new("quell"));
        let _long = outbox.queue_message("#tea", "one\ntwo\nthree", IrcSendPriority::Normal).unwrap();
        let _other = outbox.queue_message("#tea", "four", IrcSendPriority::Normal).unwrap();
        let mut gone = Vec::new();
        let mut line = || {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(matches!(open.poll_write_next(&mut cx, &mut gone), Poll::Ready(Ok(Some(_)))));
        };
        line();
        let _stopping = outbox.queue_message("#bar", "stopping", IrcSendPriority::Urgent).unwrap();
        let _stopped = outbox.queue_message("#bar", "stopped", IrcSendPriority::Urgent).unwrap();
        (0..5).for_each(|_| line());
        assert_eq!(open.next_write(), NextWrite::Nothing);
        let gone = String::from_utf8(gone).unwrap();
        let texts: Vec<&str> = gone.lines().filter_map(|line| line.rsplit(':').next()).collect();
        assert_eq!(texts, ["one", "stopping", "stopped", "two", "three", "four"]);
    }
}
