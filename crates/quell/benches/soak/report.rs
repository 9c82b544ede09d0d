//! The table at the end, and with faults the way to see them again.

use std::collections::BTreeMap;

use crate::audit::Auditor;
use crate::memory::Memory;
use crate::options::Options;
use crate::plan::{Scene, Surface};
use crate::site::Site;
use crate::tally::{Facts, Fault};
use crate::times::Times;

/// Most that memory may grow from the first part to the last.
const GROWTH: f64 = 1.10;
/// Faults that are told in full.
const TOLD: usize = 20;

/// Prints it; true when everything that must be zero is.
#[expect(clippy::print_stdout, reason = "the table is what a soak is for")]
pub(crate) fn print(site: &Site, auditor: &Auditor, memory: &Memory, options: &Options) -> bool {
    let facts = site.tally.facts();
    let (memory_line, flat) = memory_line(memory);
    println!("{}", crosses(&facts.stops));
    let line = |name: &str, text: String| println!("{name:<30} {text}");
    line("seed", options.seed.to_string());
    line(
        "time",
        format!(
            "{:.1} min, {} sessions, {} at once",
            site.begun.elapsed().as_secs_f64() / 60.0,
            options.sessions,
            options.at_once
        ),
    );
    line("runs", format!("{} ended, {} of them sub-runs, in {} rounds", facts.audited, facts.sub_runs, facts.rounds));
    line("stops", stops(site, &facts));
    line(
        "",
        format!("{} forced, {} doubled, {} readers left in the middle", facts.forced, facts.doubled, facts.deserted),
    );
    line("", format!("{} rounds had a run stopped by their own; {} stops tidied up", facts.struck, facts.tidied));
    for (verdict, count) in &facts.ends {
        line("ends", format!("{count:>7}  {verdict}"));
    }
    line("stop asked to answered", times(&facts.answered));
    line("stop asked to settled", times(&facts.settled));
    let Auditor { standing, .. } = auditor;
    line(
        "model requests",
        format!("{} with a checked history, {} in the Anthropic dialect", standing.requests, standing.anthropic),
    );
    line(
        "audits at rest",
        format!(
            "{}; {} histories read, {} looks for marked processes",
            facts.audits, facts.histories_read, facts.looks
        ),
    );
    line(
        "processes seen after the end",
        format!(
            "{}, gone after at most {:.0} ms",
            facts.late.len(),
            if facts.late.len() == 0 { 0.0 } else { facts.late.max() }
        ),
    );
    line("memory", memory_line);
    for fault in Fault::ALL {
        line(fault.name(), facts.faults(fault).to_string());
    }
    let sound = facts.findings.is_empty() && flat && !site.daemon.has_ended();
    for finding in facts.findings.iter().take(TOLD) {
        println!("\n{} at {}: {}", finding.fault.name(), finding.about, finding.detail);
    }
    if sound {
        println!("\nnothing leaked, nothing broken");
    } else {
        println!(
            "\nagain: cargo xtask soak --seed {} --minutes {:.1}",
            options.seed,
            options.time.as_secs_f64() / 60.0
        );
        println!("the daemon's output: {}", tail(&site.daemon.output()));
    }
    sound
}

fn stops(site: &Site, facts: &Facts) -> String {
    let stops = facts.stops();
    #[expect(clippy::cast_precision_loss, reason = "a count of stops")]
    let rate = stops as f64 * 60.0 / site.begun.elapsed().as_secs_f64();
    format!("{stops} ({rate:.0} a minute)")
}

fn memory_line(memory: &Memory) -> (String, bool) {
    match memory.course() {
        Some(course) => {
            let flat = course.ratio() <= GROWTH;
            let word = if flat { "flat" } else { "GROWS" };
            let (first, last, percent) = (course.first, course.last, (course.ratio() - 1.0) * 100.0);
            (format!("{first:.1} MiB, {last:.1} MiB, {percent:+.1} %: {word}; {}", course.spans), flat)
        }
        None => ("too short to say".to_owned(), true),
    }
}

fn times(times: &Times) -> String {
    if times.len() == 0 {
        return "none".to_owned();
    }
    format!("median {:.1} ms, p99 {:.0} ms, max {:.0} ms, of {}", times.median(), times.p99(), times.max(), times.len())
}

/// Scenes down, surfaces across.
fn crosses(stops: &BTreeMap<(Scene, Surface), u64>) -> String {
    let mut surfaces: Vec<Surface> = stops.keys().map(|(_, surface)| *surface).collect();
    surfaces.sort_unstable();
    surfaces.dedup();
    let mut scenes: Vec<Scene> = stops.keys().map(|(scene, _)| *scene).collect();
    scenes.dedup();
    let count = |scene: Scene, surface: Surface| stops.get(&(scene, surface)).copied().unwrap_or(0);
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

fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n  ")
}
