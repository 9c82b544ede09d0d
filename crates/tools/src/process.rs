//! The `process` tool: list, read, write to, wait for and kill background commands.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use quell_protocol::ResourceKind;
use quell_protocol::background::ProcessRow;
use quell_scope::{Cancelled, Point, Scope, StopLevel};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::background::BackgroundProcess;
use crate::definition::ToolArguments;
use crate::tool::{ContextTool, ToolContext, ToolOutput};

/// Timeout of `wait` when the call gives none.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum ProcessAction {
    List,
    Output,
    Write,
    Wait,
    Kill,
}

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProcessArgs {
    /// `list`: this conversation's background commands. `output`: what one printed. `write`: text for its standard input.
    /// `wait`: until it ends. `kill`: end it.
    action: ProcessAction,
    /// The command's id, such as `p1`. May be left out when there is only one.
    #[serde(default)]
    id: Option<String>,
    /// For `write`: the text. A line needs its newline.
    #[serde(default)]
    text: Option<String>,
    /// For `write`: close the standard input afterwards.
    #[serde(default)]
    close: bool,
    /// For `output`: read from this place on, the `next` of an earlier answer.
    #[serde(default)]
    after: Option<u64>,
    /// For `wait`: how many seconds at most; 30 when absent.
    #[serde(default)]
    timeout_s: Option<f64>,
}

impl ToolArguments for ProcessArgs {
    const NAME: &'static str = "process";
    const ABOUT: &'static str = "Looks after commands that `shell` started with `background: true`: lists them, reads what they print, writes to \
                                 their standard input, waits for them, kills them.";
    const EXAMPLE: &'static str = r#"{"action": "output", "id": "p1"}"#;
    const RESOURCE_KIND: ResourceKind = ResourceKind::Process;
}

impl ContextTool for ProcessArgs {
    /// Executes one action on the session's background commands.
    ///
    /// # Cancel safety
    /// Safe: a dropped wait changes nothing; a part of a text may have been written.
    async fn call(self, cx: &mut ToolContext<'_>) -> Result<ToolOutput, Cancelled> {
        cx.scope.check(Point::ProcessWait)?;
        if self.action == ProcessAction::List {
            return Ok(ToolOutput::ok(list_processes(cx)));
        }
        let process = match find_process(&self, cx) {
            Ok(process) => process,
            Err(problem) => return Ok(ToolOutput::error(problem)),
        };
        match self.action {
            ProcessAction::List | ProcessAction::Output => {}
            ProcessAction::Write => return write_input(&self, &process, cx.scope).await,
            ProcessAction::Wait => {
                let Ok(timeout) = wait_timeout(self.timeout_s) else {
                    return Ok(ToolOutput::error("`timeout_s` must be a number of seconds, not negative".to_owned()));
                };
                let waiting = tokio::time::timeout(timeout, process.wait_ended());
                // The output shown below says whether the command ended.
                let _ = cx.scope.race(Point::ProcessWait, waiting).await?;
            }
            ProcessAction::Kill => {
                process.send_end(StopLevel::Gentle);
                cx.scope.race(Point::ProcessWait, process.wait_ended()).await?;
            }
        }
        Ok(ToolOutput::ok(show_output(&process, self.after.unwrap_or(0), cx.output_limit)))
    }
}

fn wait_timeout(timeout_s: Option<f64>) -> Result<Duration, std::time::TryFromFloatSecsError> {
    timeout_s.map_or(Ok(DEFAULT_WAIT), Duration::try_from_secs_f64)
}

fn find_process(args: &ProcessArgs, cx: &ToolContext<'_>) -> Result<Arc<BackgroundProcess>, String> {
    let all = cx.background.of_session(&cx.owner.session);
    let ids: Vec<&str> = all.iter().map(|process| process.id.as_str()).collect();
    let found = match (args.id.as_deref(), all.as_slice()) {
        (Some(id), _) => all.iter().find(|process| process.id == id),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    found.cloned().ok_or_else(|| match ids.as_slice() {
        [] => "this conversation has no background commands".to_owned(),
        _ => format!("`id` must be one of this conversation's background commands: {}", ids.join(", ")),
    })
}

async fn write_input(args: &ProcessArgs, process: &BackgroundProcess, scope: &Scope) -> Result<ToolOutput, Cancelled> {
    let text = args.text.as_deref().unwrap_or_default();
    let Some(input) = process.input() else {
        return Ok(ToolOutput::error("its standard input is closed".to_owned()));
    };
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let writable = tokio::time::timeout(DEFAULT_WAIT, input.writable());
        match scope.race(Point::ProcessWait, writable).await? {
            Err(_elapsed) => {
                let left = rest.len();
                return Ok(ToolOutput::error(format!("it does not read: {left} bytes of the text are not written")));
            }
            Ok(Err(error)) => return Ok(ToolOutput::error(format!("its standard input cannot be written: {error}"))),
            Ok(Ok(())) => match input.try_write(rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    return Ok(ToolOutput::error(format!("its standard input cannot be written: {error}")));
                }
            },
        }
    }
    if args.close {
        process.close_input();
    }
    Ok(ToolOutput::ok(format!("{} bytes written", text.len())))
}

fn list_processes(cx: &ToolContext<'_>) -> String {
    let rows: Vec<String> =
        cx.background.of_session(&cx.owner.session).iter().map(|process| process_line(&process.to_row())).collect();
    if rows.is_empty() { "This conversation has no background commands.".to_owned() } else { rows.join("\n") }
}

fn process_line(row: &ProcessRow) -> String {
    format!("{} {} since {}: {}", row.id, process_state(row), row.started_at, row.command)
}

fn process_state(row: &ProcessRow) -> String {
    let pid = row.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
    match (&row.how, row.exit_code, row.signal) {
        (None, _, _) => format!("running{pid}"),
        (Some(_), Some(code), _) => format!("ended with exit code {code}"),
        (Some(_), None, Some(signal)) => format!("ended by signal {signal}"),
        (Some(how), None, None) => format!("ended ({how})"),
    }
}

fn show_output(process: &BackgroundProcess, after: u64, max_bytes: usize) -> String {
    let (row, excerpt) = (process.to_row(), process.output(after, max_bytes.saturating_sub(512)));
    let mut text = String::new();
    // Writing to a string cannot fail.
    if excerpt.missing > 0 {
        let _ = writeln!(text, "[{} bytes left out]", excerpt.missing);
    }
    text.push_str(&excerpt.text);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let _ = write!(text, "[{} {}; next: {}", row.id, process_state(&row), excerpt.next);
    for leftover in &row.leftovers {
        let _ = write!(text, "; could not end {leftover}");
    }
    text.push(']');
    text
}
