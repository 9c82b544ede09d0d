//! `quell runs`: list runs, show one with its receipt, or watch them.

use jiff::Timestamp;
use quell_protocol::api::RunView;
use quell_protocol::{RunId, SessionKey, Verdict};

use super::diff::print_diff;
use super::table::{cell_text, run_state_cell, runs_table};
use super::{Exit, SubcommandContext, SubcommandResult, watch};
use crate::daemon_client::{ClientError, ClientRunFilter, DaemonClient};
use crate::receipt_chart::receipt_chart;
use crate::receipt_line::{amendment_lines, receipt_line};
use crate::term::{CliOutputStream, CommandIo, OutputStyle};
use crate::text_format::{format_count, one_line, relative_age, strip_terminal_controls};

/// How far back the turn of a run is looked for.
const HISTORY_PAGE_TURNS: u32 = 50;
const MAX_HISTORY_PAGES: usize = 20;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  quell runs\n  quell runs list --all --json\n  \
    quell runs show 0198c2a4-7d1e-7c33-b1de-9f3a52c7e001\n  quell runs watch")]
pub struct RunsArgs {
    #[command(subcommand)]
    what: Option<RunsSubcommand>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum RunsSubcommand {
    /// List the active runs (the default)
    List {
        /// Also list runs that have ended
        #[arg(long)]
        all: bool,
        /// Only runs of one session
        #[arg(long, value_name = "KEY")]
        session: Option<SessionKey>,
    },
    /// Show a run: its details, its receipt as a chart, and its changes of files
    Show {
        /// The run's id
        #[arg(value_name = "RUN")]
        run: RunId,
    },
    /// Show the active runs live until Ctrl-C; in a pipe, one line per change
    Watch,
}

pub(super) async fn run(client: &DaemonClient, args: RunsArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    match args.what {
        None => print_runs(cx, ClientRunFilter::Active, None).await?,
        Some(RunsSubcommand::List { all, session }) => {
            let filter = if all { ClientRunFilter::All } else { ClientRunFilter::Active };
            print_runs(cx, filter, session.as_ref()).await?;
        }
        Some(RunsSubcommand::Show { run }) => print_run(cx, &run).await?,
        Some(RunsSubcommand::Watch) => watch::run(cx).await?,
    }
    Ok(Exit::Done)
}

async fn print_runs(
    cx: &mut SubcommandContext<'_>,
    filter: ClientRunFilter,
    session: Option<&SessionKey>,
) -> SubcommandResult<()> {
    let mut runs = cx.client.list_runs(filter).await?;
    runs.retain(|run| session.is_none_or(|session| run.session_key == *session));
    if cx.print_json(&runs)? {
        return Ok(());
    }
    if runs.is_empty() {
        let none = if filter == ClientRunFilter::All { "no runs" } else { "no active runs" };
        return Ok(cx.io.output.eprint_line(&format!("{none}: start one with `quell send \"hello\"`"))?);
    }
    for line in runs_table(cx.io.output.stdout(), &runs, Timestamp::now()) {
        cx.io.output.print_line(&line)?;
    }
    Ok(())
}

async fn print_run(cx: &mut SubcommandContext<'_>, run: &RunId) -> SubcommandResult<()> {
    let view = cx.client.get_run(run).await?;
    if cx.print_json(&view)? {
        return Ok(());
    }
    for line in run_description(&view, cx.io.output.stdout(), Timestamp::now()) {
        cx.io.output.print_line(&line)?;
    }
    for diff in file_diffs(cx.client, &view).await? {
        cx.io.output.print_line("")?;
        print_diff(cx, &diff)?;
    }
    Ok(())
}

/// The diffs of the run's file changes, in order. They are in the history, once the run has ended.
async fn file_diffs(client: &DaemonClient, run: &RunView) -> SubcommandResult<Vec<String>> {
    let (mut diffs, mut cursor) = (Vec::new(), None);
    let pages = if run.receipt.is_some() { MAX_HISTORY_PAGES } else { 0 };
    for _ in 0..pages {
        let page = match client.get_history_page(&run.session_key, HISTORY_PAGE_TURNS, cursor.as_deref()).await {
            // The session may be deleted, or its history not readable.
            Err(ClientError::Refused(_)) => return Ok(Vec::new()),
            page => page?,
        };
        let of_run = page.items.into_iter().filter(|message| message.run_id.as_ref() == Some(&run.run_id));
        let mut is_found = false;
        for message in of_run {
            is_found = true;
            diffs.extend(message.diff);
        }
        cursor = page.next_cursor;
        // A page holds whole turns.
        if is_found || cursor.is_none() {
            break;
        }
    }
    Ok(diffs)
}

fn run_description(run: &RunView, stream: &CliOutputStream, now: Timestamp) -> Vec<String> {
    let state = cell_text(stream, &run_state_cell(run));
    let mut lines =
        vec![format!("{} · {state}", stream.apply_style(OutputStyle::Strong, &format!("run {}", run.run_id)))];
    lines.push(format!("session {} · agent {} · by {}", run.session_key, run.agent, run.principal));
    let accepted = format!("accepted {} ({})", relative_age(&run.accepted_at, now), one_line(&run.accepted_at, 40));
    let usage = run.usage;
    let about = if usage.estimated { ", in part estimated" } else { "" };
    let steps = format_count(u64::from(run.steps), "step", "steps");
    let cached = match usage.cached_tokens {
        0 => String::new(),
        cached => format!(" ({cached} from the cache)"),
    };
    let (input, output) = (usage.input_tokens, usage.output_tokens);
    lines.push(format!("{accepted} · {steps} · tokens {input} in{cached}, {output} out{about}"));
    if let Some(parent) = &run.parent {
        lines.push(format!("started by run {parent}"));
    }
    lines.push(format!("message: {}", one_line(&run.text, 200)));
    lines.extend(output_lines(run, stream));
    if let Some(Verdict::Failed { message, .. }) = &run.verdict {
        lines.push(stream.apply_style(OutputStyle::Failure, &format!("why: {}", one_line(message, 400))));
    }
    match &run.receipt {
        Some(receipt) => {
            lines.push(String::new());
            lines.push(receipt_line(receipt));
            lines.extend(amendment_lines(receipt));
            let chart = receipt_chart(receipt);
            lines.extend((!chart.is_empty()).then(String::new));
            lines.extend(chart);
        }
        None => lines.push(format!("not over · stop it with `quell stop {}`", run.run_id)),
    }
    lines
}

fn output_lines(run: &RunView, stream: &CliOutputStream) -> Vec<String> {
    let Some(output) = run.output.as_deref().filter(|output| !output.trim().is_empty()) else { return Vec::new() };
    let partial = !matches!(run.verdict, Some(Verdict::Completed));
    let head = if partial { "partial answer, not seen by the model:" } else { "answer:" };
    let output = if stream.is_terminal() { strip_terminal_controls(output) } else { output.into() };
    let body = output
        .trim_end()
        .lines()
        .map(|line| if partial { stream.apply_style(OutputStyle::Quiet, line) } else { line.into() });
    std::iter::once(stream.apply_style(OutputStyle::Quiet, head)).chain(body).collect()
}
