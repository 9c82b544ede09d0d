//! Run a hook command under a warden with the event on stdin; read its reason or answer.
//!
//! The command is run with `sh -c`. Its reason is the first line that it prints; its answer to a message is all that it
//! prints.

use std::convert::Infallible;
use std::time::Duration;

use quell_process::{CommandSpec, Isolate, OutputSink, ProcessEnd, ProcessEndReason, RUN_ID_VARIABLE};
use quell_protocol::ToolOutputStream;
use quell_protocol::display_text::error_chain;
use quell_scope::{Scope, StopLevel};
use tokio::net::unix::pipe::Sender;

use super::{HookFailure, HookJob, HooksInner};

/// How much of the output is searched for the reason, in bytes.
const MAX_REASON_SCAN_BYTES: usize = 4096;
/// The maximum length of a reason, in characters.
const MAX_REASON_CHARS: usize = 300;
/// How much of the output the warden keeps, in bytes.
const OUTPUT_LIMIT_BYTES: usize = 1024;

const EVENT_VARIABLE: &str = "QUELL_HOOK";
const SESSION_VARIABLE: &str = "QUELL_SESSION";

/// Runs a command to its end. A cancelled scope ends the command, and the error says so.
///
/// # Cancel safety
/// Safe: dropping it kills the command, and the scope waits for that.
pub(super) async fn run_command(
    hooks: &HooksInner,
    command: &str,
    job: &HookJob,
    scope: &Scope,
) -> Result<(), HookFailure> {
    let mut output = OutputPrefix::with_limit(MAX_REASON_SCAN_BYTES);
    // waits: for the command, as described in `run_to_end`.
    let ended = run_to_end(hooks, command, job, scope, &mut output).await;
    ended.map_err(|how| HookFailure { stated_reason: output.reason(), description: how })
}

/// As [`run_command`], but returns the standard output, up to `max_answer_bytes` and one byte more, which shows that it
/// was longer. The output may hold the text of a message, so errors do not quote it.
///
/// # Cancel safety
/// As [`run_command`].
pub(super) async fn run_command_for_answer(
    hooks: &HooksInner,
    command: &str,
    job: &HookJob,
    max_answer_bytes: usize,
    scope: &Scope,
) -> Result<Vec<u8>, HookFailure> {
    let mut output = OutputPrefix::with_limit(max_answer_bytes + 1);
    // waits: for the command, as described in `run_to_end`.
    match run_to_end(hooks, command, job, scope, &mut output).await {
        Ok(()) => Ok(output.stdout.into_bytes()),
        Err(how) => Err(HookFailure { stated_reason: first_line(&output.stderr), description: how }),
    }
}

/// The error says how the command ended.
async fn run_to_end(
    hooks: &HooksInner,
    command: &str,
    job: &HookJob,
    scope: &Scope,
    output: &mut OutputPrefix,
) -> Result<(), String> {
    let mut running =
        hooks.wardens.start(&command_spec(hooks, command, job), scope).map_err(|error| error_chain(&error))?;
    // A stop does not wait for a hook: it drops this future.
    let kill_guard = running.stop_handle().stop_on_drop(StopLevel::Forced);
    let input = running.take_input();
    let end = {
        let collecting = running.collect(output);
        let feeding = async {
            if let Some(input) = input {
                write_input(input, job.json.as_bytes()).await;
            }
            // waits: forever; the end of the command ends it.
            std::future::pending::<Infallible>().await
        };
        // waits: for the command, which has a timeout. Its scope tells it to end, and a caller drops this future at a
        // stop.
        tokio::select! {
            end = collecting => end,
            never = feeding => match never {},
        }
    };
    kill_guard.disarm();
    match end {
        Ok(end) if end.reason == ProcessEndReason::ByItself && end.code == Some(0) => Ok(()),
        Ok(end) => Err(describe_end(&end, hooks.timeout)),
        Err(error) => Err(error_chain(&error)),
    }
}

/// Writes until the reader closes the pipe; then the input is closed.
async fn write_input(input: Sender, mut rest: &[u8]) {
    while !rest.is_empty() {
        // waits: beside the life of the command, in the `select!` above.
        if input.writable().await.is_err() {
            return;
        }
        match input.try_write(rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // The command has closed its input, which is allowed.
            Err(_) => return,
        }
    }
}

fn command_spec(hooks: &HooksInner, command: &str, job: &HookJob) -> CommandSpec {
    let body = &job.body;
    let mut env = hooks.environment.clone();
    env.push((EVENT_VARIABLE.into(), body.event.as_str().into()));
    if let Some(session) = &body.session {
        env.push((SESSION_VARIABLE.into(), session.key.as_str().into()));
    }
    env.push((RUN_ID_VARIABLE.into(), job.process_run_id.as_str().into()));
    CommandSpec {
        argv: vec!["sh".into(), "-c".into(), command.into()],
        label: command.to_owned(),
        cwd: hooks.cwd.clone(),
        env,
        timeout: Some(hooks.timeout),
        output_limit: OUTPUT_LIMIT_BYTES,
        isolate: Isolate::None,
        sandbox: None,
        network: None,
        session_network: None,
    }
}

fn describe_end(end: &ProcessEnd, limit: Duration) -> String {
    match (end.reason, end.code, end.signal) {
        (ProcessEndReason::TimedOut, ..) => format!("it took longer than {} ms and was ended", limit.as_millis()),
        (ProcessEndReason::Stopped, ..) => "it was ended, because what called it was stopped or ended".to_owned(),
        (ProcessEndReason::WardenLost, ..) => "its supervising process was killed, and the hook with it".to_owned(),
        (ProcessEndReason::ByItself, Some(code), _) => format!("it ended with exit code {code}"),
        (ProcessEndReason::ByItself, None, Some(signal)) => format!("it was ended by signal {signal}"),
        (ProcessEndReason::ByItself, None, None) => "it ended in an unknown way".to_owned(),
    }
}

/// The beginning of the output of a command.
#[derive(Debug)]
struct OutputPrefix {
    stdout: String,
    stderr: String,
    /// How much of the standard output is kept, in bytes.
    max_stdout_bytes: usize,
}

impl OutputSink for OutputPrefix {
    fn output(&mut self, stream: ToolOutputStream, text: &str) {
        let (buffer, max_bytes) = match stream {
            ToolOutputStream::Stdout => (&mut self.stdout, self.max_stdout_bytes),
            ToolOutputStream::Stderr => (&mut self.stderr, MAX_REASON_SCAN_BYTES),
        };
        // Keep the last character whole: a cut before it would not show that the output was longer.
        let room = text.ceil_char_boundary(max_bytes.saturating_sub(buffer.len()));
        buffer.push_str(text.get(..room).unwrap_or_default());
    }
}

impl OutputPrefix {
    fn with_limit(max_stdout_bytes: usize) -> Self {
        Self { stdout: String::new(), stderr: String::new(), max_stdout_bytes }
    }

    fn reason(&self) -> Option<String> {
        [&self.stdout, &self.stderr].into_iter().find_map(|text| first_line(text))
    }
}

/// The first line with visible text, without control characters and short enough for an error and a log.
pub(super) fn first_line(text: &str) -> Option<String> {
    let plain = |line: &str| {
        let spaced = line.chars().map(|c| if c == '\t' { ' ' } else { c });
        spaced.filter(|c| !c.is_control()).take(MAX_REASON_CHARS).collect::<String>()
    };
    text.lines().map(|line| plain(line.trim())).find(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason_of(stdout: &str, stderr: &str) -> Option<String> {
        let mut output = OutputPrefix::with_limit(MAX_REASON_SCAN_BYTES);
        output.output(ToolOutputStream::Stderr, stderr);
        output.output(ToolOutputStream::Stdout, stdout);
        output.reason()
    }

    #[test]
    fn the_reason_is_the_first_line_that_says_something_of_stdout_then_of_stderr() {
        assert_eq!(reason_of("\n  too many\nsessions\n", "trouble\n").as_deref(), Some("too many"));
        assert_eq!(reason_of(" \n\t\n", "trouble\r\nmore").as_deref(), Some("trouble"));
        assert_eq!(reason_of("", ""), None);
        assert_eq!(reason_of("\u{1b}[31mred\u{7}", "").as_deref(), Some("[31mred"));
    }

    #[test]
    fn output_without_end_is_not_kept() {
        let mut output = OutputPrefix::with_limit(MAX_REASON_SCAN_BYTES);
        for _ in 0..10_000 {
            output.output(ToolOutputStream::Stdout, "äöü no line end ");
        }
        assert!(
            (MAX_REASON_SCAN_BYTES..MAX_REASON_SCAN_BYTES + 4).contains(&output.stdout.len()),
            "{}",
            output.stdout.len()
        );
        assert_eq!(output.reason().unwrap().chars().count(), MAX_REASON_CHARS);
    }
}
