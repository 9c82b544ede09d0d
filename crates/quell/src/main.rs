//! Quell: a self-hosted gateway for LLM agents that you can stop.

mod backup;
mod cli;
mod config;
mod daemon;
mod demo;
mod doctor;
mod reload;
mod telemetry;

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;

/// Gives memory back after a burst of runs; the allocator of the system's C library keeps what its many arenas have held.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // A warden is this same binary; it must not become anything more.
    if let Some(code) = quell_engine::proc::warden_main() {
        return code;
    }
    // Before the configuration and its keys are read: what another process of this user sees of them until now is the environment.
    let hardened = harden_server();
    let cli = cli::Cli::parse();
    telemetry::start(&cli.command);
    if let Err(error) = hardened {
        tracing::warn!(%error, "other processes of this user can look into the daemon's memory");
    }
    // The HTTP client is built without a TLS provider of its own; there is one in the whole process.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider was installed before");
    }
    match cli::run(cli) {
        Ok(code) => code,
        Err(error) => cli::print_error(&error),
    }
}

/// The daemon hides its memory and its descriptors from other processes of its user. The other verbs do not: under
/// `ProtectProc=invisible` the daemon could not tell who they are.
fn harden_server() -> std::io::Result<()> {
    let serves = std::env::args_os().skip(1).any(|argument| argument == "serve");
    if serves { quell_engine::proc::harden_daemon() } else { Ok(()) }
}
