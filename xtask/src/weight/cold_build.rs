//! Build the binary in an empty target directory, and measure what that takes.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};

use super::record::BuildRecord;
use super::rustc_wrapper::{self, IR_VARIABLE, LOG_VARIABLE};
use super::{binary, cpu_clock, timings};
use crate::{command, run_checked};

/// A source tree, and where and how its binary is built.
pub(super) struct BuildPlan {
    pub(super) tree: PathBuf,
    pub(super) target: PathBuf,
    pub(super) profile: String,
}

/// What a build took. CPU is that of all its processes.
#[derive(Clone, Copy)]
pub(super) struct BuildCost {
    pub(super) cpu_seconds: f64,
    pub(super) wall_seconds: f64,
}

impl BuildPlan {
    pub(super) fn binary(&self) -> PathBuf {
        // The two oldest profiles have a directory of another name.
        let folder = if matches!(self.profile.as_str(), "dev" | "test") { "debug" } else { &self.profile };
        self.target.join(folder).join("quell")
    }

    /// Builds without any measurement, on top of what the target directory has.
    pub(super) fn build(&self) -> anyhow::Result<()> {
        run_checked(&mut self.cargo_build())
    }

    /// Deletes the target directory, downloads what is missing, and builds.
    pub(super) fn build_cold(&self) -> anyhow::Result<BuildCost> {
        remove_dir(&self.target)?;
        self.run_cold(&mut self.cargo_build())
    }

    /// Like [`Self::build_cold`], and measures each crate and the binary. Symbols are kept in the binary.
    pub(super) fn measure(&self, commit: String) -> anyhow::Result<BuildRecord> {
        let log = self.target.join("rustc.jsonl");
        let mut build = self.cargo_build_wrapped(&log)?;
        let cost = self.run_cold(build.arg("--timings"))?;
        let calls = rustc_wrapper::parse_log(&fs::read_to_string(&log)?)?;
        let mut record = BuildRecord {
            commit,
            profile: self.profile.clone(),
            cpu_seconds: cost.cpu_seconds,
            wall_seconds: cost.wall_seconds,
            ..BuildRecord::default()
        };
        record.add_calls(&calls);
        let (sizes, code) = binary::measure(&self.binary())?;
        record.binary = sizes;
        record.add_code(&calls, &code);
        let page = self.target.join("cargo-timings/cargo-timing.html");
        match fs::read_to_string(page).ok().and_then(|page| timings::parse_build_scripts(&page)) {
            Some(scripts) => {
                for (package, seconds) in scripts {
                    record.packages.entry(package).or_default().build_script_seconds += seconds;
                }
            }
            None => eprintln!("the report of --timings has another form; build scripts have no times of their own"),
        }
        Ok(record)
    }

    /// Builds again, in a target directory of its own, and counts the lines of LLVM IR by package.
    pub(super) fn count_llvm_lines(&self, record: &mut BuildRecord) -> anyhow::Result<()> {
        let plan = Self { tree: self.tree.clone(), target: self.target.join("ir"), profile: self.profile.clone() };
        let log = plan.target.join("rustc.jsonl");
        let mut build = plan.cargo_build_wrapped(&log)?;
        // The IR is that of each crate. Optimisation of all together would take most of the time.
        build.env(IR_VARIABLE, "1").env(profile_variable(&plan.profile, "LTO"), "off");
        plan.run_cold(&mut build)?;
        for call in rustc_wrapper::parse_log(&fs::read_to_string(&log)?)? {
            if let Some(package) = record.packages.get_mut(&call.package) {
                package.llvm_lines += call.llvm_lines;
            }
        }
        remove_dir(&plan.target)
    }

    fn cargo_build(&self) -> Command {
        let arguments = ["build", "--package", "quell", "--bin", "quell", "--locked", "--profile", &self.profile];
        let mut command = self.cargo(&arguments);
        // A wrapper from the user's configuration would answer from its cache.
        command.env("RUSTC_WRAPPER", "");
        command
    }

    /// Prepares a build in which a copy of xtask calls rustc. Another xtask may be built meanwhile.
    fn cargo_build_wrapped(&self, log: &Path) -> anyhow::Result<Command> {
        remove_dir(&self.target)?;
        fs::create_dir_all(&self.target)?;
        let wrapper = self.target.join("rustc-wrapper");
        fs::copy(std::env::current_exe()?, &wrapper).context("xtask cannot be copied")?;
        let mut command = self.cargo_build();
        command.env("RUSTC_WRAPPER", wrapper).env(LOG_VARIABLE, log);
        command.env(profile_variable(&self.profile, "STRIP"), "none");
        Ok(command)
    }

    fn run_cold(&self, build: &mut Command) -> anyhow::Result<BuildCost> {
        run_checked(&mut self.cargo(&["fetch", "--locked"]))?;
        let (cpu, begun) = (cpu_clock::children_cpu_seconds()?, Instant::now());
        run_checked(build)?;
        let wall_seconds = begun.elapsed().as_secs_f64();
        Ok(BuildCost { cpu_seconds: cpu_clock::children_cpu_seconds()? - cpu, wall_seconds })
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = command("cargo", arguments.iter().map(OsStr::new));
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
        command
    }
}

/// Refuses a directory with other content, because the target directory is deleted.
pub(super) fn check_target(target: &Path) -> anyhow::Result<()> {
    let is_own = !target.exists() || target.join("rustc.jsonl").exists();
    ensure!(is_own, "{} exists and is not from an earlier run", target.display());
    Ok(())
}

pub(super) fn remove_dir(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    Ok(())
}

fn profile_variable(profile: &str, key: &str) -> String {
    format!("CARGO_PROFILE_{}_{key}", profile.to_uppercase().replace('-', "_"))
}

/// The profile `dist`, or `release` for a tree from before `dist` was there.
pub(super) fn shipped_profile(manifest: &str) -> anyhow::Result<&'static str> {
    let table: toml::Table = manifest.parse()?;
    let has_dist = table.get("profile").is_some_and(|profiles| profiles.get("dist").is_some());
    Ok(if has_dist { "dist" } else { "release" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_without_a_dist_profile_ships_its_release_build() {
        assert_eq!(shipped_profile("[profile.dist]\ninherits = \"release\"\n").unwrap(), "dist");
        assert_eq!(shipped_profile("[profile.release]\nlto = \"thin\"\n").unwrap(), "release");
        assert_eq!(shipped_profile("").unwrap(), "release");
    }

    #[test]
    fn variables_of_a_profile_are_named_as_cargo_reads_them() {
        assert_eq!(profile_variable("dist-small", "LTO"), "CARGO_PROFILE_DIST_SMALL_LTO");
    }
}
