//! `cargo xtask weight`: what the build, the binary, the daemon and the page weigh.
//!
//! `check` compares sizes that are equal on every machine with the budgets in `weight.toml`. Everything else measures and
//! judges nothing. docs/design/weight.md says what the figures mean.
#![expect(clippy::print_stdout, reason = "the figures are the output of this command")]

mod binary;
mod budgets;
mod cold_build;
mod commit_comparison;
mod cpu_clock;
mod daemon_start;
mod first_load;
mod options;
mod record;
mod rustc_wrapper;
mod symbols;
mod tables;
mod timings;
mod worktree;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use self::budgets::MeasuredSize;
use self::cold_build::BuildPlan;
use self::commit_comparison::ComparisonOptions;
use self::options::Options;
use self::record::BuildRecord;
pub(crate) use self::rustc_wrapper::{is_rustc_wrapper, run_rustc};
use self::worktree::Worktree;
use crate::structure;

/// Starts of each binary, of which the median counts.
const DEFAULT_STARTS: usize = 21;

/// Runs one of the commands that `USAGE` describes.
pub(crate) fn run(root: &Path, args: &[String]) -> anyhow::Result<()> {
    let folder = root.join("target/weight");
    match args.split_first().map(|(command, rest)| (command.as_str(), rest)) {
        Some(("check", [])) => check(root),
        Some(("build", rest)) => {
            build(root, &folder, &Options::parse(rest, &["--profile", "--keep", "--commit", "--out"], &["--ir"])?)
        }
        Some(("table", files)) if files.len() > 1 => {
            let records: Vec<BuildRecord> = files.iter().map(|file| read_record(file)).collect::<Result<_, _>>()?;
            print!("{}", tables::comparison_table(&records));
            Ok(())
        }
        Some((option, _)) if !option.starts_with("--") => {
            bail!("`weight {}` is not a command; see `cargo xtask help`", args.join(" "))
        }
        _ => compare(root, &folder, &Options::parse(args, &["--against", "--starts"], &["--quick"])?),
    }
}

fn check(root: &Path) -> anyhow::Result<()> {
    let budgets = budgets::parse_budgets(&read_text(&root.join("weight.toml"))?).context("weight.toml")?;
    let lines = structure::count_lines(root)?;
    let page = first_load::first_load(|path| read_text(&root.join("web").join(path)))?;
    let sizes = [
        MeasuredSize { name: "packages", value: budgets::count_packages(&read_text(&root.join("Cargo.lock"))?)? },
        MeasuredSize { name: "product_lines", value: lines.product },
        MeasuredSize { name: "test_lines", value: lines.tests },
        MeasuredSize { name: "first_load_bytes", value: page.values().sum() },
    ];
    print!("{}", budgets::compare(&budgets, &sizes)?);
    Ok(())
}

fn build(root: &Path, folder: &Path, options: &Options) -> anyhow::Result<()> {
    let profile = options.value("--profile").unwrap_or("release");
    let worktree =
        options.value("--commit").map(|revision| Worktree::add(folder.join("tree"), revision)).transpose()?;
    let commit = match &worktree {
        Some(worktree) => worktree.commit.clone(),
        None if worktree::has_changes()? => worktree::short_commit("HEAD")? + " with changes",
        None => worktree::short_commit("HEAD")?,
    };
    let out = options.value("--out").map_or_else(|| folder.join(format!("{profile}.json")), PathBuf::from);
    let kept = options.value("--keep").map(std::path::absolute).transpose()?;
    let plan = BuildPlan {
        tree: worktree.as_ref().map_or(root, Worktree::folder).to_owned(),
        target: kept.clone().unwrap_or_else(|| folder.join("build")),
        profile: profile.to_owned(),
    };
    cold_build::check_target(&plan.target)?;
    let mut record = plan.measure(commit)?;
    if options.has("--ir") {
        plan.count_llvm_lines(&mut record)?;
    }
    if kept.is_none() {
        cold_build::remove_dir(&plan.target)?;
    }
    if let Some(parent) = out.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(&out, format!("{:#}\n", record.to_json()))
        .with_context(|| format!("{} cannot be written", out.display()))?;
    print!("{}", tables::build_table(&record));
    eprintln!("everything is in {}", out.display());
    Ok(())
}

fn compare(root: &Path, folder: &Path, options: &Options) -> anyhow::Result<()> {
    let starts = options.value("--starts").map(str::parse).transpose().context("--starts needs a number")?;
    let options = ComparisonOptions {
        quick: options.has("--quick"),
        against: options.value("--against").map(str::to_owned),
        starts: starts.unwrap_or(DEFAULT_STARTS),
    };
    print!("{}", commit_comparison::compare_commits(root, folder, &options)?);
    Ok(())
}

fn read_record(path: &str) -> anyhow::Result<BuildRecord> {
    let value = serde_json::from_str(&read_text(Path::new(path))?).with_context(|| path.to_owned())?;
    BuildRecord::from_json(&value).with_context(|| path.to_owned())
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}
