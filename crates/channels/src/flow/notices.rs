//! The queue of a channel's notices: the texts in a chat besides replies. Nothing waits for a notice.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use crate::network::ChatAddress;

/// Notices between the callers and the task that sends them.
const QUEUE_CAPACITY: usize = 256;
/// Stops of a channel that wait for a report of their end.
const MAX_FOLLOWED_STOPS: usize = 64;
/// The same text goes to the same sender once in this time. Up to this many texts are remembered.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);
const MAX_RECENT_NOTICES: usize = 256;

pub(super) struct NoticeQueue {
    sender: mpsc::Sender<ChatNotice>,
    stop_permits: Arc<Semaphore>,
    recent: Mutex<VecDeque<RecentNotice>>,
}

struct RecentNotice {
    address: ChatAddress,
    sender: String,
    text: &'static str,
    sent_at: Instant,
}

pub(super) struct ChatNotice {
    pub(super) address: ChatAddress,
    pub(super) text: String,
    pub(super) key: String,
    pub(super) created_at: Instant,
    pub(super) priority: NoticePriority,
}

/// A higher priority is dropped later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoticePriority {
    /// That a tool has started; dropped if even a few notices wait.
    Tool,
    Text,
    /// The reply to a stop. It is sent before all other waiting notices, also in the network's own queue.
    Stop,
}

impl NoticeQueue {
    /// Creates the queue and the receiver for `notice_sender`.
    pub(super) fn new() -> (Self, mpsc::Receiver<ChatNotice>) {
        let (sender, notices) = mpsc::channel(QUEUE_CAPACITY);
        let stop_permits = Arc::new(Semaphore::new(MAX_FOLLOWED_STOPS));
        (Self { sender, stop_permits, recent: Mutex::default() }, notices)
    }

    /// Queues a notice, unless the same text was sent to this sender at this address within [`REPEAT_INTERVAL`].
    pub(super) fn push_unless_recent(
        &self,
        priority: NoticePriority,
        address: &ChatAddress,
        sender: &str,
        text: &'static str,
    ) {
        let now = Instant::now();
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|other| now.duration_since(other.sent_at) < REPEAT_INTERVAL);
        if recent.iter().any(|other| other.address == *address && other.sender == sender && other.text == text) {
            return;
        }
        if recent.len() == MAX_RECENT_NOTICES {
            recent.pop_front();
        }
        recent.push_back(RecentNotice { address: address.clone(), sender: sender.to_owned(), text, sent_at: now });
        drop(recent);
        self.push(priority, address, text);
    }

    /// Acquires the permit to report the end of a stop; `None` when all are in use.
    pub(super) fn acquire_stop_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.stop_permits).try_acquire_owned().ok()
    }

    /// Queues a notice; drops it if too many wait.
    pub(super) fn push(&self, priority: NoticePriority, address: &ChatAddress, text: impl Into<String>) {
        let (address, text, key) = (address.clone(), text.into(), uuid::Uuid::now_v7().to_string());
        if self.sender.try_send(ChatNotice { address, text, key, created_at: Instant::now(), priority }).is_err() {
            tracing::warn!("a notice was dropped: too many wait");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_same_is_said_again_only_to_somebody_else_or_later() {
        let (notice_queue, mut notices) = NoticeQueue::new();
        let address = ChatAddress { target: "room".to_owned(), thread: None };
        for sender in ["ann", "ann", "bob"] {
            notice_queue.push_unless_recent(NoticePriority::Text, &address, sender, "Nothing");
        }
        tokio::time::advance(REPEAT_INTERVAL).await;
        notice_queue.push_unless_recent(NoticePriority::Text, &address, "ann", "Nothing");
        drop(notice_queue);
        let mut sent = 0;
        while notices.recv().await.is_some() {
            sent += 1;
        }
        assert_eq!(sent, 3);
    }
}
