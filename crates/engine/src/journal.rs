//! The journal's pages: what each run at work still has to write down. It knows no database; whoever does takes the pages that
//! are due, writes them, and says how it went.
//!
//! Writing a line is synchronous and never waits. What waits is bounded: a page holds no more than the draft of its run does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::journal::{Line, Waiting};
use quell_protocol::RunId;
use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant};

/// When lines that were refused are tried again, unless a new line comes earlier.
const AGAIN: Duration = Duration::from_secs(1);

/// The pages of all runs. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Journal(Arc<Desk>);

#[derive(Debug, Default)]
struct Desk {
    due: Mutex<Due>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Due {
    /// Pages with something to write, each once.
    pages: Vec<Page>,
    /// When the first of them is to be written.
    at: Option<Instant>,
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
    /// Rows that the database refused, to be written again.
    refused: Vec<Row>,
    /// The number of the next row.
    next: u32,
    /// Lines so far.
    lines: u64,
    listed: bool,
    closed: bool,
}

#[derive(Debug, Clone, Default)]
struct Written {
    /// Lines that were tried to write.
    lines: u64,
    /// Why the last try failed, if it did.
    problem: Option<String>,
}

/// A line as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The run.
    pub run: RunId,
    /// Its place among the rows of the run.
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

    /// Waits until something is due and takes everything that waits.
    ///
    /// # Cancel safety
    /// Safe: nothing is taken before the last wait.
    pub async fn due(&self) -> Vec<Taken> {
        loop {
            let changed = self.0.changed.notified();
            let at = self.desk().at;
            match at {
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
        let Due { pages, .. } = std::mem::take(&mut *self.desk());
        pages.into_iter().filter_map(Page::take).collect()
    }

    fn put(&self, page: Option<Page>, at: Instant) {
        let mut due = self.desk();
        due.pages.extend(page);
        if due.at.is_none_or(|before| at < before) {
            due.at = Some(at);
            drop(due);
            self.0.changed.notify_one();
        }
    }

    fn desk(&self) -> MutexGuard<'_, Due> {
        self.0.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Page {
    /// Writes a line. After the page was closed it is dropped.
    pub fn write(&self, line: Line) {
        let patience = line.patience();
        let mut text = self.text();
        if text.closed {
            return;
        }
        text.lines += 1;
        text.waiting.push(line);
        let patience = if text.waiting.is_full() { Duration::ZERO } else { patience };
        self.list(&mut text, Instant::now() + patience);
    }

    /// Waits until everything written so far is in the database.
    ///
    /// # Errors
    /// [`Unwritten`] when the database refused; it will be tried again with the next line.
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
        *text = Text { lines, listed: text.listed, closed: true, ..Text::default() };
        drop(text);
        self.0.written.send_replace(Written { lines, problem: None });
    }

    fn take(self) -> Option<Taken> {
        let mut text = self.text();
        text.listed = false;
        if text.closed {
            return None;
        }
        let mut rows = std::mem::take(&mut text.refused);
        for line in text.waiting.take() {
            // Through a JSON value, whose text cannot fail.
            rows.push(Row { run: self.0.run.clone(), number: text.next, line: serde_json::json!(line).to_string() });
            text.next += 1;
        }
        let lines = text.lines;
        drop(text);
        Some(Taken { page: self, rows, lines })
    }

    fn list(&self, text: &mut Text, at: Instant) {
        let page = (!text.listed).then(|| self.clone());
        text.listed = true;
        self.0.journal.put(page, at);
    }

    fn text(&self) -> MutexGuard<'_, Text> {
        self.0.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// How it went.
    pub fn settle(self, outcome: Result<(), String>) {
        let Self { page, rows, lines } = self;
        let problem = outcome.err();
        if problem.is_some() {
            let mut text = page.text();
            if !text.closed {
                // What was taken meanwhile waits behind it: there is one writer.
                text.refused = rows;
                page.list(&mut text, Instant::now() + AGAIN);
            }
        }
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
        Line::Began { call: CallId::parse("c1").unwrap() }
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
    async fn a_call_is_due_at_once_with_what_stood_before_it() {
        let journal = Journal::default();
        let (page, other) = (page(&journal), journal.page(RunId::parse("run-2").unwrap()));
        page.write(text("I look."));
        other.write(text("Me too."));
        page.write(began());
        let begun = Instant::now();
        let taken = journal.due().await;
        assert!(begun.elapsed().is_zero());
        assert_eq!(lines(&taken), [(0, text("I look.")), (1, began()), (0, text("Me too."))]);
        let waiting = page.written();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        taken.into_iter().for_each(|taken| taken.settle(Ok(())));
        assert_eq!(waiting.await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_refused_is_said_and_written_again_in_order() {
        let journal = Journal::default();
        let page = page(&journal);
        page.write(began());
        let taken = journal.due().await;
        taken.into_iter().for_each(|taken| taken.settle(Err("the disk is full".to_owned())));
        assert_eq!(page.written().await, Err(Unwritten("the disk is full".to_owned())));
        page.write(text("after"));
        page.write(began());
        let waiting = page.written();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending(), "the old refusal answered a new line");
        let taken = journal.due().await;
        assert_eq!(lines(&taken), [(0, began()), (1, text("after")), (2, began())]);
        taken.into_iter().for_each(|taken| taken.settle(Ok(())));
        assert_eq!(waiting.await, Ok(()));
        let refused_again = Instant::now();
        page.write(began());
        journal.due().await.into_iter().for_each(|taken| taken.settle(Err("still".to_owned())));
        assert_eq!(lines(&journal.due().await), [(3, began())]);
        assert_eq!(refused_again.elapsed(), AGAIN);
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
