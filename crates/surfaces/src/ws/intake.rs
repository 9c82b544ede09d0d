//! How much one client makes the daemon hold while its messages come in: a limit for each message, and a share of the budget
//! that all connections have together. The bytes are counted where they are read, so that fragments count before their
//! message is whole.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::MAX_BEFORE_AUTH;
use super::unframe::Frames;
use crate::budget::{ByteBudget, Reservation};
use crate::door::UNCOUNTED;

/// Frame headers and pings that may come with a message.
const SLACK: usize = 1024;
/// The most bytes of a ping or pong with its header (RFC 6455, 5.5).
const CONTROL_HEADER: usize = 6;
/// The time for a message to come whole.
const UNFINISHED: Duration = Duration::from_secs(120);

/// What came of the message that is being read.
#[derive(Debug, Clone)]
pub(super) struct Intake(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The most bytes of a message; none when they are thrown away.
    limit: Option<usize>,
    /// Bytes read since the last whole message.
    unread: usize,
    /// When the first of them came.
    begun: Option<Instant>,
    reserved: Reservation,
}

impl Intake {
    /// A client that has shown no token.
    pub(super) fn new(unproven: &ByteBudget) -> Self {
        let reserved = unproven.reserve();
        Self(Arc::new(Mutex::new(State { limit: Some(MAX_BEFORE_AUTH + SLACK), unread: 0, begun: None, reserved })))
    }

    /// The client is authenticated: its messages may have so many bytes.
    pub(super) fn admit(&self, largest: usize, budget: &ByteBudget) {
        let mut state = self.state();
        // Small fragments have headers, too.
        state.limit = Some(largest.saturating_add(largest / 8).saturating_add(SLACK));
        state.unread = 0;
        state.begun = None;
        state.reserved = budget.reserve();
    }

    /// The conversation is over: what still comes is read for the sake of the client's close frame, and little of it.
    pub(super) fn wind_up(&self) {
        let mut state = self.state();
        state.limit = Some(MAX_BEFORE_AUTH);
        state.unread = 0;
    }

    /// What still comes is thrown away.
    pub(super) fn discard(&self) {
        self.state().limit = None;
    }

    /// A message is whole. What it takes of the budget is the caller's to hold; none for a small one.
    pub(super) fn message(&self) -> Option<Reservation> {
        let mut state = self.state();
        state.unread = 0;
        state.begun = None;
        if state.reserved.is_empty() { None } else { Some(state.reserved.split_off()) }
    }

    /// A ping or pong came, perhaps between the fragments of a message.
    pub(super) fn control(&self, payload: usize) {
        let mut state = self.state();
        state.unread = state.unread.saturating_sub(payload + CONTROL_HEADER);
        if state.unread == 0 {
            state.begun = None;
        }
    }

    /// True when a message began so long ago that its client will not finish it.
    pub(super) fn is_stuck(&self) -> bool {
        self.state().begun.is_some_and(|begun| begun.elapsed() > UNFINISHED)
    }

    fn read(&self, bytes: usize) -> io::Result<()> {
        let mut state = self.state();
        let Some(limit) = state.limit.filter(|_| bytes > 0) else { return Ok(()) };
        state.unread += bytes;
        state.begun.get_or_insert_with(Instant::now);
        let unread = state.unread;
        if unread > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the message is too large"));
        }
        if unread > UNCOUNTED && state.reserved.resize(unread).is_err() {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "too much is being received at the same time"));
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream whose bytes are counted, and which fails when they are too many.
#[derive(Debug)]
pub(super) struct Counted<S> {
    stream: S,
    frames: Frames,
    intake: Intake,
}

impl<S> Counted<S> {
    pub(super) fn new(stream: S, intake: Intake) -> Self {
        Self { stream, frames: Frames::new(), intake }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, frames, intake } = &mut *self;
        let read = std::task::ready!(frames.poll_read(stream, cx, buf))?;
        Poll::Ready(intake.read(read))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unfinished_messages_take_from_the_budget_of_all() {
        let (unproven, budget) = (ByteBudget::new(1 << 20), ByteBudget::new(100 * 1024));
        let clients: Vec<Intake> = (0..3).map(|_| Intake::new(&unproven)).collect();
        clients.iter().for_each(|client| client.admit(1 << 20, &budget));
        clients[0].read(60 * 1024).unwrap();
        let refused = clients[1].read(60 * 1024).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory);
        clients[2].read(UNCOUNTED).unwrap();
        let held = clients[0].message();
        assert_eq!(budget.left(), 40 * 1024, "who works on a message holds it");
        drop(held);
        assert_eq!(budget.left(), 100 * 1024);
    }

    #[tokio::test]
    async fn what_comes_before_a_token_is_small_and_counted_apart() {
        let unproven = ByteBudget::new(20 * 1024);
        let (one, other) = (Intake::new(&unproven), Intake::new(&unproven));
        assert_eq!(one.read(MAX_BEFORE_AUTH + SLACK + 1).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        other.read(15 * 1024).unwrap();
        assert_eq!(unproven.left(), 5 * 1024);
        other.admit(1 << 20, &ByteBudget::new(0));
        assert_eq!(unproven.left(), 20 * 1024);
    }

    #[tokio::test(start_paused = true)]
    async fn pings_are_no_part_of_a_message_and_do_not_finish_it() {
        let budget = ByteBudget::new(1 << 20);
        let intake = Intake::new(&budget);
        intake.admit(64 * 1024, &budget);
        for _ in 0..100_000 {
            intake.read(CONTROL_HEADER + 4).unwrap();
            intake.control(4);
        }
        tokio::time::advance(UNFINISHED * 2).await;
        assert!(!intake.is_stuck(), "nothing was begun");
        intake.read(100).unwrap();
        intake.control(4);
        tokio::time::advance(UNFINISHED * 2).await;
        assert!(intake.is_stuck());
    }
}
