//! The `shell` tool: run `sh -c` in the workdir under a warden, in the foreground or in the background.
//!
//! What the command may reach is said by the sandbox of the context. The directory in which it starts is always
//! confined to the workdir.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quell_process::{
    CapturedOutput, CommandNetwork, CommandSpec, ProcessEnd, ProcessEndMethod, ProcessEndReason, RUN_ID_VARIABLE,
    SpawnError,
};
use quell_protocol::display_text::error_chain;
use quell_protocol::{CallEnd, ResourceKind};
use quell_scope::{Cancelled, Point};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::background::BackgroundStartError;
use crate::definition::{AgentFacts, ToolArguments, tool_spec};
use crate::listed_network::ListedNetwork;
use crate::tool::{ContextTool, ToolContext, ToolOutput};
use crate::{sandbox_note, text};
use quell_kernel::ToolSpec;

/// Environment variables for commands that nobody watches on a terminal. Editors and pagers end at once instead of
/// waiting for a key, and programs print no colours. Vim needs a command of its own: it does not end when its input is
/// no terminal.
const NON_INTERACTIVE_VARIABLES: &[(&str, &str)] = &[
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

const TIMEOUT_ADVICE: &str =
    "give `timeout_s` to what takes longer, and start what is to go on with `background: true`";

/// The timeout of a foreground command, in seconds.
#[derive(Debug, Clone, Copy)]
struct ShellTimeout {
    requested_s: Option<f64>,
    /// The timeout of the agent, for a call that gives none.
    default_s: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellArgs {
    /// The command, for `sh -c`.
    command: String,
    /// Directory to run in, relative to the working directory and inside it.
    #[serde(default)]
    cwd: Option<PathBuf>,
    /// Seconds after which the command is ended, up to the time that the run itself has.
    #[serde(default)]
    timeout_s: Option<f64>,
    /// Keep the command running after the call, as servers need it; look after it with the tool `process`.
    #[serde(default)]
    background: bool,
}

/// Settings of Git that take precedence over those of a repository, which the agent can change: a person who lets
/// `git status` out of the sandbox lets no file watcher and no hook out. See git-config(1), `GIT_CONFIG_COUNT`.
const GIT_WITHOUT_PROGRAMS: [(&str, &str); 5] = [
    ("GIT_CONFIG_COUNT", "2"),
    ("GIT_CONFIG_KEY_0", "core.fsmonitor"),
    ("GIT_CONFIG_VALUE_0", "false"),
    ("GIT_CONFIG_KEY_1", "core.hooksPath"),
    ("GIT_CONFIG_VALUE_1", "/dev/null"),
];

/// Bytes reserved for the line that says how much of an output is missing.
const DROPPED_NOTE_BYTES: usize = 64;

impl ToolArguments for ShellArgs {
    const NAME: &'static str = "shell";
    const ABOUT: &'static str = "Runs a command with `sh -c` in the working directory and returns what it printed and how it ended. Whatever it \
                                 leaves running is ended when it returns.";
    const EXAMPLE: &'static str = r#"{"command": "ls -la", "timeout_s": 60}"#;
    const IS_SANDBOXED: bool = true;
    const RESOURCE_KIND: ResourceKind = ResourceKind::Process;

    fn spec_for(agent: &AgentFacts<'_>) -> Option<ToolSpec> {
        let (mut spec, seconds) = (tool_spec::<Self>(), agent.shell_timeout_s);
        let sandbox = agent.sandbox.map_or("", sandbox_note::description);
        let escalation = if agent.may_escalate { sandbox_note::MAY_ESCALATE } else { "" };
        spec.description = format!(
            "{} A command that takes longer than {seconds} s is ended: {TIMEOUT_ADVICE}.{sandbox}{escalation}",
            spec.description
        );
        Some(spec)
    }
}

impl ContextTool for ShellArgs {
    /// Runs a command. Failures are in the output, for the model to read; so is a stop, with the output until then.
    ///
    /// # Cancel safety
    /// As [`quell_process::Wardens::run`]: dropping it stops the command, and the run's scope waits for its last
    /// process.
    async fn call(self, cx: &mut ToolContext<'_>) -> Result<ToolOutput, Cancelled> {
        let (limit, background) =
            (ShellTimeout { requested_s: self.timeout_s, default_s: cx.shell_timeout_s }, self.background);
        let network = cx.toolbox.command_network(cx.network);
        let command = match command_spec(self, cx, network.clone()) {
            Ok(command) => command,
            Err(problem) => return Ok(ToolOutput::error(problem)),
        };
        if background {
            cx.scope.check(Point::Process)?;
            return start_in_background(&command, cx);
        }
        match cx.wardens.run(&command, cx.scope, cx.sink).await {
            Ok(end) => {
                let note = refusal_note_of(&end, cx, network.as_deref());
                let text = result_text(&end, limit, cx.output_limit.saturating_sub(note.len())) + &note;
                Ok(ToolOutput { end: call_end(&end), code: end.code, ..ToolOutput::ok(text) })
            }
            Err(SpawnError::Cancelled(_)) => Err(Cancelled),
            Err(error) => Ok(ToolOutput::error(error_chain(&error))),
        }
    }
}

/// Starts the command as a background command of the session.
fn start_in_background(command: &CommandSpec, cx: &ToolContext<'_>) -> Result<ToolOutput, Cancelled> {
    match cx.background.start(cx.wardens, command, cx.owner.clone(), cx.scope) {
        Ok(process) => Ok(ToolOutput::ok(format!(
            "Started in the background as {id}. It goes on when you have answered. Read what it prints with the tool \
             `process`: {{\"action\": \"output\", \"id\": \"{id}\"}}.",
            id = process.id
        ))),
        Err(BackgroundStartError::Spawn(SpawnError::Cancelled(cancelled))) => Err(cancelled),
        Err(BackgroundStartError::Spawn(error)) => Ok(ToolOutput::error(error_chain(&error))),
        Err(error @ (BackgroundStartError::TooMany { .. } | BackgroundStartError::Closing)) => {
            Ok(ToolOutput::error(error.to_string()))
        }
    }
}

fn command_spec(
    args: ShellArgs,
    cx: &ToolContext<'_>,
    network: Option<Arc<ListedNetwork>>,
) -> Result<CommandSpec, String> {
    if args.command.contains('\0') {
        return Err("`command` must not contain a NUL character".to_owned());
    }
    let timeout = args.timeout_s.map(|seconds| match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) if !timeout.is_zero() => Ok(timeout),
        _ => Err(format!("`timeout_s` must be a positive number of seconds, not {seconds}")),
    });
    // A background command has a timeout only if the call gives one.
    let default_timeout = (!args.background).then(|| Duration::from_secs(cx.shell_timeout_s));
    let is_replaced =
        |name: &OsString| name == "COLORTERM" || NON_INTERACTIVE_VARIABLES.iter().any(|(set, _)| name == set);
    let mut env: Vec<_> = cx.environment.iter().filter(|(name, _)| !is_replaced(name)).cloned().collect();
    env.extend(NON_INTERACTIVE_VARIABLES.iter().map(|(name, value)| (name.into(), value.into())));
    env.push((RUN_ID_VARIABLE.into(), cx.owner.run.as_str().into()));
    if cx.is_let_out {
        env.extend(GIT_WITHOUT_PROGRAMS.iter().map(|(name, value)| (name.into(), value.into())));
    }
    Ok(CommandSpec {
        argv: vec!["sh".into(), "-c".into(), args.command.clone().into()],
        label: args.command,
        cwd: resolve_cwd(cx.workdir, args.cwd.as_deref())?,
        env,
        timeout: timeout.transpose()?.or(default_timeout),
        output_limit: cx.output_limit,
        isolate: cx.isolate,
        sandbox: cx.sandbox.clone(),
        network: network.map(|network| network as Arc<dyn CommandNetwork>),
        session_network: cx.session_network.clone(),
    })
}

/// The directory to run in. It must be below the workdir after all symlinks are resolved.
fn resolve_cwd(workdir: &Path, cwd: Option<&Path>) -> Result<PathBuf, String> {
    let Some(cwd) = cwd else { return Ok(workdir.to_owned()) };
    let real = |path: &Path| path.canonicalize().map_err(|error| format!("`cwd` {}: {error}", cwd.display()));
    let (real_cwd, real_workdir) = (real(&workdir.join(cwd))?, real(workdir)?);
    if !real_cwd.starts_with(&real_workdir) {
        return Err(format!("`cwd` {} is outside the working directory", cwd.display()));
    }
    if !real_cwd.is_dir() {
        return Err(format!("`cwd` {} is not a directory", cwd.display()));
    }
    Ok(real_cwd)
}

/// The note about the sandbox for a command that failed, on a line of its own; empty if there is none.
fn refusal_note_of(end: &ProcessEnd, cx: &ToolContext<'_>, network: Option<&ListedNetwork>) -> String {
    let refusals: Vec<String> = network.map(ListedNetwork::refusals).unwrap_or_default();
    if !refusals.is_empty() {
        let advice = if cx.may_escalate { sandbox_note::ESCALATION_ADVICE } else { "" };
        return format!("\n[The network list of this agent refused: {}.{advice}]", refusals.join("; "));
    }
    let has_failed = end.reason == ProcessEndReason::ByItself && end.code != Some(0);
    let sandbox = cx.sandbox.as_ref().filter(|_| has_failed);
    let note = sandbox.and_then(|sandbox| sandbox_note::refusal_note(sandbox, cx.workdir, &end.output.text()));
    let advice = if cx.may_escalate { sandbox_note::ESCALATION_ADVICE } else { "" };
    note.map_or_else(String::new, |note| format!("\n[{note}{advice}]"))
}

fn call_end(end: &ProcessEnd) -> CallEnd {
    match end.reason {
        ProcessEndReason::Stopped => CallEnd::Stopped,
        ProcessEndReason::ByItself if end.code == Some(0) => CallEnd::Ok,
        ProcessEndReason::ByItself | ProcessEndReason::TimedOut | ProcessEndReason::WardenLost => CallEnd::Error,
    }
}

/// The text for the model, in at most `max_bytes` bytes: the output, then how the command ended. A long output is
/// shortened in its middle.
fn result_text(end: &ProcessEnd, limit: ShellTimeout, max_bytes: usize) -> String {
    let end_line = end_line(end, limit);
    let mut text = shorten_output(&end.output, max_bytes.saturating_sub(end_line.len() + 1));
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text + &end_line
}

/// Both ends of an output with a line between them that says how much is missing, in at most `limit` bytes.
fn shorten_output(output: &CapturedOutput, limit: usize) -> String {
    let text = output.text();
    if text.len() <= limit {
        return text;
    }
    let all = format!("{}{}", output.head, output.tail);
    // The head is cut at its end, because the dropped output followed it.
    let half = limit.saturating_sub(DROPPED_NOTE_BYTES) / 2;
    let head = text::truncate(&output.head, half);
    let tail = &all[all.ceil_char_boundary(all.len() - half.min(all.len() - head.len()))..];
    let dropped = output.dropped + u64::try_from(all.len() - head.len() - tail.len()).unwrap_or(u64::MAX);
    CapturedOutput { head: head.to_owned(), tail: tail.to_owned(), dropped }.text()
}

/// How the command ended, and what happened to the processes that it left.
fn end_line(end: &ProcessEnd, limit: ShellTimeout) -> String {
    // Writing to a string cannot fail.
    let mut text = format!("[{}", end_text(end, limit));
    if end.left_behind > 0 {
        let _ = write!(
            text,
            "; {} it left running {} ended: nothing stays alive when a call returns, unless it was started with \
             `background: true`",
            process_count(end.left_behind),
            if end.left_behind == 1 { "was" } else { "were" },
        );
    }
    for leftover in &end.leftovers {
        let _ = write!(text, "; could not end {leftover}");
    }
    text.push(']');
    text
}

fn end_text(end: &ProcessEnd, limit: ShellTimeout) -> String {
    let by = match end.how {
        ProcessEndMethod::Exited => "it exited",
        ProcessEndMethod::Term => "ended by SIGTERM",
        ProcessEndMethod::Kill => "ended by SIGKILL",
    };
    match end.reason {
        ProcessEndReason::ByItself => exit_text(end),
        ProcessEndReason::Stopped => format!("stopped by request, {by}; it may have had effects already"),
        ProcessEndReason::TimedOut => {
            let (seconds, advice) = match limit.requested_s {
                Some(seconds) => (seconds.to_string(), String::new()),
                None => (
                    limit.default_s.to_string(),
                    format!(", the limit of a call without `timeout_s`; {TIMEOUT_ADVICE}"),
                ),
            };
            format!("timed out after {seconds} s{advice}, {by}; it may have had effects already")
        }
        ProcessEndReason::WardenLost => {
            "its supervising process was killed, and the command with it; it may have had effects already".to_owned()
        }
    }
}

fn exit_text(end: &ProcessEnd) -> String {
    match (end.code, end.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "it ended in an unknown way".to_owned(),
    }
}

fn process_count(count: u32) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}
