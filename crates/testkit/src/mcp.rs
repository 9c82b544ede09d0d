//! A small MCP server over standard input and output, as a shell script: it answers, reports progress, and misbehaves in the
//! ways in which servers do. It reads one line after the other, so whatever keeps it busy makes it deaf.
//!
//! What it gets it writes to the file in `MCP_LOG`, each line with its time. `MCP_MUTE` lets it never answer `initialize`,
//! `MCP_NO_PING` lets it refuse pings, `MCP_HUGE` lets it answer that with more than 16 MiB, `MCP_STUCK` lets it ignore the end of its input and SIGTERM, `MCP_MARK`
//! names all of its processes.

mod http;

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use http::{HttpServer, Manner};

/// The script, for `sh -c`. Its tool `fork` starts a child in a session of its own, with the argument `text` as its name, and
/// then hears nothing more; `shut` closes its input and goes on, `nap` hears nothing for 0.4 s;
/// `slow` works for 1.6 s and says so all the while; `huge`
/// answers with more than 16 MiB. `late`, `sorry` and `drip` go on beside the server, which hears everything meanwhile and
/// answers no cancel: when the file exists that is named by their argument `text`, they answer with a result, with an error,
/// and with progress without an end.
pub const SERVER: &str = include_str!("mcp/server.sh");

/// One line that the server got.
#[derive(Debug, Clone)]
pub struct Received {
    /// When it had read it.
    pub at: SystemTime,
    /// As it was sent.
    pub message: serde_json::Value,
}

/// How many tools the server has at its start.
#[must_use]
pub fn tool_count() -> usize {
    let names = SERVER.split_once("for name in ").and_then(|(_, rest)| rest.split_once(" $grown"));
    names.map_or(0, |(names, _)| names.split_whitespace().count())
}

/// What a server wrote to its log so far.
///
/// # Panics
/// When the log holds something else than the server writes.
#[must_use]
pub fn received(log: &Path) -> Vec<Received> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    // Its last line may still be on its way.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(line).collect()
}

/// The messages of one method.
#[must_use]
pub fn received_of(log: &Path, method: &str) -> Vec<Received> {
    received(log).into_iter().filter(|line| line.message["method"] == method).collect()
}

fn line(line: &str) -> Received {
    let Some((at, message)) = line.split_once(' ') else { panic!("no time in {line:?}") };
    let at = at.parse().unwrap_or_else(|_| panic!("no number of nanoseconds in {line:?}"));
    let message = serde_json::from_str(message).unwrap_or_else(|_| panic!("no message in {line:?}"));
    Received { at: UNIX_EPOCH + Duration::from_nanos(at), message }
}
