//! The soak: random runs and stops on many sessions of the real binary, with constant checks and a table at the end.
//! Run it with `cargo xtask soak --minutes N`.
//!
//! The daemon is the real `quell`, reached through its server only. This process drives and checks, and holds the
//! scripted model, which rejects each history that a provider would reject.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "the soak starts processes and tasks outside of any scope, and may panic"
)]

mod audit;
mod driver;
mod fixture;
mod histories;
mod marker_scan;
mod memory;
mod model;
mod options;
mod plan;
mod report;
mod results;
mod round;
mod run_ends;
mod scenes;
mod stop_requests;
#[path = "../stop/times.rs"]
mod times;

use std::process::ExitCode;

use clap::Parser as _;
use options::SoakOptions;

fn main() -> ExitCode {
    let options = SoakOptions::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let sound = runtime.expect("a runtime for the driver").block_on(driver::drive_soak(&options));
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
