//! `quell send`: send a message, stream the answer, and stop the run on Ctrl-C.
//!
//! The run's id is chosen here, as the idempotency key. So a message whose answer was lost can be sent again without a second
//! run, and Ctrl-C can stop the run even before the daemon has said that it took the message.

mod presses;
mod transcript;

use std::io::Read;
use std::time::Duration;

use quell_protocol::api::{OnBusy, SendAnswer, SendRequest};
use quell_protocol::{AgentId, RunId, SessionKey};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use self::presses::{Press, Presses};
use self::transcript::{End, Transcript};
use super::settle::{Report, settle};
use super::{Exit, Format, VerbError, agent_id, session_key};
use crate::link::{Followed, Following, Link, Sent};
use crate::term::{Io, Tone};
use crate::words::millis;

/// A message longer than this is refused here; the daemon's own limit is lower as a rule.
const MOST_TEXT_BYTES: u64 = 64 << 20;
const REDRAW: Duration = Duration::from_millis(200);

/// Arguments of `quell send`.
#[derive(Debug, clap::Args)]
#[command(after_help = "The answer goes to stdout as it comes; tools, retries and the receipt go to stderr, on a\n\
    terminal thinking, too.\n\
    Ctrl-C stops the run, a second one forces, a third leaves without waiting for the end.\n\
    Exit code: 0 completed, 1 failed, 130 stopped, 4 no daemon.\n\n\
    Examples:\n  quell send \"what is in this directory?\"\n  quell send --session work --agent coder \"go on\"\n  \
    git diff | quell send --json -")]
pub struct SendArgs {
    /// The conversation
    #[arg(long, value_parser = session_key, value_name = "KEY", default_value = "cli:default")]
    session: SessionKey,
    /// The agent; else the session's, else the default one
    #[arg(long, value_parser = agent_id, value_name = "ID")]
    agent: Option<AgentId>,
    /// What to do while a run is active in this session
    #[arg(long, value_enum, value_name = "POLICY")]
    on_busy: Option<BusyArg>,
    /// Time for the whole run in seconds
    #[arg(long, value_parser = seconds, value_name = "S")]
    timeout: Option<u64>,
    /// Send stop words such as "stop" to the model instead of stopping
    #[arg(long)]
    literal: bool,
    /// Print one JSON object at the end instead of the streamed answer
    #[arg(long)]
    json: bool,
    /// The message; `-` reads it from the input
    #[arg(required = true, value_name = "TEXT")]
    text: Vec<String>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum BusyArg {
    /// Wait for its turn
    Queue,
    /// Hand the text to the running run at its next step
    Steer,
    /// Abort the active run, then start
    Interrupt,
    /// Refuse
    Reject,
}

impl From<BusyArg> for OnBusy {
    fn from(busy: BusyArg) -> Self {
        match busy {
            BusyArg::Queue => Self::Queue,
            BusyArg::Steer => Self::Steer,
            BusyArg::Interrupt => Self::Interrupt,
            BusyArg::Reject => Self::Reject,
        }
    }
}

/// Seconds, with a fraction if need be, as milliseconds.
fn seconds(text: &str) -> Result<u64, String> {
    let problem = || format!("`{text}` is not a number of seconds above 0");
    let seconds: f64 = text.parse().map_err(|_| problem())?;
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| problem())?;
    match u64::try_from(time.as_millis()) {
        Ok(0) | Err(_) => Err(problem()),
        Ok(ms) => Ok(ms),
    }
}

pub(super) async fn run(link: &Link, args: SendArgs, io: &mut Io) -> Result<Exit, VerbError> {
    let text = message(&args.text, io)?;
    let own_id = RunId::parse(uuid::Uuid::now_v7().to_string()).map_err(|bad| VerbError::Usage(bad.to_string()))?;
    let request = SendRequest {
        text,
        agent: args.agent,
        idempotency_key: Some(own_id.clone()),
        on_busy: args.on_busy.map(OnBusy::from),
        timeout_ms: args.timeout,
        literal: args.literal,
    };
    let mut presses = Presses::new(link, own_id);
    let sent = match deliver(link, &args.session, &request, &mut presses, io).await? {
        Some(sent) => sent,
        None => return left(&presses, io),
    };
    match sent {
        Sent::Accepted(answer) => converse(link, answer, presses, args.json.into(), io).await,
        Sent::Stopped(answer) => {
            let mut report = Report { stop: answer, ..Report::default() };
            report.runs = settle(link, &report.covered(), io).await?;
            if args.json {
                io.screen.json(&report)?
            } else {
                report.print(io)?
            }
            Ok(report.exit())
        }
    }
}

/// The words of the command line, or, for `-`, what comes in.
pub(super) fn message(words: &[String], io: &mut Io) -> Result<String, VerbError> {
    let text = if words == ["-"] {
        let mut text = String::new();
        let read = io.input.by_ref().take(MOST_TEXT_BYTES + 1).read_to_string(&mut text);
        read.map_err(|error| VerbError::Usage(format!("the input cannot be read as text: {error}")))?;
        text
    } else {
        words.join(" ")
    };
    match text.len() as u64 {
        _ if text.trim().is_empty() => Err(VerbError::Usage("the message is empty".into())),
        length if length > MOST_TEXT_BYTES => Err(VerbError::Usage("the message is longer than 64 MiB".into())),
        _ => Ok(text),
    }
}

/// Sends the message. Nothing, when the person left before the daemon answered.
async fn deliver(
    link: &Link,
    session: &SessionKey,
    request: &SendRequest,
    presses: &mut Presses,
    io: &mut Io,
) -> Result<Option<Sent>, VerbError> {
    let sending = link.send(session, request);
    tokio::pin!(sending);
    loop {
        tokio::select! {
            // The sending is pinned outside, and the presses keep their requests: no branch loses another's work.
            sent = &mut sending => return Ok(Some(sent?)),
            () = io.interrupts.next() => match presses.press() {
                Press::Leave => return Ok(None),
                press => io.screen.status(Tone::Stopping, &format!("◆ stopping{}", hint(press)))?,
            },
            // A stop of a run that is not yet known is kept by the daemon; that it is unknown is no news.
            _ = presses.answer() => {}
        }
    }
}

/// Follows the run to its end, and the message's own run behind it when a steered message was not taken.
async fn converse(
    link: &Link,
    answer: SendAnswer,
    mut presses: Presses,
    format: Format,
    io: &mut Io,
) -> Result<Exit, VerbError> {
    if answer.state == "steered" {
        io.screen.remark(&format!("handed to the active run {}", answer.run_id))?;
    }
    let mut run = answer.run_id;
    let mut own = answer.message_id;
    loop {
        presses.turn_to(&run);
        let mut transcript = Transcript::new(run.clone(), format);
        let events = link.follow(&run, 0);
        let Some(end) = follow(events, &mut transcript, &mut presses, io).await? else {
            return left(&presses, io);
        };
        match own.take() {
            Some(message) if end.completed() && is_run(link, &message).await? => run = message,
            _ => return transcript.conclude(end, io),
        }
        io.screen.finish()?;
    }
}

/// True when a steered message became a run of its own.
async fn is_run(link: &Link, message: &RunId) -> Result<bool, VerbError> {
    match link.run(message).await {
        Ok(view) => Ok(view.state != "steered"),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Shows a run until it is over. Nothing, when the person left before.
async fn follow(
    mut events: Following,
    transcript: &mut Transcript,
    presses: &mut Presses,
    io: &mut Io,
) -> Result<Option<End>, VerbError> {
    let mut redraw = interval_at(Instant::now() + REDRAW, REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // The stream, the presses and the clock each keep their place: dropping a wait loses nothing.
            seen = events.next() => match seen {
                Some(Ok(Followed::Event(event))) => {
                    if let Some(end) = transcript.take(*event, &mut io.screen)? {
                        return Ok(Some(end));
                    }
                }
                Some(Ok(Followed::Lost { cause, pause })) => {
                    let pause = millis(pause.as_secs_f64() * 1000.0);
                    io.screen.remark(&format!("connection lost ({cause}); trying again in {pause}"))?;
                }
                Some(Ok(Followed::Back)) => io.screen.remark("connected again")?,
                Some(Err(error)) => {
                    io.screen.remark(&format!("the run may go on · see `quell runs show {}`", presses.run()))?;
                    return Err(error.into());
                }
                None => return Ok(None),
            },
            () = io.interrupts.next() => match presses.press() {
                Press::Leave => return Ok(None),
                press => {
                    io.screen.end_answer()?;
                    transcript.stopping(hint(press));
                    transcript.show_status(&mut io.screen)?;
                }
            },
            answer = presses.answer() => {
                if let Err(error) = answer {
                    io.screen.remark(&format!("the stop could not be asked for: {error}\n  Ctrl-C tries again, with force"))?;
                }
            }
            _ = redraw.tick() => transcript.show_status(&mut io.screen)?,
        }
    }
}

/// What another press would do, as the status says it.
fn hint(press: Press) -> &'static str {
    match press {
        Press::Stop => " · Ctrl-C again forces",
        Press::Force | Press::Leave => " · forced · Ctrl-C again leaves without waiting",
    }
}

fn left(presses: &Presses, io: &mut Io) -> Result<Exit, VerbError> {
    io.screen.remark(&format!("left before the end · see `quell runs show {}`", presses.run()))?;
    Ok(Exit::Stopped)
}
