//! Notices: what is said in a chat besides answers. They are sent one after the other by one task, are bounded, and nobody waits
//! for them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use super::channel::Channel;
use super::send::send;
use crate::channels::format::pieces;
use crate::channels::seam::Place;

/// Notices of a channel that wait to be sent; further ones are dropped.
const WAITING: usize = 64;
/// Stops of a channel whose end is waited for, to be told.
const NEWS: usize = 8;
/// How often the same thing is said in one place, and how many places are remembered.
const SELDOM: Duration = Duration::from_secs(10);
const REMEMBERED: usize = 256;
/// A notice that could not be sent for so long is of no use any more.
const STALE: Duration = Duration::from_secs(30);

/// Where notices are put.
pub(super) struct Outlet {
    queue: mpsc::Sender<Notice>,
    news: Arc<Semaphore>,
    said: Mutex<VecDeque<(Place, &'static str, Instant)>>,
}

/// One notice.
pub(super) struct Notice {
    place: Place,
    text: String,
    key: String,
    since: Instant,
}

impl Outlet {
    /// An outlet, and the queue that [`send_notices`] works off.
    pub(super) fn new() -> (Self, mpsc::Receiver<Notice>) {
        let (queue, notices) = mpsc::channel(WAITING);
        let news = Arc::new(Semaphore::new(NEWS));
        (Self { queue, news, said: Mutex::default() }, notices)
    }

    /// Says something, unless too much waits to be said.
    pub(super) fn say(&self, place: &Place, text: impl Into<String>) {
        let (place, text, key) = (place.clone(), text.into(), uuid::Uuid::now_v7().to_string());
        if self.queue.try_send(Notice { place, text, key, since: Instant::now() }).is_err() {
            tracing::debug!("a notice was dropped: too many wait");
        }
    }

    /// Says something, unless it was said in this place not long ago.
    pub(super) fn seldom(&self, place: &Place, text: &'static str) {
        let now = Instant::now();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|(_, _, at)| now.duration_since(*at) < SELDOM);
        if said.iter().any(|(where_, what, _)| where_ == place && *what == text) {
            return;
        }
        if said.len() == REMEMBERED {
            said.pop_front();
        }
        said.push_back((place.clone(), text, now));
        drop(said);
        self.say(place, text);
    }

    /// A place among the stops whose end is told; nothing when all are taken.
    pub(super) fn place_for_news(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.news).try_acquire_owned().ok()
    }
}

/// Sends a channel's notices until the channel is gone.
pub(super) async fn send_notices(channel: Weak<Channel>, mut notices: mpsc::Receiver<Notice>) {
    while let Some(notice) = notices.recv().await {
        let Some(channel) = channel.upgrade() else { return };
        if notice.since.elapsed() > STALE {
            continue;
        }
        for (number, piece) in pieces(&notice.text, &channel.manners.form).iter().enumerate() {
            let key = format!("{}-{number}", notice.key);
            let sent = tokio::time::timeout(STALE, send(&channel, &notice.place, piece, &key)).await;
            let problem = match sent {
                Ok(Ok(_)) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_elapsed) => format!("it took longer than {} s", STALE.as_secs()),
            };
            channel.count_undelivered();
            tracing::warn!(channel = channel.name, problem, "a notice was not delivered");
            break;
        }
    }
}
