//! The `shell` tool: `sh -c COMMAND` in the workdir, under a warden.
//!
//! It is no sandbox: the command may do what the daemon's user may do. Only where it starts is confined to the workdir.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_protocol::CallEnd;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::arguments::{self, Arguments};
use super::background::NotStarted;
use super::{ToolOutput, Workbench, text};
use crate::llm::ToolSpec;
use crate::proc::{CapturedOutput, CommandSpec, ProcessEnd, ProcessHow, ProcessStop, RUN_ID_VARIABLE, SpawnError};
use crate::scope::{Cancelled, Point};

/// What commands find in their environment: nobody reads what is asked on a terminal. Editors and pagers end at once instead of
/// waiting for a key, and nothing draws colours. Vim has no other way of noticing that its input is no terminal.
const NOBODY_THERE: &[(&str, &str)] = &[
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("MANPAGER", "cat"),
    ("SYSTEMD_PAGER", "cat"),
    ("EDITOR", "true"),
    ("VISUAL", "true"),
    ("GIT_EDITOR", "true"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("VIMINIT", "autocmd VimEnter * if !has('ttyin') | cquit | endif"),
];

/// What to do about a limit.
const WAY_OUT: &str = "give `timeout_s` to what takes longer, and start what is to go on with `background: true`";

/// How long a command may take in the foreground, seconds.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// What the call says.
    given: Option<f64>,
    /// What the agent has where the call says nothing.
    usual: u64,
}

/// Arguments of `shell`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellArgs {
    /// The command, for `sh -c`.
    pub command: String,
    /// Directory to run in, relative to the working directory and inside it.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// Seconds after which the command is ended, up to the time that the run itself has.
    #[serde(default)]
    pub timeout_s: Option<f64>,
    /// Keep the command running after the call, as servers need it; look after it with the tool `process`.
    #[serde(default)]
    pub background: bool,
}

/// The tool's name.
pub(super) const NAME: &str = "shell";
/// Room for the line that says how much of an output is missing, bytes.
const DROPPED_LINE: usize = 64;

impl Arguments for ShellArgs {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "Runs a command with `sh -c` in the working directory and returns what it printed and how it ended. Whatever it \
                                 leaves running is ended when it returns.";
    const EXAMPLE: &'static str = r#"{"command": "ls -la", "timeout_s": 60}"#;
}

/// The tool as the model sees it.
pub(super) fn spec() -> ToolSpec {
    arguments::spec::<ShellArgs>()
}

/// The tool as the model of an agent sees it whose commands may take so many seconds.
pub(super) fn with_limit(mut spec: ToolSpec, seconds: u64) -> ToolSpec {
    spec.description =
        format!("{} A command that takes longer than {seconds} s is ended: {WAY_OUT}.", spec.description);
    spec
}

/// Runs a command. Whatever goes wrong is in the output, for the model to read; a stop too, with what was printed until then.
///
/// # Cancel safety
/// As [`crate::proc::Wardens::run`]: dropping it stops the command, and the run's scope waits for its last process.
pub(super) async fn call(given: &Value, cx: &mut Workbench<'_>) -> Result<ToolOutput, Cancelled> {
    let args = match arguments::parse::<ShellArgs>(given) {
        Ok(args) => args,
        Err(problem) => return Ok(ToolOutput::error(problem)),
    };
    let (limit, background) = (Limit { given: args.timeout_s, usual: cx.shell_timeout_s }, args.background);
    let command = match command(args, cx) {
        Ok(command) => command,
        Err(problem) => return Ok(ToolOutput::error(problem)),
    };
    if background {
        cx.scope.check(Point::Process)?;
        return start(&command, cx);
    }
    match cx.wardens.run(&command, cx.scope, cx.sink).await {
        Ok(end) => {
            let text = describe(&end, limit, cx.output_limit);
            Ok(ToolOutput { end: call_end(&end), code: end.code, text })
        }
        Err(SpawnError::Cancelled(_)) => Err(Cancelled),
        Err(error) => Ok(ToolOutput::error(refusal(&error))),
    }
}

/// Starts it and leaves it to the session.
fn start(command: &CommandSpec, cx: &Workbench<'_>) -> Result<ToolOutput, Cancelled> {
    match cx.background.start(cx.wardens, command, cx.owner.clone(), cx.scope) {
        Ok(process) => Ok(ToolOutput::ok(format!(
            "Started in the background as {id}. It goes on when you have answered. Read what it prints with the tool \
             `process`: {{\"action\": \"output\", \"id\": \"{id}\"}}.",
            id = process.id
        ))),
        Err(NotStarted::Spawn(SpawnError::Cancelled(cancelled))) => Err(cancelled),
        Err(NotStarted::Spawn(error)) => Ok(ToolOutput::error(refusal(&error))),
        Err(error @ (NotStarted::TooMany { .. } | NotStarted::Closing)) => Ok(ToolOutput::error(error.to_string())),
    }
}

fn command(args: ShellArgs, cx: &Workbench<'_>) -> Result<CommandSpec, String> {
    if args.command.contains('\0') {
        return Err("`command` must not contain a NUL character".to_owned());
    }
    let timeout = args.timeout_s.map(|seconds| match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) if !timeout.is_zero() => Ok(timeout),
        _ => Err(format!("`timeout_s` must be a positive number of seconds, not {seconds}")),
    });
    // What goes on in the background has no limit that nobody asked for.
    let usual = (!args.background).then(|| Duration::from_secs(cx.shell_timeout_s));
    let is_replaced = |name: &OsString| name == "COLORTERM" || NOBODY_THERE.iter().any(|(set, _)| name == set);
    let mut env: Vec<_> = cx.environment.iter().filter(|(name, _)| !is_replaced(name)).cloned().collect();
    env.extend(NOBODY_THERE.iter().map(|(name, value)| (name.into(), value.into())));
    env.push((RUN_ID_VARIABLE.into(), cx.owner.run.as_str().into()));
    Ok(CommandSpec {
        argv: vec!["sh".into(), "-c".into(), args.command.clone().into()],
        label: args.command,
        cwd: confine(cx.workdir, args.cwd.as_deref())?,
        env,
        timeout: timeout.transpose()?.or(usual),
        output_limit: cx.output_limit,
        isolate: cx.isolate,
    })
}

/// The directory to run in, if it lies in the workdir after every symbolic link is followed.
fn confine(workdir: &Path, cwd: Option<&Path>) -> Result<PathBuf, String> {
    let Some(cwd) = cwd else { return Ok(workdir.to_owned()) };
    let real = |path: &Path| path.canonicalize().map_err(|error| format!("`cwd` {}: {error}", cwd.display()));
    let (inside, outside) = (real(&workdir.join(cwd))?, real(workdir)?);
    if !inside.starts_with(&outside) {
        return Err(format!("`cwd` {} is outside the working directory", cwd.display()));
    }
    if !inside.is_dir() {
        return Err(format!("`cwd` {} is not a directory", cwd.display()));
    }
    Ok(inside)
}

fn call_end(end: &ProcessEnd) -> CallEnd {
    match end.why {
        ProcessStop::Stopped => CallEnd::Stopped,
        ProcessStop::Own if end.code == Some(0) => CallEnd::Ok,
        ProcessStop::Own | ProcessStop::TimedOut | ProcessStop::WardenLost => CallEnd::Error,
    }
}

/// What the model reads, in at most `most` bytes: the output first, then how it ended. Of a long output the middle gives way,
/// never the end.
fn describe(end: &ProcessEnd, limit: Limit, most: usize) -> String {
    let verdict = in_brackets(end, limit);
    let mut text = shortened(&end.output, most.saturating_sub(verdict.len() + 1));
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text + &verdict
}

/// Both ends of an output with a line between them that says what is missing, in at most `limit` bytes.
fn shortened(output: &CapturedOutput, limit: usize) -> String {
    let text = output.text();
    if text.len() <= limit {
        return text;
    }
    let all = format!("{}{}", output.head, output.tail);
    // The head is cut at its own end: what follows it was dropped.
    let half = limit.saturating_sub(DROPPED_LINE) / 2;
    let head = text::cut(&output.head, half);
    let tail = &all[all.ceil_char_boundary(all.len() - half.min(all.len() - head.len()))..];
    let dropped = output.dropped + u64::try_from(all.len() - head.len() - tail.len()).unwrap_or(u64::MAX);
    CapturedOutput { head: head.to_owned(), tail: tail.to_owned(), dropped }.text()
}

/// How it ended, and what became of what it left.
fn in_brackets(end: &ProcessEnd, limit: Limit) -> String {
    // Writing to a string cannot fail.
    let mut text = format!("[{}", verdict(end, limit));
    if end.left_behind > 0 {
        let _ = write!(
            text,
            "; {} it left running {} ended: nothing stays alive when a call returns, unless it was started with \
             `background: true`",
            processes(end.left_behind),
            if end.left_behind == 1 { "was" } else { "were" },
        );
    }
    for leftover in &end.leftovers {
        let _ = write!(text, "; could not end {leftover}");
    }
    text.push(']');
    text
}

fn verdict(end: &ProcessEnd, limit: Limit) -> String {
    let by = match end.how {
        ProcessHow::Exited => "it exited",
        ProcessHow::Term => "ended by SIGTERM",
        ProcessHow::Kill => "ended by SIGKILL",
    };
    match end.why {
        ProcessStop::Own => outcome(end),
        ProcessStop::Stopped => format!("stopped by request, {by}; it may have had effects already"),
        ProcessStop::TimedOut => {
            let (seconds, way_out) = match limit.given {
                Some(seconds) => (seconds.to_string(), String::new()),
                None => (limit.usual.to_string(), format!(", the limit of a call without `timeout_s`; {WAY_OUT}")),
            };
            format!("timed out after {seconds} s{way_out}, {by}; it may have had effects already")
        }
        ProcessStop::WardenLost => {
            "its supervising process was killed, and the command with it; it may have had effects already".to_owned()
        }
    }
}

fn outcome(end: &ProcessEnd) -> String {
    match (end.code, end.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "it ended in an unknown way".to_owned(),
    }
}

fn processes(count: u32) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// An error with its causes, in one line.
fn refusal(error: &SpawnError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
