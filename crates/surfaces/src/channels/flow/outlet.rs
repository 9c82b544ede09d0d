//! Notices: what is said in a chat besides answers. One task sends them, to many places at a time and to each place one after the
//! other, what stops have to say beside the rest; what waits is bounded, and nobody waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use super::channel::Channel;
use super::send::{Patience, send, send_first};
use crate::channels::format::pieces;
use crate::channels::seam::Place;

/// Notices on their way to the task that sends them.
const HANDED_OVER: usize = 256;
/// Notices that wait in one place: further ones are dropped, and tools' before that.
const WAITING: usize = 8;
const WAITING_OF_TOOLS: usize = 2;
const WAITING_OF_STOPS: usize = 16;
/// Places to which notices are sent at the same time.
const PLACES: usize = 64;
/// Stops of a channel whose end is waited for, to be told.
const NEWS: usize = 64;
/// How often the same thing is said to the same person, and how many of these are remembered.
const SELDOM: Duration = Duration::from_secs(10);
const REMEMBERED: usize = 256;
/// A notice that could not be sent for so long is of no use any more.
const STALE: Duration = Duration::from_secs(30);

/// Where notices are put.
pub(super) struct Outlet {
    queue: mpsc::Sender<Notice>,
    news: Arc<Semaphore>,
    said: Mutex<VecDeque<Said>>,
}

/// What was said to whom, and when.
struct Said {
    place: Place,
    sender: String,
    text: &'static str,
    at: Instant,
}

/// One notice.
pub(super) struct Notice {
    place: Place,
    text: String,
    key: String,
    since: Instant,
    weight: Weight,
}

/// What matters more is dropped last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    Tool,
    Word,
    Stop,
}

/// What is said one after the other: in a place, what stops have to say or the rest.
type Lane = (Place, bool);

impl Notice {
    fn lane(&self) -> Lane {
        (self.place.clone(), self.weight == Weight::Stop)
    }
}

impl Outlet {
    /// An outlet, and the queue that [`send_notices`] works off.
    pub(super) fn new() -> (Self, mpsc::Receiver<Notice>) {
        let (queue, notices) = mpsc::channel(HANDED_OVER);
        let news = Arc::new(Semaphore::new(NEWS));
        (Self { queue, news, said: Mutex::default() }, notices)
    }

    /// Says something, unless too much waits to be said there.
    pub(super) fn say(&self, place: &Place, text: impl Into<String>) {
        self.put(place, text.into(), Weight::Word);
    }

    /// Answers a stop: before everything else that waits, there and in the network.
    pub(super) fn say_of_stop(&self, place: &Place, text: impl Into<String>) {
        self.put(place, text.into(), Weight::Stop);
    }

    /// Says that a tool starts, if next to nothing waits to be said there.
    pub(super) fn say_of_tool(&self, place: &Place, text: String) {
        self.put(place, text, Weight::Tool);
    }

    /// Says something, unless it was said to this person here not long ago.
    pub(super) fn seldom(&self, place: &Place, sender: &str, text: &'static str) {
        self.put_seldom((place, sender), text, Weight::Word);
    }

    /// The same of an answer to a stop.
    pub(super) fn seldom_of_stop(&self, place: &Place, sender: &str, text: &'static str) {
        self.put_seldom((place, sender), text, Weight::Stop);
    }

    fn put_seldom(&self, (place, sender): (&Place, &str), text: &'static str, weight: Weight) {
        let now = Instant::now();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|other| now.duration_since(other.at) < SELDOM);
        if said.iter().any(|other| other.place == *place && other.sender == sender && other.text == text) {
            return;
        }
        if said.len() == REMEMBERED {
            said.pop_front();
        }
        said.push_back(Said { place: place.clone(), sender: sender.to_owned(), text, at: now });
        drop(said);
        self.put(place, text.to_owned(), weight);
    }

    /// A place among the stops whose end is told; nothing when all are taken.
    pub(super) fn place_for_news(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.news).try_acquire_owned().ok()
    }

    fn put(&self, place: &Place, text: String, weight: Weight) {
        let (place, key) = (place.clone(), uuid::Uuid::now_v7().to_string());
        if self.queue.try_send(Notice { place, text, key, since: Instant::now(), weight }).is_err() {
            tracing::warn!("a notice was dropped: too many wait");
        }
    }
}

/// Sends a channel's notices until the channel is gone.
pub(super) async fn send_notices(channel: Weak<Channel>, mut notices: mpsc::Receiver<Notice>) {
    let mut lanes: HashMap<Lane, VecDeque<Notice>> = HashMap::new();
    let mut under_way = FuturesUnordered::new();
    loop {
        // Both arms only wait: what is under way stays in the set.
        let full = lanes.len() >= PLACES;
        tokio::select! {
            notice = notices.recv() => match notice {
                Some(notice) => match lanes.get_mut(&notice.lane()) {
                    Some(waiting) => queue(waiting, notice),
                    None if !full || notice.weight == Weight::Stop => {
                        lanes.insert(notice.lane(), VecDeque::new());
                        under_way.push(send_notice(channel.clone(), notice));
                    }
                    None => tracing::warn!("a notice was dropped: too many places are written to"),
                },
                None => return,
            },
            Some(lane) = under_way.next() => match lanes.get_mut(&lane).and_then(VecDeque::pop_front) {
                Some(next) => under_way.push(send_notice(channel.clone(), next)),
                None => drop(lanes.remove(&lane)),
            },
        }
    }
}

fn queue(waiting: &mut VecDeque<Notice>, notice: Notice) {
    match notice.weight {
        Weight::Tool if waiting.len() >= WAITING_OF_TOOLS => {}
        Weight::Word if waiting.len() >= WAITING => tracing::warn!("a notice was dropped: too many wait"),
        Weight::Stop if waiting.len() >= WAITING_OF_STOPS => {
            tracing::warn!("the answer to a stop was dropped: too many wait");
        }
        Weight::Tool | Weight::Word | Weight::Stop => waiting.push_back(notice),
    }
}

async fn send_notice(channel: Weak<Channel>, notice: Notice) -> Lane {
    let Some(channel) = channel.upgrade().filter(|_| notice.since.elapsed() < STALE) else { return notice.lane() };
    for (number, piece) in pieces(&notice.text, &channel.manners.form).iter().enumerate() {
        let key = format!("{}-{number}", notice.key);
        let sent = async {
            match notice.weight {
                Weight::Stop => send_first(&channel, &notice.place, (piece, &key)).await,
                Weight::Tool | Weight::Word => send(&channel, &notice.place, (piece, &key), Patience::Short).await,
            }
        };
        let problem = match tokio::time::timeout(STALE, sent).await {
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("it took longer than {} s", STALE.as_secs()),
        };
        channel.count_undelivered();
        tracing::warn!(channel = channel.name, problem, "a notice was not delivered");
        break;
    }
    notice.lane()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(text: &str, weight: Weight) -> Notice {
        let place = Place { target: "room".to_owned(), thread: None };
        Notice { place, text: text.to_owned(), key: String::new(), since: Instant::now(), weight }
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_tools_give_way() {
        let mut waiting = VecDeque::new();
        for number in 0..20 {
            queue(&mut waiting, notice(&format!("tool {number}"), Weight::Tool));
        }
        for number in 0..20 {
            queue(&mut waiting, notice(&format!("word {number}"), Weight::Word));
        }
        let texts: Vec<&str> = waiting.iter().map(|notice| notice.text.as_str()).collect();
        assert_eq!(texts, ["tool 0", "tool 1", "word 0", "word 1", "word 2", "word 3", "word 4", "word 5"]);
        let mut stops = VecDeque::new();
        for number in 0..20 {
            queue(&mut stops, notice(&format!("stop {number}"), Weight::Stop));
        }
        assert_eq!(stops.len(), WAITING_OF_STOPS);
        assert_ne!(waiting[0].lane(), stops[0].lane(), "a stop waits behind nothing else that is said there");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_is_said_again_only_to_somebody_else_or_later() {
        let (outlet, mut notices) = Outlet::new();
        let place = Place { target: "room".to_owned(), thread: None };
        for sender in ["ann", "ann", "bob"] {
            outlet.seldom(&place, sender, "Nothing");
        }
        tokio::time::advance(SELDOM).await;
        outlet.seldom(&place, "ann", "Nothing");
        drop(outlet);
        let mut said = 0;
        while notices.recv().await.is_some() {
            said += 1;
        }
        assert_eq!(said, 3);
    }
}
