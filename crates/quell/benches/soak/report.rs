//! The final table and, after faults, how to reproduce them.

use std::collections::BTreeMap;

use crate::audit::SoakAuditor;
use crate::fixture::SoakFixture;
use crate::memory::MemorySamples;
use crate::options::SoakOptions;
use crate::plan::{SoakScene, StopMethod};
use crate::results::{FAULT_KINDS, SoakCounts};
use crate::times::Times;

/// Largest allowed ratio of memory in the last part to memory in the first.
const MAX_MEMORY_GROWTH: f64 = 1.10;
/// Faults that are printed in full.
const MAX_SHOWN_FAULTS: usize = 20;

/// Prints the report; true when there was no fault and memory did not grow.
#[expect(clippy::print_stdout, reason = "the report is the output of the soak")]
pub(crate) fn print_report(
    fixture: &SoakFixture,
    auditor: &SoakAuditor,
    memory_samples: &MemorySamples,
    options: &SoakOptions,
) -> bool {
    let facts = fixture.results.lock();
    let (memory_line, flat) = memory_text(memory_samples);
    println!("{}", scene_table(&facts.stops));
    let line = |name: &str, text: String| println!("{name:<30} {text}");
    line("seed", options.seed.to_string());
    line(
        "time",
        format!(
            "{:.1} min, {} sessions, {} at once",
            fixture.started_at.elapsed().as_secs_f64() / 60.0,
            options.sessions,
            options.at_once
        ),
    );
    line("runs", format!("{} ended, {} of them sub-runs, in {} rounds", facts.audited, facts.sub_runs, facts.rounds));
    line("stops", stops_text(fixture, &facts));
    line("", format!("{} forced, {} doubled, {} readers disconnected", facts.forced, facts.doubled, facts.deserted));
    line(
        "",
        format!(
            "{} rounds had a run stopped by their own stop; {} stops for clean-up",
            facts.effective_stops, facts.cleanup_stops
        ),
    );
    for (verdict, count) in &facts.ends {
        line("ends", format!("{count:>7}  {verdict}"));
    }
    line("stop asked to answered", times_text(&facts.answer_times));
    line("stop asked to settled", times_text(&facts.settle_times));
    let SoakAuditor { model_status: status, .. } = auditor;
    line(
        "model requests",
        format!("{} with a checked history, {} in the Anthropic dialect", status.requests, status.anthropic),
    );
    line(
        "audits at rest",
        format!(
            "{}; {} histories read, {} checks for marked processes",
            facts.audits, facts.histories_read, facts.marker_checks
        ),
    );
    line(
        "processes seen after the end",
        format!(
            "{}, gone after at most {:.0} ms",
            facts.late_exits.len(),
            if facts.late_exits.len() == 0 { 0.0 } else { facts.late_exits.max() }
        ),
    );
    line("memory", memory_line);
    for (fault, name) in FAULT_KINDS {
        line(name, facts.fault_count(fault).to_string());
    }
    let sound = facts.faults.is_empty() && flat && !fixture.daemon.has_exited();
    for finding in facts.faults.iter().take(MAX_SHOWN_FAULTS) {
        println!("\n{} at {}: {}", finding.kind.name(), finding.about, finding.detail);
    }
    if sound {
        println!("\nno leaks, no faults");
    } else {
        println!(
            "\nto reproduce: cargo xtask soak --seed {} --minutes {:.1}",
            options.seed,
            options.time.as_secs_f64() / 60.0
        );
        println!("the daemon's output: {}", last_lines(&fixture.daemon.output()));
    }
    sound
}

fn stops_text(fixture: &SoakFixture, facts: &SoakCounts) -> String {
    let stops = facts.stops();
    #[expect(clippy::cast_precision_loss, reason = "a count of stops")]
    let rate = stops as f64 * 60.0 / fixture.started_at.elapsed().as_secs_f64();
    format!("{stops} ({rate:.0} a minute)")
}

fn memory_text(memory_samples: &MemorySamples) -> (String, bool) {
    match memory_samples.trend() {
        Some(trend) => {
            let flat = trend.ratio() <= MAX_MEMORY_GROWTH;
            let word = if flat { "flat" } else { "GROWS" };
            let (first, last, percent) = (trend.first, trend.last, (trend.ratio() - 1.0) * 100.0);
            (format!("{first:.1} MiB, {last:.1} MiB, {percent:+.1} %: {word}; {}", trend.spans), flat)
        }
        None => ("too few samples".to_owned(), true),
    }
}

fn times_text(times: &Times) -> String {
    if times.len() == 0 {
        return "none".to_owned();
    }
    format!("median {:.1} ms, p99 {:.0} ms, max {:.0} ms, of {}", times.median(), times.p99(), times.max(), times.len())
}

/// A table with a row for each scene and a column for each kind of stop.
fn scene_table(stops: &BTreeMap<(SoakScene, StopMethod), u64>) -> String {
    let mut surfaces: Vec<StopMethod> = stops.keys().map(|(_, surface)| *surface).collect();
    surfaces.sort_unstable();
    surfaces.dedup();
    let mut scenes: Vec<SoakScene> = stops.keys().map(|(scene, _)| *scene).collect();
    scenes.dedup();
    let count = |scene: SoakScene, surface: StopMethod| stops.get(&(scene, surface)).copied().unwrap_or(0);
    let mut text = format!("{:<21}", "");
    for surface in &surfaces {
        text += &format!("{:>15}", surface.name());
    }
    for scene in &scenes {
        text += &format!("\n{:<21}", scene.name());
        for surface in &surfaces {
            text += &format!("{:>15}", count(*scene, *surface));
        }
    }
    text += &format!("\n{:<21}", "all");
    for surface in &surfaces {
        let sum: u64 = scenes.iter().map(|scene| count(*scene, *surface)).sum();
        text += &format!("{sum:>15}");
    }
    text + "\n"
}

fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n  ")
}
