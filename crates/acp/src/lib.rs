//! `quell acp`: the Agent Client Protocol on standard input and output, for editors.
//!
//! It is a client of the daemon, like the terminal. The daemon holds the runs; when this process ends, in whatever way,
//! the daemon notices the closed connections and stops them. [`agent`] does what an editor asks for, [`turn`] runs a
//! prompt, and `updates`, `replay`, `tool_calls`, `permissions` and `settings` translate what the daemon says into the
//! types of [`editor`]. [`v1`] and the draft of version 2, [`v2`], answer the requests of an editor and write those types
//! in their words; [`connection`] lets the editor choose between them.

mod agent;
mod connection;
mod content;
mod diff;
mod editor;
mod errors;
mod open_sessions;
mod output;
mod permissions;
mod replay;
mod settings;
mod tool_calls;
mod turn;
mod updates;
mod v1;
mod v2;
mod wire;

use std::io;

use quell_client::{DaemonTarget, Exit};
use quell_protocol::AgentId;

/// Arguments of `quell acp`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
An editor starts this command and talks to it over standard input and output. It needs a running daemon (`quell serve`).
The directory that the editor names becomes the workdir of the session. When the editor ends it, or closes its input, the
daemon stops what it has started.

Examples:
  quell acp
  quell acp --agent coder
  quell acp --ignore-mcp-servers     for editors that always name their own MCP servers

In Zed's settings.json:
  \"agent_servers\": {\"Quell\": {\"type\": \"custom\", \"command\": \"quell\", \"args\": [\"acp\"]}}")]
pub struct AcpArgs {
    /// The agent of new sessions; else the default one
    #[arg(long, value_name = "ID")]
    pub agent: Option<AgentId>,
    /// Open sessions without the MCP servers that the editor names, instead of refusing them
    #[arg(long)]
    pub ignore_mcp_servers: bool,
}

/// Serves one editor until it closes the connection.
///
/// # Cancel safety
/// If dropped, the daemon stops the runs of this connection.
pub async fn run(args: AcpArgs, target: &DaemonTarget) -> Exit {
    match connection::serve_stdio(args, target.clone()).await {
        Ok(()) => Exit::Done,
        Err(error) => {
            use io::Write as _;
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "quell: the connection to the editor failed: {error}");
            Exit::Failed
        }
    }
}
