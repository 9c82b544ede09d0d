//! What waits to be written to one client: bounded in bytes, live text droppable, facts not.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use super::{MAX_BUFFERED, ROOM, close, frame};
use crate::budget::{ByteBudget, Reservation};

/// What the writer gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// A text frame.
    Text(String),
    /// A ping.
    Ping,
    /// The end of the connection.
    Close(u16, &'static str),
}

/// Whether an event may be dropped for a slow client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    /// Live text: the next one repeats it.
    Droppable,
    /// A fact: losing it closes the connection.
    Fact,
}

/// Bytes that wait for one client before they take from the budget of all.
const UNCOUNTED: usize = 64 * 1024;

/// The queue of one connection.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    wake: Notify,
    written: Notify,
    closing: watch::Sender<bool>,
}

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Outgoing>,
    bytes: usize,
    reserved: Reservation,
    seq: u64,
    closing: bool,
}

impl Outbox {
    /// An empty queue, with a share of the bytes that may wait for all clients together.
    pub(super) fn new(budget: &ByteBudget) -> Self {
        let (waiting, reserved) = (VecDeque::new(), budget.reserve());
        let queue = Queue { waiting, bytes: 0, reserved, seq: 0, closing: false };
        Self {
            queue: Mutex::new(queue),
            wake: Notify::new(),
            written: Notify::new(),
            closing: watch::Sender::new(false),
        }
    }

    /// Queues an answer.
    pub(super) fn answer(&self, id: &str, result: &Result<Value, frame::Refusal>) {
        let text = frame::answer(id, result);
        self.push(text, Weight::Fact);
    }

    /// Queues an event with the connection's next number. A dropped one uses its number up, so that the client sees the hole.
    pub(super) fn event(&self, name: &str, payload: &impl Serialize, weight: Weight) {
        let mut queue = self.queue();
        queue.seq += 1;
        let seq = queue.seq;
        drop(queue);
        self.push(frame::event(name, payload, Some(seq)), weight);
    }

    /// Queues an event without a number, before the connection is set up.
    pub(super) fn unnumbered(&self, name: &str, payload: &impl Serialize) {
        self.push(frame::event(name, payload, None), Weight::Fact);
    }

    /// Queues a ping.
    pub(super) fn ping(&self) {
        self.queue().waiting.push_back(Outgoing::Ping);
        self.wake.notify_one();
    }

    /// Ends the connection after what waits was written.
    pub(super) fn close(&self, code: u16, why: &'static str) {
        let mut queue = self.queue();
        if !queue.closing {
            queue.closing = true;
            queue.waiting.push_back(Outgoing::Close(code, why));
        }
        drop(queue);
        self.closing.send_replace(true);
        self.wake.notify_one();
    }

    /// Waits until the connection is to end.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub(super) async fn closing(&self) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    /// Waits until little enough waits that more may be fetched.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub(super) async fn room(&self) {
        loop {
            let written = self.written.notified();
            if self.queue().bytes < ROOM {
                return;
            }
            written.await;
        }
    }

    /// True when nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue().waiting.is_empty()
    }

    /// The next thing to write.
    ///
    /// # Cancel safety
    /// Safe: it leaves the queue only when it is handed out.
    pub(super) async fn next(&self) -> Outgoing {
        loop {
            let woken = self.wake.notified();
            if let Some(next) = self.take() {
                return next;
            }
            woken.await;
        }
    }

    fn take(&self) -> Option<Outgoing> {
        let mut queue = self.queue();
        let next = queue.waiting.pop_front()?;
        if let Outgoing::Text(text) = &next {
            queue.bytes -= text.len();
            let counted = Queue::counted(queue.bytes);
            queue.reserved.shrink_to(counted);
            self.written.notify_waiters();
        }
        Some(next)
    }

    fn push(&self, text: String, weight: Weight) {
        let mut queue = self.queue();
        if queue.closing {
            return;
        }
        if !queue.has_room(text.len()) {
            if weight == Weight::Fact {
                // What waits is given up with the client; it resumes by its cursor.
                queue.closing = true;
                queue.bytes = 0;
                queue.reserved.shrink_to(0);
                queue.waiting = VecDeque::from([Outgoing::Close(close::POLICY, "slow consumer")]);
                self.closing.send_replace(true);
            }
        } else {
            queue.bytes += text.len();
            queue.waiting.push_back(Outgoing::Text(text));
        }
        drop(queue);
        self.wake.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Makes room for so many more bytes, if there is any.
    fn has_room(&mut self, bytes: usize) -> bool {
        let bytes = self.bytes + bytes;
        let counted = Self::counted(bytes);
        bytes <= MAX_BUFFERED && self.reserved.resize(counted).is_ok()
    }

    /// What of so many bytes takes from the budget.
    fn counted(bytes: usize) -> usize {
        if bytes > UNCOUNTED { bytes } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outbox() -> Outbox {
        Outbox::new(&ByteBudget::new(2 * MAX_BUFFERED))
    }

    #[tokio::test]
    async fn many_slow_clients_share_what_may_wait_for_them() {
        let budget = ByteBudget::new(1000 * 1000);
        let (slow, slower, quick) = (Outbox::new(&budget), Outbox::new(&budget), Outbox::new(&budget));
        slow.event("run", &json!("x".repeat(700 * 1000)), Weight::Fact);
        slower.event("run", &json!("x".repeat(700 * 1000)), Weight::Fact);
        assert_eq!(slower.next().await, Outgoing::Close(close::POLICY, "slow consumer"));
        quick.event("run", &json!("x".repeat(1000)), Weight::Fact);
        assert!(matches!(quick.next().await, Outgoing::Text(_)));
        assert!(matches!(slow.next().await, Outgoing::Text(_)));
        assert_eq!(budget.left(), 1000 * 1000);
    }

    /// Fills an outbox with facts until a few bytes are left.
    fn nearly_full() -> Outbox {
        let outbox = outbox();
        outbox.event("run", &json!("x".repeat(MAX_BUFFERED - 1000)), Weight::Fact);
        outbox
    }

    #[tokio::test]
    async fn live_text_is_dropped_with_its_number_and_a_fact_that_fits_is_kept() {
        let outbox = nearly_full();
        outbox.event("chat", &json!("y".repeat(2000)), Weight::Droppable);
        outbox.event("run", &json!("ended"), Weight::Fact);
        let _filler = outbox.next().await;
        let Outgoing::Text(fact) = outbox.next().await else { panic!("the fact is gone") };
        assert!(fact.contains("ended") && fact.contains("\"seq\":3"), "{fact}");
        assert_eq!(outbox.take(), None);
    }

    #[tokio::test]
    async fn a_fact_that_does_not_fit_ends_the_connection_as_a_slow_consumer() {
        let outbox = nearly_full();
        outbox.event("run", &json!("y".repeat(2000)), Weight::Fact);
        outbox.closing().await;
        assert_eq!(outbox.next().await, Outgoing::Close(close::POLICY, "slow consumer"));
        outbox.event("run", &json!("late"), Weight::Fact);
        outbox.close(close::NORMAL, "");
        assert_eq!(outbox.take(), None, "nothing follows the end");
    }

    #[tokio::test]
    async fn what_waits_is_written_before_an_ordinary_end() {
        let outbox = outbox();
        outbox.event("run", &json!("ended"), Weight::Fact);
        outbox.close(close::RESTART, "service restart");
        assert!(matches!(outbox.next().await, Outgoing::Text(_)));
        assert_eq!(outbox.next().await, Outgoing::Close(close::RESTART, "service restart"));
    }
}
