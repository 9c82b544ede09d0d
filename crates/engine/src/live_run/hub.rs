//! Broadcast events and notices of the engine to subscribers with bounded queues.
//!
//! For a slow subscriber deltas are dropped: their sequence numbers leave a gap, and the live run has the text. Other
//! notices are never dropped: a subscriber whose queue is full of them is overrun, gets an error, and has to resume by
//! its cursors.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use quell_protocol::api::ComputeStatus;
use quell_protocol::{AgentId, Amendment, EventKind, RunEvent, RunId, SessionKey, StopReason};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

/// Queue length from which deltas are dropped.
const DELTA_LIMIT: usize = 1024;
/// Queue length at which a subscriber is overrun: about four notices for each of 4,000 runs.
const FACT_LIMIT: usize = 16_384;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum EngineNotice {
    Run(Arc<RunEvent>),
    /// A run is being stopped (row E6 in `docs/design/requirements.md`, `execution:cancel`). Comes before its
    /// `run.ending`.
    Cancelling {
        run_id: RunId,
        session_key: SessionKey,
        reason: StopReason,
    },
    /// The receipt of an ended run got one more amendment. This is not an event of the run, because its last event is
    /// its end.
    Amended {
        run_id: RunId,
        session_key: SessionKey,
        amendment: Amendment,
    },
    /// An agent's compute status or its list of runs changed (row B3 in `docs/design/requirements.md`).
    Agent {
        agent: AgentId,
        status: ComputeStatus,
        /// Its runs that are not over.
        active: Vec<RunId>,
    },
    /// An agent was created or deleted. A created one is idle.
    AgentListChanged {
        agent: AgentId,
        /// `created` or `deleted`.
        change: Cow<'static, str>,
    },
    Session {
        key: SessionKey,
        /// `create`, `message`, `reset`, `delete`, `share`, `import`, `process`.
        reason: Cow<'static, str>,
        /// Its runs that are not over, if it is on another node.
        active_elsewhere: Option<Vec<RunId>>,
    },
    Hold {
        held: bool,
    },
    Shutdown {
        reason: String,
    },
}

impl EngineNotice {
    /// A session of this node has changed.
    pub fn session_changed(key: SessionKey, reason: &'static str) -> Self {
        Self::Session { key, reason: reason.into(), active_elsewhere: None }
    }

    fn is_droppable(&self) -> bool {
        matches!(self, Self::Run(event) if event.kind.is_delta())
    }

    /// The session that it is about.
    pub fn session(&self) -> Option<&SessionKey> {
        match self {
            Self::Run(event) => Some(&event.session_key),
            Self::Cancelling { session_key, .. } | Self::Amended { session_key, .. } => Some(session_key),
            Self::Session { key, .. } => Some(key),
            Self::Agent { .. } | Self::AgentListChanged { .. } | Self::Hold { .. } | Self::Shutdown { .. } => None,
        }
    }

    /// True for what concerns clients of other nodes, too. What concerns all nodes alike, each of them finds out itself.
    /// Approvals of sub-runs interest only who follows a run, and a node of an earlier version cannot read them.
    pub fn is_for_other_nodes(&self) -> bool {
        match self {
            Self::Run(event) => !matches!(
                event.kind,
                EventKind::SubRunApprovalRequested { .. } | EventKind::SubRunApprovalResolved { .. }
            ),
            Self::Agent { .. } => true,
            notice => notice.session().is_some(),
        }
    }
}

/// Broadcasts to all subscribers. Clones share one hub.
#[derive(Clone, Default)]
pub struct Hub(Arc<HubInner>);

#[derive(Default)]
struct HubInner {
    subscribers: Mutex<Vec<Weak<HubSubscriber>>>,
    /// Number of the subscribers that want the notices of all nodes.
    readers: watch::Sender<usize>,
    /// Clients of other nodes want the notices of this one.
    is_wanted_elsewhere: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoticeSource {
    AllNodes,
    /// Not those that other nodes have sent.
    ThisNode,
}

struct HubSubscriber {
    wanted: NoticeSource,
    queue: Mutex<SubscriberQueue>,
    wake: Notify,
}

#[derive(Default)]
struct SubscriberQueue {
    notices: VecDeque<EngineNotice>,
    is_overrun: bool,
}

pub struct Subscription {
    subscriber: Arc<HubSubscriber>,
    hub: Hub,
}

/// The subscriber was too slow; it has to resume by its cursors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reader was too slow; reconnect and resume by cursor")]
pub struct SubscriberOverrun;

impl Hub {
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        self.add_subscriber(NoticeSource::AllNodes)
    }

    /// Subscribes to the notices of this node, without those that [`Hub::publish_foreign`] publishes.
    #[must_use]
    pub fn subscribe_own(&self) -> Subscription {
        self.add_subscriber(NoticeSource::ThisNode)
    }

    fn add_subscriber(&self, wanted: NoticeSource) -> Subscription {
        let queue = Mutex::new(SubscriberQueue::default());
        let subscriber = Arc::new(HubSubscriber { wanted, queue, wake: Notify::new() });
        let mut subscribers = self.lock_subscribers();
        subscribers.retain(|other| other.strong_count() > 0);
        subscribers.push(Arc::downgrade(&subscriber));
        drop(subscribers);
        if wanted == NoticeSource::AllNodes {
            self.0.readers.send_modify(|readers| *readers += 1);
        }
        Subscription { subscriber, hub: self.clone() }
    }

    /// Queues a notice for every subscriber. Never waits.
    pub fn publish(&self, notice: &EngineNotice) {
        for subscriber in self.lock_subscribers().iter().filter_map(Weak::upgrade) {
            subscriber.push(notice);
        }
    }

    /// Queues a notice of another node, as [`Hub::publish`].
    pub fn publish_foreign(&self, notice: &EngineNotice) {
        let subscribers = self.lock_subscribers();
        let readers =
            subscribers.iter().filter_map(Weak::upgrade).filter(|other| other.wanted == NoticeSource::AllNodes);
        readers.for_each(|subscriber| subscriber.push(notice));
    }

    /// Tells the subscribers that want the notices of all nodes that some were lost: they resume by their cursors.
    pub fn overrun_readers(&self) {
        let subscribers = self.lock_subscribers();
        let readers =
            subscribers.iter().filter_map(Weak::upgrade).filter(|other| other.wanted == NoticeSource::AllNodes);
        readers.for_each(|subscriber| subscriber.overrun());
    }

    /// Follows the number of subscribers that want the notices of all nodes.
    pub fn watch_readers(&self) -> watch::Receiver<usize> {
        self.0.readers.subscribe()
    }

    /// False if nobody hears of what is published, here and on other nodes.
    pub fn has_readers(&self) -> bool {
        *self.0.readers.borrow() > 0 || self.0.is_wanted_elsewhere.load(Ordering::Relaxed)
    }

    /// Notes whether clients of other nodes want the notices of this one.
    pub fn set_wanted_elsewhere(&self, is_wanted: bool) {
        self.0.is_wanted_elsewhere.store(is_wanted, Ordering::Relaxed);
    }

    fn lock_subscribers(&self) -> MutexGuard<'_, Vec<Weak<HubSubscriber>>> {
        self.0.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.subscriber.wanted == NoticeSource::AllNodes {
            self.hub.0.readers.send_modify(|readers| *readers = readers.saturating_sub(1));
        }
    }
}

impl HubSubscriber {
    fn overrun(&self) {
        let mut queue = self.lock_queue();
        queue.is_overrun = true;
        queue.notices = VecDeque::new();
        drop(queue);
        self.wake.notify_one();
    }

    fn push(&self, notice: &EngineNotice) {
        let mut queue = self.lock_queue();
        if queue.is_overrun || (notice.is_droppable() && queue.notices.len() >= DELTA_LIMIT) {
            return;
        }
        if queue.notices.len() >= FACT_LIMIT {
            queue.is_overrun = true;
            queue.notices = VecDeque::new();
        } else {
            queue.notices.push_back(notice.clone());
        }
        drop(queue);
        self.wake.notify_one();
    }

    fn lock_queue(&self) -> MutexGuard<'_, SubscriberQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// # Errors
    /// [`SubscriberOverrun`] if notices were lost; nothing comes after it.
    ///
    /// # Cancel safety
    /// Safe: a notice leaves the queue only when it is returned.
    pub async fn next(&mut self) -> Result<EngineNotice, SubscriberOverrun> {
        loop {
            if let Some(notice) = self.try_next()? {
                return Ok(notice);
            }
            self.subscriber.wake.notified().await;
        }
    }

    /// The next notice if it is available.
    ///
    /// # Errors
    /// [`SubscriberOverrun`] if notices were lost; nothing comes after it.
    pub fn try_next(&mut self) -> Result<Option<EngineNotice>, SubscriberOverrun> {
        let mut queue = self.subscriber.lock_queue();
        if queue.is_overrun {
            return Err(SubscriberOverrun);
        }
        Ok(queue.notices.pop_front())
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hub")
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Subscription")
    }
}
