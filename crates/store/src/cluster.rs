//! What the nodes of a cluster share besides the data: their leases, which session belongs to which node, stops that
//! wait for a node, and letters between nodes.
//!
//! A lease belongs to the membership of a node, see `quell_kernel::lease`. Only the clock of the database is compared
//! with it.

use std::time::Duration;

use quell_kernel::lease::{Epoch, LeaseTiming, RenewOutcome};
use quell_protocol::{NodeName, RunId, SessionKey};
use tokio::sync::watch;

use crate::{RunRow, StoreFuture};

/// How a daemon joins a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    pub node: NodeName,
    pub timing: LeaseTiming,
    /// Version of the program, for people.
    pub version: String,
}

/// One stay of a node in the cluster, from its start to its end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Membership {
    pub node: NodeName,
    /// No two memberships of a cluster have the same one.
    pub epoch: Epoch,
}

/// A membership as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    pub membership: Membership,
    pub version: String,
    /// RFC 3339, by the clock of the database.
    pub joined_at: String,
    /// Since the last renewal.
    pub silent_for: Duration,
    /// Until the lease ends; zero if it has ended.
    pub expires_in: Duration,
    /// It writes nothing any more, and its runs are not sealed yet.
    pub fenced: bool,
    pub sessions: u64,
    /// JSON, what the node told with its last renewal.
    pub report: String,
}

/// A stop that waits for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingStop {
    pub number: i64,
    /// JSON.
    pub stop: String,
}

/// What a node tells when it renews its lease.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenewalRequest {
    /// JSON for the other nodes.
    pub report: String,
    /// The stops that were carried out since.
    pub carried_out: Vec<i64>,
    /// Wakes the other nodes, because the report has changed in a way that they have to know at once.
    pub wake_others: bool,
}

/// The state of the cluster at a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenewalAnswer {
    pub outcome: RenewOutcome,
    /// The stops that wait for this node.
    pub stops: Vec<WaitingStop>,
    /// All memberships that are not settled, this one included, by name and epoch.
    pub nodes: Vec<NodeRow>,
    /// How often each topic has changed: `agents`, `hold`, `sharing`, `tokens`.
    pub changes: Vec<ChangeCount>,
    /// The clock of the database, in milliseconds since 1970.
    pub database_clock_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeCount {
    pub topic: String,
    pub number: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The session belongs to this node now, or did before.
    Claimed,
    /// It belongs to another membership, until that gives it back or is settled.
    OwnedBy(Membership),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionLocation {
    pub owner: Option<Membership>,
    pub last_node: Option<NodeName>,
}

/// Operations of a node. Only a store that was opened with [`ClusterSettings`] has them.
pub trait ClusterStore: Send + Sync {
    fn membership(&self) -> &Membership;

    /// Changes when another node has something for this one, and when a topic has changed. Wakeups can be lost with the
    /// connection, so the state is read from time to time, too.
    fn wakeups(&self) -> watch::Receiver<u64>;

    /// Renews the lease of this node, unless a stop waits that is not among those carried out. Runs on a connection of
    /// its own, so that no other work delays it.
    fn renew(&self, request: RenewalRequest) -> StoreFuture<'_, RenewalAnswer>;

    /// All memberships that are not settled.
    fn list_nodes(&self) -> StoreFuture<'_, Vec<NodeRow>>;

    /// Makes a session one of this node, if it belongs to no other.
    fn claim_session(&self, session: SessionKey) -> StoreFuture<'_, ClaimOutcome>;

    /// Gives a session back, unless one of its runs has not ended. The caller makes sure that nothing of it is alive.
    fn release_session(&self, session: SessionKey) -> StoreFuture<'_, ()>;

    /// The membership that a session belongs to. It may have ended.
    fn session_node(&self, session: SessionKey) -> StoreFuture<'_, Option<Membership>>;

    /// The membership that a session belongs to, and the node that had it last.
    fn locate_session(&self, session: SessionKey) -> StoreFuture<'_, SessionLocation>;

    /// The membership that the session of a run belongs to, if any. The run may have ended.
    fn run_node(&self, run: RunId) -> StoreFuture<'_, Option<Membership>>;

    /// The sessions of this node.
    fn own_sessions(&self) -> StoreFuture<'_, Vec<SessionKey>>;

    /// The membership that the session of a run belongs to, if the run has not ended.
    fn open_run_node(&self, run: RunId) -> StoreFuture<'_, Option<Membership>>;

    /// The membership that makes a response, if the response has not ended. The membership may have ended.
    fn response_node(&self, id: String) -> StoreFuture<'_, Option<Membership>>;

    /// Stores a stop for each of these memberships, and wakes them. Returns those that are still members, with the number
    /// of the stop.
    fn request_stop(&self, epochs: Vec<Epoch>, stop: String) -> StoreFuture<'_, Vec<RequestedStop>>;

    /// Fences a membership, if its lease has ended. Returns whether it is fenced now.
    fn fence(&self, epoch: Epoch) -> StoreFuture<'_, bool>;

    /// Makes this node the one that settles a fenced membership. `false` if another one that lives does so.
    fn begin_settling(&self, epoch: Epoch) -> StoreFuture<'_, bool>;

    /// The runs of a membership that have not ended, oldest first.
    fn open_runs_of(&self, epoch: Epoch) -> StoreFuture<'_, Vec<RunRow>>;

    /// The runs that have not ended and whose session belongs to no membership: those of a daemon without a cluster.
    fn open_runs_without_node(&self) -> StoreFuture<'_, Vec<RunRow>>;

    /// Ends a fenced membership whose runs are sealed: its sessions are free.
    fn finish_settling(&self, epoch: Epoch) -> StoreFuture<'_, ()>;

    /// Ends the membership of this node, which holds nothing any more. Later writes are refused. If one of its runs has
    /// not ended, another node settles the membership.
    fn leave(&self) -> StoreFuture<'_, ()>;

    /// Takes a duty if no other node has it, or renews it. Runs on the connection of [`ClusterStore::renew`].
    fn claim_duty(&self, claim: DutyClaim) -> StoreFuture<'_, DutyOutcome>;

    /// Ends the lease of a duty, if this node has it with this epoch.
    fn release_duty(&self, name: String, epoch: Epoch) -> StoreFuture<'_, ()>;

    /// The duties whose leases run.
    fn list_duties(&self) -> StoreFuture<'_, Vec<NodeDuty>>;

    /// Stores letters for nodes, in this order, and notifies each node. They survive no crash of the server.
    fn send_letters(&self, letters: Vec<StoredLetter>) -> StoreFuture<'_, ()>;

    /// Changes when a letter for this node may be stored, see [`ClusterStore::wakeups`].
    fn letter_notifications(&self) -> watch::Receiver<u64>;

    /// Removes and returns the letters for this node, oldest first.
    fn take_letters(&self) -> StoreFuture<'_, Vec<Vec<u8>>>;
}

/// A letter on its way to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLetter {
    pub to: NodeName,
    pub letter: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedStop {
    pub membership: Membership,
    pub number: i64,
    /// Until the lease of the membership ends.
    pub expires_in: Duration,
}

/// Work that one node does for all, such as listening to a chat network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDuty {
    pub name: String,
    pub holder: Membership,
    /// Rises with each holder.
    pub epoch: Epoch,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DutyClaim {
    pub name: String,
    pub lease: Duration,
    /// The epoch of a lease that is to be renewed. Without it, the duty gets a new epoch, so that a late release of an
    /// earlier one does not end it.
    pub renewed: Option<Epoch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DutyOutcome {
    /// This node has the duty. After a renewal in time, the epoch is the one of before.
    Held { epoch: Epoch },
    /// Another node has it for this time, unless it renews.
    HeldByOther { expires_in: Duration },
}
