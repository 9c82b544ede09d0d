//! A store in the memory of the process, for tests where a file is not the point.

mod archive;
mod channels;
mod file_changes;
mod notes;
mod push_targets;
mod responses;
mod runs;
mod schedules;
mod sessions;
mod small_areas;

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use quell_kernel::daily_spend::PricedUsage;
use quell_protocol::api::Hold;
use quell_protocol::audit::AuditRow;
use quell_protocol::{AgentId, Principal, RunId, SessionKey, Usage};
use tokio_util::sync::CancellationToken;

use crate::{
    MaintenanceStore, Note, NoteScope, PendingReply, RunRow, Store, StoreBackend, StoreError, StoreFuture, StoredAgent,
    StoredCookie, StoredSchedule, StoredSession, StoredToken, StoredWebhook, TempFile,
};

/// A database that stays when its store is closed, as a file does.
#[derive(Debug, Clone, Default)]
pub struct MemoryDatabase(Arc<Mutex<Data>>);

impl MemoryDatabase {
    /// Opens the database, and fences off the stores that were opened before.
    #[must_use]
    pub fn open(&self) -> Store {
        let mut data = lock(&self.0);
        data.boot += 1;
        Store::new(MemoryStore {
            data: Arc::clone(&self.0),
            boot: data.boot,
            closed: CancellationToken::new(),
            fenced: CancellationToken::new(),
        })
    }
}

struct MemoryStore {
    data: Arc<Mutex<Data>>,
    boot: u64,
    closed: CancellationToken,
    fenced: CancellationToken,
}

/// The tables. Lists are in the order of their numbers.
#[derive(Debug, Default)]
struct Data {
    /// Number of the last opening.
    boot: u64,
    /// The last number that was given to a row.
    last_number: i64,
    runs: Vec<RunEntry>,
    receipts: Vec<ReceiptEntry>,
    sessions: Vec<SessionEntry>,
    history: Vec<HistoryEntry>,
    journal: BTreeMap<(String, u32), String>,
    file_changes: BTreeMap<i64, file_changes::ChangeEntry>,
    hold: Hold,
    notes: Vec<NoteEntry>,
    cursors: BTreeMap<String, String>,
    commands: VecDeque<String>,
    pending_replies: BTreeMap<String, ReplyEntry>,
    webhooks: Vec<StoredWebhook>,
    agents: BTreeMap<String, StoredAgent>,
    schedules: BTreeMap<String, StoredSchedule>,
    responses: BTreeMap<String, responses::ResponseEntry>,
    conversations: BTreeMap<String, responses::ConversationEntry>,
    push_targets: Vec<push_targets::PushTargetEntry>,
    tokens: BTreeMap<String, StoredToken>,
    cookies: Vec<StoredCookie>,
    audit: Vec<AuditRow>,
    last_audit: u64,
    spend: BTreeMap<(String, String), (AgentId, Usage)>,
    /// By token and day.
    key_spend: BTreeMap<(Principal, String), PricedUsage>,
}

#[derive(Debug)]
struct RunEntry {
    number: i64,
    row: RunRow,
    /// The part of the usage that is counted in the spend of its day.
    counted: PricedUsage,
}

#[derive(Debug)]
struct ReceiptEntry {
    /// RFC 3339.
    deleted_at: String,
    row: RunRow,
}

#[derive(Debug)]
struct SessionEntry {
    use_order: i64,
    session: StoredSession,
}

#[derive(Debug)]
struct HistoryEntry {
    number: i64,
    session: SessionKey,
    item: EntryItem,
}

#[derive(Debug)]
enum EntryItem {
    Turn { run: RunId, turn: String },
    Reset { at: String },
}

#[derive(Debug)]
struct NoteEntry {
    number: i64,
    scope: NoteScope,
    note: Note,
}

#[derive(Debug)]
struct ReplyEntry {
    boot: u64,
    outcome_sent: bool,
    reply: PendingReply,
}

impl Data {
    fn next_number(&mut self) -> i64 {
        self.last_number += 1;
        self.last_number
    }
}

impl MemoryStore {
    /// Does a write. `work` must check everything before it changes anything.
    fn write<'a, T: Send + 'a>(
        &'a self,
        work: impl FnOnce(&mut Data) -> Result<T, StoreError> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            self.check_open()?;
            let mut data = lock(&self.data);
            if data.boot != self.boot {
                self.fenced.cancel();
                return Err(StoreError::Fenced);
            }
            work(&mut data)
        })
    }

    /// Does a write whose work cannot fail.
    fn change<'a>(&'a self, work: impl FnOnce(&mut Data) + Send + 'a) -> StoreFuture<'a, ()> {
        self.write(move |data| {
            work(data);
            Ok(())
        })
    }

    fn read<'a, T: Send + 'a>(
        &'a self,
        work: impl FnOnce(&Data) -> Result<T, StoreError> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            self.check_open()?;
            work(&lock(&self.data))
        })
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.is_cancelled() { Err(StoreError::Closed) } else { Ok(()) }
    }
}

fn lock(data: &Mutex<Data>) -> std::sync::MutexGuard<'_, Data> {
    data.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rows of a page, newest first: those below `before`, and one more than `limit`.
fn newest_rows<T>(mut rows: Vec<(i64, T)>, before: i64, limit: usize) -> Vec<(i64, T)> {
    rows.retain(|(number, _)| *number < before);
    rows.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    rows.truncate(limit.saturating_add(1));
    rows
}

impl StoreBackend for MemoryStore {}

impl MaintenanceStore for MemoryStore {
    fn fenced(&self) -> &CancellationToken {
        &self.fenced
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async { self.closed.cancel() })
    }

    fn probe(&self) -> StoreFuture<'_, ()> {
        self.write(|_| Ok(()))
    }

    fn check_health(&self) -> StoreFuture<'_, ()> {
        self.probe()
    }

    fn snapshot(&self) -> StoreFuture<'_, TempFile> {
        self.read(|_| Err(StoreError::Unwritable("a store in memory has no snapshots".to_owned())))
    }

    fn read_chunk(&self, file: TempFile, at: u64) -> StoreFuture<'_, Vec<u8>> {
        self.read(move |_| file.read_chunk(at).map_err(|error| StoreError::Unwritable(error.to_string())))
    }

    fn used_bytes(&self) -> StoreFuture<'_, u64> {
        self.read(|data| {
            let turns = data.history.iter().map(|entry| match &entry.item {
                EntryItem::Turn { turn, .. } => turn.len(),
                EntryItem::Reset { .. } => 0,
            });
            Ok(turns.chain(data.runs.iter().map(|run| run.row.view.len())).sum::<usize>() as u64)
        })
    }

    fn count_free_pages(&self) -> StoreFuture<'_, u64> {
        self.read(|_| Ok(0))
    }

    fn release_free_pages(&self, _pages: u32) -> StoreFuture<'_, u64> {
        self.write(|_| Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{TestDatabase, conformance_tests};

    pub(crate) struct TestMemoryDatabase(MemoryDatabase);

    impl TestDatabase for TestMemoryDatabase {
        fn create() -> Self {
            Self(MemoryDatabase::default())
        }

        fn open(&self) -> Store {
            self.0.open()
        }

        fn take_over(&self) -> Store {
            self.0.open()
        }

        fn count_indexed_notes(&self) -> i64 {
            i64::try_from(lock(&self.0.0).notes.len()).unwrap()
        }

        fn stores_scope_name(&self, name: &str) -> bool {
            // An agent's name is no secret, and this store keeps none without notes.
            name == "main" || lock(&self.0.0).notes.iter().any(|entry| entry.scope.name() == name)
        }
    }

    mod conformance {
        super::conformance_tests!(crate::memory::tests::TestMemoryDatabase);
    }
}
