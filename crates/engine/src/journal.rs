//! Per-run journal buffers and the schedule of their writes; knows no database. The journal writer takes the batches
//! that are due, writes them, and reports the outcome.
//!
//! Writing a line is synchronous and never waits. The memory is bounded: a buffer holds no more than the draft of its
//! run, and refused rows at most as much again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::journal::{JournalBuffer, JournalLine};
use quell_protocol::RunId;
use quell_store::JournalRow;
use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant};

/// Delay before refused rows are written again. Lines that arrive meanwhile wait behind them.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The journals of all runs. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Journal(Arc<JournalInner>);

#[derive(Debug, Default)]
struct JournalInner {
    /// Journals with lines to write, ordered by the time at which the write is due.
    due_journals: Mutex<BTreeMap<(Instant, RunId), RunJournal>>,
    changed: Notify,
}

/// The journal of one run. Clones share it.
#[derive(Debug, Clone)]
pub struct RunJournal(Arc<RunJournalInner>);

#[derive(Debug)]
struct RunJournalInner {
    run: RunId,
    journal: Journal,
    state: Mutex<RunJournalState>,
    write_status: watch::Sender<WriteStatus>,
}

#[derive(Debug, Default)]
struct RunJournalState {
    buffer: JournalBuffer,
    /// Rows that the database refused, to be written again before anything else.
    refused_rows: Option<RefusedRows>,
    line_count: u64,
    /// Its key in `due_journals`, if it is scheduled.
    due_at: Option<Instant>,
    closed: bool,
}

#[derive(Debug)]
struct RefusedRows {
    rows: Vec<JournalRow>,
    /// The value of `line_count` that these rows cover.
    line_count: u64,
}

#[derive(Debug, Clone, Default)]
struct WriteStatus {
    /// Number of lines whose outcome is known.
    line_count: u64,
    /// Error of the last write, if it failed.
    problem: Option<String>,
}

/// Rows of a journal to be written. Their outcome must be reported.
#[derive(Debug)]
pub struct JournalBatch {
    journal: RunJournal,
    pub rows: Vec<JournalRow>,
    line_count: u64,
}

/// Lines could not be written to the journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JournalWriteError(pub String);

impl Journal {
    pub fn run_journal(&self, run: RunId) -> RunJournal {
        let (state, write_status) = (Mutex::default(), watch::Sender::default());
        RunJournal(Arc::new(RunJournalInner { run, journal: self.clone(), state, write_status }))
    }

    /// Waits until a write is due, and takes all batches that are due.
    ///
    /// # Cancel safety
    /// Safe: no batch is taken before the last wait.
    pub async fn next_batches(&self) -> Vec<JournalBatch> {
        loop {
            let changed = self.0.changed.notified();
            let first = self.lock_due_journals().first_key_value().map(|((at, _), _)| *at);
            match first {
                None => changed.await,
                Some(at) if at <= Instant::now() => return self.take_due_batches(),
                Some(at) => {
                    // A line that arrives meanwhile may be due earlier.
                    let _ = tokio::time::timeout_at(at, changed).await;
                }
            }
        }
    }

    fn take_due_batches(&self) -> Vec<JournalBatch> {
        let now = Instant::now();
        let mut due_journals = self.lock_due_journals();
        let mut journals = Vec::new();
        while let Some(first) = due_journals.first_entry().filter(|first| first.key().0 <= now) {
            journals.push(first.remove());
        }
        drop(due_journals);
        journals.into_iter().filter_map(RunJournal::take_batch).collect()
    }

    fn lock_due_journals(&self) -> MutexGuard<'_, BTreeMap<(Instant, RunId), RunJournal>> {
        self.0.due_journals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunJournal {
    /// Buffers a line. Drops it if the journal is closed.
    pub fn write_line(&self, line: JournalLine) {
        let mut state = self.lock_state();
        if state.closed {
            return;
        }
        state.line_count += 1;
        let at = Instant::now() + state.buffer.push(line);
        if state.refused_rows.is_none() && state.due_at.is_none_or(|due| at < due) {
            self.schedule_write(&mut state, at);
        }
    }

    /// Waits until all lines so far are in the database.
    ///
    /// # Errors
    /// The database refused these lines, or earlier ones. The write will be tried again.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition of a `watch` value.
    pub async fn wait_written(&self) -> Result<(), JournalWriteError> {
        let line_count = self.lock_state().line_count;
        let mut write_status = self.0.write_status.subscribe();
        // The sender lives in self, so waiting cannot fail.
        match write_status
            .wait_for(|written| written.line_count >= line_count)
            .await
            .map(|written| written.problem.clone())
        {
            Ok(Some(problem)) => Err(JournalWriteError(problem)),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// Closes the journal, because the end of the run is in the database. Drops all lines that are not written.
    pub fn close(&self) {
        let mut state = self.lock_state();
        let line_count = state.line_count;
        *state = RunJournalState { line_count, closed: true, ..RunJournalState::default() };
        drop(state);
        self.0.write_status.send_replace(WriteStatus { line_count, problem: None });
    }

    fn take_batch(self) -> Option<JournalBatch> {
        let mut state = self.lock_state();
        state.due_at = None;
        let line_count = state.line_count;
        let refused = state.refused_rows.take();
        let new_lines = if refused.is_none() { state.buffer.take_rows() } else { Vec::new() };
        // Serialise outside of the lock, because a stop writes a line under it.
        drop(state);
        let row = |(number, line)| {
            // Formatting a JSON value cannot fail.
            JournalRow { run: self.0.run.clone(), number, line: serde_json::json!(line).to_string() }
        };
        let RefusedRows { rows, line_count } =
            refused.unwrap_or_else(|| RefusedRows { rows: new_lines.into_iter().map(row).collect(), line_count });
        (!rows.is_empty()).then_some(JournalBatch { journal: self, rows, line_count })
    }

    /// Schedules the next write, in place of an earlier schedule.
    fn schedule_write(&self, state: &mut RunJournalState, at: Instant) {
        let mut due_journals = self.0.journal.lock_due_journals();
        if let Some(due) = state.due_at.replace(at) {
            due_journals.remove(&(due, self.0.run.clone()));
        }
        due_journals.insert((at, self.0.run.clone()), self.clone());
        drop(due_journals);
        self.0.journal.0.changed.notify_one();
    }

    fn lock_state(&self) -> MutexGuard<'_, RunJournalState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JournalBatch {
    /// Reports the outcome of the write. Refused rows are scheduled again.
    pub fn report_outcome(self, outcome: Result<(), String>) {
        let Self { journal, rows, mut line_count } = self;
        let problem = outcome.err();
        let mut state = journal.lock_state();
        if problem.is_some() && !state.closed {
            state.refused_rows = Some(RefusedRows { rows, line_count });
            journal.schedule_write(&mut state, Instant::now() + RETRY_DELAY);
            // Later lines wait behind the refused rows, so their outcome is the same for now.
            line_count = state.line_count;
        } else if state.due_at.is_none() && !state.buffer.is_empty() {
            journal.schedule_write(&mut state, Instant::now());
        }
        drop(state);
        journal.0.write_status.send_if_modified(|written| {
            let is_newer = line_count >= written.line_count;
            if is_newer {
                *written = WriteStatus { line_count, problem };
            }
            is_newer
        });
    }
}

#[cfg(test)]
mod tests {
    use quell_protocol::CallId;

    use super::*;

    fn run_journal(journal: &Journal) -> RunJournal {
        journal.run_journal(RunId::parse("run-1").unwrap())
    }

    fn text(text: &str) -> JournalLine {
        JournalLine::Text { text: text.to_owned() }
    }

    fn began() -> JournalLine {
        JournalLine::Began { call: CallId::parse("c1").unwrap(), at: None }
    }

    fn lines(batches: &[JournalBatch]) -> Vec<(u32, JournalLine)> {
        let rows = batches.iter().flat_map(|batch| &batch.rows);
        rows.map(|row| (row.number, serde_json::from_str(&row.line).unwrap())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn text_waits_for_more_and_is_written_in_one_line() {
        let journal = Journal::default();
        let run_journal = run_journal(&journal);
        let begun = Instant::now();
        run_journal.write_line(text("one "));
        tokio::time::advance(Duration::from_millis(100)).await;
        run_journal.write_line(text("two"));
        let batches = journal.next_batches().await;
        assert_eq!(begun.elapsed().as_millis() / 10, 25);
        assert_eq!(lines(&batches), [(0, text("one two"))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_due_at_once_with_what_stood_before_it_and_other_runs_wait() {
        let journal = Journal::default();
        let (run_journal, other) = (run_journal(&journal), journal.run_journal(RunId::parse("run-2").unwrap()));
        run_journal.write_line(text("I look."));
        other.write_line(text("Me too."));
        run_journal.write_line(began());
        let begun = Instant::now();
        let batches = journal.next_batches().await;
        assert!(begun.elapsed().is_zero());
        assert_eq!(lines(&batches), [(0, text("I look.")), (1, began())]);
        let waiting = run_journal.wait_written();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        batches.into_iter().for_each(|batch| batch.report_outcome(Ok(())));
        assert_eq!(waiting.await, Ok(()));
        assert_eq!(lines(&journal.next_batches().await), [(0, text("Me too."))]);
        assert_eq!(begun.elapsed().as_millis() / 10, 25);
    }

    #[tokio::test(start_paused = true)]
    async fn refused_lines_are_reported_and_written_before_later_ones() {
        let journal = Journal::default();
        let run_journal = run_journal(&journal);
        run_journal.write_line(began());
        let settle = |batches: Vec<JournalBatch>, outcome: Result<(), &str>| {
            let written = lines(&batches);
            batches.into_iter().for_each(|batch| batch.report_outcome(outcome.map_err(str::to_owned)));
            written
        };
        settle(journal.next_batches().await, Err("the disk is full"));
        assert_eq!(run_journal.wait_written().await, Err(JournalWriteError("the disk is full".to_owned())));
        let refused = Instant::now();
        run_journal.write_line(text("after"));
        run_journal.write_line(began());
        let waiting = run_journal.wait_written();
        tokio::pin!(waiting);
        assert!(
            futures_util::poll!(waiting.as_mut()).is_pending(),
            "the earlier refusal must not answer for a new line"
        );
        assert_eq!(settle(journal.next_batches().await, Err("still")), [(0, began())]);
        assert_eq!(refused.elapsed(), RETRY_DELAY, "a new line must not hurry the retry");
        assert_eq!(waiting.await, Err(JournalWriteError("still".to_owned())));
        for n in 0..1000 {
            run_journal.write_line(text(&format!("{n} ")));
        }
        assert_eq!(settle(journal.next_batches().await, Ok(())), [(0, began())]);
        let rest = settle(journal.next_batches().await, Ok(()));
        assert_eq!((rest.len(), refused.elapsed()), (3, RETRY_DELAY * 2), "{rest:?}");
        assert_eq!(run_journal.wait_written().await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_page_has_nothing_to_write_and_keeps_nobody_waiting() {
        let journal = Journal::default();
        let run_journal = run_journal(&journal);
        run_journal.write_line(began());
        let waiting = run_journal.wait_written();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        run_journal.close();
        assert_eq!(waiting.await, Ok(()));
        run_journal.write_line(began());
        assert!(journal.next_batches().await.is_empty());
        let nothing = tokio::time::timeout(Duration::from_secs(60), journal.next_batches()).await;
        assert!(nothing.is_err(), "{nothing:?}");
    }
}
