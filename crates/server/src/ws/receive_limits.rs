//! Limit the bytes of a message that is being received, from the client and from the shared budget.
//!
//! Bytes are counted where they are read, so that the fragments of a message count before it is complete.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::MAX_PAYLOAD_BEFORE_AUTH;
use super::frame_splitter::FrameSplitter;
use crate::budget::{Budget, Reservation, UNBUDGETED_BYTES};

/// Additional bytes for the frame headers and pings that come with a message.
const FRAMING_ALLOWANCE: usize = 1024;
/// Header of a ping or pong with its mask, in bytes (RFC 6455, 5.5).
const CONTROL_FRAME_HEADER: usize = 6;
/// Time limit for a message to arrive completely.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(120);

/// Receive state of one connection. Clones share their state.
#[derive(Debug, Clone)]
pub(super) struct ReceiveLimiter(Arc<Mutex<ReceiveState>>);

#[derive(Debug)]
struct ReceiveState {
    /// Maximum bytes of a message; `None` when they are discarded.
    max_message: Option<usize>,
    /// Bytes read since the last complete message.
    received: usize,
    /// When the first of these bytes was read.
    started_at: Option<Instant>,
    reserved: Reservation,
}

impl ReceiveLimiter {
    /// Limits for a client without a token.
    pub(super) fn new(budget: &Budget) -> Self {
        let reserved = budget.empty_reservation();
        Self(Arc::new(Mutex::new(ReceiveState {
            max_message: Some(MAX_PAYLOAD_BEFORE_AUTH + FRAMING_ALLOWANCE),
            received: 0,
            started_at: None,
            reserved,
        })))
    }

    /// Sets the limits of an authenticated client; `max_message` is the maximum size of its messages, in bytes.
    pub(super) fn set_authenticated(&self, max_message: usize, budget: &Budget) {
        let mut state = self.state();
        // Leave room for the headers of small fragments.
        state.max_message = Some(max_message.saturating_add(max_message / 8).saturating_add(FRAMING_ALLOWANCE));
        state.received = 0;
        state.started_at = None;
        state.reserved = budget.empty_reservation();
    }

    /// Limits further bytes to a small number: they are read only to receive the client's close frame.
    pub(super) fn limit_to_close_frame(&self) {
        let mut state = self.state();
        state.max_message = Some(MAX_PAYLOAD_BEFORE_AUTH);
        state.received = 0;
    }

    pub(super) fn ignore_remaining(&self) {
        self.state().max_message = None;
    }

    /// Records that a message is complete. Returns its reservation for the caller to hold; `None` for a small message.
    pub(super) fn finish_message(&self) -> Option<Reservation> {
        let mut state = self.state();
        state.received = 0;
        state.started_at = None;
        if state.reserved.is_empty() { None } else { Some(state.reserved.split_off()) }
    }

    /// Subtracts a ping or pong, which may come between the fragments of a message.
    pub(super) fn count_control_frame(&self, payload: usize) {
        let mut state = self.state();
        state.received = state.received.saturating_sub(payload + CONTROL_FRAME_HEADER);
        if state.received == 0 {
            state.started_at = None;
        }
    }

    /// True if a message has been incomplete for longer than [`MESSAGE_TIMEOUT`].
    pub(super) fn is_stuck(&self) -> bool {
        self.state().started_at.is_some_and(|begun| begun.elapsed() > MESSAGE_TIMEOUT)
    }

    fn count_received(&self, bytes: usize) -> io::Result<()> {
        let mut state = self.state();
        let Some(limit) = state.max_message.filter(|_| bytes > 0) else { return Ok(()) };
        state.received += bytes;
        state.started_at.get_or_insert_with(Instant::now);
        let unread = state.received;
        if unread > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the message is too large"));
        }
        if unread > UNBUDGETED_BYTES && state.reserved.resize(unread).is_err() {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "too much is being received at the same time"));
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, ReceiveState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that counts its bytes and fails when there are too many.
#[derive(Debug)]
pub(super) struct LimitedStream<S> {
    stream: S,
    frames: FrameSplitter,
    receive_limiter: ReceiveLimiter,
}

impl<S> LimitedStream<S> {
    pub(super) fn new(stream: S, receive_limiter: ReceiveLimiter) -> Self {
        Self { stream, frames: FrameSplitter::new(), receive_limiter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, frames, receive_limiter } = &mut *self;
        let read = std::task::ready!(frames.poll_read(stream, cx, buf))?;
        Poll::Ready(receive_limiter.count_received(read))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
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
        let (unauthenticated_budget, budget) = (Budget::new(1 << 20), Budget::new(100 * 1024));
        let clients: Vec<ReceiveLimiter> = (0..3).map(|_| ReceiveLimiter::new(&unauthenticated_budget)).collect();
        clients.iter().for_each(|client| client.set_authenticated(1 << 20, &budget));
        clients[0].count_received(60 * 1024).unwrap();
        let refused = clients[1].count_received(60 * 1024).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory);
        clients[2].count_received(UNBUDGETED_BYTES).unwrap();
        let held = clients[0].finish_message();
        assert_eq!(budget.available(), 40 * 1024, "who works on a message holds it");
        drop(held);
        assert_eq!(budget.available(), 100 * 1024);
    }

    #[tokio::test]
    async fn data_before_a_token_is_limited_and_counted_apart() {
        let unauthenticated_budget = Budget::new(20 * 1024);
        let (one, other) = (ReceiveLimiter::new(&unauthenticated_budget), ReceiveLimiter::new(&unauthenticated_budget));
        assert_eq!(
            one.count_received(MAX_PAYLOAD_BEFORE_AUTH + FRAMING_ALLOWANCE + 1).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        other.count_received(15 * 1024).unwrap();
        assert_eq!(unauthenticated_budget.available(), 5 * 1024);
        other.set_authenticated(1 << 20, &Budget::new(0));
        assert_eq!(unauthenticated_budget.available(), 20 * 1024);
    }

    #[tokio::test(start_paused = true)]
    async fn pings_are_no_part_of_a_message_and_do_not_finish_it() {
        let budget = Budget::new(1 << 20);
        let receive_limiter = ReceiveLimiter::new(&budget);
        receive_limiter.set_authenticated(64 * 1024, &budget);
        for _ in 0..100_000 {
            receive_limiter.count_received(CONTROL_FRAME_HEADER + 4).unwrap();
            receive_limiter.count_control_frame(4);
        }
        tokio::time::advance(MESSAGE_TIMEOUT * 2).await;
        assert!(!receive_limiter.is_stuck(), "nothing was begun");
        receive_limiter.count_received(100).unwrap();
        receive_limiter.count_control_frame(4);
        tokio::time::advance(MESSAGE_TIMEOUT * 2).await;
        assert!(receive_limiter.is_stuck());
    }
}
