//! A small MCP server over standard input and output, as a shell script: it answers, reports progress, and misbehaves
//! as real servers do. It reads one line at a time, so while it is busy it reads nothing.
//!
//! It writes each received line with its time to the file in `MCP_LOG`. Variables change its behaviour: with `MCP_MUTE`
//! it never answers `initialize`; with `MCP_NO_PING` it refuses pings; with `MCP_HUGE` it answers `initialize` with
//! more than 16 MiB; with `MCP_WORKER` it has a second process that works beside it; with `MCP_STUCK` it ignores the
//! end of its input and SIGTERM. `MCP_MARK` marks all of its processes.

mod authorization;
mod http_server;

use crate::or_fail::OrFail as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use http_server::{FakeMcpServer, McpFault};

/// The script, for `sh -c`. Its tool `fork` starts a child in its own session, named by the argument `text`, and then
/// reads nothing more. `shut` closes its input and continues; `nap` reads nothing for 0.4 s; `huge` answers with
/// more than 16 MiB. `ask` asks the user for a name, and answers with what the client says. `grow` adds a tool and announces it; with the argument
/// `slowly` the changed list is never sent. `late`, `sorry`, `drip` and `hum` need
/// `MCP_WORKER`, work beside the server, which keeps reading, and do not answer a cancel. When somebody writes to the
/// file named by their argument `text`, the first three answer with a result, with an error, and with progress; `hum`
/// reports progress all the time. Its prompt `greet` greets its argument `who`, and `hang` gets no
/// answer; its resource is `note://today`.
pub const SERVER_SCRIPT: &str = include_str!("mcp/server.sh");

/// A line that the server received.
#[derive(Debug, Clone)]
pub struct McpReceivedMessage {
    /// When the server had read it.
    pub at: SystemTime,
    pub message: serde_json::Value,
}

/// Number of tools that the server lists at its start.
pub fn tool_count() -> usize {
    let names = SERVER_SCRIPT.split_once("for name in ").and_then(|(_, rest)| rest.split_once(" $grown"));
    names.map_or(0, |(names, _)| names.split_whitespace().count())
}

/// The messages that a server has logged so far.
pub fn received_messages(log: &Path) -> Vec<McpReceivedMessage> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    // The last line may be incomplete.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(parse_log_line).collect()
}

pub fn received_messages_of(log: &Path, method: &str) -> Vec<McpReceivedMessage> {
    received_messages(log).into_iter().filter(|line| line.message["method"] == method).collect()
}

fn parse_log_line(line: &str) -> McpReceivedMessage {
    let (at, message) = line.split_once(' ').or_fail(format_args!("no time in {line:?}"));
    let at = at.parse().or_fail(format_args!("no number of nanoseconds in {line:?}"));
    let message = serde_json::from_str(message).or_fail(format_args!("no message in {line:?}"));
    McpReceivedMessage { at: UNIX_EPOCH + Duration::from_nanos(at), message }
}
