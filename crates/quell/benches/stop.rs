//! Measures what Quell promises, against the physical floor in the same run: `cargo xtask bench`.
//!
//! The floor of a stop is a bare client that drops its own socket. Floor and product alternate sample by sample, so that a
//! noisy machine is noisy for both. The daemon is the real release binary; the model server counts when a client left.

#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has nothing better to do than panic")]

#[path = "stop/channels.rs"]
mod channels;
#[path = "stop/chat.rs"]
mod chat;
#[path = "stop/crowds.rs"]
mod crowds;
#[path = "stop/floor.rs"]
mod floor;
#[path = "stop/many.rs"]
mod many;
#[path = "stop/mcp.rs"]
mod mcp;
#[path = "stop/page.rs"]
mod page;
#[path = "stop/processes.rs"]
mod processes;
#[path = "stop/recovery.rs"]
mod recovery;
#[path = "stop/report.rs"]
mod report;
#[path = "stop/sessions.rs"]
mod sessions;
#[path = "stop/single.rs"]
mod single;
#[path = "stop/start.rs"]
mod start;
#[path = "stop/subtree.rs"]
mod subtree;
#[path = "stop/times.rs"]
mod times;

use std::path::Path;

use report::Report;

/// The binary under measurement.
fn quell() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_quell"))
}

/// A daemon's configuration with one scripted provider and room for many runs.
fn config(base_url: &str) -> String {
    format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{base_url}\"\n\n[agents.main]\nmodel = \"scripted/model\"\n\n\
         [limits]\nin_flight_runs = 4000\nmax_steps = 1000000\n"
    )
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let samples = args.iter().find_map(|arg| arg.strip_prefix("--samples=")?.parse().ok()).unwrap_or(200);
    let wanted = |name: &str| {
        let named: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
        named.is_empty() || named.iter().any(|arg| name.contains(arg.as_str()))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut report = Report::default();
    runtime.block_on(async {
        if wanted("start") {
            start::measure(&mut report).await;
        }
        if wanted("single") {
            single::measure(&mut report, samples, single::Load::Idle).await;
        }
        if wanted("loaded") {
            single::measure(&mut report, samples, single::Load::Searching).await;
        }
        if wanted("channels-take") {
            channels::take(&mut report).await;
        }
        if wanted("channels-answer") {
            channels::answer(&mut report).await;
        }
        if wanted("channels-stop") {
            channels::stop(&mut report).await;
        }
        if wanted("channels-sanitiser") {
            channels::sanitise(&mut report);
        }
        if wanted("chat") {
            chat::measure(&mut report, samples.min(50)).await;
        }
        if wanted("crowds") {
            crowds::measure(&mut report).await;
        }
        if wanted("processes") {
            processes::measure(&mut report, samples).await;
        }
        if wanted("mcp") {
            mcp::measure(&mut report, samples.min(100)).await;
        }
        if wanted("many") {
            many::measure(&mut report, 50).await;
            many::measure(&mut report, 1000).await;
        }
        if wanted("subtree") {
            subtree::measure(&mut report).await;
        }
        if wanted("recovery") {
            recovery::measure(&mut report).await;
        }
        if wanted("sessions") {
            sessions::measure(&mut report).await;
        }
        if wanted("page") {
            page::measure(&mut report).await;
        }
        if wanted("memory") {
            many::memory(&mut report, 1000).await;
        }
    });
    report.print();
}
