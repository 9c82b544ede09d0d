//! `quell send`: send a message, stream the answer, and stop the run on Ctrl-C and whenever this process ends before it.
//!
//! The client chooses the run's id and sends it as the idempotency key. So it can send a message again without starting
//! a second run when the answer was lost, and Ctrl-C can stop the run before the daemon has confirmed it.

mod ctrl_c;
mod run_printer;

use std::io::{self, Read};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_protocol::api::{OnBusy, SendAnswer, SendRequest, StopAnswer};
use quell_protocol::{AgentId, RunId, SessionKey};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use self::ctrl_c::{CtrlCAction, CtrlCStops};
use self::run_printer::{PrintedRunEnd, RunPrinter};
use super::stop_report::{StopCommandReport, await_run_ends};
use super::{Exit, SubcommandContext, SubcommandError, SubcommandResult};
use crate::daemon_client::{AttachedSend, DaemonClient, RunEventStream, RunEventStreamItem, SendReply};
use crate::term::{CommandIo, Interruption, OutputStyle};
use crate::text_format::format_millis;

/// Longest message in bytes; the daemon's own limit is usually lower.
const MAX_TEXT_BYTES: u64 = 64 << 20;
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
#[command(after_help = "The answer goes to stdout as it comes; tools, retries and the receipt go to stderr, on a\n\
    terminal thinking, too.\n\
    Ctrl-C stops the run, a second one forces the stop, a third leaves without waiting for the end.\n\
    SIGTERM, SIGHUP and a closed pipe stop the run, too; on the machine of the daemon also SIGKILL.\n\
    Exit code: 0 completed, 1 failed, 130 stopped, 143 ended by a signal, 4 no daemon, 5 a limit\n\
    (steps, tokens, the day) is used up.\n\n\
    Examples:\n  quell send \"what is in this directory?\"\n  quell send --session work --agent coder \"go on\"\n  \
    git diff | quell send --json -\n  quell send --detach \"run the tests\"")]
pub struct SendMessageArgs {
    /// The session
    #[arg(long, value_name = "KEY", default_value = "cli:default")]
    session: SessionKey,
    /// The agent; else the session's, else the default one
    #[arg(long, value_name = "ID")]
    agent: Option<AgentId>,
    /// What to do while a run is active in this session
    #[arg(long, value_enum, value_name = "POLICY")]
    on_busy: Option<OnBusyArg>,
    /// Time limit of the whole run in seconds
    #[arg(long, value_parser = parse_seconds, value_name = "S")]
    timeout: Option<u64>,
    /// Send stop words such as "stop" to the model instead of stopping
    #[arg(long)]
    literal: bool,
    /// Print one JSON object at the end instead of streaming the answer
    #[arg(long)]
    json: bool,
    /// Print the id of the run and leave it at work
    #[arg(long)]
    detach: bool,
    /// The message; `-` reads it from standard input
    #[arg(required = true, value_name = "TEXT")]
    text: Vec<String>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum OnBusyArg {
    /// Wait until the active run has ended
    Queue,
    /// Hand the message to the active run at its next step
    Steer,
    /// Abort the active run, then start
    Interrupt,
    /// Refuse the message
    Reject,
}

impl From<OnBusyArg> for OnBusy {
    fn from(busy: OnBusyArg) -> Self {
        match busy {
            OnBusyArg::Queue => Self::Queue,
            OnBusyArg::Steer => Self::Steer,
            OnBusyArg::Interrupt => Self::Interrupt,
            OnBusyArg::Reject => Self::Reject,
        }
    }
}

/// Parses seconds, with an optional fraction, into milliseconds.
fn parse_seconds(text: &str) -> Result<u64, String> {
    let problem = || format!("`{text}` is not a number of seconds above 0");
    let seconds: f64 = text.parse().map_err(|_| problem())?;
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| problem())?;
    match u64::try_from(time.as_millis()) {
        Ok(0) | Err(_) => Err(problem()),
        Ok(ms) => Ok(ms),
    }
}

pub(super) async fn run(client: &DaemonClient, args: SendMessageArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    let text = read_message(&args.text, cx.io)?;
    let own_id = RunId::from_number(uuid::Uuid::now_v7().as_u128());
    let request = SendRequest {
        text,
        agent: args.agent,
        idempotency_key: Some(own_id.clone()),
        on_busy: args.on_busy.map(OnBusy::from),
        timeout_ms: args.timeout,
        literal: args.literal,
        attachments: Vec::new(),
    };
    let mut stops = CtrlCStops::new(client, own_id.clone());
    let sending: BoxFuture<'_, SubcommandResult<Sent>> = if args.detach {
        return leave_detached(cx, client.send_message(&args.session, &request).await?);
    } else if client.is_on_unix_socket() && request.on_busy != Some(OnBusy::Steer) {
        // On this machine a lost connection means that this process is gone, also by SIGKILL: the daemon stops the run.
        async { Ok(client.send_attached(&args.session, &own_id, &request).await?.into()) }.boxed()
    } else {
        async { Ok(client.send_message(&args.session, &request).await?.into()) }.boxed()
    };
    let ended = match send_until_answered(cx, sending, &mut stops).await {
        Ok(Ok(sent)) => follow_sent(cx, sent, &mut stops).await,
        Ok(Err(exit)) => Ok(exit),
        Err(error) => Err(error),
    };
    if matches!(ended, Err(SubcommandError::Output(_)) | Ok(Exit::Terminated)) {
        stops.stop_before_end().await;
    }
    ended
}

/// What the daemon answered to a message.
enum Sent {
    Accepted(SendAnswer),
    /// The run of the message, which ends with this connection.
    Attached(RunEventStream),
    Stopped(StopAnswer),
}

impl From<SendReply> for Sent {
    fn from(reply: SendReply) -> Self {
        match reply {
            SendReply::Accepted(answer) => Self::Accepted(answer),
            SendReply::Stopped(answer) => Self::Stopped(answer),
        }
    }
}

impl From<AttachedSend> for Sent {
    fn from(sent: AttachedSend) -> Self {
        match sent {
            AttachedSend::Following(events) => Self::Attached(events),
            AttachedSend::Stopped(answer) => Self::Stopped(answer),
        }
    }
}

fn leave_detached(cx: &mut SubcommandContext<'_>, reply: SendReply) -> SubcommandResult {
    match reply {
        SendReply::Accepted(answer) => cx.print_value(&answer, answer.run_id.as_str())?,
        SendReply::Stopped(answer) => cx.print_value(&answer, "stopped")?,
    }
    Ok(Exit::Done)
}

async fn follow_sent(cx: &mut SubcommandContext<'_>, sent: Sent, stops: &mut CtrlCStops) -> SubcommandResult {
    match sent {
        Sent::Attached(events) => {
            let run = stops.run_id().clone();
            follow_message(cx, FollowedMessage { run, id: None, events }, stops).await
        }
        Sent::Accepted(answer) => {
            if answer.state == "steered" {
                cx.io.output.eprint_line(&format!("handed to the active run {}", answer.run_id))?;
            }
            let events = cx.client.follow_run(&answer.run_id, 0);
            follow_message(cx, FollowedMessage { run: answer.run_id, id: answer.message_id, events }, stops).await
        }
        Sent::Stopped(answer) => {
            let mut report = StopCommandReport { stop: answer, ..StopCommandReport::default() };
            report.runs = await_run_ends(cx.client, &report.covered_runs(), cx.io).await?;
            if !cx.print_json(&report)? {
                report.print_report(cx.io)?;
            }
            Ok(report.exit_code())
        }
    }
}

/// Joins the words of the command line; a single `-` reads standard input.
pub(super) fn read_message(words: &[String], io: &mut CommandIo) -> SubcommandResult<String> {
    let text = if words == ["-"] {
        let mut text = String::new();
        let read = io.input.by_ref().take(MAX_TEXT_BYTES + 1).read_to_string(&mut text);
        read.map_err(|error| SubcommandError::Usage(format!("the input cannot be read as text: {error}")))?;
        text
    } else {
        words.join(" ")
    };
    match text.len() as u64 {
        _ if text.trim().is_empty() => Err(SubcommandError::Usage("the message is empty".into())),
        length if length > MAX_TEXT_BYTES => Err(SubcommandError::Usage("the message is longer than 64 MiB".into())),
        _ => Ok(text),
    }
}

/// Sends the message. The inner error is the exit of a user who left, or of a process that is to end, before the daemon
/// answered.
async fn send_until_answered(
    cx: &mut SubcommandContext<'_>,
    mut sending: BoxFuture<'_, SubcommandResult<Sent>>,
    stops: &mut CtrlCStops,
) -> SubcommandResult<Result<Sent, Exit>> {
    let io = &mut *cx.io;
    loop {
        tokio::select! {
            // Cancel safe: `sending` is made outside the loop, and `stops` owns its requests.
            sent = &mut sending => return sent.map(Ok),
            interruption = io.interrupts.next() => match press_or_exit(interruption, stops, io)? {
                Ok(press) => io.output.show_status(OutputStyle::Stopping, &format!("◆ stopping{}", stop_hint(press)))?,
                Err(exit) => return Ok(Err(exit)),
            },
            // The daemon keeps a stop of a run that it does not know yet, so a not-found answer is no error here.
            _ = stops.next_stop_result() => {}
        }
    }
}

/// A message whose run is followed.
struct FollowedMessage {
    run: RunId,
    /// The id of its own run, if it was handed to an active one.
    id: Option<RunId>,
    events: RunEventStream,
}

/// Follows the run to its end, then the run of the message itself if it could not be steered.
async fn follow_message(
    cx: &mut SubcommandContext<'_>,
    message: FollowedMessage,
    stops: &mut CtrlCStops,
) -> SubcommandResult {
    let (client, io) = (cx.client, &mut *cx.io);
    let FollowedMessage { mut run, id: mut message_id, mut events } = message;
    loop {
        stops.set_run(&run);
        let mut transcript = RunPrinter::new(run.clone(), cx.format);
        let end = match print_run_events(events, &mut transcript, stops, io).await? {
            Ok(end) => end,
            Err(exit) => return Ok(exit),
        };
        match message_id.take() {
            Some(message) if end.is_completed() && became_run(client, &message).await? => run = message,
            _ => return transcript.print_end(end, io),
        }
        io.output.end_open_lines()?;
        events = client.follow_run(&run, 0);
    }
}

/// True when a steered message became a run of its own.
async fn became_run(client: &DaemonClient, message: &RunId) -> SubcommandResult<bool> {
    match client.get_run(message).await {
        Ok(view) => Ok(view.state != "steered"),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Prints a run until it has ended. The inner error is the exit of a user who left, or of a process that is to end, before
/// that.
async fn print_run_events(
    mut events: RunEventStream,
    transcript: &mut RunPrinter,
    stops: &mut CtrlCStops,
    io: &mut CommandIo,
) -> SubcommandResult<Result<PrintedRunEnd, Exit>> {
    let mut redraw = interval_at(Instant::now() + REDRAW_INTERVAL, REDRAW_INTERVAL);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // Cancel safe: the stream, the interrupts and the interval keep their position when a wait is dropped.
            seen = events.next() => match seen {
                Some(Ok(RunEventStreamItem::Event(event))) => {
                    if let Some(end) = transcript.print_event(*event, &mut io.output)? {
                        return Ok(Ok(end));
                    }
                }
                Some(Ok(RunEventStreamItem::Disconnected { cause, pause })) => {
                    let pause = format_millis(pause.as_secs_f64() * 1000.0);
                    io.output.eprint_line(&format!("connection lost ({cause}); trying again in {pause}"))?;
                }
                Some(Ok(RunEventStreamItem::Reconnected)) => io.output.eprint_line("connected again")?,
                Some(Err(error)) => {
                    io.output.eprint_line(&format!("the run may go on · see `quell runs show {}`", stops.run_id()))?;
                    return Err(error.into());
                }
                None => return report_left_early(stops, io).map(Err),
            },
            interruption = io.interrupts.next() => match press_or_exit(interruption, stops, io)? {
                Ok(press) => {
                    io.output.end_answer_line()?;
                    transcript.set_stopping(stop_hint(press));
                    transcript.show_status(&mut io.output)?;
                }
                Err(exit) => return Ok(Err(exit)),
            },
            answer = stops.next_stop_result() => {
                if let Err(error) = answer {
                    io.output.eprint_line(&format!("the stop could not be requested: {error}\n  Ctrl-C tries again, with force"))?;
                }
            }
            _ = redraw.tick() => transcript.show_status(&mut io.output)?,
        }
    }
}

/// Requests the stop of a press of Ctrl-C. The inner error is the exit of a user who leaves, or of a process that is to
/// end; a closed output fails as a write to it would.
fn press_or_exit(
    interruption: Interruption,
    stops: &mut CtrlCStops,
    io: &mut CommandIo,
) -> SubcommandResult<Result<CtrlCAction, Exit>> {
    match interruption {
        Interruption::End => Ok(Err(Exit::Terminated)),
        Interruption::ReaderGone => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        Interruption::CtrlC => match stops.handle_press() {
            CtrlCAction::Leave => report_left_early(stops, io).map(Err),
            press => Ok(Ok(press)),
        },
    }
}

/// What another press of Ctrl-C does, for the status line.
fn stop_hint(press: CtrlCAction) -> &'static str {
    match press {
        CtrlCAction::Stop => " · Ctrl-C again forces",
        CtrlCAction::Force | CtrlCAction::Leave => " · forced · Ctrl-C again leaves without waiting",
    }
}

fn report_left_early(stops: &CtrlCStops, io: &mut CommandIo) -> SubcommandResult {
    io.output.eprint_line(&format!("left before the end · see `quell runs show {}`", stops.run_id()))?;
    Ok(Exit::Stopped)
}
