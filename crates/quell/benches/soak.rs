//! The soak: random runs and stops on many sessions of the real binary, with constant checks and a table at the end.
//! Run it with `cargo xtask soak --minutes N`.
//!
//! There are three processes. This one drives and checks. The daemon is the real `quell`, reached through its server
//! only. The scripted model is this program with another argument; it rejects each history that a provider would
//! reject.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "the soak starts processes and tasks outside of any scope, and may panic"
)]

#[path = "soak/audit.rs"]
mod audit;
#[path = "soak/driver.rs"]
mod driver;
#[path = "soak/fixture.rs"]
mod fixture;
#[path = "soak/histories.rs"]
mod histories;
#[path = "soak/marker_scan.rs"]
mod marker_scan;
#[path = "soak/memory.rs"]
mod memory;
#[path = "soak/model.rs"]
mod model;
#[path = "soak/model_protocol.rs"]
mod model_protocol;
#[path = "soak/options.rs"]
mod options;
#[path = "soak/plan.rs"]
mod plan;
#[path = "soak/random.rs"]
mod random;
#[path = "soak/report.rs"]
mod report;
#[path = "soak/results.rs"]
mod results;
#[path = "soak/round.rs"]
mod round;
#[path = "soak/run_ends.rs"]
mod run_ends;
#[path = "soak/scenes.rs"]
mod scenes;
#[path = "soak/stop_requests.rs"]
mod stop_requests;
#[path = "stop/times.rs"]
mod times;

use std::process::ExitCode;

use options::{SoakInvocation, SoakOptions};

fn main() -> ExitCode {
    match options::parse_options(std::env::args().skip(1)) {
        Ok(SoakInvocation::ModelServer) => {
            model::run_model_server();
            ExitCode::SUCCESS
        }
        Ok(SoakInvocation::Soak(options)) => run_soak(&options),
        Err(problem) => {
            eprintln!("soak: {problem}\n{}", options::USAGE);
            ExitCode::FAILURE
        }
    }
}

fn run_soak(options: &SoakOptions) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let sound = runtime.expect("a runtime for the driver").block_on(driver::drive_soak(options));
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
