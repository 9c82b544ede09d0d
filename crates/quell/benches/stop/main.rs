//! The bench: measures stop latency, memory and throughput against a baseline in the same run. Run it with `cargo
//! xtask bench`.
//!
//! The baseline of a stop is a bare HTTP client that drops its own socket. Baseline and product alternate sample by
//! sample, so that a noisy machine affects both. The daemon is the real release binary; the model server records when
//! a client has left.

#![expect(clippy::unwrap_used, reason = "a bench may panic")]

mod baseline;
mod channels;
mod chat;
mod cluster;
mod cluster_load;
mod concurrent_stops;
mod connection_load;
mod mcp;
mod model_apis;
mod page;
mod processes;
mod recovery;
mod report;
mod sessions;
mod single;
mod startup;
mod subtree;
mod times;

use std::path::Path;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use report::BenchReport;

fn quell() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_quell"))
}

/// Resident memory of a process in KiB.
fn rss_kib(pid: u32) -> f64 {
    f64::from(u32::try_from(quell_testkit::leaks::rss_bytes(pid).unwrap() / 1024).unwrap())
}

/// The configuration of a daemon with one scripted provider and room for many runs.
fn config(base_url: &str) -> String {
    format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{base_url}\"\n\n[agents.main]\nmodel = \"scripted/model\"\n\n\
         [server]\nrequests_per_minute = 0\n[limits]\nin_flight_runs = 4000\nmax_steps = 1000000\n"
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
    let report = BenchReport::default();
    let measurements: [(&str, LocalBoxFuture<'_, ()>); 21] = [
        ("start", startup::measure(&report).boxed_local()),
        ("single", single::measure(&report, samples, single::BackgroundLoad::Idle).boxed_local()),
        ("loaded", single::measure(&report, samples, single::BackgroundLoad::Searching).boxed_local()),
        ("channels-take", channels::measure_intake(&report).boxed_local()),
        ("channels-answer", channels::measure_answers(&report).boxed_local()),
        ("channels-stop", channels::measure_stops(&report).boxed_local()),
        ("channels-sanitiser", async { channels::sanitiser::measure(&report) }.boxed_local()),
        ("chat", chat::measure(&report, samples.min(50)).boxed_local()),
        ("crowds", connection_load::measure(&report).boxed_local()),
        ("processes", processes::measure(&report, samples).boxed_local()),
        ("mcp", mcp::measure(&report, samples.min(100)).boxed_local()),
        ("model-apis", model_apis::measure(&report, samples.min(100)).boxed_local()),
        ("many", concurrent_stops::measure_few_and_many(&report).boxed_local()),
        ("subtree", subtree::measure(&report).boxed_local()),
        ("parallel-calls", subtree::measure_parallel_calls(&report).boxed_local()),
        ("recovery", recovery::measure(&report).boxed_local()),
        ("sessions", sessions::measure(&report).boxed_local()),
        ("page", page::measure(&report).boxed_local()),
        ("cluster", cluster::measure(&report, samples.min(100)).boxed_local()),
        ("cluster-load", cluster_load::measure(&report).boxed_local()),
        ("memory", concurrent_stops::measure_memory(&report, 1000).boxed_local()),
    ];
    runtime.block_on(async {
        for (_, measurement) in measurements.into_iter().filter(|(name, _)| wanted(name)) {
            measurement.await;
        }
    });
    report.print();
}
