//! `quell stop`: stop a run, a session or everything, and wait for the receipts.

use clap::ArgGroup;
use quell_protocol::api::{StopAllAnswer, StopAllRequest, StopAnswer, StopRunRequest, StopSessionRequest};
use quell_protocol::{RunId, SessionKey, Verdict};

use super::stop_report::{
    StopCommandReport, StoppedRun, await_run_end, await_run_ends, await_with_stop_status, process_end_text,
    styled_run_end,
};
use super::unresponsive_daemon::await_or_report_silence;
use super::{Exit, SubcommandError};
use crate::daemon_client::{DaemonClient, StopReply, StopWait};
use crate::term::CommandIo;

/// Arguments of `quell stop`.
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

/// The arguments allow exactly one target.
enum StopCommandTarget {
    Run(RunId),
    Session(SessionKey),
    Everything,
}

pub(super) async fn run(client: &DaemonClient, args: StopArgs, io: &mut CommandIo) -> Result<Exit, SubcommandError> {
    let target = match (args.run.clone(), args.session.clone()) {
        (Some(run), _) => StopCommandTarget::Run(run),
        (None, Some(session)) => StopCommandTarget::Session(session),
        (None, None) => StopCommandTarget::Everything,
    };
    match target {
        StopCommandTarget::Run(run) => stop_single_run(client, &run, args, io).await,
        StopCommandTarget::Session(session) => {
            let StopArgs { force, keep_queued, ref reason, .. } = args;
            let request = StopSessionRequest { force, keep_queued, keep_background: false, reason: reason.clone() };
            let stop = await_or_report_silence(client, io, client.stop_session(&session, &request, args.stop_wait()))
                .await??;
            if !stop.aborted && client.has_token() {
                // A stop of an idle session and of an unknown one are answered alike; this reports an unknown one.
                client.get_session(&session).await?;
            }
            await_and_report(client, StopCommandReport { stop, ..StopCommandReport::default() }, &args, io).await
        }
        StopCommandTarget::Everything => {
            let StopArgs { force, hold, ref reason, .. } = args;
            let request = StopAllRequest { force, hold, reason: reason.clone() };
            let answer = await_or_report_silence(client, io, client.stop_all(&request, args.stop_wait())).await??;
            let StopAllAnswer { stop, held, hold_problem } = answer;
            await_and_report(
                client,
                StopCommandReport { stop, held: Some(held), hold_problem, runs: Vec::new() },
                &args,
                io,
            )
            .await
        }
    }
}

/// Waits for the runs of a stop of several runs, and prints the report.
async fn await_and_report(
    client: &DaemonClient,
    mut report: StopCommandReport,
    args: &StopArgs,
    io: &mut CommandIo,
) -> Result<Exit, SubcommandError> {
    if !client.has_token() {
        io.output.eprint_line("without a token the receipts are not shown")?;
    } else if !args.no_wait {
        report.runs = await_run_ends(client, &report.covered_runs(), io).await?;
    }
    if args.json {
        io.output.print_json(&report)?
    } else {
        report.print_report(io)?
    }
    Ok(report.exit_code())
}

async fn stop_single_run(
    client: &DaemonClient,
    run: &RunId,
    args: StopArgs,
    io: &mut CommandIo,
) -> Result<Exit, SubcommandError> {
    let request = StopRunRequest { session_key: None, force: args.force, reason: args.reason };
    if args.no_wait {
        let reply = await_or_report_silence(client, io, client.stop_run(run, &request)).await??;
        if args.json {
            io.output.print_json(&reply)?;
        } else {
            io.output.print_line(&stop_request_text(run, &reply))?;
        }
        return Ok(Exit::Done);
    }
    let reply = await_or_report_silence(client, io, client.stop_run_and_wait(run, &request)).await??;
    let over = match reply.receipt() {
        Some(receipt) => StoppedRun::from_receipt(receipt.clone()),
        None => await_with_stop_status(io, await_run_end(client, run)).await??,
    };
    let mut report = StopCommandReport {
        stop: stop_answer_from_reply(run, reply),
        runs: vec![over],
        ..StopCommandReport::default()
    };
    let below: Vec<RunId> = report.covered_runs().into_iter().filter(|id| id != run).collect();
    report.runs.extend(await_run_ends(client, &below, io).await?);
    if args.json {
        io.output.print_json(&report)?
    } else {
        print_run_report(&report, io)?
    }
    Ok(report.exit_code())
}

fn print_run_report(report: &StopCommandReport, io: &mut CommandIo) -> Result<(), SubcommandError> {
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
