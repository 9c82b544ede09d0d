//! Wait for the ends of stopped runs and print how they ended.

use std::future::Future;
use std::io;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use quell_protocol::api::StopAnswer;
use quell_protocol::background::ProcessRow;
use quell_protocol::{EventKind, Receipt, RunId, Verdict};
use serde::Serialize;
use tokio::time::{Instant, interval_at};

use super::{Exit, SubcommandResult};
use crate::daemon_client::{ClientError, DaemonClient};
use crate::receipt_line::receipt_line;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::{format_count, format_millis, one_line};

/// Runs that are waited for at once; each takes one streaming connection of the daemon.
const MAX_CONCURRENT_WAITS: usize = 8;
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

/// A run that has ended, or whose end could not be read.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoppedRun {
    pub(super) run_id: RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<Verdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) receipt: Option<Receipt>,
    /// Why its end could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl StoppedRun {
    pub(super) fn from_receipt(receipt: Receipt) -> Self {
        Self {
            run_id: receipt.run_id.clone(),
            verdict: Some(receipt.verdict.clone()),
            receipt: Some(receipt),
            error: None,
        }
    }

    fn with_unknown_end(run_id: RunId, error: &ClientError) -> Self {
        Self { run_id, verdict: None, receipt: None, error: Some(error.to_string()) }
    }

    pub(super) fn has_no_leftovers(&self) -> bool {
        self.receipt.as_ref().is_some_and(|receipt| receipt.leftovers.is_empty())
    }

    pub(super) fn end_text(&self) -> String {
        match (&self.receipt, &self.error, &self.verdict) {
            (Some(receipt), _, _) => receipt_line(receipt),
            (None, Some(error), _) => format!("its end could not be seen: {error}"),
            (None, None, Some(verdict)) => format!("{}, without a receipt", verdict.as_str()),
            (None, None, None) => "no receipt".into(),
        }
    }
}

/// Result of `quell stop`; `--json` prints it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StopCommandReport {
    /// The daemon's answer to the stop.
    #[serde(flatten)]
    pub(super) stop: StopAnswer,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hold_problem: Option<String>,
    /// How each covered run ended; empty if the command did not wait.
    pub(super) runs: Vec<StoppedRun>,
}

impl StopCommandReport {
    /// Runs that the stop covers; those that were already ending come last.
    pub(super) fn covered_runs(&self) -> Vec<RunId> {
        self.stop.run_ids.iter().chain(&self.stop.ending).cloned().collect()
    }

    pub(super) fn exit_code(&self) -> Exit {
        let clean = self.runs.iter().all(StoppedRun::has_no_leftovers)
            && self.stop.processes.iter().all(|process| process.leftovers.is_empty())
            && self.hold_problem.is_none()
            && self.stop.unreached.is_empty()
            && !self.stop.unstored_pauses;
        if clean { Exit::Done } else { Exit::Failed }
    }

    fn is_empty(&self) -> bool {
        let StopAnswer { run_ids, ending, withdrawn, processes, paused_schedules, .. } = &self.stop;
        let has_schedules = !paused_schedules.is_empty() || self.stop.unstored_pauses;
        run_ids.is_empty() && ending.is_empty() && withdrawn.is_empty() && processes.is_empty() && !has_schedules
    }

    /// Prints the paused schedules, and whether a restart could forget their pauses.
    pub(super) fn print_paused_schedules(&self, io: &mut CommandIo) -> io::Result<()> {
        for schedule in &self.stop.paused_schedules {
            io.output.print_line(&format!("paused the schedule {}", one_line(schedule, 100)))?;
        }
        if let Some(text) = self.stop.unstored_pauses_text() {
            let text = io.output.stdout().apply_style(OutputStyle::Failure, text);
            io.output.print_line(&text)?;
        }
        Ok(())
    }

    /// Prints what was stopped, run by run, to stdout.
    pub(super) fn print_report(&self, io: &mut CommandIo) -> io::Result<()> {
        let covered = self.covered_runs();
        let problems = [self.stop.unreached_text(), self.stop.settled_text()];
        if self.is_empty() && problems.iter().all(Option::is_none) {
            io.output.print_line("nothing to stop: no run is active")?;
        } else if self.runs.is_empty() && !covered.is_empty() {
            let ids: Vec<&str> = covered.iter().map(RunId::as_str).collect();
            io.output.print_line(&format!("stop requested for {}: {}", count_runs(ids.len()), ids.join(", ")))?;
        }
        for over in &self.runs {
            let asked = if self.stop.ending.contains(&over.run_id) { "already asked for: " } else { "" };
            let line = styled_run_end(io, over);
            io.output.print_line(&format!("{}  {asked}{line}", over.run_id))?;
        }
        for process in &self.stop.processes {
            io.output.print_line(&process_end_text(process))?;
        }
        self.print_paused_schedules(io)?;
        for text in problems.into_iter().flatten() {
            let text = io.output.stdout().apply_style(OutputStyle::Failure, &text);
            io.output.print_line(&text)?;
        }
        for message in &self.stop.withdrawn {
            io.output.print_line(&format!("withdrawn from the queue: {}", one_line(&message.text, 200)))?;
        }
        if self.runs.len() > 1 {
            let left = self.runs.iter().filter(|over| !over.has_no_leftovers()).count();
            let left = if left == 0 {
                "nothing is left over".into()
            } else {
                format!("{} left something over", count_runs(left))
            };
            io.output.print_line(&format!("{} stopped · {left}", count_runs(self.runs.len())))?;
        }
        if let Some(problem) = &self.hold_problem {
            let problem = io
                .output
                .stdout()
                .apply_style(OutputStyle::Failure, &format!("the hold could not be stored: {problem}"));
            io.output.print_line(&format!("{problem} · it holds until the daemon ends"))?;
        } else if self.held == Some(true) {
            io.output.print_line("hold is on: new runs are refused until `quell hold off`")?;
        }
        Ok(())
    }
}

fn count_runs(number: usize) -> String {
    format_count(number as u64, "run", "runs")
}

pub(super) fn process_end_text(process: &ProcessRow) -> String {
    let command = one_line(&process.command, 60);
    let Some(how) = &process.how else { return format!("process {} is ending: {command}", process.id) };
    let others = match process.swept {
        0 => String::new(),
        swept => format!(" and {} below it", format_count(u64::from(swept), "process", "processes")),
    };
    let left: String = process.leftovers.iter().map(|name| format!(" · could not end {name}")).collect();
    format!("process {} ended ({how}){others}: {command}{left}", process.id)
}

pub(super) fn styled_run_end(io: &CommandIo, over: &StoppedRun) -> String {
    let tone = if over.has_no_leftovers() { OutputStyle::Stopped } else { OutputStyle::Failure };
    io.output.stdout().apply_style(tone, &over.end_text())
}

/// Waits until every run has ended. An error of one run is stored in its result, so that the others are still reported.
pub(super) async fn await_run_ends(
    client: &DaemonClient,
    runs: &[RunId],
    io: &mut CommandIo,
) -> SubcommandResult<Vec<StoppedRun>> {
    let ends = stream::iter(runs.iter().cloned()).map(|run| async move {
        match await_run_end(client, &run).await {
            Ok(over) => over,
            Err(error) => StoppedRun::with_unknown_end(run, &error),
        }
    });
    await_with_stop_status(io, ends.buffered(MAX_CONCURRENT_WAITS).collect::<Vec<StoppedRun>>()).await
}

pub(super) async fn await_run_end(client: &DaemonClient, run: &RunId) -> Result<StoppedRun, ClientError> {
    let view = client.get_run(run).await?;
    if view.state == "ended" {
        return Ok(StoppedRun { run_id: view.run_id, verdict: view.verdict, receipt: view.receipt, error: None });
    }
    let end = client.follow_run(run, view.seq).wait_for_end().await?.map(|event| event.kind);
    match end {
        Some(EventKind::Ended { receipt, .. }) => Ok(StoppedRun::from_receipt(*receipt)),
        _ => Ok(StoppedRun { run_id: run.clone(), verdict: None, receipt: None, error: None }),
    }
}

/// Shows the elapsed time on a terminal until `work` is done. If this is dropped and `work` is a reference, the work
/// itself goes on.
pub(super) async fn await_with_stop_status<T>(
    io: &mut CommandIo,
    work: impl Future<Output = T>,
) -> SubcommandResult<T> {
    let started = Instant::now();
    let mut redraw = interval_at(started + REDRAW_INTERVAL, REDRAW_INTERVAL);
    tokio::pin!(work);
    loop {
        tokio::select! {
            // Cancel safe: `work` is pinned outside the loop.
            done = &mut work => return Ok(done),
            _ = redraw.tick() => {
                let ms = started.elapsed().as_secs_f64() * 1000.0;
                io.output.show_status(OutputStyle::Stopping, &format!("◆ stopping · {}", format_millis(ms)))?;
            }
        }
    }
}
