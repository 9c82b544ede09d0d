//! `quell stop`: stop a run, a session or everything, and wait for the proof.

use clap::ArgGroup;
use quell_protocol::api::{StopAllAnswer, StopAllRequest, StopAnswer, StopRunRequest, StopSessionRequest};
use quell_protocol::{RunId, SessionKey, Verdict};

use super::hear::while_heard;
use super::settle::{Over, Report, end_of, painted_end, process_line, settle, while_showing};
use super::{Exit, VerbError, run_id, session_key};
use crate::link::{AnswerWhen, Link, StopReply};
use crate::term::Io;

/// Arguments of `quell stop`.
#[derive(Debug, clap::Args)]
#[command(
    group(ArgGroup::new("what").required(true).args(["run", "session", "all"])),
    after_help = "Waits until everything that was held is given back, and prints the receipt in one line.\n\
        Exit code: 0 settled (or already over), 1 something is left over, 3 no such run or session, 4 no daemon.\n\n\
        Examples:\n  quell stop 0198c2a4-7d1e-7c33-b1de-9f3a52c7e001\n  quell stop --session cli:default --keep-queued\n  \
        quell stop --all --hold --reason \"wrong branch\""
)]
pub struct StopArgs {
    /// The run to stop, with everything below it
    #[arg(value_parser = run_id, value_name = "RUN")]
    run: Option<RunId>,
    /// Stop a session: its runs, its queue and what it runs in the background
    #[arg(long, value_parser = session_key, value_name = "KEY")]
    session: Option<SessionKey>,
    /// Stop everything
    #[arg(long)]
    all: bool,
    /// Kill at once instead of asking first
    #[arg(long)]
    force: bool,
    /// Ask for the stop and return without the receipt
    #[arg(long)]
    no_wait: bool,
    /// Why, for the receipt
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Leave the session's queued messages where they are
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
    fn answer_when(&self) -> AnswerWhen {
        if self.no_wait { AnswerWhen::Asked } else { AnswerWhen::Settled }
    }
}

/// What is to be stopped; the arguments allow exactly one.
enum Wanted {
    Run(RunId),
    Session(SessionKey),
    Everything,
}

pub(super) async fn run(link: &Link, args: StopArgs, io: &mut Io) -> Result<Exit, VerbError> {
    let wanted = match (args.run.clone(), args.session.clone()) {
        (Some(run), _) => Wanted::Run(run),
        (None, Some(session)) => Wanted::Session(session),
        (None, None) => Wanted::Everything,
    };
    match wanted {
        Wanted::Run(run) => stop_one(link, &run, args, io).await,
        Wanted::Session(session) => {
            let StopArgs { force, keep_queued, ref reason, .. } = args;
            let request = StopSessionRequest { force, keep_queued, keep_background: false, reason: reason.clone() };
            let stop = while_heard(link, io, link.stop_session(&session, &request, args.answer_when())).await??;
            if !stop.aborted && link.has_token() {
                // The answer is the same for an idle session and for one that never was; the person gets to know which.
                link.session(&session).await?;
            }
            conclude(link, Report { stop, ..Report::default() }, &args, io).await
        }
        Wanted::Everything => {
            let StopArgs { force, hold, ref reason, .. } = args;
            let request = StopAllRequest { force, hold, reason: reason.clone() };
            let answer = while_heard(link, io, link.stop_all(&request, args.answer_when())).await??;
            let StopAllAnswer { stop, held, hold_problem } = answer;
            conclude(link, Report { stop, held: Some(held), hold_problem, runs: Vec::new() }, &args, io).await
        }
    }
}

/// Waits for the runs of a stop of many, and tells.
async fn conclude(link: &Link, mut report: Report, args: &StopArgs, io: &mut Io) -> Result<Exit, VerbError> {
    if !link.has_token() {
        io.screen.remark("without a token the receipts are not shown")?;
    } else if !args.no_wait {
        report.runs = settle(link, &report.covered(), io).await?;
    }
    if args.json {
        io.screen.json(&report)?
    } else {
        report.print(io)?
    }
    Ok(report.exit())
}

async fn stop_one(link: &Link, run: &RunId, args: StopArgs, io: &mut Io) -> Result<Exit, VerbError> {
    let request = StopRunRequest { session_key: None, force: args.force, reason: args.reason };
    if args.no_wait {
        let reply = while_heard(link, io, link.stop_run(run, &request)).await??;
        if args.json {
            io.screen.json(&reply)?;
        } else {
            io.screen.line(&asked_in_words(run, &reply))?;
        }
        return Ok(Exit::Done);
    }
    let reply = while_heard(link, io, link.stop_run_and_wait(run, &request)).await??;
    let over = match reply.receipt() {
        Some(receipt) => Over::with(receipt.clone()),
        None => while_showing(io, end_of(link, run)).await??,
    };
    let mut report = Report { stop: stopped(run, reply), runs: vec![over], ..Report::default() };
    let below: Vec<RunId> = report.covered().into_iter().filter(|id| id != run).collect();
    report.runs.extend(settle(link, &below, io).await?);
    if args.json {
        io.screen.json(&report)?
    } else {
        print_one(&report, io)?
    }
    Ok(report.exit())
}

fn print_one(report: &Report, io: &mut Io) -> Result<(), VerbError> {
    let mut runs = report.runs.iter();
    if let Some(over) = runs.next() {
        let head = match &over.verdict {
            _ if report.stop.run_ids.contains(&over.run_id) => "",
            Some(Verdict::Aborted { .. }) => "already asked for: ",
            Some(Verdict::Completed | Verdict::Failed { .. }) | None => "already over: ",
        };
        let end = painted_end(io, over);
        io.screen.line(&format!("{head}{end}"))?;
    }
    for over in runs {
        let end = painted_end(io, over);
        io.screen.line(&format!("below it, {}  {end}", over.run_id))?;
    }
    for process in &report.stop.processes {
        io.screen.line(&format!("left by it, {}", process_line(process)))?;
    }
    Ok(())
}

/// What this call did. A receipt alone does not say; then the run itself counts if it ended as stopped.
fn stopped(run: &RunId, reply: StopReply) -> StopAnswer {
    match reply {
        StopReply::Ticket(ticket) => ticket.stop,
        StopReply::Receipt(receipt) if matches!(receipt.verdict, Verdict::Aborted { .. }) => {
            StopAnswer { aborted: true, run_ids: vec![run.clone()], ..StopAnswer::default() }
        }
        StopReply::Receipt(_) => StopAnswer::default(),
    }
}

fn asked_in_words(run: &RunId, reply: &StopReply) -> String {
    match reply.receipt() {
        Some(receipt) => format!("run {run} is over: {}", crate::receipt_line(receipt)),
        None => format!("stop requested · run {run} is ending · see `quell runs show {run}`"),
    }
}
