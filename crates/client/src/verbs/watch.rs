//! `quell runs watch`: the active runs live. A terminal shows one table that is redrawn in place; a pipe, or `--json`, gets a
//! line per change.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use quell_protocol::api::{ComputeStatus, RunView};
use quell_protocol::{RunId, Usage};
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::runs::table;
use super::table::{painted, run_state};
use super::{Format, VerbError};
use crate::link::{Link, LinkError, RunFilter};
use crate::receipt_line::receipt_line;
use crate::term::{Io, Tone};
use crate::words::count;

/// How often the daemon is asked.
const LOOK: Duration = Duration::from_millis(500);
/// A table taller than the terminal could not be redrawn in place.
const MOST_ROWS: usize = 18;

/// What happened to a run between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    New,
    Changed,
    Over,
}

impl Change {
    fn word(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Changed => "changed",
            Self::Over => "over",
        }
    }
}

/// What must differ for a change to be worth a line; a run's event counter alone is not.
#[derive(PartialEq)]
struct Mark {
    state: String,
    phase: Option<ComputeStatus>,
    steps: u32,
    processes: u32,
    usage: Usage,
}

impl Mark {
    fn of(run: &RunView) -> Self {
        Self {
            state: run.state.clone(),
            phase: run.phase,
            steps: run.steps,
            processes: run.processes,
            usage: run.usage,
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    change: Change,
    run: &'a RunView,
}

/// How the looks are shown.
enum Shape {
    /// Redrawn in place; so many lines stand above the cursor.
    Table(usize),
    Lines,
    Json,
}

pub(super) async fn run(link: &Link, format: Format, io: &mut Io) -> Result<(), VerbError> {
    let shape = match (format, io.screen.out().is_terminal()) {
        (Format::Json, _) => Shape::Json,
        (Format::Words, true) => Shape::Table(0),
        (Format::Words, false) => Shape::Lines,
    };
    let mut watch = Watch { link, shape, known: BTreeMap::new(), begun: false, lost_since: None };
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // A look that is dropped by Ctrl-C has asked and changed nothing.
            () = io.interrupts.next() => {
                if matches!(watch.shape, Shape::Table(_)) {
                    // The terminal has echoed the keys; the prompt goes below them.
                    io.screen.line("")?;
                }
                return Ok(());
            }
            runs = async { look.tick().await; link.runs(RunFilter::Active).await } => watch.take(runs, io).await?,
        }
    }
}

struct Watch<'a> {
    link: &'a Link,
    shape: Shape,
    known: BTreeMap<RunId, Mark>,
    /// True once the daemon has answered.
    begun: bool,
    lost_since: Option<Instant>,
}

impl Watch<'_> {
    async fn take(&mut self, runs: Result<Vec<RunView>, LinkError>, io: &mut Io) -> Result<(), VerbError> {
        let runs = match runs {
            Ok(runs) => runs,
            Err(error) => return self.lost(error, io),
        };
        self.begun = true;
        if self.lost_since.take().is_some() {
            io.screen.remark("connected again")?;
        }
        match &mut self.shape {
            Shape::Table(above) => {
                let lines = picture(io, &runs);
                io.screen.redraw(*above, &lines)?;
                *above = lines.len();
                Ok(())
            }
            Shape::Lines | Shape::Json => self.tell(runs, io).await,
        }
    }

    /// A connection that was there and is gone is told once and tried again; one that never was is an error.
    fn lost(&mut self, error: LinkError, io: &mut Io) -> Result<(), VerbError> {
        let patience = self.link.patience().give_up;
        let spent = self.lost_since.is_some_and(|since| since.elapsed() >= patience);
        if !self.begun || spent || !error.may_pass() {
            return Err(error.into());
        }
        if self.lost_since.is_none() {
            self.lost_since = Some(Instant::now());
            io.screen.remark(&format!("connection lost, trying again: {error}"))?;
            if let Shape::Table(above) = &mut self.shape {
                *above = 0;
            }
        }
        Ok(())
    }

    async fn tell(&mut self, runs: Vec<RunView>, io: &mut Io) -> Result<(), VerbError> {
        let mut gone: Vec<RunId> = self.known.keys().cloned().collect();
        for run in &runs {
            gone.retain(|id| *id != run.run_id);
            let mark = Mark::of(run);
            match self.known.get(&run.run_id) {
                None => self.say(Change::New, run, io)?,
                Some(before) if *before != mark => self.say(Change::Changed, run, io)?,
                Some(_) => {}
            }
            self.known.insert(run.run_id.clone(), mark);
        }
        for id in gone {
            match self.link.run(&id).await {
                Ok(run) => self.say(Change::Over, &run, io)?,
                Err(error) if error.is_not_found() => {}
                // The next look asks again, since the run is still among the known ones.
                Err(error) => return self.lost(error, io),
            }
            self.known.remove(&id);
        }
        Ok(())
    }

    fn say(&self, change: Change, run: &RunView, io: &mut Io) -> Result<(), VerbError> {
        let at = format!("{:.6}", Timestamp::now());
        if matches!(self.shape, Shape::Json) {
            io.screen.json(&Line { at, change, run })?;
            return Ok(());
        }
        let state = painted(io.screen.out(), &run_state(run));
        let proof = run.receipt.as_ref().map(|receipt| format!("  {}", receipt_line(receipt))).unwrap_or_default();
        io.screen.line(&format!("{at}  {}  {}  {state}{proof}", change.word(), run.run_id))?;
        Ok(())
    }
}

fn picture(io: &Io, runs: &[RunView]) -> Vec<String> {
    let pane = io.screen.out();
    let processes = runs.iter().map(|run| u64::from(run.processes)).sum();
    let sum = format!(
        "{} · {} · Ctrl-C leaves",
        count(runs.len() as u64, "active run", "active runs"),
        count(processes, "process", "processes")
    );
    let mut lines = vec![pane.paint(Tone::Quiet, &sum)];
    if !runs.is_empty() {
        let shown = &runs[..runs.len().min(MOST_ROWS)];
        lines.extend(table(pane, shown, Timestamp::now()));
        let hidden = runs.len() - shown.len();
        lines.extend((hidden > 0).then(|| format!("and {hidden} more")));
    }
    lines
}
