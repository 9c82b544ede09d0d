//! `quell stop`: stop a run, a session or everything, and wait for the receipts.

use clap::ArgGroup;
use quell_protocol::api::{StopAllAnswer, StopAllRequest, StopAnswer, StopRunRequest, StopSessionRequest};
use quell_protocol::{RunId, SessionKey, Verdict};

use super::stop_report::{
    StopCommandReport, StoppedRun, await_run_end, await_run_ends, await_with_stop_status, process_end_text,
    styled_run_end,
};
use super::unresponsive_daemon::await_or_report_silence;
use super::{Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::{DaemonClient, StopReply, StopWait};
use crate::term::CommandIo;

#[derive(Debug, clap::Args)]
#[command(
    group(ArgGroup::new("what").required(true).args(["run", "session", "all"])),
    after_help = "Waits until everything that was held is released, and prints the receipt in one line.\n\
        Exit code: 0 settled (or already over), 1 something is left over, 3 no such run or session, 4 no daemon.\n\n\
        Examples:\n  quell stop 0198c2a4-7d1e-7c33-b1de-9f3a52c7e001\n  quell stop --session cli:default --keep-queued\n  \
        quell stop --all --hold --reason \"wrong branch\""
)]
pub struct StopArgs {
    /// The run to stop, with its sub-runs
    #[arg(value_name = "RUN")]
    run: Option<RunId>,
    /// Stop a session: its runs, its queue and its background processes
    #[arg(long, value_name = "KEY")]
    session: Option<SessionKey>,
    /// Stop everything
    #[arg(long)]
    all: bool,
    /// Kill processes at once instead of asking first
    #[arg(long)]
    force: bool,
    /// Return without waiting for the receipt
    #[arg(long)]
    no_wait: bool,
    /// Reason, recorded in the receipt
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Keep the queued messages of the session
    #[arg(long, conflicts_with_all = ["run", "all"])]
    keep_queued: bool,
    /// Also refuse new runs until `quell hold off`
    #[arg(long, conflicts_with_all = ["run", "session"])]
    hold: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl StopArgs {
    fn stop_wait(&self) -> StopWait {
        if self.no_wait { StopWait::UntilRequested } else { StopWait::UntilSettled }
    }
}

pub(super) async fn run(client: &DaemonClient, args: StopArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    let when = args.stop_wait();
    let StopArgs { run, session, force, reason, keep_queued, hold, .. } = args;
    // The arguments allow exactly one target.
    match (run, session) {
        (Some(run), _) => stop_single_run(cx, &run, StopRunRequest { session_key: None, force, reason }, when).await,
        (None, Some(session)) => {
            let request = StopSessionRequest { force, keep_queued, keep_background: false, reason };
            let stop = await_or_report_silence(cx, client.stop_session(&session, &request, when)).await??;
            if !stop.aborted && client.has_token() {
                // A stop of an idle session and of an unknown one are answered alike; this reports an unknown one.
                client.get_session(&session).await?;
            }
            await_and_report(cx, StopCommandReport { stop, ..StopCommandReport::default() }, when).await
        }
        (None, None) => {
            let request = StopAllRequest { force, hold, reason };
            let answer = await_or_report_silence(cx, client.stop_all(&request, when)).await??;
            let StopAllAnswer { stop, held, hold_problem } = answer;
            let report = StopCommandReport { stop, held: Some(held), hold_problem, runs: Vec::new() };
            await_and_report(cx, report, when).await
        }
    }
}

/// Waits for the runs of a stop of several runs, and prints the report.
async fn await_and_report(
    cx: &mut SubcommandContext<'_>,
    mut report: StopCommandReport,
    when: StopWait,
) -> SubcommandResult {
    if !cx.client.has_token() {
        cx.io.output.eprint_line("without a token the receipts are not shown")?;
    } else if when == StopWait::UntilSettled {
        report.runs = await_run_ends(cx.client, &report.covered_runs(), cx.io).await?;
    }
    if !cx.print_json(&report)? {
        report.print_report(cx.io)?;
    }
    Ok(report.exit_code())
}

async fn stop_single_run(
    cx: &mut SubcommandContext<'_>,
    run: &RunId,
    request: StopRunRequest,
    when: StopWait,
) -> SubcommandResult {
    let client = cx.client;
    let reply = await_or_report_silence(cx, client.stop_run(run, &request, when)).await??;
    if when == StopWait::UntilRequested {
        cx.print_value(&reply, &stop_request_text(run, &reply))?;
        return Ok(Exit::Done);
    }
    let over = match reply.receipt() {
        Some(receipt) => StoppedRun::from_receipt(receipt.clone()),
        None => await_with_stop_status(cx.io, await_run_end(client, run)).await??,
    };
    let stop = stop_answer_from_reply(run, reply);
    let mut report = StopCommandReport { stop, runs: vec![over], ..StopCommandReport::default() };
    let below: Vec<RunId> = report.covered_runs().into_iter().filter(|id| id != run).collect();
    report.runs.extend(await_run_ends(client, &below, cx.io).await?);
    if !cx.print_json(&report)? {
        print_run_report(&report, cx.io)?;
    }
    Ok(report.exit_code())
}

fn print_run_report(report: &StopCommandReport, io: &mut CommandIo) -> SubcommandResult<()> {
    let mut runs = report.runs.iter();
    if let Some(over) = runs.next() {
        let head = match &over.verdict {
            _ if report.stop.run_ids.contains(&over.run_id) => "",
            Some(Verdict::Aborted { .. }) => "already asked for: ",
            Some(Verdict::Completed | Verdict::Failed { .. }) | None => "already over: ",
        };
        let end = styled_run_end(io, over);
        io.output.print_line(&format!("{head}{end}"))?;
    }
    for over in runs {
        let end = styled_run_end(io, over);
        io.output.print_line(&format!("below it, {}  {end}", over.run_id))?;
    }
    for process in &report.stop.processes {
        io.output.print_line(&format!("left by it, {}", process_end_text(process)))?;
    }
    report.print_paused_schedules(io)?;
    Ok(())
}

/// Builds the answer of this stop. A receipt alone does not tell what this call did: count the run if it ended as
/// aborted.
fn stop_answer_from_reply(run: &RunId, reply: StopReply) -> StopAnswer {
    match reply {
        StopReply::Ticket(ticket) => ticket.stop,
        StopReply::Receipt(receipt) if matches!(receipt.verdict, Verdict::Aborted { .. }) => {
            StopAnswer { aborted: true, run_ids: vec![run.clone()], ..StopAnswer::default() }
        }
        StopReply::Receipt(_) => StopAnswer::default(),
    }
}

fn stop_request_text(run: &RunId, reply: &StopReply) -> String {
    match reply.receipt() {
        Some(receipt) => format!("run {run} is over: {}", crate::receipt_line(receipt)),
        None => format!("stop requested · run {run} is ending · see `quell runs show {run}`"),
    }
}
