//! The final table and, after faults, how to reproduce them.

use std::collections::BTreeMap;

use crate::fixture::SoakFixture;
use crate::memory::MemorySamples;
use crate::options::SoakOptions;
use crate::plan::{SoakScene, StopMethod};
use crate::results::{FAULT_KINDS, SoakCounts};

/// Faults that are printed in full.
const MAX_SHOWN_FAULTS: usize = 20;

/// Different warnings that are printed.
const MAX_SHOWN_WARNINGS: usize = 100;

/// Prints the report; true when there was no fault and memory did not grow.
#[expect(clippy::print_stdout, reason = "the report is the output of the soak")]
pub(crate) fn print_report(fixture: &SoakFixture, memory_samples: &MemorySamples, options: &SoakOptions) -> bool {
    let facts = fixture.results.lock();
    let (memory_line, flat) = memory_samples.compare();
    println!("{}", scene_table(&facts.stops));
    let line = |name: &str, text: String| println!("{name:<30} {text}");
    line("seed", options.seed.to_string());
    let minutes = fixture.started_at.elapsed().as_secs_f64() / 60.0;
    line("time", format!("{minutes:.1} min, {} sessions, {} at once", options.sessions, options.at_once));
    line("runs", format!("{} ended, {} of them sub-runs, in {} rounds", facts.audited, facts.sub_runs, facts.rounds));
    line("stops", stops_text(fixture, &facts));
    line("", format!("{} forced, {} doubled, {} readers disconnected", facts.forced, facts.doubled, facts.deserted));
    let (effective, cleanup) = (facts.effective_stops, facts.cleanup_stops);
    line("", format!("{effective} rounds had a run stopped by their own stop; {cleanup} stops for clean-up"));
    if options.nodes.get() > 1 {
        line("", format!("{} answered before all nodes had, which is said in the answer", facts.unconfirmed_stops));
    }
    for (verdict, count) in &facts.ends {
        line("ends", format!("{count:>7}  {verdict}"));
    }
    line("stop asked to answered", facts.answer_times.to_string());
    line("stop asked to settled", facts.settle_times.to_string());
    let (requests, anthropic) = (fixture.model.server.request_count(), fixture.model.anthropic_requests());
    line("model requests", format!("{requests} with a checked history, {anthropic} in the Anthropic dialect"));
    let (audits, histories, checks) = (facts.audits, facts.histories_read, facts.marker_checks);
    line("audits at rest", format!("{audits}; {histories} histories read, {checks} checks for marked processes"));
    line("processes seen after the end", facts.late_exits.to_string());
    line("memory", memory_line);
    for (fault, name) in FAULT_KINDS {
        line(name, facts.fault_count(fault).to_string());
    }
    let sound = facts.faults.is_empty() && flat && !fixture.has_exited();
    for finding in facts.faults.iter().take(MAX_SHOWN_FAULTS) {
        println!("\n{} at {}: {}", finding.kind.name(), finding.about, finding.detail);
    }
    if sound {
        println!("\nno leaks, no faults");
    } else {
        let (seed, minutes) = (options.seed, options.time.as_secs_f64() / 60.0);
        println!("\nto reproduce: cargo xtask soak --seed {seed} --minutes {minutes:.1} --nodes {}", options.nodes);
        for daemon in &fixture.daemons {
            println!("the output of daemon {}: {}", daemon.pid(), last_lines(&daemon.output()));
        }
        for (warning, count) in fixture.warnings().into_iter().take(MAX_SHOWN_WARNINGS) {
            println!("{count:>5} x {warning}");
        }
    }
    sound
}

fn stops_text(fixture: &SoakFixture, facts: &SoakCounts) -> String {
    let stops = facts.stops();
    #[expect(clippy::cast_precision_loss, reason = "a count of stops")]
    let rate = stops as f64 * 60.0 / fixture.started_at.elapsed().as_secs_f64();
    format!("{stops} ({rate:.0} a minute)")
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
