//! Print the events of a followed run as text, status lines and JSON.

use std::collections::{BTreeMap, HashSet};
use std::io;

use quell_protocol::api::RunResult;
use quell_protocol::approval::{ApprovalRow, Escalation};
use quell_protocol::{AgentId, CallEnd, CallId, EventKind, Receipt, RunEvent, RunId, SessionKey, Verdict};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::receipt_line::receipt_line;
use crate::streamed_answer::StreamedAnswer;
use crate::subcommands::{CliOutputFormat, Exit, SubcommandResult};
use crate::term::{CliOutput, CommandIo, OutputStyle};
use crate::text_format::{escalation_lines, format_millis, one_line, tool_call_label, tool_call_lines};

const MAX_LABEL_CHARS: usize = 60;

pub(super) struct PrintedRunEnd {
    session: SessionKey,
    verdict: Verdict,
    receipt: Receipt,
    steps: u32,
    text: Option<String>,
}

impl PrintedRunEnd {
    pub(super) fn is_completed(&self) -> bool {
        matches!(self.verdict, Verdict::Completed)
    }

    /// True when the user must see the receipt: after a stop, or when something is left over.
    fn must_print_receipt(&self) -> bool {
        matches!(self.verdict, Verdict::Aborted { .. }) || !self.receipt.leftovers.is_empty()
    }
}

/// JSON output of `quell send --json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SendCommandOutput {
    #[serde(flatten)]
    result: RunResult,
    run_id: RunId,
    session_key: SessionKey,
    /// The answer; of a run that did not complete, the text streamed in its last step.
    text: String,
    /// True when `text` is not a finished answer.
    partial: bool,
    verdict: Verdict,
    receipt: Receipt,
}

/// Current activity of the run, for the status line.
enum PrintedActivity {
    Starting,
    Queued,
    WaitingForModel,
    Tool(CallId),
    Answering,
    Approval(String),
    /// A stop is in progress; the text tells what another press of Ctrl-C does, if one was pressed.
    Stopping(&'static str),
}

struct PrintedCall {
    tool: String,
    label: String,
    since: Instant,
}

pub(super) struct RunPrinter {
    run: RunId,
    format: CliOutputFormat,
    /// The text that was printed.
    answer: StreamedAnswer,
    calls: BTreeMap<CallId, PrintedCall>,
    /// The ids of the approvals that were printed.
    printed_approvals: HashSet<String>,
    activity: PrintedActivity,
    activity_since: Instant,
}

impl RunPrinter {
    pub(super) fn new(run: RunId, format: CliOutputFormat) -> Self {
        Self {
            run,
            format,
            answer: StreamedAnswer::default(),
            calls: BTreeMap::new(),
            printed_approvals: HashSet::new(),
            activity: PrintedActivity::Starting,
            activity_since: Instant::now(),
        }
    }

    /// Prints one event; returns the end if the event is that.
    pub(super) fn print_event(&mut self, event: RunEvent, output: &mut CliOutput) -> io::Result<Option<PrintedRunEnd>> {
        match event.kind {
            EventKind::Queued { .. } => self.set_activity(PrintedActivity::Queued),
            EventKind::Started { .. } => self.set_activity(PrintedActivity::Starting),
            EventKind::StepStarted { .. } => self.start_step(output)?,
            EventKind::TextDelta { text } => self.print_text(&text, output)?,
            EventKind::ThinkingDelta { text } => output.stream_quiet(&text)?,
            EventKind::ToolStarted { call_id, tool, arguments } => {
                self.track_call(call_id, tool, &arguments, output)?
            }
            EventKind::ToolEnded { call_id, end, ms, .. } => self.print_call_end(&call_id, end, ms, output)?,
            EventKind::ApprovalRequested { id, tool, arguments, escalation, .. } => {
                self.set_activity(PrintedActivity::Approval(one_line(&tool, MAX_LABEL_CHARS)));
                self.printed_approvals.insert(id.clone());
                let asked = PrintedApproval {
                    id: &id,
                    tool: &tool,
                    arguments: &arguments,
                    escalation: escalation.as_deref(),
                    sub_agent: None,
                };
                asked.print(output)?
            }
            EventKind::SubRunApprovalRequested { approval } => self.print_waiting(&[*approval], output)?,
            EventKind::ApprovalUpdated { allowed_by, quorum, .. } => {
                output.eprint_line(&format!("  {} of {quorum} have allowed it", allowed_by.len()))?;
            }
            EventKind::ApprovalResolved { .. } => self.set_activity(PrintedActivity::WaitingForModel),
            EventKind::Compacted { turns, .. } => self.print_compacted(turns, output)?,
            EventKind::ModelRetry { attempt, attempts, delay_ms, reason } => {
                print_retry(attempt, attempts, delay_ms, &reason, output)?;
            }
            EventKind::ModelSearch { query } => {
                output.eprint_line(&format!("  searched the web: {}", one_line(&query, MAX_LABEL_CHARS)))?;
            }
            EventKind::ModelFallback { from, to, reason } => print_fallback(&from, &to, &reason, output)?,
            EventKind::Snapshot { earlier_text, text, approvals, .. } => {
                self.print_missed_text(&earlier_text, &text, output)?;
                self.print_waiting(&approvals, output)?;
            }
            EventKind::Ending { verdict: Verdict::Aborted { .. } } if !self.is_stopping() => self.set_stopping(""),
            EventKind::ToolWaiting { .. }
            | EventKind::SubRunApprovalResolved { .. }
            | EventKind::Ending { .. }
            | EventKind::ToolOutput { .. }
            | EventKind::Usage { .. } => {}
            EventKind::Ended { verdict, receipt, steps, text } => {
                return Ok(Some(PrintedRunEnd { session: event.session_key, verdict, receipt: *receipt, steps, text }));
            }
        }
        Ok(None)
    }

    /// Shows in the status that a stop is in progress, with this hint about Ctrl-C.
    pub(super) fn set_stopping(&mut self, hint: &'static str) {
        if !self.is_stopping() {
            self.activity_since = Instant::now();
        }
        self.activity = PrintedActivity::Stopping(hint);
    }

    fn is_stopping(&self) -> bool {
        matches!(self.activity, PrintedActivity::Stopping(_))
    }

    fn set_activity(&mut self, doing: PrintedActivity) {
        // Keep showing a stop in progress when a late tool call ends.
        if !self.is_stopping() {
            self.activity = doing;
            self.activity_since = Instant::now();
        }
    }

    fn start_step(&mut self, output: &mut CliOutput) -> io::Result<()> {
        self.answer.begin_step();
        self.set_activity(PrintedActivity::WaitingForModel);
        output.end_answer_line()
    }

    fn print_text(&mut self, text: &str, output: &mut CliOutput) -> io::Result<()> {
        self.answer.push(text);
        self.stream_text(text, output)
    }

    fn stream_text(&mut self, text: &str, output: &mut CliOutput) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if matches!(
            self.activity,
            PrintedActivity::Starting | PrintedActivity::Queued | PrintedActivity::WaitingForModel
        ) {
            self.set_activity(PrintedActivity::Answering);
        }
        match self.format {
            CliOutputFormat::Text => output.stream_answer(text),
            CliOutputFormat::Json => Ok(()),
        }
    }

    /// Prints what a snapshot adds, each step on a line of its own.
    fn print_missed_text(&mut self, earlier: &str, step: &str, output: &mut CliOutput) -> io::Result<()> {
        let missed = self.answer.catch_up(earlier, step);
        self.stream_text(&missed.earlier, output)?;
        if missed.is_new_step {
            output.end_answer_line()?;
        }
        self.stream_text(&missed.step, output)
    }

    /// Prints the approvals that were not printed yet.
    fn print_waiting(&mut self, approvals: &[ApprovalRow], output: &mut CliOutput) -> io::Result<()> {
        for row in approvals {
            if self.printed_approvals.insert(row.id.clone()) {
                PrintedApproval::of_row(row, &self.run).print(output)?;
            }
        }
        Ok(())
    }

    fn track_call(&mut self, id: CallId, tool: String, arguments: &Value, output: &mut CliOutput) -> io::Result<()> {
        self.set_activity(PrintedActivity::Tool(id.clone()));
        let call = PrintedCall {
            tool: one_line(&tool, MAX_LABEL_CHARS),
            label: tool_call_label(arguments, MAX_LABEL_CHARS),
            since: Instant::now(),
        };
        self.calls.insert(id, call);
        output.end_answer_line()
    }

    fn print_call_end(&mut self, id: &CallId, end: CallEnd, ms: f64, output: &mut CliOutput) -> io::Result<()> {
        let Some(call) = self.calls.remove(id) else { return Ok(()) };
        let next = self.calls.keys().next().cloned().map_or(PrintedActivity::WaitingForModel, PrintedActivity::Tool);
        self.set_activity(next);
        let word = match end {
            CallEnd::Ok => "ok",
            CallEnd::Error => "failed",
            CallEnd::Stopped => "stopped",
            CallEnd::NotStarted => "not started",
            CallEnd::Denied => "denied",
        };
        let line = format!("{}  {}   {}  {word}", call.tool, call.label, format_millis(ms));
        let tone = if end == CallEnd::Error { OutputStyle::Failure } else { OutputStyle::Quiet };
        let line = output.stderr().apply_style(tone, &line);
        output.eprint_line(&line)
    }

    fn print_compacted(&self, turns: u32, output: &mut CliOutput) -> io::Result<()> {
        let turns = if turns == 1 { "1 older turn was".to_owned() } else { format!("{turns} older turns were") };
        let line = output.stderr().apply_style(OutputStyle::Quiet, &format!("· {turns} summarised to make room"));
        output.eprint_line(&line)
    }

    pub(super) fn show_status(&self, output: &mut CliOutput) -> io::Result<()> {
        let since = |since: Instant| format_millis(since.elapsed().as_secs_f64() * 1000.0);
        let time = since(self.activity_since);
        match &self.activity {
            PrintedActivity::Starting => output.show_status(OutputStyle::Waiting, &format!("◔ starting · {time}")),
            PrintedActivity::Queued => output
                .show_status(OutputStyle::Waiting, &format!("○ queued behind another run · {time} · Ctrl-C withdraws")),
            PrintedActivity::WaitingForModel => {
                output.show_status(OutputStyle::Waiting, &format!("◔ waiting for the model · {time} · Ctrl-C stops"))
            }
            PrintedActivity::Answering => {
                output.show_status(OutputStyle::Quiet, &format!("● answering · {time} · Ctrl-C stops"))
            }
            PrintedActivity::Approval(tool) => {
                output.show_status(OutputStyle::Waiting, &format!("◔ {tool} waits for approval · {time}"))
            }
            PrintedActivity::Stopping(hint) => {
                output.show_status(OutputStyle::Stopping, &format!("◆ stopping · {time}{hint}"))
            }
            PrintedActivity::Tool(id) => match self.calls.get(id) {
                Some(call) => {
                    let line = format!("● {}  {}   {}", call.tool, call.label, since(call.since));
                    output.show_status(OutputStyle::Quiet, &line)
                }
                None => Ok(()),
            },
        }
    }

    pub(super) fn print_end(mut self, end: PrintedRunEnd, io: &mut CommandIo) -> SubcommandResult {
        if let Some(text) = end.text.clone().filter(|text| text != self.answer.step()) {
            let earlier = self.answer.earlier().to_owned();
            self.print_missed_text(&earlier, &text, &mut io.output)?;
        }
        io.output.end_open_lines()?;
        let exit = match &end.verdict {
            Verdict::Completed => Exit::Done,
            Verdict::Failed { .. } => Exit::Failed,
            Verdict::Aborted { reason, .. } if reason.used_up_limit().is_some() => Exit::LimitReached,
            Verdict::Aborted { .. } => Exit::Stopped,
        };
        print_failure(&end, io)?;
        if self.is_stopping() || end.must_print_receipt() {
            let tone = if end.receipt.leftovers.is_empty() { OutputStyle::Stopped } else { OutputStyle::Failure };
            let line = io.output.stderr().apply_style(tone, &receipt_line(&end.receipt));
            io.output.eprint_line(&line)?;
        }
        if self.format == CliOutputFormat::Json {
            let result = RunResult::of(&end.verdict, end.steps);
            let partial = !end.is_completed() && !self.answer.step().is_empty();
            io.output.print_json(&SendCommandOutput {
                result,
                run_id: self.run,
                session_key: end.session,
                text: self.answer.step().to_owned(),
                partial,
                verdict: end.verdict,
                receipt: end.receipt,
            })?;
        }
        Ok(exit)
    }
}

#[expect(clippy::cast_precision_loss, reason = "display only")]
fn print_retry(attempt: u32, attempts: u32, delay_ms: u64, why: &str, output: &mut CliOutput) -> io::Result<()> {
    let (next, why) = (format_millis(delay_ms as f64), one_line(why, 1000));
    let line = format!("◔ attempt {attempt} of {attempts} failed, next in {next}: {why}");
    let line = output.stderr().apply_style(OutputStyle::Waiting, &line);
    output.eprint_line(&line)
}

fn print_fallback(from: &str, to: &str, why: &str, output: &mut CliOutput) -> io::Result<()> {
    let [from, to] = [from, to].map(|name| one_line(name, MAX_LABEL_CHARS));
    let line = format!("◔ {from} failed, {to} takes over: {}", one_line(why, 1000));
    let line = output.stderr().apply_style(OutputStyle::Waiting, &line);
    output.eprint_line(&line)
}

fn print_failure(end: &PrintedRunEnd, io: &mut CommandIo) -> io::Result<()> {
    if let Verdict::Failed { code, message } = &end.verdict {
        let head = io
            .output
            .stderr()
            .apply_style(OutputStyle::Failure, &format!("▲ failed ({}):", one_line(code, MAX_LABEL_CHARS)));
        io.output.eprint_line(&format!("{head} {}", one_line(message, 1000)))?;
    }
    Ok(())
}

/// A call that waits for a person.
struct PrintedApproval<'a> {
    id: &'a str,
    tool: &'a str,
    arguments: &'a Value,
    escalation: Option<&'a Escalation>,
    sub_agent: Option<&'a AgentId>,
}

impl<'a> PrintedApproval<'a> {
    /// The approval of `run` or of a run below it.
    fn of_row(row: &'a ApprovalRow, run: &RunId) -> Self {
        let ApprovalRow { id, tool, arguments, escalation, agent, run_id, .. } = row;
        let sub_agent = (run_id != run).then_some(agent);
        Self { id, tool, arguments, escalation: escalation.as_ref(), sub_agent }
    }

    /// Prints the request and how to answer it, on a terminal and in a pipe: the run waits for the answer.
    fn print(&self, output: &mut CliOutput) -> io::Result<()> {
        let Self { id, tool, arguments, escalation, sub_agent } = *self;
        let place = if escalation.is_some() { " OUTSIDE OF THE SANDBOX" } else { "" };
        let caller = sub_agent.map(|agent| format!(" of the sub-agent {agent}")).unwrap_or_default();
        let head = format!("◔ {}{caller} asks whether it may run{place}:", one_line(tool, MAX_LABEL_CHARS));
        let head = output.stderr().apply_style(OutputStyle::Waiting, &head);
        output.eprint_line(&head)?;
        for line in tool_call_lines(arguments).into_iter().chain(escalation.into_iter().flat_map(escalation_lines)) {
            output.eprint_line(&format!("  {line}"))?;
        }
        output.eprint_line(&format!("  quell approvals allow {id}\n  quell approvals deny {id}"))
    }
}
