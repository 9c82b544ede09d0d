//! Send the notices of a channel: to many addresses at the same time, and to each address one after the other.
//!
//! Stop replies have a queue of their own and are dropped last.

use std::collections::{HashMap, VecDeque};
use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::channel::ActiveChannel;
use super::notices::{ChatNotice, NoticePriority};
use super::send_retry::{RetrySafety, SendPersistence, retry, send_piece};
use crate::format::split_message;
use crate::network::ChatAddress;

/// Limits of the notices that wait for one address, by priority; further ones are dropped.
const MAX_WAITING_TEXTS: usize = 8;
const MAX_WAITING_TOOL_NOTICES: usize = 2;
const MAX_WAITING_STOP_REPLIES: usize = 16;
/// Number of queues that send at the same time.
const MAX_ADDRESSES: usize = 64;
/// Older notices are dropped: they are no longer useful.
const MAX_NOTICE_AGE: Duration = Duration::from_secs(30);

/// Address, and whether the queue is for stop replies. The notices of one key are sent one after the other.
type QueueKey = (ChatAddress, bool);

impl ChatNotice {
    fn queue_key(&self) -> QueueKey {
        (self.address.clone(), self.priority == NoticePriority::Stop)
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
        let (network, address) = (&*channel.network, &notice.address);
        let sent = async {
            match notice.priority {
                NoticePriority::Stop => {
                    let send = || network.send_urgent(address, piece, &key);
                    retry(send, RetrySafety::OnlyWithKey, SendPersistence::FewTries).await
                }
                NoticePriority::Tool | NoticePriority::Text => {
                    send_piece(network, address, piece, &key, SendPersistence::FewTries).await
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
    use tokio::time::Instant;

    use super::*;

    fn notice(text: &str, priority: NoticePriority) -> ChatNotice {
        let address = ChatAddress { target: "room".to_owned(), thread: None };
        ChatNotice { address, text: text.to_owned(), key: String::new(), created_at: Instant::now(), priority }
    }

    #[tokio::test]
    async fn waiting_notices_are_bounded_and_tool_notices_dropped_first() {
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
}
