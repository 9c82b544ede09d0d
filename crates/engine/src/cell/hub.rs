//! Engine-wide fan-out: every event of every run, and what changes besides runs, to whoever subscribed.
//!
//! Each subscriber has a bounded queue. Deltas are dropped for one that lags (their seq leaves a hole, and the run's cell has
//! the text); facts are not: a subscriber whose facts do not fit is overrun, learns so, and comes back by its cursors.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use quell_protocol::api::ComputeStatus;
use quell_protocol::{AgentId, Amendment, RunEvent, RunId, SessionKey, StopReason};
use tokio::sync::Notify;

/// Queue length from which deltas are dropped.
const DELTA_LIMIT: usize = 1024;
/// Queue length from which a subscriber is overrun: about four facts for each of 4,000 runs.
const FACT_LIMIT: usize = 16_384;

/// Something that happened, for whoever subscribed.
#[derive(Debug, Clone)]
pub enum Notice {
    /// An event of a run.
    Run(Arc<RunEvent>),
    /// A run is being stopped (row E6, `execution:cancel`). Comes before its `run.ending`.
    Cancelling {
        /// The run.
        run_id: RunId,
        /// Its session.
        session_key: SessionKey,
        /// Why.
        reason: StopReason,
    },
    /// Something became known of a run that is over: its receipt has one more amendment. It is no event of the run, whose
    /// last one is its end.
    Amended {
        /// The run.
        run_id: RunId,
        /// Its session.
        session_key: SessionKey,
        /// What became known.
        amendment: Amendment,
    },
    /// An agent's compute status or its runs changed (row B3).
    Agent {
        /// The agent.
        agent: AgentId,
        /// What its runs are doing.
        status: ComputeStatus,
        /// Its runs that are not over.
        active: Vec<RunId>,
    },
    /// An agent came or went. One that came is idle.
    Society {
        /// The agent.
        agent: AgentId,
        /// `created` or `deleted`.
        change: &'static str,
    },
    /// A session changed.
    Session {
        /// Its key.
        key: SessionKey,
        /// `create`, `message`, `abort`, `reset`, `delete`.
        reason: &'static str,
    },
    /// New runs are held, or not any more.
    Hold {
        /// Whether they are.
        held: bool,
    },
    /// The daemon closes.
    Shutdown {
        /// Why.
        reason: String,
    },
}

impl Notice {
    fn may_be_dropped(&self) -> bool {
        matches!(self, Self::Run(event) if event.kind.is_delta())
    }
}

/// The fan-out. Clones are the same hub.
#[derive(Clone, Default)]
pub struct Hub(Arc<Mutex<Vec<Weak<Subscriber>>>>);

struct Subscriber {
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Default)]
struct Queue {
    notices: VecDeque<Notice>,
    overrun: bool,
}

/// One subscriber's end.
pub struct Subscription(Arc<Subscriber>);

/// The subscriber was too slow for the facts; it has to come back by its cursors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reader was too slow; reconnect and resume by cursor")]
pub struct Overrun;

impl Hub {
    /// Subscribes from now on.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        let subscriber = Arc::new(Subscriber { queue: Mutex::new(Queue::default()), wake: Notify::new() });
        let mut subscribers = self.subscribers();
        subscribers.retain(|other| other.strong_count() > 0);
        subscribers.push(Arc::downgrade(&subscriber));
        Subscription(subscriber)
    }

    /// Hands a notice to every subscriber. Never waits.
    pub fn publish(&self, notice: &Notice) {
        for subscriber in self.subscribers().iter().filter_map(Weak::upgrade) {
            subscriber.push(notice);
        }
    }

    /// True when somebody listens.
    #[must_use]
    pub fn has_subscribers(&self) -> bool {
        self.subscribers().iter().any(|subscriber| subscriber.strong_count() > 0)
    }

    fn subscribers(&self) -> MutexGuard<'_, Vec<Weak<Subscriber>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber {
    fn push(&self, notice: &Notice) {
        let mut queue = self.queue();
        if queue.overrun || (notice.may_be_dropped() && queue.notices.len() >= DELTA_LIMIT) {
            return;
        }
        if queue.notices.len() >= FACT_LIMIT {
            queue.overrun = true;
            queue.notices = VecDeque::new();
        } else {
            queue.notices.push_back(notice.clone());
        }
        drop(queue);
        self.wake.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// The next notice.
    ///
    /// # Errors
    /// [`Overrun`] when facts were lost; nothing comes after it.
    ///
    /// # Cancel safety
    /// Safe: a notice leaves the queue only when it is handed out.
    pub async fn next(&mut self) -> Result<Notice, Overrun> {
        loop {
            if let Some(notice) = self.take()? {
                return Ok(notice);
            }
            self.0.wake.notified().await;
        }
    }

    /// The next notice if it is there already.
    ///
    /// # Errors
    /// [`Overrun`] when facts were lost; nothing comes after it.
    pub fn take(&mut self) -> Result<Option<Notice>, Overrun> {
        let mut queue = self.0.queue();
        if queue.overrun {
            return Err(Overrun);
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
