//! Waiting until stopped runs are really over, and saying what became of them.

use std::future::Future;
use std::io;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use quell_protocol::api::StopAnswer;
use quell_protocol::background::ProcessRow;
use quell_protocol::{EventKind, Receipt, RunId, Verdict};
use serde::Serialize;
use tokio::time::{Instant, interval_at};

use super::{Exit, VerbError};
use crate::link::{Link, LinkError};
use crate::receipt_line::receipt_line;
use crate::term::{Io, Tone};
use crate::words::{count, millis, one_line};

/// So many runs are waited for at once; each takes one streaming connection of the daemon.
const AT_ONCE: usize = 8;
pub(super) const REDRAW: Duration = Duration::from_millis(200);

/// A run that is over, or whose end could not be seen.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Over {
    pub(super) run_id: RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<Verdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) receipt: Option<Receipt>,
    /// Why its end could not be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl Over {
    pub(super) fn with(receipt: Receipt) -> Self {
        Self {
            run_id: receipt.run_id.clone(),
            verdict: Some(receipt.verdict.clone()),
            receipt: Some(receipt),
            error: None,
        }
    }

    fn unseen(run_id: RunId, error: &LinkError) -> Self {
        Self { run_id, verdict: None, receipt: None, error: Some(error.to_string()) }
    }

    /// True when the receipt proves that nothing is left.
    pub(super) fn is_clean(&self) -> bool {
        self.receipt.as_ref().is_some_and(|receipt| receipt.leftovers.is_empty())
    }

    pub(super) fn in_words(&self) -> String {
        match (&self.receipt, &self.error, &self.verdict) {
            (Some(receipt), _, _) => receipt_line(receipt),
            (None, Some(error), _) => format!("its end could not be seen: {error}"),
            (None, None, Some(verdict)) => format!("{}, without a receipt", verdict.word()),
            (None, None, None) => "no receipt".into(),
        }
    }
}

/// What a stop did, in the words of `--json`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// As the daemon answered it.
    #[serde(flatten)]
    pub(super) stop: StopAnswer,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held: Option<bool>,
    /// Why the hold could not be stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hold_problem: Option<String>,
    /// How each run that it covers ended; empty when nobody waited.
    pub(super) runs: Vec<Over>,
}

impl Report {
    /// Runs that the stop covers, the ones that were ending already last.
    pub(super) fn covered(&self) -> Vec<RunId> {
        self.stop.run_ids.iter().chain(&self.stop.ending).cloned().collect()
    }

    pub(super) fn exit(&self) -> Exit {
        let clean = self.runs.iter().all(Over::is_clean)
            && self.stop.processes.iter().all(|process| process.leftovers.is_empty())
            && self.hold_problem.is_none();
        if clean { Exit::Done } else { Exit::Failed }
    }

    fn is_empty(&self) -> bool {
        let StopAnswer { run_ids, ending, withdrawn, processes, .. } = &self.stop;
        run_ids.is_empty() && ending.is_empty() && withdrawn.is_empty() && processes.is_empty()
    }

    /// Says what was stopped, run by run, on the pane of answers.
    pub(super) fn print(&self, io: &mut Io) -> io::Result<()> {
        let covered = self.covered();
        if self.is_empty() {
            io.screen.line("nothing to stop: no run is active")?;
        } else if self.runs.is_empty() && !covered.is_empty() {
            let ids: Vec<&str> = covered.iter().map(RunId::as_str).collect();
            io.screen.line(&format!("stop requested for {}: {}", runs(ids.len()), ids.join(", ")))?;
        }
        for over in &self.runs {
            let asked = if self.stop.ending.contains(&over.run_id) { "already asked for: " } else { "" };
            let line = painted_end(io, over);
            io.screen.line(&format!("{}  {asked}{line}", over.run_id))?;
        }
        for process in &self.stop.processes {
            io.screen.line(&process_line(process))?;
        }
        for message in &self.stop.withdrawn {
            io.screen.line(&format!("withdrawn from the queue: {}", one_line(&message.text, 200)))?;
        }
        if self.runs.len() > 1 {
            let left = self.runs.iter().filter(|over| !over.is_clean()).count();
            let left =
                if left == 0 { "nothing is left over".into() } else { format!("{} left something over", runs(left)) };
            io.screen.line(&format!("{} stopped · {left}", runs(self.runs.len())))?;
        }
        if let Some(problem) = &self.hold_problem {
            let problem = io.screen.out().paint(Tone::Failure, &format!("the hold could not be stored: {problem}"));
            io.screen.line(&format!("{problem} · it holds until the daemon ends"))?;
        } else if self.held == Some(true) {
            io.screen.line("hold is on: new runs are refused until `quell hold off`")?;
        }
        Ok(())
    }
}

fn runs(number: usize) -> String {
    count(number as u64, "run", "runs")
}

/// What became of a background command, or that it is ending.
pub(super) fn process_line(process: &ProcessRow) -> String {
    let command = one_line(&process.command, 60);
    let Some(how) = &process.how else { return format!("process {} is ending: {command}", process.id) };
    let others = match process.swept {
        0 => String::new(),
        swept => format!(" and {} below it", count(u64::from(swept), "process", "processes")),
    };
    let left: String = process.leftovers.iter().map(|name| format!(" · could not end {name}")).collect();
    format!("process {} ended ({how}){others}: {command}{left}", process.id)
}

/// How a run ended, in the tone of a pane of answers.
pub(super) fn painted_end(io: &Io, over: &Over) -> String {
    let tone = if over.is_clean() { Tone::Stopped } else { Tone::Failure };
    io.screen.out().paint(tone, &over.in_words())
}

/// Waits until every run is over. A run whose end cannot be seen does not keep the others from being told.
pub(super) async fn settle(link: &Link, runs: &[RunId], io: &mut Io) -> Result<Vec<Over>, VerbError> {
    let ends = stream::iter(runs.iter().cloned()).map(|run| async move {
        match end_of(link, &run).await {
            Ok(over) => over,
            Err(error) => Over::unseen(run, &error),
        }
    });
    while_showing(io, ends.buffered(AT_ONCE).collect::<Vec<Over>>()).await
}

/// Waits until one run is over.
pub(super) async fn end_of(link: &Link, run: &RunId) -> Result<Over, LinkError> {
    let view = link.run(run).await?;
    if view.state == "ended" {
        return Ok(Over { run_id: view.run_id, verdict: view.verdict, receipt: view.receipt, error: None });
    }
    let end = link.follow(run, view.seq).end().await?.map(|event| event.kind);
    match end {
        Some(EventKind::Ended { receipt, .. }) => Ok(Over::with(*receipt)),
        _ => Ok(Over { run_id: run.clone(), verdict: None, receipt: None, error: None }),
    }
}

/// Shows on a terminal for how long the stop has been on its way, until the work is done.
pub(super) async fn while_showing<T>(io: &mut Io, work: impl Future<Output = T>) -> Result<T, VerbError> {
    let started = Instant::now();
    let mut redraw = interval_at(started + REDRAW, REDRAW);
    tokio::pin!(work);
    loop {
        tokio::select! {
            // The work is pinned outside: a tick does not drop it.
            done = &mut work => return Ok(done),
            _ = redraw.tick() => {
                let ms = started.elapsed().as_secs_f64() * 1000.0;
                io.screen.status(Tone::Stopping, &format!("◆ stopping · {}", millis(ms)))?;
            }
        }
    }
}
