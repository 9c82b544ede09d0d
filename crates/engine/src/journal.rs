//! The journal's pages: what each run at work still has to write down. It knows no database; whoever does takes the pages that
//! are due, writes them, and says how it went.
//!
//! Writing a line is synchronous and never waits. What waits is bounded: a page holds no more than the draft of its run does,
//! and what was refused once more as much.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::journal::{Line, Waiting};
use quell_protocol::RunId;
use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant};

/// When lines that were refused are tried again. What comes meanwhile waits behind them.
const AGAIN: Duration = Duration::from_secs(1);

/// The pages of all runs. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Journal(Arc<Desk>);

#[derive(Debug, Default)]
struct Desk {
    /// Pages with something to write, by the moment at which it is due.
    pages: Mutex<BTreeMap<(Instant, RunId), Page>>,
    changed: Notify,
}

/// One run's page. Clones are the same.
#[derive(Debug, Clone)]
pub struct Page(Arc<Sheet>);

#[derive(Debug)]
struct Sheet {
    run: RunId,
    journal: Journal,
    text: Mutex<Text>,
    written: watch::Sender<Written>,
}

#[derive(Debug, Default)]
struct Text {
    waiting: Waiting,
    /// What the database refused, to be written again before anything else.
    refused: Option<Refused>,
    /// Lines so far.
    lines: u64,
    /// Where it stands on the desk.
    due: Option<Instant>,
    closed: bool,
}

#[derive(Debug)]
struct Refused {
    rows: Vec<Row>,
    /// The lines that would have been written with them.
    lines: u64,
}

#[derive(Debug, Clone, Default)]
struct Written {
    /// Lines of which it is known how they fared.
    lines: u64,
    /// Why the last try failed, if it did.
    problem: Option<String>,
}

/// A line as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The run.
    pub run: RunId,
    /// Its place among the rows of the run. A later row of the same number takes its place.
    pub number: u32,
    /// JSON of a [`Line`].
    pub line: String,
}

/// A page that was taken, to be told how its rows fared.
#[derive(Debug)]
pub struct Taken {
    page: Page,
    /// The rows.
    pub rows: Vec<Row>,
    lines: u64,
}

/// What was to be in the journal is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unwritten(pub String);

impl Journal {
    /// A page for a run.
    #[must_use]
    pub fn page(&self, run: RunId) -> Page {
        let (text, written) = (Mutex::default(), watch::Sender::default());
        Page(Arc::new(Sheet { run, journal: self.clone(), text, written }))
    }

    /// Waits until something is due and takes what is.
    ///
    /// # Cancel safety
    /// Safe: nothing is taken before the last wait.
    pub async fn due(&self) -> Vec<Taken> {
        loop {
            let changed = self.0.changed.notified();
            let first = self.desk().first_key_value().map(|((at, _), _)| *at);
            match first {
                None => changed.await,
                Some(at) if at <= Instant::now() => return self.take(),
                Some(at) => {
                    // A line that came in between may be due earlier.
                    let _ = tokio::time::timeout_at(at, changed).await;
                }
            }
        }
    }

    fn take(&self) -> Vec<Taken> {
        let now = Instant::now();
        let mut desk = self.desk();
        let mut pages = Vec::new();
        while let Some(first) = desk.first_entry().filter(|first| first.key().0 <= now) {
            pages.push(first.remove());
        }
        drop(desk);
        pages.into_iter().filter_map(Page::take).collect()
    }

    fn desk(&self) -> MutexGuard<'_, BTreeMap<(Instant, RunId), Page>> {
        self.0.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Page {
    /// Writes a line. After the page was closed it is dropped.
    pub fn write(&self, line: Line) {
        let mut text = self.text();
        if text.closed {
            return;
        }
        text.lines += 1;
        let at = Instant::now() + text.waiting.push(line);
        if text.refused.is_none() && text.due.is_none_or(|due| at < due) {
            self.list(&mut text, at);
        }
    }

    /// Waits until everything written so far is in the database.
    ///
    /// # Errors
    /// [`Unwritten`] when the database refused it, or what stands before it; it will be tried again.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn written(&self) -> Result<(), Unwritten> {
        let lines = self.text().lines;
        let mut written = self.0.written.subscribe();
        // The sender lives in self, so waiting cannot fail.
        match written.wait_for(|written| written.lines >= lines).await.map(|written| written.problem.clone()) {
            Ok(Some(problem)) => Err(Unwritten(problem)),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// The run is in the database as it ended: nothing more is to be written.
    pub fn close(&self) {
        let mut text = self.text();
        let lines = text.lines;
        *text = Text { lines, closed: true, ..Text::default() };
        drop(text);
        self.0.written.send_replace(Written { lines, problem: None });
    }

    fn take(self) -> Option<Taken> {
        let mut text = self.text();
        text.due = None;
        let lines = text.lines;
        let refused = text.refused.take();
        let fresh = if refused.is_none() { text.waiting.take() } else { Vec::new() };
        // Made into text outside of the lock: a stop writes under it.
        drop(text);
        let row = |(number, line)| {
            // Through a JSON value, whose text cannot fail.
            Row { run: self.0.run.clone(), number, line: serde_json::json!(line).to_string() }
        };
        let Refused { rows, lines } =
            refused.unwrap_or_else(|| Refused { rows: fresh.into_iter().map(row).collect(), lines });
        (!rows.is_empty()).then_some(Taken { page: self, rows, lines })
    }

    /// Puts it on the desk, in another place if it lies there.
    fn list(&self, text: &mut Text, at: Instant) {
        let mut desk = self.0.journal.desk();
        if let Some(due) = text.due.replace(at) {
            desk.remove(&(due, self.0.run.clone()));
        }
        desk.insert((at, self.0.run.clone()), self.clone());
        drop(desk);
        self.0.journal.0.changed.notify_one();
    }

    fn text(&self) -> MutexGuard<'_, Text> {
        self.0.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// How it went.
    pub fn settle(self, outcome: Result<(), String>) {
        let Self { page, rows, mut lines } = self;
        let problem = outcome.err();
        let mut text = page.text();
        if problem.is_some() && !text.closed {
            text.refused = Some(Refused { rows, lines });
            page.list(&mut text, Instant::now() + AGAIN);
            // What came meanwhile waits behind them.
            lines = text.lines;
        } else if text.due.is_none() && !text.waiting.is_empty() {
            page.list(&mut text, Instant::now());
        }
        drop(text);
        page.0.written.send_if_modified(|written| {
            let news = lines >= written.lines;
            if news {
                *written = Written { lines, problem };
            }
            news
        });
    }
}

#[cfg(test)]
mod tests {
    use quell_protocol::CallId;

    use super::*;

    fn page(journal: &Journal) -> Page {
        journal.page(RunId::parse("run-1").unwrap())
    }

    fn text(text: &str) -> Line {
        Line::Text { text: text.to_owned() }
    }

    fn began() -> Line {
        Line::Began { call: CallId::parse("c1").unwrap(), at: None }
    }

    fn lines(taken: &[Taken]) -> Vec<(u32, Line)> {
        let rows = taken.iter().flat_map(|taken| &taken.rows);
        rows.map(|row| (row.number, serde_json::from_str(&row.line).unwrap())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn text_waits_for_more_and_is_written_in_one_line() {
        let journal = Journal::default();
        let page = page(&journal);
        let begun = Instant::now();
        page.write(text("one "));
        tokio::time::advance(Duration::from_millis(100)).await;
        page.write(text("two"));
        let taken = journal.due().await;
        assert_eq!(begun.elapsed().as_millis() / 10, 25);
        assert_eq!(lines(&taken), [(0, text("one two"))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_due_at_once_with_what_stood_before_it_and_other_runs_wait() {
        let journal = Journal::default();
        let (page, other) = (page(&journal), journal.page(RunId::parse("run-2").unwrap()));
        page.write(text("I look."));
        other.write(text("Me too."));
        page.write(began());
        let begun = Instant::now();
        let taken = journal.due().await;
        assert!(begun.elapsed().is_zero());
        assert_eq!(lines(&taken), [(0, text("I look.")), (1, began())]);
        let waiting = page.written();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        taken.into_iter().for_each(|taken| taken.settle(Ok(())));
        assert_eq!(waiting.await, Ok(()));
        assert_eq!(lines(&journal.due().await), [(0, text("Me too."))]);
        assert_eq!(begun.elapsed().as_millis() / 10, 25);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_refused_is_said_and_written_again_before_what_came_after_it() {
        let journal = Journal::default();
        let page = page(&journal);
        page.write(began());
        let settle = |taken: Vec<Taken>, outcome: Result<(), &str>| {
            let told = lines(&taken);
            taken.into_iter().for_each(|taken| taken.settle(outcome.map_err(str::to_owned)));
            told
        };
        settle(journal.due().await, Err("the disk is full"));
        assert_eq!(page.written().await, Err(Unwritten("the disk is full".to_owned())));
        let refused = Instant::now();
        page.write(text("after"));
        page.write(began());
        let waiting = page.written();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending(), "the old refusal answered a new line");
        assert_eq!(settle(journal.due().await, Err("still")), [(0, began())]);
        assert_eq!(refused.elapsed(), AGAIN, "a new line hurries what the disk refuses");
        assert_eq!(waiting.await, Err(Unwritten("still".to_owned())));
        for n in 0..1000 {
            page.write(text(&format!("{n} ")));
        }
        assert_eq!(settle(journal.due().await, Ok(())), [(0, began())]);
        let rest = settle(journal.due().await, Ok(()));
        assert_eq!((rest.len(), refused.elapsed()), (3, AGAIN * 2), "{rest:?}");
        assert_eq!(page.written().await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_page_has_nothing_to_write_and_keeps_nobody_waiting() {
        let journal = Journal::default();
        let page = page(&journal);
        page.write(began());
        let waiting = page.written();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        page.close();
        assert_eq!(waiting.await, Ok(()));
        page.write(began());
        assert!(journal.due().await.is_empty());
        let nothing = tokio::time::timeout(Duration::from_secs(60), journal.due()).await;
        assert!(nothing.is_err(), "{nothing:?}");
    }
}
