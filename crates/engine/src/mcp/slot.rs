//! One server at work for one session, or for all: what it is doing, who uses it, how it is told to end. Facts only; the
//! task that sees it through is in [`super::keep`].

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_protocol::{RunId, SessionKey};
use rmcp::RoleClient;
use rmcp::service::Peer;
use tokio::sync::watch;

use super::server::{Server, Tools};
use super::wire::Wire;

/// One server at work.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) server: Arc<Server>,
    pub(super) birth: Birth,
    state: watch::Sender<State>,
    users: watch::Sender<usize>,
    order: watch::Sender<Order>,
}

/// For whom a server is started.
#[derive(Debug, Clone)]
pub(super) struct Birth {
    /// None for one that all sessions share.
    pub(super) session: Option<SessionKey>,
    /// The run that needed it first.
    pub(super) run: RunId,
    /// Where it is started.
    pub(super) workdir: PathBuf,
}

/// How far it is.
#[derive(Debug, Clone)]
pub(super) enum State {
    Starting,
    Ready(Arc<Link>),
    /// Nothing of it is alive but for the leftovers.
    Over(Arc<Over>),
}

/// A connection that works.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: Peer<RoleClient>,
    pub(super) wire: Arc<Wire>,
    tools: Mutex<Tools>,
}

/// How a server ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Over {
    /// For people and models: a sentence that begins with "it".
    pub(super) cause: String,
    /// The rung, in the ledger's words.
    pub(super) how: &'static str,
    /// What could not be ended, by name.
    pub(super) leftovers: Vec<String>,
    /// The end of what it printed on standard error.
    pub(super) said: String,
    /// What a person can do about a start that failed, where that is known.
    pub(super) remedy: Option<String>,
}

/// What its keeper is told; only rises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    Stay,
    /// Take no new users, close when the last one has left.
    Close,
    /// End now, for this cause.
    End(Arc<str>),
    /// End now, with SIGKILL.
    Kill,
}

impl Order {
    fn rung(&self) -> u8 {
        match self {
            Self::Stay => 0,
            Self::Close => 1,
            Self::End(_) => 2,
            Self::Kill => 3,
        }
    }

    /// True when nobody is waited for any more.
    pub(super) fn is_now(&self) -> bool {
        self.rung() >= 2
    }
}

impl Link {
    pub(super) fn new(peer: Peer<RoleClient>, wire: Arc<Wire>, tools: Tools) -> Self {
        Self { peer, wire, tools: Mutex::new(tools) }
    }

    pub(super) fn tools(&self) -> Tools {
        Arc::clone(&self.locked())
    }

    pub(super) fn set_tools(&self, tools: Tools) {
        *self.locked() = tools;
    }

    fn locked(&self) -> MutexGuard<'_, Tools> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// A server that is about to be started, with one user.
    pub(super) fn new(server: Arc<Server>, birth: Birth) -> Self {
        let (state, order) = (watch::Sender::new(State::Starting), watch::Sender::new(Order::Stay));
        Self { server, birth, state, users: watch::Sender::new(0), order }
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(super) fn set_state(&self, state: State) {
        self.state.send_replace(state);
    }

    /// Waits until it has started or is over.
    pub(super) async fn settled(&self) -> Result<Arc<Link>, Arc<Over>> {
        let mut state = self.state.subscribe();
        // The sender lives in self, so waiting cannot fail.
        // waits: as one arm beside the stop, in `errand`.
        let settled = state.wait_for(|state| !matches!(state, State::Starting)).await.map(|state| state.clone());
        match settled {
            Ok(State::Ready(link)) => Ok(link),
            Ok(State::Over(over)) => Err(over),
            Ok(State::Starting) | Err(_) => Err(Arc::default()),
        }
    }

    /// Waits until it is over.
    pub(super) async fn over(&self) -> Arc<Over> {
        let mut state = self.state.subscribe();
        // waits: for the keeper, who is bounded by the ladder; callers that can hurry it on do so beside this.
        let over = state.wait_for(|state| matches!(state, State::Over(_))).await.map(|state| state.clone());
        match over {
            Ok(State::Over(over)) => over,
            _ => Arc::default(),
        }
    }

    /// Tells its keeper, at once and without waiting.
    pub(super) fn tell(&self, order: Order) {
        self.order.send_if_modified(|now| {
            let rises = now.rung() < order.rung();
            if rises {
                *now = order;
            }
            rises
        });
    }

    pub(super) fn orders(&self) -> watch::Receiver<Order> {
        self.order.subscribe()
    }

    pub(super) fn order(&self) -> Order {
        self.order.borrow().clone()
    }

    /// Waits until it is told to end now, and says for which cause.
    pub(super) async fn ending(&self) -> Arc<str> {
        let mut orders = self.orders();
        // waits: as one arm beside the stop, in `errand`.
        let order = orders.wait_for(Order::is_now).await.map(|order| order.clone());
        match order {
            Ok(Order::End(cause)) => cause,
            _ => Arc::from("it was ended by force"),
        }
    }

    /// True while it may be given to somebody.
    pub(super) fn takes_users(&self) -> bool {
        *self.order.borrow() == Order::Stay && !matches!(*self.state.borrow(), State::Over(_))
    }

    pub(super) fn users(&self) -> usize {
        *self.users.borrow()
    }

    pub(super) fn watch_users(&self) -> watch::Receiver<usize> {
        self.users.subscribe()
    }

    /// True while somebody needs its start.
    pub(super) fn is_wanted(&self) -> bool {
        self.users() > 0 && *self.order.borrow() == Order::Stay
    }

    /// Waits until nobody needs its start any more.
    pub(super) async fn unwanted(&self) {
        let (mut users, mut orders) = (self.watch_users(), self.orders());
        // Both only wait for conditions.
        // waits: as one arm beside the start, in `keep`.
        tokio::select! {
            _ = users.wait_for(|count| *count == 0) => {}
            _ = orders.wait_for(|order| *order != Order::Stay) => {}
        }
    }
}

/// A claim on a server: while it lives, the server is not closed for want of use.
#[derive(Debug)]
pub(super) struct Use(Arc<Slot>);

impl Use {
    /// To be made under the lock under which a server's disuse is decided.
    pub(super) fn of(slot: &Arc<Slot>) -> Self {
        slot.users.send_modify(|count| *count += 1);
        Self(Arc::clone(slot))
    }

    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.users.send_modify(|count| *count -= 1);
    }
}
