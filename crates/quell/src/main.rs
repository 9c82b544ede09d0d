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

fn main() -> ExitCode {
    // A warden is this same binary; it must not become anything more.
    if let Some(code) = quell_engine::proc::warden_main() {
        return code;
    }
    let cli = cli::Cli::parse();
    telemetry::start(&cli.command);
    // The HTTP client is built without a TLS provider of its own; there is one in the whole process.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider was installed before");
    }
    match cli::run(cli) {
        Ok(code) => code,
        Err(error) => cli::print_error(&error),
    }
}
