//! `quell runs`: the runs that are active, one run with its receipt, or all of them live.

use jiff::Timestamp;
use quell_protocol::api::RunView;
use quell_protocol::{RunId, SessionKey, Verdict};

use super::table::{Cell, lay_out, painted, run_state};
use super::{Exit, Format, VerbError, run_id, session_key, watch};
use crate::link::{Link, RunFilter};
use crate::receipt_line::{amendment_lines, receipt_line};
use crate::receipt_picture::receipt_picture;
use crate::term::{Io, Pane, Tone};
use crate::words::{age, ago, count, harmless, one_line};

/// Arguments of `quell runs`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  quell runs\n  quell runs list --all --json\n  \
    quell runs show 0198c2a4-7d1e-7c33-b1de-9f3a52c7e001\n  quell runs watch")]
pub struct RunsArgs {
    #[command(subcommand)]
    what: Option<RunsVerb>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum RunsVerb {
    /// List the active runs (the default)
    List {
        /// Those that are over too
        #[arg(long)]
        all: bool,
        /// Only those of one session
        #[arg(long, value_parser = session_key, value_name = "KEY")]
        session: Option<SessionKey>,
    },
    /// Show a run: what it did, and its receipt as a picture
    Show {
        /// The run
        #[arg(value_parser = run_id, value_name = "RUN")]
        run: RunId,
    },
    /// Show the active runs live until Ctrl-C; in a pipe, a line per change
    Watch,
}

pub(super) async fn run(link: &Link, args: RunsArgs, io: &mut Io) -> Result<Exit, VerbError> {
    match args.what {
        None => list(link, RunFilter::Active, None, args.json.into(), io).await?,
        Some(RunsVerb::List { all, session }) => {
            let filter = if all { RunFilter::All } else { RunFilter::Active };
            list(link, filter, session.as_ref(), args.json.into(), io).await?;
        }
        Some(RunsVerb::Show { run }) => show(link, &run, args.json.into(), io).await?,
        Some(RunsVerb::Watch) => watch::run(link, args.json.into(), io).await?,
    }
    Ok(Exit::Done)
}

async fn list(
    link: &Link,
    filter: RunFilter,
    session: Option<&SessionKey>,
    format: Format,
    io: &mut Io,
) -> Result<(), VerbError> {
    let mut runs = link.runs(filter).await?;
    runs.retain(|run| session.is_none_or(|session| run.session_key == *session));
    if format == Format::Json {
        io.screen.json(&runs)?;
        return Ok(());
    }
    if runs.is_empty() {
        let none = if filter == RunFilter::All { "no runs" } else { "no active runs" };
        io.screen.remark(&format!("{none}: start one with `quell send \"hello\"`"))?;
        return Ok(());
    }
    for line in table(io.screen.out(), &runs, Timestamp::now()) {
        io.screen.line(&line)?;
    }
    Ok(())
}

/// Runs as a table.
pub(super) fn table(pane: &Pane, runs: &[RunView], now: Timestamp) -> Vec<String> {
    let rows: Vec<[Cell; 7]> = runs.iter().map(|run| row(run, now)).collect();
    lay_out(pane, ["RUN", "STATE", "AGE", "TOKENS", "PROCESSES", "AGENT", "SESSION"], &rows)
}

fn row(run: &RunView, now: Timestamp) -> [Cell; 7] {
    let processes = if run.processes == 0 { String::new() } else { run.processes.to_string() };
    [
        run.run_id.to_string().into(),
        run_state(run),
        age(&run.accepted_at, now).unwrap_or_default().into(),
        tokens(run).into(),
        processes.into(),
        Cell::cut(run.agent.as_str(), 24),
        Cell::cut(run.session_key.as_str(), 60),
    ]
}

fn tokens(run: &RunView) -> String {
    let about = if run.usage.estimated { "~" } else { "" };
    format!("{about}{}", run.usage.input_tokens.saturating_add(run.usage.output_tokens))
}

async fn show(link: &Link, run: &RunId, format: Format, io: &mut Io) -> Result<(), VerbError> {
    let view = link.run(run).await?;
    if format == Format::Json {
        io.screen.json(&view)?;
        return Ok(());
    }
    for line in portrait(&view, io.screen.out(), Timestamp::now()) {
        io.screen.line(&line)?;
    }
    Ok(())
}

/// Everything about one run, line by line.
fn portrait(run: &RunView, pane: &Pane, now: Timestamp) -> Vec<String> {
    let state = painted(pane, &run_state(run));
    let mut lines = vec![format!("{} · {state}", pane.paint(Tone::Strong, &format!("run {}", run.run_id)))];
    lines.push(format!("session {} · agent {} · by {}", run.session_key, run.agent, run.principal));
    let accepted = format!("accepted {} ({})", ago(&run.accepted_at, now), one_line(&run.accepted_at, 40));
    let usage = run.usage;
    let about = if usage.estimated { ", in part estimated" } else { "" };
    let steps = count(u64::from(run.steps), "step", "steps");
    lines.push(format!("{accepted} · {steps} · tokens {} in, {} out{about}", usage.input_tokens, usage.output_tokens));
    if let Some(parent) = &run.parent {
        lines.push(format!("started by run {parent}"));
    }
    lines.push(format!("message: {}", one_line(&run.text, 200)));
    lines.extend(output(run, pane));
    if let Some(Verdict::Failed { message, .. }) = &run.verdict {
        lines.push(pane.paint(Tone::Failure, &format!("why: {}", one_line(message, 400))));
    }
    match &run.receipt {
        Some(receipt) => {
            lines.push(String::new());
            lines.push(receipt_line(receipt));
            lines.extend(amendment_lines(receipt));
            let picture = receipt_picture(receipt);
            lines.extend((!picture.is_empty()).then(String::new));
            lines.extend(picture);
        }
        None => lines.push(format!("not over · stop it with `quell stop {}`", run.run_id)),
    }
    lines
}

fn output(run: &RunView, pane: &Pane) -> Vec<String> {
    let Some(output) = run.output.as_deref().filter(|output| !output.trim().is_empty()) else { return Vec::new() };
    let partial = !matches!(run.verdict, Some(Verdict::Completed));
    let head = if partial { "partial answer, not seen by the model:" } else { "answer:" };
    let output = if pane.is_terminal() { harmless(output) } else { output.into() };
    let body = output.trim_end().lines().map(|line| if partial { pane.paint(Tone::Quiet, line) } else { line.into() });
    std::iter::once(pane.paint(Tone::Quiet, head)).chain(body).collect()
}
