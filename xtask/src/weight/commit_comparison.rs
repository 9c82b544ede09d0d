//! What depends on the machine, for this tree and the commit before, measured in turn in the same run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

use super::cold_build::{BuildCost, BuildPlan, shipped_profile};
use super::daemon_start::{DaemonHome, DaemonStart};
use super::read_text;
use super::tables::ratio;
use super::worktree::{self, Worktree};

pub(super) struct ComparisonOptions {
    /// Builds on top of earlier builds and leaves out their cost.
    pub(super) quick: bool,
    /// Instead of the commit before.
    pub(super) against: Option<String>,
    pub(super) starts: usize,
}

/// One of the two trees.
struct Side {
    tree: PathBuf,
    target: PathBuf,
    label: String,
    costs: BTreeMap<&'static str, BuildCost>,
    /// The profile that the binary is built with.
    shipped: &'static str,
}

/// Measures and returns a table. `folder` keeps the builds for the next run.
pub(super) fn compare_commits(root: &Path, folder: &Path, options: &ComparisonOptions) -> anyhow::Result<String> {
    let is_changed = worktree::has_changes()?;
    let before = if is_changed { "HEAD" } else { "HEAD~1" };
    let worktree = Worktree::add(folder.join("tree"), options.against.as_deref().unwrap_or(before))?;
    let label = worktree::short_commit("HEAD")? + if is_changed { " with changes" } else { "" };
    let mut sides = [
        Side::new(worktree.folder(), folder.join("before"), worktree.commit.clone())?,
        Side::new(root, folder.join("here"), label)?,
    ];
    if options.quick {
        sides.iter().try_for_each(|side| side.plan(side.shipped).build())?;
    } else {
        // The shipped build comes last and stays.
        for is_shipped in [false, true] {
            for side in &mut sides {
                side.build_cold(if is_shipped { side.shipped } else { "release" })?;
            }
        }
    }
    let [before, here] = &sides;
    let mut table = format!("| | {} | {} | here / before |\n|---|---|---|---|\n", before.label, here.label);
    let mut add = |name: &str, unit: &str, values: [Option<f64>; 2]| {
        let text = |value: Option<f64>| value.map_or("not measured".to_owned(), |value| format!("{value:.1}"));
        let [old, new] = values;
        let ratio = old.zip(new).map_or("–".to_owned(), |(old, new)| ratio(old, new));
        table += &format!("| {name}, {unit} | {} | {} | {ratio} |\n", text(old), text(new));
    };
    let cost = |side: &Side, shipped: bool, of: fn(&BuildCost) -> f64| {
        side.costs.get(if shipped { side.shipped } else { "release" }).map(of)
    };
    for (name, shipped) in [("`release`", false), ("`dist`", true)] {
        let values = |of| [before, here].map(|side| cost(side, shipped, of));
        add(&format!("cold build of {name}, CPU"), "s", values(|cost| cost.cpu_seconds));
        add(&format!("cold build of {name}, wall"), "s", values(|cost| cost.wall_seconds));
    }
    let sizes = [binary_mb(before)?, binary_mb(here)?];
    add("binary of `dist`", "MB", sizes.map(Some));
    let [old, new] = measure_starts(folder, &sides, options.starts)?;
    add("start to ready, median", "ms", [old.ready_ms(), new.ready_ms()]);
    add("fresh daemon, PSS, median", "MiB", [old.pss_mib(), new.pss_mib()]);
    add("fresh daemon, anonymous memory, median", "MiB", [old.anonymous_mib(), new.anonymous_mib()]);
    let notes = sides.iter().filter(|side| side.shipped != "dist");
    for side in notes {
        table += &format!("\n{} has no profile `dist`; its `release` stands for it.\n", side.label);
    }
    if old.memory().next().is_none() {
        table += "\nThe daemon hides its memory from other users than root.\n";
    }
    Ok(table + "\n" + &test_times(&root.join("target/test-times.json"))?)
}

impl Side {
    fn new(tree: &Path, target: PathBuf, label: String) -> anyhow::Result<Self> {
        let shipped = shipped_profile(&read_text(&tree.join("Cargo.toml"))?)?;
        Ok(Self { tree: tree.to_owned(), target, label, costs: BTreeMap::new(), shipped })
    }

    fn plan(&self, profile: &str) -> BuildPlan {
        BuildPlan { tree: self.tree.clone(), target: self.target.clone(), profile: profile.to_owned() }
    }

    /// Does nothing if this profile was built in this run.
    fn build_cold(&mut self, profile: &'static str) -> anyhow::Result<()> {
        if !self.costs.contains_key(profile) {
            let cost = self.plan(profile).build_cold()?;
            self.costs.insert(profile, cost);
        }
        Ok(())
    }
}

fn binary_mb(side: &Side) -> anyhow::Result<f64> {
    let binary = side.plan(side.shipped).binary();
    let size = fs::metadata(&binary).with_context(|| format!("{} is missing", binary.display()))?;
    Ok(size.len() as f64 / 1e6)
}

/// The starts of one side.
#[derive(Default)]
struct Starts(Vec<DaemonStart>);

impl Starts {
    fn ready_ms(&self) -> Option<f64> {
        median(self.0.iter().map(|start| start.ready.as_secs_f64() * 1000.0).collect())
    }

    fn memory(&self) -> impl Iterator<Item = super::daemon_start::DaemonMemory> {
        self.0.iter().filter_map(|start| start.memory)
    }

    fn pss_mib(&self) -> Option<f64> {
        median(self.memory().map(|memory| memory.pss_kib as f64 / 1024.0).collect())
    }

    fn anonymous_mib(&self) -> Option<f64> {
        median(self.memory().map(|memory| memory.anonymous_kib as f64 / 1024.0).collect())
    }
}

/// Starts the two daemons in turn, so that both meet the same load of the machine.
fn measure_starts(folder: &Path, sides: &[Side; 2], count: usize) -> anyhow::Result<[Starts; 2]> {
    let [before, here] = sides;
    let homes = [
        DaemonHome::create(before.plan(before.shipped).binary(), folder.join("home-before"))?,
        DaemonHome::create(here.plan(here.shipped).binary(), folder.join("home-here"))?,
    ];
    let mut starts = [Starts::default(), Starts::default()];
    for _ in 0..count {
        for (home, starts) in homes.iter().zip(&mut starts) {
            starts.0.push(home.start()?);
        }
    }
    Ok(starts)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// What the last runs of the test tiers have written, one line each.
fn test_times(path: &Path) -> anyhow::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) => parse_test_times(&text).with_context(|| path.display().to_string()),
        Err(_) => Ok("Test tiers: no times, because none has run in this tree.\n".to_owned()),
    }
}

fn parse_test_times(text: &str) -> anyhow::Result<String> {
    let tiers: BTreeMap<String, Value> = serde_json::from_str(text)?;
    let lines = tiers.iter().map(|(tier, seconds)| {
        let seconds = seconds.as_f64().with_context(|| format!("{tier} has no number of seconds"))?;
        Ok(format!("Test tier {tier}, last run: {seconds:.0} s\n"))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_value_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn times_of_tiers_are_read_from_their_record() {
        let text = parse_test_times(r#"{"full": 1800.4, "default": 250}"#).unwrap();
        assert_eq!(text, "Test tier default, last run: 250 s\nTest tier full, last run: 1800 s\n");
        assert!(parse_test_times(r#"{"full": "long"}"#).is_err());
    }
}
