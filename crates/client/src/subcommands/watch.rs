//! `quell runs watch`: poll the active runs. On a terminal redraw a table in place; in a pipe, or with `--json`, print
//! one line per change.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use quell_protocol::RunId;
use quell_protocol::api::RunView;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::table::{cell_text, run_state_cell, runs_table};
use super::{CliOutputFormat, SubcommandContext, SubcommandResult};
use crate::daemon_client::{ClientError, ClientRunFilter, DaemonClient};
use crate::receipt_line::receipt_line;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::format_count;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A table higher than the terminal cannot be redrawn in place.
const MAX_TABLE_ROWS: usize = 18;

/// Change of a run between two polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum RunChange {
    New,
    Changed,
    Over,
}

impl RunChange {
    fn word(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Changed => "changed",
            Self::Over => "over",
        }
    }
}

/// True when nothing that is printed differs; a change of the event counter alone is not printed.
fn looks_alike(one: &RunView, other: &RunView) -> bool {
    let shown = |run: &RunView| (run.phase, run.steps, run.processes, run.usage);
    one.state == other.state && shown(one) == shown(other)
}

#[derive(Serialize)]
struct RunChangeLine<'a> {
    at: String,
    change: RunChange,
    run: &'a RunView,
}

enum WatchOutput {
    /// Redrawn in place; the number of lines above the cursor.
    Table(usize),
    Lines,
    Json,
}

pub(super) async fn run(cx: &mut SubcommandContext<'_>) -> SubcommandResult<()> {
    let (client, io) = (cx.client, &mut *cx.io);
    let output = match (cx.format, io.output.stdout().is_terminal()) {
        (CliOutputFormat::Json, _) => WatchOutput::Json,
        (CliOutputFormat::Text, true) => WatchOutput::Table(0),
        (CliOutputFormat::Text, false) => WatchOutput::Lines,
    };
    let mut watch = RunWatch { client, io, output, known: BTreeMap::new(), connected_once: false, lost_since: None };
    let mut poll = interval(POLL_INTERVAL);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // Dropping a poll on Ctrl-C is safe: it only reads.
            _ = watch.io.interrupts.next() => {
                if matches!(watch.output, WatchOutput::Table(_)) {
                    // Print the prompt below the `^C` that the terminal has echoed.
                    watch.io.output.print_line("")?;
                }
                return Ok(());
            }
            runs = async { poll.tick().await; client.list_runs(ClientRunFilter::Active).await } => watch.handle_runs(runs).await?,
        }
    }
}

struct RunWatch<'a> {
    client: &'a DaemonClient,
    io: &'a mut CommandIo,
    output: WatchOutput,
    known: BTreeMap<RunId, RunView>,
    /// True once the daemon has answered a poll.
    connected_once: bool,
    lost_since: Option<Instant>,
}

impl RunWatch<'_> {
    async fn handle_runs(&mut self, runs: Result<Vec<RunView>, ClientError>) -> SubcommandResult<()> {
        let runs = match runs {
            Ok(runs) => runs,
            Err(error) => return self.handle_connection_loss(error),
        };
        self.connected_once = true;
        if self.lost_since.take().is_some() {
            self.io.output.eprint_line("connected again")?;
        }
        match &mut self.output {
            WatchOutput::Table(above) => {
                let lines = live_table(self.io, &runs);
                self.io.output.redraw_lines(*above, &lines)?;
                *above = lines.len();
                Ok(())
            }
            WatchOutput::Lines | WatchOutput::Json => self.print_changes(runs).await,
        }
    }

    /// Reports a lost connection once and keeps trying; if there never was a connection, returns the error.
    fn handle_connection_loss(&mut self, error: ClientError) -> SubcommandResult<()> {
        let patience = self.client.reconnect_policy().give_up_after;
        let spent = self.lost_since.is_some_and(|since| since.elapsed() >= patience);
        if !self.connected_once || spent || !error.is_transient() {
            return Err(error.into());
        }
        if self.lost_since.is_none() {
            self.lost_since = Some(Instant::now());
            self.io.output.eprint_line(&format!("connection lost, trying again: {error}"))?;
            if let WatchOutput::Table(above) = &mut self.output {
                *above = 0;
            }
        }
        Ok(())
    }

    async fn print_changes(&mut self, runs: Vec<RunView>) -> SubcommandResult<()> {
        let mut gone: Vec<RunId> = self.known.keys().cloned().collect();
        for run in runs {
            gone.retain(|id| *id != run.run_id);
            match self.known.get(&run.run_id) {
                None => self.print_change(RunChange::New, &run)?,
                Some(before) if !looks_alike(before, &run) => self.print_change(RunChange::Changed, &run)?,
                Some(_) => {}
            }
            self.known.insert(run.run_id.clone(), run);
        }
        for id in gone {
            match self.client.get_run(&id).await {
                Ok(run) => self.print_change(RunChange::Over, &run)?,
                Err(error) if error.is_not_found() => {}
                // The next poll asks again, since the run is still in `known`.
                Err(error) => return self.handle_connection_loss(error),
            }
            self.known.remove(&id);
        }
        Ok(())
    }

    fn print_change(&mut self, change: RunChange, run: &RunView) -> SubcommandResult<()> {
        let at = format!("{:.6}", Timestamp::now());
        if matches!(self.output, WatchOutput::Json) {
            return Ok(self.io.output.print_json(&RunChangeLine { at, change, run })?);
        }
        let state = cell_text(self.io.output.stdout(), &run_state_cell(run));
        let proof = run.receipt.as_ref().map(|receipt| format!("  {}", receipt_line(receipt))).unwrap_or_default();
        Ok(self.io.output.print_line(&format!("{at}  {}  {}  {state}{proof}", change.word(), run.run_id))?)
    }
}

fn live_table(io: &CommandIo, runs: &[RunView]) -> Vec<String> {
    let stream = io.output.stdout();
    let processes = runs.iter().map(|run| u64::from(run.processes)).sum();
    let sum = format!(
        "{} · {} · Ctrl-C leaves",
        format_count(runs.len() as u64, "active run", "active runs"),
        format_count(processes, "process", "processes")
    );
    let mut lines = vec![stream.apply_style(OutputStyle::Quiet, &sum)];
    if !runs.is_empty() {
        let shown = &runs[..runs.len().min(MAX_TABLE_ROWS)];
        lines.extend(runs_table(stream, shown, Timestamp::now()));
        let hidden = runs.len() - shown.len();
        lines.extend((hidden > 0).then(|| format!("and {hidden} more")));
    }
    lines
}
