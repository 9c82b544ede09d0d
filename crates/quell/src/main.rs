//! Quell: a self-hosted gateway for LLM agents that you can stop.

mod backup;
mod cli;
mod config;
mod daemon;
mod demo;
mod doctor;
mod mcp_command;
mod reload;
mod runtime;
mod store_copy;
mod telemetry;

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;

/// Returns memory to the system after a burst of runs. The allocator of the C library keeps it in its many arenas.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // A warden is started from this binary and must do nothing else.
    if let Some(code) = quell_process::warden_main() {
        return code;
    }
    // Before the configuration and its keys are read. Until now other processes of this user can see only the
    // environment.
    let hardened = harden_server();
    let cli = cli::Cli::parse();
    telemetry::init_logging(cli.command.default_log_filter());
    if let Err(error) = hardened {
        tracing::warn!(%error, "other processes of this user can read the daemon's memory");
    }
    // The HTTP client is built without a TLS provider of its own; it uses the process-wide one.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider was installed before");
    }
    match cli::run(cli) {
        Ok(code) => code,
        Err(error) => cli::print_error(&error),
    }
}

/// Hides the daemon's memory and descriptors from other processes of its user. Other commands are not hidden: under
/// `ProtectProc=invisible` the daemon could not identify them.
fn harden_server() -> std::io::Result<()> {
    let serves = std::env::args_os().skip(1).any(|argument| argument == "serve");
    if serves { quell_process::harden_daemon() } else { Ok(()) }
}
