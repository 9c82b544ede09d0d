//! The ledger of a run: what it holds, since when, and how each thing was given back. The receipt is printed from it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::Moment;
use quell_protocol::ResourceKind;
use quell_protocol::receipt::ProcessFacts;
use tokio::sync::watch;

use crate::clock::Clock;

/// How hard a held thing is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopLevel {
    /// End now, cleanly: close, cancel, SIGTERM.
    Gentle,
    /// End at once: SIGKILL.
    Forced,
}

/// One line of the ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What it is.
    pub kind: ResourceKind,
    /// Its number, from 1.
    pub id: u64,
    /// For people.
    pub label: String,
    /// When it was taken.
    pub opened: Moment,
    /// When it was given back.
    pub released: Option<Moment>,
    /// How it was given back.
    pub how: &'static str,
    /// For processes, what is known so far.
    pub process: Option<ProcessFacts>,
    /// What is left of it although it counts as given back, by name: a process that cannot be signalled.
    pub leftovers: Vec<String>,
}

type Tell = Arc<dyn Fn(StopLevel) + Send + Sync>;

struct Line {
    row: Row,
    tell: Option<Tell>,
    /// It may go on after the run: the session's from then on.
    background: bool,
}

struct Book {
    lines: Vec<Line>,
    told: Option<StopLevel>,
}

struct Shared {
    clock: Clock,
    book: Mutex<Book>,
    open: watch::Sender<usize>,
}

/// The ledger of one scope.
#[derive(Clone)]
pub struct Ledger(Arc<Shared>);

/// One thing held. Give it back with [`Held::release`]; dropping it says `closed` for sockets and `cancelled` for the rest.
#[must_use = "a dropped hold is given back at once"]
pub struct Held {
    ledger: Ledger,
    at: usize,
    how: &'static str,
}

impl Ledger {
    pub(super) fn clock(&self) -> Clock {
        self.0.clock
    }

    pub(super) fn new(clock: Clock) -> Self {
        let book = Mutex::new(Book { lines: Vec::new(), told: None });
        Self(Arc::new(Shared { clock, book, open: watch::Sender::new(0) }))
    }

    /// All lines in the order of opening.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        self.book().lines.iter().map(|line| line.row.clone()).collect()
    }

    /// How many things are held now.
    #[must_use]
    pub fn open_count(&self) -> usize {
        *self.0.open.borrow()
    }

    /// Waits until nothing is held.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub(super) async fn empty(&self) {
        let mut open = self.0.open.subscribe();
        // The sender lives in self, so waiting cannot fail.
        let _ = open.wait_for(|count| *count == 0).await;
    }

    pub(super) fn open(&self, kind: ResourceKind, label: String) -> Held {
        let opened = self.0.clock.now();
        let mut book = self.book();
        let at = book.lines.len();
        let id = u64::try_from(at).unwrap_or(u64::MAX).saturating_add(1);
        let row = Row { kind, id, label, opened, released: None, how: "held", process: None, leftovers: Vec::new() };
        book.lines.push(Line { row, tell: None, background: false });
        self.0.open.send_modify(|count| *count += 1);
        let how = match kind {
            ResourceKind::ModelRequest | ResourceKind::HttpRequest => "closed",
            _ => "cancelled",
        };
        Held { ledger: self.clone(), at, how }
    }

    /// The run's work is done and nobody stopped it: what was started in the background goes on and is the run's no more.
    pub fn hand_over(&self) {
        let now = self.0.clock.now();
        let mut book = self.book();
        let mut handed = 0;
        for line in book.lines.iter_mut().filter(|line| line.background && line.row.released.is_none()) {
            line.row.released = Some(now);
            line.row.how = "kept";
            line.tell = None;
            handed += 1;
        }
        drop(book);
        self.0.open.send_modify(|count| *count -= handed);
    }

    pub(super) fn stop(&self, level: StopLevel) {
        let mut book = self.book();
        if book.told >= Some(level) {
            return;
        }
        book.told = Some(level);
        let tells: Vec<Tell> = book.lines.iter().filter_map(|line| line.tell.clone()).collect();
        drop(book);
        for tell in tells {
            tell(level);
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Says how this thing is told to end. `tell` must not block; it may be called from any thread, once per level, and is
    /// called at once when the scope was already cancelled.
    pub fn on_stop(self, tell: impl Fn(StopLevel) + Send + Sync + 'static) -> Self {
        let tell: Tell = Arc::new(tell);
        let mut book = self.ledger.book();
        if let Some(line) = book.lines.get_mut(self.at) {
            line.tell = Some(Arc::clone(&tell));
        }
        let told = book.told;
        drop(book);
        if let Some(level) = told {
            tell(level);
        }
        self
    }

    /// This thing may outlive the run: it is handed over when the work returns without a stop ([`Ledger::hand_over`]), and
    /// ends with the run otherwise.
    pub fn in_background(self) -> Self {
        if let Some(line) = self.ledger.book().lines.get_mut(self.at) {
            line.background = true;
        }
        self
    }

    /// Its number in the ledger, from 1.
    #[must_use]
    pub fn id(&self) -> u64 {
        u64::try_from(self.at).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Notes what is known about a process, now or again later.
    pub fn note_process(&self, facts: ProcessFacts) {
        self.with_row(|row| row.process = Some(facts));
    }

    /// Notes something that stays although this hold ends, by name.
    pub fn note_leftover(&self, name: String) {
        self.with_row(|row| row.leftovers.push(name));
    }

    /// Adds to the label what a person should know of it.
    pub fn add_to_label(&self, text: &str) {
        self.with_row(|row| row.label.push_str(text));
    }

    /// Gives the thing back and says how.
    pub fn release(mut self, how: &'static str) {
        self.how = how;
    }

    /// Changes the row, unless it was handed over.
    fn with_row(&self, change: impl FnOnce(&mut Row)) {
        let mut book = self.ledger.book();
        if let Some(line) = book.lines.get_mut(self.at).filter(|line| line.row.released.is_none()) {
            change(&mut line.row);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let now = self.ledger.0.clock.now();
        let mut book = self.ledger.book();
        // A line that was handed over is closed already.
        let Some(line) = book.lines.get_mut(self.at).filter(|line| line.row.released.is_none()) else { return };
        line.row.released = Some(now);
        line.row.how = self.how;
        line.tell = None;
        drop(book);
        self.ledger.0.open.send_modify(|count| *count -= 1);
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ledger({} open)", self.open_count())
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({})", self.at)
    }
}
