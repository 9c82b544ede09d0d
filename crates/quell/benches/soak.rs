//! Random runs and random stops on many sessions of the real binary, with everything checked all the while, in one table at the
//! end: `cargo xtask soak --minutes N`.
//!
//! Three processes: this one drives and judges; the daemon is the real `quell`, spoken to over its doors only; the scripted
//! model, which refuses every history that a provider would refuse, is this program again under another argument.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a soak stands outside of every scope, and one that cannot go on has nothing better to do than panic"
)]

#[path = "soak/audit.rs"]
mod audit;
#[path = "soak/chance.rs"]
mod chance;
#[path = "soak/drive.rs"]
mod drive;
#[path = "soak/feed.rs"]
mod feed;
#[path = "soak/histories.rs"]
mod histories;
#[path = "soak/marks.rs"]
mod marks;
#[path = "soak/memory.rs"]
mod memory;
#[path = "soak/model.rs"]
mod model;
#[path = "soak/options.rs"]
mod options;
#[path = "soak/plan.rs"]
mod plan;
#[path = "soak/report.rs"]
mod report;
#[path = "soak/round.rs"]
mod round;
#[path = "soak/scenes.rs"]
mod scenes;
#[path = "soak/script.rs"]
mod script;
#[path = "soak/site.rs"]
mod site;
#[path = "soak/strikes.rs"]
mod strikes;
#[path = "soak/tally.rs"]
mod tally;
#[path = "stop/times.rs"]
mod times;

use std::process::ExitCode;

use options::{Asked, Options};

fn main() -> ExitCode {
    match options::read(std::env::args().skip(1)) {
        Ok(Asked::ModelServer) => {
            model::serve();
            ExitCode::SUCCESS
        }
        Ok(Asked::Soak(options)) => soak(&options),
        Err(problem) => {
            eprintln!("soak: {problem}\n{}", options::USAGE);
            ExitCode::FAILURE
        }
    }
}

fn soak(options: &Options) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let sound = runtime.expect("a runtime for the driver").block_on(drive::soak(options));
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
