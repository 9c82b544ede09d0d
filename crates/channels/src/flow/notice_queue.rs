//! Bounded queue of notices per channel; stop replies have a queue of their own and are dropped last.
//!
//! Notices are the texts in a chat besides replies. One task sends them: to many addresses at the same time, and to
//! each address one after the other. Nothing waits for a notice.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use super::channel::ActiveChannel;
use super::send_retry::{SendPersistence, send_piece, send_urgent_piece};
use crate::format::split_message;
use crate::network::ChatAddress;

/// Notices between the callers and the task that sends them.
const QUEUE_CAPACITY: usize = 256;
/// Limits of the notices that wait for one address, by priority; further ones are dropped.
const MAX_WAITING_TEXTS: usize = 8;
const MAX_WAITING_TOOL_NOTICES: usize = 2;
const MAX_WAITING_STOP_REPLIES: usize = 16;
/// Number of queues that send at the same time.
const MAX_ADDRESSES: usize = 64;
/// Stops of a channel that wait for a report of their end.
const MAX_FOLLOWED_STOPS: usize = 64;
/// The same text goes to the same sender once in this time. Up to this many texts are remembered.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);
const MAX_RECENT_NOTICES: usize = 256;
/// Older notices are dropped: they are no longer useful.
const MAX_NOTICE_AGE: Duration = Duration::from_secs(30);

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
    address: ChatAddress,
    text: String,
    key: String,
    created_at: Instant,
    priority: NoticePriority,
}

/// A higher priority is dropped later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoticePriority {
    Tool,
    Text,
    Stop,
}

/// Address, and whether the queue is for stop replies. The notices of one key are sent one after the other.
type QueueKey = (ChatAddress, bool);

impl ChatNotice {
    fn queue_key(&self) -> QueueKey {
        (self.address.clone(), self.priority == NoticePriority::Stop)
    }
}

impl NoticeQueue {
    /// Creates the queue and the receiver for [`run_notice_queue`].
    pub(super) fn new() -> (Self, mpsc::Receiver<ChatNotice>) {
        let (sender, notices) = mpsc::channel(QUEUE_CAPACITY);
        let stop_permits = Arc::new(Semaphore::new(MAX_FOLLOWED_STOPS));
        (Self { sender, stop_permits, recent: Mutex::default() }, notices)
    }

    /// Queues a notice; drops it if too many wait.
    pub(super) fn push(&self, address: &ChatAddress, text: impl Into<String>) {
        self.push_with_priority(address, text.into(), NoticePriority::Text);
    }

    /// Queues a reply to a stop. It is sent before all other waiting notices, also in the network's own queue.
    pub(super) fn push_stop_reply(&self, address: &ChatAddress, text: impl Into<String>) {
        self.push_with_priority(address, text.into(), NoticePriority::Stop);
    }

    /// Queues a notice that a tool has started; drops it if even a few notices wait.
    pub(super) fn push_tool_notice(&self, address: &ChatAddress, text: String) {
        self.push_with_priority(address, text, NoticePriority::Tool);
    }

    /// Queues a notice, unless the same text was sent to this sender at this address within [`REPEAT_INTERVAL`].
    pub(super) fn push_unless_recent(&self, address: &ChatAddress, sender: &str, text: &'static str) {
        self.push_with_priority_unless_recent((address, sender), text, NoticePriority::Text);
    }

    /// Same as [`NoticeQueue::push_unless_recent`], with the priority of a stop reply.
    pub(super) fn push_stop_reply_unless_recent(&self, address: &ChatAddress, sender: &str, text: &'static str) {
        self.push_with_priority_unless_recent((address, sender), text, NoticePriority::Stop);
    }

    fn push_with_priority_unless_recent(
        &self,
        (address, sender): (&ChatAddress, &str),
        text: &'static str,
        priority: NoticePriority,
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
        self.push_with_priority(address, text.to_owned(), priority);
    }

    /// Acquires the permit to report the end of a stop; `None` when all are in use.
    pub(super) fn acquire_stop_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.stop_permits).try_acquire_owned().ok()
    }

    fn push_with_priority(&self, address: &ChatAddress, text: String, priority: NoticePriority) {
        let (address, key) = (address.clone(), uuid::Uuid::now_v7().to_string());
        if self.sender.try_send(ChatNotice { address, text, key, created_at: Instant::now(), priority }).is_err() {
            tracing::warn!("a notice was dropped: too many wait");
        }
    }
}

/// Sends a channel's notices until the channel is gone.
pub(super) async fn run_notice_queue(channel: Weak<ActiveChannel>, mut notices: mpsc::Receiver<ChatNotice>) {
    let mut queues: HashMap<QueueKey, VecDeque<ChatNotice>> = HashMap::new();
    let mut in_flight = FuturesUnordered::new();
    loop {
        // Both arms only wait: a send in flight stays in the set.
        let full = queues.len() >= MAX_ADDRESSES;
        tokio::select! {
            notice = notices.recv() => match notice {
                Some(notice) => match queues.get_mut(&notice.queue_key()) {
                    Some(waiting) => enqueue_within_limit(waiting, notice),
                    None if !full || notice.priority == NoticePriority::Stop => {
                        queues.insert(notice.queue_key(), VecDeque::new());
                        in_flight.push(send_notice(channel.clone(), notice));
                    }
                    None => tracing::warn!("a notice was dropped: too many addresses wait"),
                },
                None => return,
            },
            Some(queue_key) = in_flight.next() => match queues.get_mut(&queue_key).and_then(VecDeque::pop_front) {
                Some(next) => in_flight.push(send_notice(channel.clone(), next)),
                None => drop(queues.remove(&queue_key)),
            },
        }
    }
}

fn enqueue_within_limit(waiting: &mut VecDeque<ChatNotice>, notice: ChatNotice) {
    match notice.priority {
        NoticePriority::Tool if waiting.len() >= MAX_WAITING_TOOL_NOTICES => {}
        NoticePriority::Text if waiting.len() >= MAX_WAITING_TEXTS => {
            tracing::warn!("a notice was dropped: too many wait")
        }
        NoticePriority::Stop if waiting.len() >= MAX_WAITING_STOP_REPLIES => {
            tracing::warn!("the reply to a stop was dropped: too many wait");
        }
        NoticePriority::Tool | NoticePriority::Text | NoticePriority::Stop => waiting.push_back(notice),
    }
}

async fn send_notice(channel: Weak<ActiveChannel>, notice: ChatNotice) -> QueueKey {
    let Some(channel) = channel.upgrade().filter(|_| notice.created_at.elapsed() < MAX_NOTICE_AGE) else {
        return notice.queue_key();
    };
    for (number, piece) in split_message(&notice.text, &channel.limits.message_format).iter().enumerate() {
        let key = format!("{}-{number}", notice.key);
        let sent = async {
            match notice.priority {
                NoticePriority::Stop => send_urgent_piece(&channel, &notice.address, (piece, &key)).await,
                NoticePriority::Tool | NoticePriority::Text => {
                    send_piece(&channel, &notice.address, (piece, &key), SendPersistence::FewTries).await
                }
            }
        };
        let problem = match tokio::time::timeout(MAX_NOTICE_AGE, sent).await {
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("it took longer than {} s", MAX_NOTICE_AGE.as_secs()),
        };
        channel.count_undelivered();
        tracing::warn!(channel = channel.name, problem, "a notice was not delivered");
        break;
    }
    notice.queue_key()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(text: &str, priority: NoticePriority) -> ChatNotice {
        let address = ChatAddress { target: "room".to_owned(), thread: None };
        ChatNotice { address, text: text.to_owned(), key: String::new(), created_at: Instant::now(), priority }
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_tools_give_way() {
        let mut waiting = VecDeque::new();
        for number in 0..20 {
            enqueue_within_limit(&mut waiting, notice(&format!("tool {number}"), NoticePriority::Tool));
        }
        for number in 0..20 {
            enqueue_within_limit(&mut waiting, notice(&format!("word {number}"), NoticePriority::Text));
        }
        let texts: Vec<&str> = waiting.iter().map(|notice| notice.text.as_str()).collect();
        assert_eq!(texts, ["tool 0", "tool 1", "word 0", "word 1", "word 2", "word 3", "word 4", "word 5"]);
        let mut stops = VecDeque::new();
        for number in 0..20 {
            enqueue_within_limit(&mut stops, notice(&format!("stop {number}"), NoticePriority::Stop));
        }
        assert_eq!(stops.len(), MAX_WAITING_STOP_REPLIES);
        assert_ne!(waiting[0].queue_key(), stops[0].queue_key(), "a stop waits behind nothing else that is sent there");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_is_said_again_only_to_somebody_else_or_later() {
        let (notice_queue, mut notices) = NoticeQueue::new();
        let address = ChatAddress { target: "room".to_owned(), thread: None };
        for sender in ["ann", "ann", "bob"] {
            notice_queue.push_unless_recent(&address, sender, "Nothing");
        }
        tokio::time::advance(REPEAT_INTERVAL).await;
        notice_queue.push_unless_recent(&address, "ann", "Nothing");
        drop(notice_queue);
        let mut sent = 0;
        while notices.recv().await.is_some() {
            sent += 1;
        }
        assert_eq!(sent, 3);
    }
}
