//! The bench: measures stop latency, memory and throughput against a baseline in the same run. Run it with `cargo
//! xtask bench`.
//!
//! The baseline of a stop is a bare HTTP client that drops its own socket. Baseline and product alternate sample by
//! sample, so that a noisy machine affects both. The daemon is the real release binary; the model server records when
//! a client has left.

#![expect(clippy::unwrap_used, reason = "a bench may panic")]

#[path = "stop/baseline.rs"]
mod baseline;
#[path = "stop/channels.rs"]
mod channels;
#[path = "stop/chat.rs"]
mod chat;
#[path = "stop/concurrent_stops.rs"]
mod concurrent_stops;
#[path = "stop/connection_load.rs"]
mod connection_load;
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
#[path = "stop/startup.rs"]
mod startup;
#[path = "stop/subtree.rs"]
mod subtree;
#[path = "stop/times.rs"]
mod times;

use std::path::Path;

use report::BenchReport;

fn quell() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_quell"))
}

/// The configuration of a daemon with one scripted provider and room for many runs.
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
    let mut report = BenchReport::default();
    runtime.block_on(async {
        if wanted("start") {
            startup::measure(&mut report).await;
        }
        if wanted("single") {
            single::measure(&mut report, samples, single::BackgroundLoad::Idle).await;
        }
        if wanted("loaded") {
            single::measure(&mut report, samples, single::BackgroundLoad::Searching).await;
        }
        if wanted("channels-take") {
            channels::measure_intake(&mut report).await;
        }
        if wanted("channels-answer") {
            channels::measure_answers(&mut report).await;
        }
        if wanted("channels-stop") {
            channels::measure_stops(&mut report).await;
        }
        if wanted("channels-sanitiser") {
            channels::measure_sanitiser(&mut report);
        }
        if wanted("chat") {
            chat::measure(&mut report, samples.min(50)).await;
        }
        if wanted("crowds") {
            connection_load::measure(&mut report).await;
        }
        if wanted("processes") {
            processes::measure(&mut report, samples).await;
        }
        if wanted("mcp") {
            mcp::measure(&mut report, samples.min(100)).await;
        }
        if wanted("many") {
            concurrent_stops::measure(&mut report, 50).await;
            concurrent_stops::measure(&mut report, 1000).await;
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
            concurrent_stops::measure_memory(&mut report, 1000).await;
        }
    });
    report.print();
}
