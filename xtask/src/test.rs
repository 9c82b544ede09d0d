//! `cargo xtask test`: the tiers of the tests, and which packages and targets a filter needs.
//!
//! What a test needs decides its tier: `#[ignore = "full: ..."]` keeps a test out of the first one, and the test
//! binaries in [`FULL_BINARIES`] have `test = false` in their manifest. Tests in a module `timing` measure a duration;
//! they run in a tier of their own.

mod junit;
mod selection;

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::bail;

use crate::cache::cache_dir;
use crate::cargo_tools::NEXTEST;
use crate::{command, packages, run_checked, workspace_root};
use selection::TestSelection;

/// Test binaries of the package `quell` that only the full tier builds.
const FULL_BINARIES: [&str; 3] = ["clients", "cluster", "page"];
/// Tests in a module of this name assert nothing about the product but how long something takes.
const TIMING: &str = "timing::";
const SLOWEST_TESTS: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TestTier {
    /// Needs nothing but crates.
    First,
    /// Everything but `timing`; installs what is missing.
    Full,
    /// What [`TestTier::Full`] has beyond [`TestTier::First`].
    FullRest,
    Timing,
}

impl TestTier {
    fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Full => "full",
            Self::FullRest => "full-rest",
            Self::Timing => "timing",
        }
    }
}

/// Cargo's arguments for the test binaries that only the full tier builds.
pub(crate) fn full_binary_args() -> Vec<String> {
    TestSelection::only(&FULL_BINARIES).cargo_args()
}

/// Runs the tier that the options name, with the remaining arguments as filters.
///
/// # Errors
/// A test has failed, or something that a tier needs is missing.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let (options, filters): (Vec<&String>, Vec<&String>) = args.iter().partition(|arg| arg.starts_with("--"));
    let filters: Vec<String> = filters.into_iter().cloned().collect();
    let tier = match options.iter().map(|option| option.as_str()).collect::<Vec<_>>()[..] {
        [] => TestTier::First,
        ["--full"] => TestTier::Full,
        ["--full-rest"] => TestTier::FullRest,
        ["--timing"] => TestTier::Timing,
        _ => bail!("the options of test are --full, --full-rest and --timing, one at a time; got {options:?}"),
    };
    let begun = Instant::now();
    let skipped = workspace_root().join("target/skipped-tests.txt");
    // There is none before the first run.
    let _ = fs::remove_file(&skipped);
    let result = run_tier(tier, &filters);
    junit::print_skipped(&fs::read_to_string(&skipped).unwrap_or_default());
    if result.is_ok() && filters.is_empty() {
        junit::record_wall_time(tier.name(), begun.elapsed())?;
    }
    result
}

fn run_tier(tier: TestTier, filters: &[String]) -> anyhow::Result<()> {
    let selection = TestSelection::for_filters(filters)?;
    match tier {
        TestTier::First => run_tests(NEXTEST.find(), &selection, filters, &[]),
        TestTier::Full | TestTier::FullRest => {
            packages::prepare(filters)?;
            let nextest = Some(NEXTEST.find_or_build()?);
            if !filters.is_empty() {
                return run_tests(nextest, &selection, filters, &["--run-ignored", "all"]);
            }
            let ignored = if tier == TestTier::Full { "all" } else { "only" };
            run_tests(nextest.clone(), &selection, filters, &["--run-ignored", ignored])?;
            run_tests(nextest, &TestSelection::only(&FULL_BINARIES), filters, &["--run-ignored", "all"])
        }
        TestTier::Timing => measure_timing(&selection, filters),
    }?;
    if filters.is_empty() && matches!(tier, TestTier::First | TestTier::Full) {
        let mut doc_tests = command("cargo", ["test", "--workspace", "--doc", "--locked", "--quiet"]);
        return run_checked(&mut doc_tests);
    }
    Ok(())
}

/// Runs the selected tests with nextest, or with plain `cargo test` if there is none.
fn run_tests(
    nextest: Option<PathBuf>,
    selection: &TestSelection,
    filters: &[String],
    nextest_args: &[&str],
) -> anyhow::Result<()> {
    let mut command = match &nextest {
        Some(program) => {
            let mut command = command(program, ["nextest", "run"]);
            // Most tests wait for processes, sockets and timers more than they compute.
            let cores = thread::available_parallelism().map_or(1, NonZero::get);
            command.arg(format!("--test-threads={}", 2 * cores)).args(nextest_args);
            // A filter may select no test of one of several binaries.
            command.args(["--no-tests", if filters.is_empty() { "fail" } else { "warn" }]);
            command
        }
        None => command("cargo", ["test"]),
    };
    command.args(selection.cargo_args()).args(["--locked", "--"]).args(selection.test_filters(filters));
    if nextest.is_none() {
        command.args(["--skip", TIMING]);
    }
    let result = run_with_skip_file(&mut command);
    if nextest.is_some() {
        junit::print_slowest(SLOWEST_TESTS);
    }
    result
}

/// Runs the tests that measure, one at a time, and shows what they print. Their figures gate nothing.
fn measure_timing(selection: &TestSelection, filters: &[String]) -> anyhow::Result<()> {
    let mut command = command("cargo", ["test", "--no-fail-fast"]);
    command.args(selection.cargo_args()).args([
        "--locked",
        "--",
        "--include-ignored",
        "--test-threads=1",
        "--nocapture",
    ]);
    command.args(if filters.is_empty() { vec![TIMING.to_owned()] } else { selection.test_filters(filters) });
    run_with_skip_file(&mut command)
}

fn run_with_skip_file(command: &mut Command) -> anyhow::Result<()> {
    command.env("QUELL_DEV_CACHE", cache_dir());
    run_checked(command.env("QUELL_SKIPPED_TESTS", workspace_root().join("target/skipped-tests.txt")))
}
