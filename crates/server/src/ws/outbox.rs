//! Bounded send queue of one client; text deltas may be dropped, other events may not.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Notify, watch};

use super::{FOLLOW_BUFFER_BYTES, MAX_BUFFERED, close, frame};
use crate::budget::{Budget, Reservation};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OutgoingFrame {
    Text(String),
    Ping,
    /// Close code and reason; the connection ends after it.
    Close(u16, &'static str),
}

/// An event that waits for the client, without its number.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct QueuedEvent {
    pub(super) event: String,
    pub(super) payload: Value,
}

/// Whether an event may be dropped for a slow client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DropPolicy {
    /// May be dropped: the next event repeats the text.
    Droppable,
    /// Must not be lost: if it does not fit, the connection is closed.
    MustDeliver,
}

/// Bytes that one client may have waiting without using the shared budget.
const UNBUDGETED_QUEUE_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct ClientOutbox {
    queue: Mutex<ClientOutboxQueue>,
    queued: Notify,
    written: Notify,
    closing: watch::Sender<bool>,
}

#[derive(Debug)]
struct ClientOutboxQueue {
    waiting: VecDeque<OutgoingFrame>,
    bytes: usize,
    reserved: Reservation,
    seq: u64,
    closing: bool,
}

impl ClientOutbox {
    /// An empty queue; larger ones reserve their bytes from `budget`.
    pub(super) fn new(budget: &Budget) -> Self {
        let (waiting, reserved) = (VecDeque::new(), budget.empty_reservation());
        let queue = ClientOutboxQueue { waiting, bytes: 0, reserved, seq: 0, closing: false };
        Self {
            queue: Mutex::new(queue),
            queued: Notify::new(),
            written: Notify::new(),
            closing: watch::Sender::new(false),
        }
    }

    pub(super) fn push_response(&self, id: &str, result: &Result<Value, frame::RpcError>) {
        let text = frame::response_text(id, result);
        self.push(text, DropPolicy::MustDeliver);
    }

    /// Queues an event with the connection's next number. A dropped event uses up its number, so that the client
    /// notices the gap.
    pub(super) fn push_event(&self, name: &str, payload: &impl Serialize, drop_policy: DropPolicy) {
        let mut queue = self.queue();
        queue.seq += 1;
        let seq = queue.seq;
        drop(queue);
        self.push(frame::event_text(name, payload, Some(seq)), drop_policy);
    }

    /// Queues an event without a number, for the time before the connection is set up.
    pub(super) fn push_unnumbered_event(&self, name: &str, payload: &impl Serialize) {
        self.push(frame::event_text(name, payload, None), DropPolicy::MustDeliver);
    }

    pub(super) fn push_ping(&self) {
        self.queue().waiting.push_back(OutgoingFrame::Ping);
        self.queued.notify_one();
    }

    /// Closes the connection after the waiting frames were written.
    pub(super) fn close(&self, code: u16, why: &'static str) {
        let mut queue = self.queue();
        if !queue.closing {
            queue.closing = true;
            queue.waiting.push_back(OutgoingFrame::Close(code, why));
        }
        drop(queue);
        self.closing.send_replace(true);
        self.queued.notify_one();
    }

    /// Waits until the connection is to end.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition and changes nothing.
    pub(super) async fn wait_closing(&self) {
        // Cannot fail: the sender lives in self.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    /// Waits until fewer than [`FOLLOW_BUFFER_BYTES`] wait.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition and changes nothing.
    pub(super) async fn wait_for_room(&self) {
        loop {
            let written = self.written.notified();
            if self.queue().bytes < FOLLOW_BUFFER_BYTES {
                return;
            }
            written.await;
        }
    }

    /// Takes the events that wait, to send them to the client in another way.
    pub(super) fn take_events(&self) -> Vec<QueuedEvent> {
        let frames = std::iter::from_fn(|| self.pop());
        let texts = frames.filter_map(|frame| match frame {
            OutgoingFrame::Text(text) => Some(text),
            OutgoingFrame::Ping | OutgoingFrame::Close(..) => None,
        });
        texts.filter_map(|text| serde_json::from_str(&text).ok()).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue().waiting.is_empty()
    }

    /// The next frame to write.
    ///
    /// # Cancel safety
    /// Safe: a frame leaves the queue only when it is returned.
    pub(super) async fn next(&self) -> OutgoingFrame {
        loop {
            let woken = self.queued.notified();
            if let Some(next) = self.pop() {
                return next;
            }
            woken.await;
        }
    }

    fn pop(&self) -> Option<OutgoingFrame> {
        let mut queue = self.queue();
        let next = queue.waiting.pop_front()?;
        if let OutgoingFrame::Text(text) = &next {
            queue.bytes -= text.len();
            let counted = ClientOutboxQueue::budgeted_bytes(queue.bytes);
            queue.reserved.shrink_to(counted);
            self.written.notify_waiters();
        }
        Some(next)
    }

    fn push(&self, text: String, drop_policy: DropPolicy) {
        let mut queue = self.queue();
        if queue.closing {
            return;
        }
        if !queue.reserve_room(text.len()) {
            if drop_policy == DropPolicy::MustDeliver {
                // The waiting frames are dropped with the client, which resumes by its cursor.
                queue.closing = true;
                queue.bytes = 0;
                queue.reserved.shrink_to(0);
                queue.waiting = VecDeque::from([OutgoingFrame::Close(close::POLICY, "slow consumer")]);
                self.closing.send_replace(true);
            }
        } else {
            queue.bytes += text.len();
            queue.waiting.push_back(OutgoingFrame::Text(text));
        }
        drop(queue);
        self.queued.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, ClientOutboxQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientOutboxQueue {
    /// Reserves room for `bytes` more; false if there is none.
    fn reserve_room(&mut self, bytes: usize) -> bool {
        let bytes = self.bytes + bytes;
        let counted = Self::budgeted_bytes(bytes);
        bytes <= MAX_BUFFERED && self.reserved.resize(counted).is_ok()
    }

    /// The part of `bytes` that counts against the shared budget.
    fn budgeted_bytes(bytes: usize) -> usize {
        if bytes > UNBUDGETED_QUEUE_BYTES { bytes } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outbox() -> ClientOutbox {
        ClientOutbox::new(&Budget::new(2 * MAX_BUFFERED))
    }

    #[tokio::test]
    async fn many_slow_clients_share_what_may_wait_for_them() {
        let budget = Budget::new(1000 * 1000);
        let (slow, slower, quick) =
            (ClientOutbox::new(&budget), ClientOutbox::new(&budget), ClientOutbox::new(&budget));
        slow.push_event("run", &json!("x".repeat(700 * 1000)), DropPolicy::MustDeliver);
        slower.push_event("run", &json!("x".repeat(700 * 1000)), DropPolicy::MustDeliver);
        assert_eq!(slower.next().await, OutgoingFrame::Close(close::POLICY, "slow consumer"));
        quick.push_event("run", &json!("x".repeat(1000)), DropPolicy::MustDeliver);
        assert!(matches!(quick.next().await, OutgoingFrame::Text(_)));
        assert!(matches!(slow.next().await, OutgoingFrame::Text(_)));
        assert_eq!(budget.available(), 1000 * 1000);
    }

    /// Fills an outbox with an event that must be delivered, until a few bytes are left.
    fn nearly_full() -> ClientOutbox {
        let outbox = outbox();
        outbox.push_event("run", &json!("x".repeat(MAX_BUFFERED - 1000)), DropPolicy::MustDeliver);
        outbox
    }

    #[tokio::test]
    async fn live_text_is_dropped_with_its_number_and_a_fact_that_fits_is_kept() {
        let outbox = nearly_full();
        outbox.push_event("chat", &json!("y".repeat(2000)), DropPolicy::Droppable);
        outbox.push_event("run", &json!("ended"), DropPolicy::MustDeliver);
        let _filler = outbox.next().await;
        let OutgoingFrame::Text(fact) = outbox.next().await else { panic!("the fact is gone") };
        assert!(fact.contains("ended") && fact.contains("\"seq\":3"), "{fact}");
        assert_eq!(outbox.pop(), None);
    }

    #[tokio::test]
    async fn a_fact_that_does_not_fit_ends_the_connection_as_a_slow_consumer() {
        let outbox = nearly_full();
        outbox.push_event("run", &json!("y".repeat(2000)), DropPolicy::MustDeliver);
        outbox.wait_closing().await;
        assert_eq!(outbox.next().await, OutgoingFrame::Close(close::POLICY, "slow consumer"));
        outbox.push_event("run", &json!("late"), DropPolicy::MustDeliver);
        outbox.close(close::NORMAL, "");
        assert_eq!(outbox.pop(), None, "nothing follows the end");
    }

    #[tokio::test]
    async fn waiting_events_are_written_before_an_ordinary_close() {
        let outbox = outbox();
        outbox.push_event("run", &json!("ended"), DropPolicy::MustDeliver);
        outbox.close(close::RESTART, "service restart");
        assert!(matches!(outbox.next().await, OutgoingFrame::Text(_)));
        assert_eq!(outbox.next().await, OutgoingFrame::Close(close::RESTART, "service restart"));
    }
}
