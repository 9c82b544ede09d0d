//! What a followed run looks like: its events as streamed text, quiet lines, a status, and the end.

use std::collections::BTreeMap;
use std::io;

use quell_protocol::api::RunResult;
use quell_protocol::{CallEnd, CallId, EventKind, Receipt, RunEvent, RunId, SessionKey, Verdict};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::receipt_line::receipt_line;
use crate::term::{Io, Screen, Tone};
use crate::verbs::{Exit, Format, VerbError};
use crate::words::{call_in_full, call_label, millis, one_line};

const MOST_LABEL: usize = 60;

/// The end of a run.
pub(super) struct End {
    session: SessionKey,
    verdict: Verdict,
    receipt: Receipt,
    steps: u32,
    text: Option<String>,
}

impl End {
    pub(super) fn completed(&self) -> bool {
        matches!(self.verdict, Verdict::Completed)
    }

    /// True for an end whose receipt a person must see: a stop, or something left over.
    fn wants_receipt(&self) -> bool {
        matches!(self.verdict, Verdict::Aborted { .. }) || !self.receipt.leftovers.is_empty()
    }
}

/// What `--json` prints (row E3 and what belongs to it).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    #[serde(flatten)]
    result: RunResult,
    run_id: RunId,
    session_key: SessionKey,
    /// The answer; of a run that did not complete, what had streamed of its last step.
    text: String,
    /// True when `text` is no finished answer.
    partial: bool,
    verdict: Verdict,
    receipt: Receipt,
}

/// What the run does now, for the status line.
enum Doing {
    Starting,
    Queued,
    Waiting,
    Tool(CallId),
    Answering,
    Approval(String),
    /// A stop settles; what the next press of Ctrl-C would do, if one was pressed.
    Stopping(&'static str),
}

struct Call {
    tool: String,
    label: String,
    since: Instant,
}

/// A run as it is shown.
pub(super) struct Transcript {
    run: RunId,
    format: Format,
    /// Text of the current step, as far as it was shown.
    text: String,
    calls: BTreeMap<CallId, Call>,
    doing: Doing,
    since: Instant,
}

impl Transcript {
    pub(super) fn new(run: RunId, format: Format) -> Self {
        Self { run, format, text: String::new(), calls: BTreeMap::new(), doing: Doing::Starting, since: Instant::now() }
    }

    /// Shows one event; gives the end when it is that.
    pub(super) fn take(&mut self, event: RunEvent, screen: &mut Screen) -> io::Result<Option<End>> {
        match event.kind {
            EventKind::Queued { .. } => self.turn(Doing::Queued),
            EventKind::Started { .. } => self.turn(Doing::Starting),
            EventKind::StepStarted { .. } => self.step(screen)?,
            EventKind::TextDelta { text } => self.add(&text, screen)?,
            EventKind::ThinkingDelta { text } => screen.murmur(&text)?,
            EventKind::ToolStarted { call_id, tool, arguments } => self.call(call_id, tool, &arguments, screen)?,
            EventKind::ToolEnded { call_id, end, ms, .. } => self.call_over(&call_id, end, ms, screen)?,
            EventKind::ApprovalRequested { id, tool, arguments, .. } => self.ask(&id, &tool, &arguments, screen)?,
            EventKind::ApprovalResolved { .. } => self.turn(Doing::Waiting),
            EventKind::Compacted { turns, .. } => self.say_compacted(turns, screen)?,
            EventKind::ModelRetry { attempt, attempts, delay_ms, reason } => {
                say_retry((attempt, attempts), delay_ms, &reason, screen)?;
            }
            EventKind::Snapshot { text, .. } => self.catch_up(&text, screen)?,
            EventKind::Ending { verdict: Verdict::Aborted { .. } } if !self.is_stopping() => self.stopping(""),
            EventKind::Ending { .. } | EventKind::ToolOutput { .. } | EventKind::Usage { .. } => {}
            EventKind::Ended { verdict, receipt, steps, text } => {
                return Ok(Some(End { session: event.session_key, verdict, receipt: *receipt, steps, text }));
            }
        }
        Ok(None)
    }

    /// From now on the status says that a stop settles, and what another press would do.
    pub(super) fn stopping(&mut self, hint: &'static str) {
        if !self.is_stopping() {
            self.since = Instant::now();
        }
        self.doing = Doing::Stopping(hint);
    }

    fn is_stopping(&self) -> bool {
        matches!(self.doing, Doing::Stopping(_))
    }

    fn turn(&mut self, doing: Doing) {
        // A stop in progress is what the person waits for; a late tool end does not hide it.
        if !self.is_stopping() {
            self.doing = doing;
            self.since = Instant::now();
        }
    }

    fn step(&mut self, screen: &mut Screen) -> io::Result<()> {
        self.text.clear();
        self.turn(Doing::Waiting);
        screen.end_answer()
    }

    fn add(&mut self, text: &str, screen: &mut Screen) -> io::Result<()> {
        if matches!(self.doing, Doing::Starting | Doing::Queued | Doing::Waiting) {
            self.turn(Doing::Answering);
        }
        self.text.push_str(text);
        match self.format {
            Format::Words => screen.answer(text),
            Format::Json => Ok(()),
        }
    }

    /// Shows what was missed of the current step. Where an unknown part lies between, the text begins on a line of its own.
    fn catch_up(&mut self, text: &str, screen: &mut Screen) -> io::Result<()> {
        if let Some(rest) = text.strip_prefix(self.text.as_str()) {
            let rest = rest.to_owned();
            return self.add(&rest, screen);
        }
        self.text.clear();
        screen.end_answer()?;
        self.add(text, screen)
    }

    fn call(&mut self, id: CallId, tool: String, arguments: &Value, screen: &mut Screen) -> io::Result<()> {
        self.turn(Doing::Tool(id.clone()));
        let call =
            Call { tool: one_line(&tool, MOST_LABEL), label: call_label(arguments, MOST_LABEL), since: Instant::now() };
        self.calls.insert(id, call);
        screen.end_answer()
    }

    fn call_over(&mut self, id: &CallId, end: CallEnd, ms: f64, screen: &mut Screen) -> io::Result<()> {
        let Some(call) = self.calls.remove(id) else { return Ok(()) };
        let next = self.calls.keys().next().cloned().map_or(Doing::Waiting, Doing::Tool);
        self.turn(next);
        let word = match end {
            CallEnd::Ok => "ok",
            CallEnd::Error => "failed",
            CallEnd::Stopped => "stopped",
            CallEnd::NotStarted => "not started",
            CallEnd::Denied => "denied",
        };
        let line = format!("{}  {}   {}  {word}", call.tool, call.label, millis(ms));
        let tone = if end == CallEnd::Error { Tone::Failure } else { Tone::Quiet };
        let line = screen.err().paint(tone, &line);
        screen.remark(&line)
    }

    fn say_compacted(&self, turns: u32, screen: &mut Screen) -> io::Result<()> {
        let turns = if turns == 1 { "1 older turn was".to_owned() } else { format!("{turns} older turns were") };
        let line = screen.err().paint(Tone::Quiet, &format!("· {turns} summarised to make room"));
        screen.remark(&line)
    }

    /// Says who waits and how to answer: on a terminal and in a pipe, since nothing goes on until somebody does.
    fn ask(&mut self, id: &str, tool: &str, arguments: &Value, screen: &mut Screen) -> io::Result<()> {
        self.turn(Doing::Approval(one_line(tool, MOST_LABEL)));
        let head =
            screen.err().paint(Tone::Waiting, &format!("◔ {} asks whether it may run:", one_line(tool, MOST_LABEL)));
        screen.remark(&head)?;
        for line in call_in_full(arguments) {
            screen.remark(&format!("  {line}"))?;
        }
        screen.remark(&format!("  quell approvals allow {id}\n  quell approvals deny {id}"))
    }

    /// Shows what the run does now.
    pub(super) fn show_status(&self, screen: &mut Screen) -> io::Result<()> {
        let since = |since: Instant| millis(since.elapsed().as_secs_f64() * 1000.0);
        let time = since(self.since);
        match &self.doing {
            Doing::Starting => screen.status(Tone::Waiting, &format!("◔ starting · {time}")),
            Doing::Queued => {
                screen.status(Tone::Waiting, &format!("○ queued behind another run · {time} · Ctrl-C withdraws"))
            }
            Doing::Waiting => screen.status(Tone::Waiting, &format!("◔ waiting for the model · {time} · Ctrl-C stops")),
            Doing::Answering => screen.status(Tone::Quiet, &format!("● answering · {time} · Ctrl-C stops")),
            Doing::Approval(tool) => screen.status(Tone::Waiting, &format!("◔ {tool} waits for approval · {time}")),
            Doing::Stopping(hint) => screen.status(Tone::Stopping, &format!("◆ stopping · {time}{hint}")),
            Doing::Tool(id) => match self.calls.get(id) {
                Some(call) => {
                    let line = format!("● {}  {}   {}", call.tool, call.label, since(call.since));
                    screen.status(Tone::Quiet, &line)
                }
                None => Ok(()),
            },
        }
    }

    /// Prints the end and says which exit code goes with it.
    pub(super) fn conclude(mut self, end: End, io: &mut Io) -> Result<Exit, VerbError> {
        if let Some(text) = end.text.clone().filter(|text| *text != self.text) {
            self.catch_up(&text, &mut io.screen)?;
        }
        io.screen.finish()?;
        let exit = match &end.verdict {
            Verdict::Completed => Exit::Done,
            Verdict::Failed { .. } => Exit::Failed,
            Verdict::Aborted { .. } => Exit::Stopped,
        };
        say_failure(&end, io)?;
        if self.is_stopping() || end.wants_receipt() {
            let tone = if end.receipt.leftovers.is_empty() { Tone::Stopped } else { Tone::Failure };
            let line = io.screen.err().paint(tone, &receipt_line(&end.receipt));
            io.screen.remark(&line)?;
        }
        if self.format == Format::Json {
            let result = RunResult::of(&end.verdict, end.steps);
            let partial = !end.completed() && !self.text.is_empty();
            io.screen.json(&Outcome {
                result,
                run_id: self.run,
                session_key: end.session,
                text: self.text,
                partial,
                verdict: end.verdict,
                receipt: end.receipt,
            })?;
        }
        Ok(exit)
    }
}

#[expect(clippy::cast_precision_loss, reason = "this is for reading")]
fn say_retry((attempt, attempts): (u32, u32), delay_ms: u64, why: &str, screen: &mut Screen) -> io::Result<()> {
    let (next, why) = (millis(delay_ms as f64), one_line(why, 1000));
    let line = format!("◔ attempt {attempt} of {attempts} failed, next in {next}: {why}");
    let line = screen.err().paint(Tone::Waiting, &line);
    screen.remark(&line)
}

/// Says why a run failed.
fn say_failure(end: &End, io: &mut Io) -> Result<(), VerbError> {
    if let Verdict::Failed { code, message } = &end.verdict {
        let head = io.screen.err().paint(Tone::Failure, &format!("▲ failed ({}):", one_line(code, MOST_LABEL)));
        io.screen.remark(&format!("{head} {}", one_line(message, 1000)))?;
    }
    Ok(())
}
