//! The ledger of a run: what it holds, since when, and how each resource was released. The receipt is built from it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::{Moment, StopLevel};
use quell_protocol::ResourceKind;
use quell_protocol::receipt::ProcessFacts;
use tokio::sync::watch;

use crate::clock::Clock;

#[derive(Debug, Clone, PartialEq)]
pub struct LedgerRow {
    pub kind: ResourceKind,
    /// Row number, from 1.
    pub id: u64,
    /// For people.
    pub label: String,
    pub opened: Moment,
    pub state: RowState,
    /// For processes: what is known so far.
    pub process: Option<ProcessFacts>,
    /// Names of what is left although the resource counts as released, for example a process that cannot be signalled.
    pub leftovers: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    Held,
    Released { at: Moment, how: Release },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    Finished,
    Failed,
    /// Its work was dropped or told to end.
    Cancelled,
    Closed,
    /// All processes exited by themselves.
    Exited,
    /// Some processes got SIGTERM.
    Term,
    /// Some processes got SIGKILL.
    Kill,
    /// A hook kept an answer from being sent.
    Withheld,
    /// An answer is not shown in its chat.
    Undelivered,
    /// A part of an answer is shown in its chat.
    PartlyDelivered,
    /// It is not known whether an answer is shown in its chat.
    UnknownDelivery,
    /// A server has read the cancel of a call and may go on with it.
    Unconfirmed,
    /// It goes on without the run.
    Kept,
    /// The daemon died while it was held.
    Lost,
}

type StopCallback = Arc<dyn Fn(StopLevel) + Send + Sync>;

struct LedgerEntry {
    row: LedgerRow,
    on_stop: Option<StopCallback>,
    /// It may continue after the run; it then belongs to the session.
    is_background: bool,
}

struct LedgerState {
    entries: Vec<LedgerEntry>,
    stop_level: Option<StopLevel>,
}

struct LedgerShared {
    clock: Clock,
    state: Mutex<LedgerState>,
    open_count: watch::Sender<usize>,
}

#[derive(Clone)]
pub struct Ledger(Arc<LedgerShared>);

/// A held resource. Release it with [`Held::release`]. If it is dropped, its row says `closed` for sockets and
/// `cancelled` for the rest.
#[must_use = "a dropped hold is given back at once"]
pub struct Held {
    ledger: Ledger,
    index: usize,
    how: Release,
}

impl Release {
    /// The word in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Closed => "closed",
            Self::Exited => "exited",
            Self::Term => "term",
            Self::Kill => "kill",
            Self::Withheld => "withheld",
            Self::Undelivered => "undelivered",
            Self::PartlyDelivered => "partly",
            Self::UnknownDelivery => "unknown",
            Self::Unconfirmed => "unconfirmed",
            Self::Kept => "kept",
            Self::Lost => "lost",
        }
    }
}

impl LedgerRow {
    pub fn is_held(&self) -> bool {
        self.state == RowState::Held
    }

    /// How it was released; `None` while it is held.
    #[must_use]
    pub fn release(&self) -> Option<Release> {
        match self.state {
            RowState::Held => None,
            RowState::Released { how, .. } => Some(how),
        }
    }
}

impl Ledger {
    pub(super) fn clock(&self) -> Clock {
        self.0.clock
    }

    pub(super) fn new(clock: Clock) -> Self {
        let state = Mutex::new(LedgerState { entries: Vec::new(), stop_level: None });
        Self(Arc::new(LedgerShared { clock, state, open_count: watch::Sender::new(0) }))
    }

    /// All rows in the order of opening.
    pub fn rows(&self) -> Vec<LedgerRow> {
        self.lock_state().entries.iter().map(|line| line.row.clone()).collect()
    }

    pub fn open_count(&self) -> usize {
        *self.0.open_count.borrow()
    }

    /// Waits until nothing is held.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub(super) async fn wait_empty(&self) {
        let mut open = self.0.open_count.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = open.wait_for(|count| *count == 0).await;
    }

    pub(super) fn open_entry(&self, kind: ResourceKind, label: String) -> Held {
        let opened = self.0.clock.now();
        let mut state = self.lock_state();
        let index = state.entries.len();
        let id = u64::try_from(index).unwrap_or(u64::MAX).saturating_add(1);
        let row = LedgerRow { kind, id, label, opened, state: RowState::Held, process: None, leftovers: Vec::new() };
        state.entries.push(LedgerEntry { row, on_stop: None, is_background: false });
        self.0.open_count.send_modify(|count| *count += 1);
        let how = match kind {
            ResourceKind::ModelRequest | ResourceKind::HttpRequest => Release::Closed,
            _ => Release::Cancelled,
        };
        Held { ledger: self.clone(), index, how }
    }

    /// Releases the background work when the run's work is done and nobody stopped it: it continues without the run.
    pub fn hand_over_background(&self) {
        let now = self.0.clock.now();
        let mut state = self.lock_state();
        let mut handed_over = 0;
        for entry in state.entries.iter_mut().filter(|line| line.is_background && line.row.is_held()) {
            entry.row.state = RowState::Released { at: now, how: Release::Kept };
            entry.on_stop = None;
            handed_over += 1;
        }
        drop(state);
        self.0.open_count.send_modify(|count| *count -= handed_over);
    }

    /// Tells every held resource to end, once per level. Returns true for the first stop.
    pub(super) fn notify_stop(&self, level: StopLevel) -> bool {
        let mut state = self.lock_state();
        if state.stop_level >= Some(level) {
            return false;
        }
        let is_first = state.stop_level.replace(level).is_none();
        let callbacks: Vec<StopCallback> = state.entries.iter().filter_map(|line| line.on_stop.clone()).collect();
        drop(state);
        for callback in callbacks {
            callback(level);
        }
        is_first
    }

    fn lock_state(&self) -> MutexGuard<'_, LedgerState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Registers how this resource is told to end. `callback` must not block. It may be called from any thread, once
    /// per level, and is called at once if the scope was already cancelled.
    pub fn on_stop(self, callback: impl Fn(StopLevel) + Send + Sync + 'static) -> Self {
        let callback: StopCallback = Arc::new(callback);
        let mut state = self.ledger.lock_state();
        if let Some(entry) = state.entries.get_mut(self.index) {
            entry.on_stop = Some(Arc::clone(&callback));
        }
        let stop_level = state.stop_level;
        drop(state);
        if let Some(level) = stop_level {
            callback(level);
        }
        self
    }

    /// Marks that this resource may outlive the run: it is handed over when the work returns without a stop
    /// ([`Ledger::hand_over_background`]), and ends with the run otherwise.
    pub fn as_background(self) -> Self {
        if let Some(entry) = self.ledger.lock_state().entries.get_mut(self.index) {
            entry.is_background = true;
        }
        self
    }

    /// Row number in the ledger, from 1.
    pub fn id(&self) -> u64 {
        u64::try_from(self.index).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Records what is known about a process; may be called again later.
    pub fn note_process(&self, facts: ProcessFacts) {
        self.with_row(|row| row.process = Some(facts));
    }

    /// Records the name of something that is left although this resource is released.
    pub fn note_leftover(&self, name: String) {
        self.with_row(|row| row.leftovers.push(name));
    }

    /// Adds a detail for people to the label.
    pub fn add_to_label(&self, text: &str) {
        self.with_row(|row| row.label.push_str(text));
    }

    pub fn release(mut self, how: Release) {
        self.how = how;
    }

    /// Changes the row, unless it was handed over.
    fn with_row(&self, change: impl FnOnce(&mut LedgerRow)) {
        let mut state = self.ledger.lock_state();
        if let Some(entry) = state.entries.get_mut(self.index).filter(|line| line.row.is_held()) {
            change(&mut entry.row);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let now = self.ledger.0.clock.now();
        let mut state = self.ledger.lock_state();
        // A row that was handed over is released already.
        let Some(entry) = state.entries.get_mut(self.index).filter(|line| line.row.is_held()) else { return };
        entry.row.state = RowState::Released { at: now, how: self.how };
        entry.on_stop = None;
        drop(state);
        self.ledger.0.open_count.send_modify(|count| *count -= 1);
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ledger({} open)", self.open_count())
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({})", self.index)
    }
}
