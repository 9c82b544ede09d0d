//! The audit log: append, list, delete old entries.

use quell_protocol::audit::{Action, AuditRow};
use quell_protocol::{Principal, Surface};

use crate::StoreFuture;

/// An audit entry before it gets its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// RFC 3339.
    pub at: String,
    pub principal: Principal,
    pub surface: Surface,
    /// Origin of the request, as far as it is known.
    pub from: Option<String>,
    pub action: Action,
    pub target: Option<String>,
    pub detail: Option<String>,
}

pub trait AuditStore: Send + Sync {
    /// Appends entries to the log, in their order. Their numbers rise and are never used again.
    fn append(&self, entries: Vec<AuditEntry>) -> StoreFuture<'_, ()>;

    /// Lists at most `limit` entries with a number above `after`, oldest first, and whether there are more.
    fn list(&self, after: u64, limit: usize) -> StoreFuture<'_, (Vec<AuditRow>, bool)>;

    /// Lists the principals and origins of all entries with this action, each pair once.
    fn list_origins(&self, action: Action) -> StoreFuture<'_, Vec<(Principal, String)>>;

    /// Deletes entries from before `time`, RFC 3339, from the oldest on. Returns their number. Works in small
    /// transactions, so that other writes are not delayed: when dropped, some entries are deleted and others are not.
    fn delete_before(&self, time: String) -> StoreFuture<'_, u64>;
}
