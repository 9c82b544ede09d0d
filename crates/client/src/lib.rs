//! HTTP client of a Quell daemon, the subcommands that use it, and their output as plain text.
//!
//! It knows only the protocol: any other program can do the same over HTTP. It reads no environment variables and no
//! configuration. The binary passes in where the daemon may be ([`DaemonTarget`]) and where to print ([`CommandIo`]), and
//! must install a TLS provider before the first [`DaemonClient`] is made.

pub mod daemon_client;
mod mcp_stdio;
pub mod receipt_chart;
mod streamed_answer;
pub mod subcommands;
pub mod term;
pub mod text_format;

#[cfg(any(test, feature = "test-support"))]
#[expect(clippy::unwrap_used, reason = "only tests use it")]
#[doc(hidden)]
pub mod test_support;

pub use daemon_client::{AttachedSend, ClientError, DaemonClient, DaemonTarget, ReconnectPolicy};
pub use quell_protocol::receipt::summary_line as receipt_line;
pub use quell_protocol::receipt::summary_line::receipt_line;
pub use receipt_chart::receipt_chart;
pub use streamed_answer::StreamedAnswer;
pub use subcommands::{ClientSubcommand, Exit, SubcommandError, run, run_with_client, serve_mcp};
pub use term::{CliOutput, CliOutputStream, CommandIo, Interruption, Interrupts};
