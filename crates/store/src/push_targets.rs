//! Receivers of the notifications of runs.

use quell_protocol::{Principal, RunId};

use crate::StoreFuture;

/// What names a push target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PushTargetKey {
    pub run: RunId,
    pub owner: Principal,
    /// Unique among the targets that the owner has for the run.
    pub id: String,
}

#[derive(Clone, PartialEq, Eq)]
pub struct StoredPushTarget {
    /// Position in the order of the targets. A target that replaces another one has a new number.
    pub number: i64,
    pub key: PushTargetKey,
    /// Where it is, with its secrets, encrypted.
    pub sealed: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutPushTargetOutcome {
    /// Stored, with this number.
    Stored(i64),
    /// The owner has as many targets for this run as are allowed.
    TooMany,
    NoSuchRun,
}

pub trait PushTargetStore: Send + Sync {
    /// Stores a target as one of this daemon, in place of that with the same key. The owner has at most `limit` for a
    /// run.
    fn put(&self, key: PushTargetKey, sealed: Vec<u8>, limit: u32) -> StoreFuture<'_, PutPushTargetOutcome>;

    /// The targets of one owner for a run, the oldest first.
    fn list(&self, run: RunId, owner: Principal) -> StoreFuture<'_, Vec<StoredPushTarget>>;

    /// False if there is none with this number any more.
    fn exists(&self, number: i64) -> StoreFuture<'_, bool>;

    /// False if there is none with this key.
    fn delete(&self, key: PushTargetKey) -> StoreFuture<'_, bool>;

    /// Deletes all targets of an owner. Returns their number.
    fn delete_of_owner(&self, owner: Principal) -> StoreFuture<'_, u64>;

    /// Marks a target as having received the end of its run, or as given up. Not synced: a mark that is lost in a crash
    /// means a second delivery, which is allowed.
    fn settle(&self, number: i64) -> StoreFuture<'_, ()>;

    /// Takes over targets of daemons that are gone, whose runs have ended and which are not settled: at most `limit`,
    /// the oldest first. Each is taken over by one daemon.
    fn take_over_ended(&self, limit: usize) -> StoreFuture<'_, Vec<StoredPushTarget>>;
}

/// Without the secrets, although they are encrypted.
impl std::fmt::Debug for StoredPushTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredPushTarget").field("number", &self.number).field("key", &self.key).finish_non_exhaustive()
    }
}
