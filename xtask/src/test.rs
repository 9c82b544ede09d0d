//! `cargo xtask test`: the tiers of the tests, and which packages and targets a filter needs.
//!
//! What a test needs decides its tier: `#[ignore = "full: ..."]` keeps a test out of the first one, and the test
//! binaries in [`selection::full_binary_args`] have `test = false` in their manifest. Tests in a module `timing` measure a duration;
//! they run in a tier of their own.

mod junit;
mod ordinary_user;
mod selection;

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};

use crate::cache::cache_dir;
use crate::cargo_tools::NEXTEST;
use crate::{command, packages, run_checked, workspace_root};
use selection::TestSelection;
pub(crate) use selection::full_binary_args;

/// Tests in a module of this name assert nothing about the product but how long something takes.
const TIMING: &str = "timing::";
type NextestArgs = &'static [&'static str];

const RUN_IGNORED: NextestArgs = &["--run-ignored", "all"];
/// One test at a time, and what they print is shown.
const TIMING_ARGS: NextestArgs =
    &["--no-capture", "--ignore-default-filter", "-E", "test(/(^|::)timing::/)", "--run-ignored", "all"];
/// Most of what depends on the user: processes, sandboxes, and daemons with their files.
const ORDINARY_USER_ARGS: NextestArgs = &["-E", "package(quell-process) | binary(core) | binary(stop)"];
const SEED_VARIABLE: &str = "QUELL_TEST_SEED";
const SLOWEST_TESTS: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TestTier {
    /// Needs nothing but crates.
    First,
    /// Everything but `timing`; installs what is missing.
    Full,
    Timing,
    /// What the first tier has for processes and sandboxes, as another user than root.
    OrdinaryUser,
}

impl TestTier {
    fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Full => "full",
            Self::Timing => "timing",
            Self::OrdinaryUser => "ordinary-user",
        }
    }
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
        ["--timing"] => TestTier::Timing,
        ["--ordinary-user"] => TestTier::OrdinaryUser,
        _ => bail!("the options of test are --full, --timing and --ordinary-user, one at a time; got {options:?}"),
    };
    let begun = Instant::now();
    let skipped = skipped_tests_file(tier);
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
    let mut run = TestRun { tier, nextest: NEXTEST.find(), times: Vec::new() };
    if matches!(tier, TestTier::Full | TestTier::Timing) {
        packages::prepare(filters)?;
    }
    if tier != TestTier::First {
        run.nextest = Some(NEXTEST.find_or_build()?);
    }
    let result = if filters.is_empty() { run.run_all() } else { run.run_filters(filters) };
    junit::print_slowest(run.times, SLOWEST_TESTS);
    result
}

/// Tests write there why they were skipped.
fn skipped_tests_file(tier: TestTier) -> PathBuf {
    let folder = if tier == TestTier::OrdinaryUser { ordinary_user::home() } else { workspace_root().join("target") };
    folder.join("skipped-tests.txt")
}

/// The runs of a tier. A run that fails does not keep the next from running.
struct TestRun {
    tier: TestTier,
    /// Without it, plain `cargo test` runs the tests.
    nextest: Option<PathBuf>,
    /// The name and seconds of each test that nextest has run.
    times: Vec<(String, f64)>,
}

impl TestRun {
    fn run_all(&mut self) -> anyhow::Result<()> {
        let (selection, args) = match self.tier {
            TestTier::First => (TestSelection::FirstTier, &[][..]),
            TestTier::Full => (TestSelection::Everything, RUN_IGNORED),
            TestTier::Timing => (TestSelection::Everything, TIMING_ARGS),
            TestTier::OrdinaryUser => (TestSelection::FirstTier, ORDINARY_USER_ARGS),
        };
        let tests = self.run(&selection, args, None, self.tier.name());
        let doc_tests = matches!(self.tier, TestTier::First | TestTier::Full).then(doc_tests);
        tests.and(doc_tests.unwrap_or(Ok(())))
    }

    /// Each filter selects its targets for itself.
    fn run_filters(&mut self, filters: &[String]) -> anyhow::Result<()> {
        let args = match self.tier {
            TestTier::First | TestTier::OrdinaryUser => &[][..],
            TestTier::Full => RUN_IGNORED,
            TestTier::Timing => TIMING_ARGS,
        };
        let is_full = matches!(self.tier, TestTier::Full | TestTier::Timing);
        let results = filters.iter().map(|filter| {
            let name = format!("filter-{}", filter.replace("::", "-"));
            self.run(&TestSelection::for_filter(filter, is_full)?, args, Some(filter), &name)
        });
        results.collect::<Vec<_>>().into_iter().collect()
    }

    /// Runs the selected tests, and keeps the JUnit file of nextest under this name.
    fn run(
        &mut self,
        selection: &TestSelection,
        nextest_args: NextestArgs,
        filter: Option<&str>,
        name: &str,
    ) -> anyhow::Result<()> {
        let mut command = match &self.nextest {
            Some(program) => {
                let mut command = command(program, ["nextest", "run"]);
                if self.tier == TestTier::OrdinaryUser {
                    ordinary_user::run_tests_as_user(&mut command)?;
                }
                // The process between nextest and a test is for Ctrl-Z, and takes a fifth of the time of a short test.
                command.env("NEXTEST_DOUBLE_SPAWN", "0");
                // Most tests wait for processes, sockets and timers more than they compute.
                let cores = thread::available_parallelism().map_or(1, NonZero::get);
                if self.tier != TestTier::Timing {
                    command.arg(format!("--test-threads={}", 2 * cores));
                }
                command.args(nextest_args).args(["--no-tests", "fail"]);
                command
            }
            None => command("cargo", ["test", "--no-fail-fast"]),
        };
        let filter = filter.and_then(|filter| selection.test_filter(filter));
        command.args(selection.cargo_args()).args(["--locked", "--"]).args(filter);
        if self.nextest.is_none() {
            command.args(["--skip", TIMING]);
        }
        junit::forget_last_run();
        command.env("QUELL_SKIPPED_TESTS", skipped_tests_file(self.tier));
        let result = run_with_variables(&mut command);
        self.times.extend(junit::take_last_run(name)?);
        result
    }
}

fn doc_tests() -> anyhow::Result<()> {
    run_checked(&mut command("cargo", ["test", "--workspace", "--doc", "--locked", "--quiet"]))
}

/// Tests read these variables: where the tools are, where to write why a test was skipped, and the seed of what is drawn
/// at random, also by proptest and shuttle.
fn run_with_variables(command: &mut Command) -> anyhow::Result<()> {
    command.env("QUELL_DEV_CACHE", cache_dir());
    let seed = match std::env::var_os(SEED_VARIABLE) {
        Some(given) => {
            let number = given.to_str().and_then(|given| given.parse::<u64>().ok());
            number.with_context(|| format!("{SEED_VARIABLE} is {}, which is no number", given.display()))?
        }
        None => fresh_seed(),
    };
    eprintln!("seed {seed}; {SEED_VARIABLE}={seed} repeats what is drawn at random");
    for variable in [SEED_VARIABLE, "PROPTEST_RNG_SEED", "SHUTTLE_RANDOM_SEED"] {
        command.env(variable, seed.to_string());
    }
    run_checked(command)
}

/// As tests draw it that are run without xtask (`quell_testkit::seed`).
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_secs() ^ u64::from(now.subsec_nanos())) % 1_000_000
}
