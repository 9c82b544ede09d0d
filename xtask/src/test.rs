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
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;

use crate::cache::cache_dir;
use crate::cargo_tools::NEXTEST;
use crate::{command, packages, run_checked, workspace_root};
use selection::TestSelection;

/// Test binaries of the package `quell` that only the full tier builds.
const FULL_BINARIES: [&str; 3] = ["clients", "cluster", "page"];
/// Tests in a module of this name assert nothing about the product but how long something takes.
const TIMING: &str = "timing::";
type NextestArgs = &'static [&'static str];

const RUN_IGNORED: NextestArgs = &["--run-ignored", "all"];
/// One test at a time, and what they print is shown.
const TIMING_ARGS: NextestArgs =
    &["--no-capture", "--ignore-default-filter", "-E", "test(/(^|::)timing::/)", "--run-ignored", "all"];
const SEED_VARIABLE: &str = "QUELL_TEST_SEED";
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

/// Installs what the full tier needs, and nextest.
///
/// # Errors
/// Something is missing and cannot be installed.
pub(crate) fn prepare() -> anyhow::Result<()> {
    packages::prepare(&[])?;
    NEXTEST.find_or_build().map(drop)
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
    let mut run = TestRun { nextest: NEXTEST.find(), times: Vec::new() };
    if tier != TestTier::First {
        packages::prepare(filters)?;
        run.nextest = Some(NEXTEST.find_or_build()?);
    }
    let result = if filters.is_empty() { run.run_all(tier) } else { run.run_filters(tier, filters) };
    junit::print_slowest(run.times, SLOWEST_TESTS);
    result
}

/// The runs of a tier. A run that fails does not keep the next from running.
struct TestRun {
    /// Without it, plain `cargo test` runs the tests.
    nextest: Option<PathBuf>,
    /// The name and seconds of each test that nextest has run.
    times: Vec<(String, f64)>,
}

impl TestRun {
    fn run_all(&mut self, tier: TestTier) -> anyhow::Result<()> {
        let (workspace_args, full_args): (_, Option<NextestArgs>) = match tier {
            TestTier::First => (&[][..], None),
            TestTier::FullRest => (&["--run-ignored", "only"][..], Some(RUN_IGNORED)),
            TestTier::Full => (RUN_IGNORED, Some(RUN_IGNORED)),
            TestTier::Timing => (TIMING_ARGS, Some(TIMING_ARGS)),
        };
        let workspace = self.run(&TestSelection::All, workspace_args, None, "workspace");
        let full_binaries =
            full_args.map(|args| self.run(&TestSelection::only(&FULL_BINARIES), args, None, "full-binaries"));
        let doc_tests = matches!(tier, TestTier::First | TestTier::Full).then(doc_tests);
        workspace.and(full_binaries.unwrap_or(Ok(()))).and(doc_tests.unwrap_or(Ok(())))
    }

    /// Each filter selects its targets for itself.
    fn run_filters(&mut self, tier: TestTier, filters: &[String]) -> anyhow::Result<()> {
        let args = match tier {
            TestTier::First => &[],
            TestTier::Full | TestTier::FullRest => RUN_IGNORED,
            TestTier::Timing => TIMING_ARGS,
        };
        let results =
            filters.iter().map(|filter| self.run(&TestSelection::for_filter(filter)?, args, Some(filter), "filter"));
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
                // The process between nextest and a test is for Ctrl-Z, and takes a fifth of the time of a short test.
                command.env("NEXTEST_DOUBLE_SPAWN", "0");
                // Most tests wait for processes, sockets and timers more than they compute.
                let cores = thread::available_parallelism().map_or(1, NonZero::get);
                if nextest_args != TIMING_ARGS {
                    command.arg(format!("--test-threads={}", 2 * cores));
                }
                // A filter may select no test of one of several binaries.
                command.args(nextest_args).args(["--no-tests", if filter.is_none() { "fail" } else { "warn" }]);
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
    command.env("QUELL_SKIPPED_TESTS", workspace_root().join("target/skipped-tests.txt"));
    let seed = std::env::var_os(SEED_VARIABLE).unwrap_or_else(|| fresh_seed().to_string().into());
    let shown = seed.display();
    eprintln!("seed {shown}; {SEED_VARIABLE}={shown} repeats what is drawn at random");
    for variable in [SEED_VARIABLE, "PROPTEST_RNG_SEED", "SHUTTLE_RANDOM_SEED"] {
        command.env(variable, &seed);
    }
    run_checked(command)
}

/// As tests draw it that are run without xtask (`quell_testkit::seed`).
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_secs() ^ u64::from(now.subsec_nanos())) % 1_000_000
}
