//! Project commands: fmt, test, tidy, ci, structure, weight, bench, soak.
//!
//! They need only cargo. Other tools are installed below `target/`, except for Debian packages: the browser for the
//! page tests, the IRC server, PostgreSQL, NATS, faketime, iproute2, and Python.

mod packages;
mod structure;
mod weight;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  fmt                     format everything
  test [FILTER...]        all tests: nextest when it is installed, else plain cargo test; then the doc tests.
                          With a filter, only the packages are built whose sources contain its last name.
                          Installs what is missing for some of them: Chromium for the page, ngircd for IRC,
                          PostgreSQL 15 or newer for the store, nats-server for the bus, faketime and iproute2 for
                          nodes with other clocks and networks (Debian packages, as root; no daemon is started),
                          Synapse for Matrix and schemathesis for the HTTP API (from PyPI, below target/)
  tidy                    the house rules alone (part of test)
  ci [STEP...]            fmt, clippy, docs, deny, test, soak, or only the named ones
  structure [--names]     sizes, names of types, circles between files, dependencies of the crates
  weight check            compare sizes that are equal on every machine with the budgets in weight.toml
  weight [--quick]        measure the cold build, the binary, starts and memory of this tree and of the commit before,
                          in turn; --quick leaves out the cold builds. --against REV takes another commit, --starts N
                          another number of starts than 21
  weight build [ARG...]   measure a cold build by crate: --profile P (release), --commit REV, --out FILE (JSON),
                          --keep DIR (the target directory), --ir (also lines of LLVM IR, in a second build)
  weight table A B        compare two such files
  bench [ARG...]          measure the product against a baseline in the same run (release build). Installs LiteLLM
                          for a comparison (from PyPI, below target/); QUELL_SKIP_LITELLM=1 leaves it out
  soak [ARG...]           all attempts to escape from a sandbox, then random runs and stops on the real binary, all
                          checked: --minutes N, --seed S, --sessions 200, --release
";

/// The release that is installed when there is none. This takes some minutes, once.
const CARGO_DENY: &str = "0.20.2";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> anyhow::Result<()> {
    let (command, rest) = args.split_first().map_or(("help", args), |(first, rest)| (first.as_str(), rest));
    match command {
        _ if weight::is_rustc_wrapper() => weight::run_rustc(args),
        "fmt" => cargo(["fmt", "--all"]),
        "test" => test(rest),
        "tidy" => tidy(),
        "ci" if rest.is_empty() => CI_STEPS.iter().try_for_each(|(name, step)| run_step(name, *step)),
        "ci" => rest.iter().try_for_each(|name| {
            let step = CI_STEPS.iter().find(|(known, _)| known == name);
            let (name, step) = step.with_context(|| format!("there is no step {name:?}\n{USAGE}"))?;
            run_step(name, *step)
        }),
        "structure" => structure::print(workspace_root(), rest),
        "weight" => weight::run(workspace_root(), rest),
        "bench" => bench(rest),
        "soak" => soak(rest),
        "help" | "--help" | "-h" => {
            eprint!("{USAGE}");
            Ok(())
        }
        other => bail!("there is no command {other:?}\n{USAGE}"),
    }
}

type CiStep = fn() -> anyhow::Result<()>;

const CI_STEPS: &[(&str, CiStep)] = &[
    ("fmt", check_format),
    ("clippy", clippy),
    ("docs", docs),
    ("deny", deny),
    ("test", all_tests),
    ("soak", short_soak),
];

fn run_step(name: &str, step: CiStep) -> anyhow::Result<()> {
    eprintln!("== {name}");
    let begun = Instant::now();
    step().with_context(|| format!("step {name} failed"))?;
    eprintln!("== {name}: passed in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn check_format() -> anyhow::Result<()> {
    cargo(["fmt", "--all", "--check"])
}

fn clippy() -> anyhow::Result<()> {
    cargo(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
}

fn docs() -> anyhow::Result<()> {
    let mut command = command("cargo", ["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"]);
    command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
    run_checked(&mut command)
}

fn deny() -> anyhow::Result<()> {
    let tools = workspace_root().join("target/tools");
    let own = tools.join("bin/cargo-deny");
    let program = if command_succeeds("cargo-deny", ["--version"]) { PathBuf::from("cargo-deny") } else { own.clone() };
    if program == own && !own.exists() {
        eprintln!("cargo-deny is not installed; building {CARGO_DENY} into target/tools, which takes some minutes");
        let version = ["install", "cargo-deny", "--locked", "--version", CARGO_DENY, "--root"].map(OsStr::new);
        let mut install = command("cargo", version);
        // Cargo would delete its own target directory; below ours, an interrupted build can continue.
        let build = tools.join("build");
        install.arg(&tools).env("CARGO_TARGET_DIR", &build);
        run_checked(&mut install)?;
        fs::remove_dir_all(&build).with_context(|| format!("{} cannot be removed", build.display()))?;
    }
    // The check needs the crates of every platform; a new machine has downloaded only its own.
    cargo(["fetch", "--locked"])?;
    run_checked(&mut command(&program, ["--offline", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]))
}

fn all_tests() -> anyhow::Result<()> {
    test(&[])
}

fn test(filters: &[String]) -> anyhow::Result<()> {
    packages::prepare(filters)?;
    let nextest = command_succeeds("cargo", ["nextest", "--version"]);
    let runner: &[&str] = if nextest { &["nextest", "run"] } else { &["test"] };
    let mut command = command("cargo", runner);
    if nextest {
        // Most tests wait for processes, sockets and timers more than they compute.
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        command.arg(format!("--test-threads={}", 2 * cores));
    }
    match packages_with_tests(filters)? {
        Some(names) => command.args(names.iter().map(|name| format!("--package={name}"))),
        None => command.arg("--workspace"),
    };
    // `--tests` covers the unit tests of libraries and binaries, and does not fail for a package without a library.
    // After the dashes both runners accept any number of filters; before them plain `cargo test` accepts one.
    command.args(["--tests", "--locked", "--"]);
    // `it` is the name of a test binary, which stands before the names of its tests in docs/races.md.
    command.args(filters.iter().map(|filter| filter.strip_prefix("it::").unwrap_or(filter)));
    let skipped = workspace_root().join("target/skipped-tests.txt");
    // There is none before the first run.
    let _ = fs::remove_file(&skipped);
    run_checked(command.env("QUELL_SKIPPED_TESTS", &skipped))?;
    print_skipped(&fs::read_to_string(&skipped).unwrap_or_default());
    if filters.is_empty() {
        return cargo(["test", "--workspace", "--doc", "--locked", "--quiet"]);
    }
    Ok(())
}

/// The packages whose sources contain the last name of a filter, so that one test does not build all of them. `None` if
/// there is no filter, or if one is found nowhere.
fn packages_with_tests(filters: &[String]) -> anyhow::Result<Option<BTreeSet<String>>> {
    let mut packages = vec![("xtask".to_owned(), workspace_root().join("xtask"))];
    for folder in fs::read_dir(workspace_root().join("crates"))? {
        let folder = folder?.path();
        let short = folder.file_name().unwrap_or_default().to_string_lossy();
        packages.push((if short == "quell" { short.into_owned() } else { format!("quell-{short}") }, folder));
    }
    let mut found = BTreeSet::new();
    for filter in filters {
        // A case of a table may have no name in the source: `a_test::case_3`.
        let name = filter.split("::").filter(|part| !part.starts_with("case_")).last().unwrap_or(filter);
        let mut is_known = false;
        for (package, folder) in &packages {
            if contains_name(folder, name)? {
                found.insert(package.clone());
                is_known = true;
            }
        }
        if !is_known {
            return Ok(None);
        }
    }
    Ok((!found.is_empty()).then_some(found))
}

/// True if a Rust file in this folder has `name` in its path or its text.
fn contains_name(folder: &Path, name: &str) -> anyhow::Result<bool> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_match = if path.is_dir() {
            contains_name(&path, name)?
        } else {
            path.extension().is_some_and(|end| end == "rs")
                && (path.with_extension("").ends_with(name) || fs::read_to_string(&path)?.contains(name))
        };
        if is_match {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Prints how many tests were skipped, by reason.
fn print_skipped(reasons: &str) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in reasons.lines() {
        *counts.entry(reason).or_default() += 1;
    }
    for (reason, count) in counts {
        eprintln!("skipped: {count} tests, because {reason}");
    }
}

fn tidy() -> anyhow::Result<()> {
    cargo(["test", "--package", "quell", "--test", "it", "--quiet", "tidy"])
}

fn bench(args: &[String]) -> anyhow::Result<()> {
    packages::prepare_bench(args);
    let mut command = command("cargo", ["bench", "--package", "quell", "--bench", "stop", "--"]);
    command.args(args);
    run_checked(&mut command)
}

/// Every attempt to escape from a sandbox, in all modes, as all users; then random runs.
fn soak(args: &[String]) -> anyhow::Result<()> {
    cargo([
        "test",
        "--package",
        "quell",
        "--test",
        "it",
        "--locked",
        "--quiet",
        "nothing_escapes_but_what_the_table_says",
    ])?;
    random_runs(args)
}

/// Runs and stops at random on the binary that the tests have built, or on the release build with `--release`.
fn random_runs(args: &[String]) -> anyhow::Result<()> {
    let (release, args): (Vec<&String>, Vec<&String>) = args.iter().partition(|arg| *arg == "--release");
    let profile = if release.is_empty() { "dev" } else { "release" };
    let bench = ["bench", "--package", "quell", "--bench", "soak", "--locked", "--profile", profile, "--"];
    let mut command = command("cargo", bench);
    command.args(args);
    run_checked(&mut command)
}

fn short_soak() -> anyhow::Result<()> {
    random_runs(&["--minutes", "2"].map(str::to_owned))
}

fn cargo<const N: usize>(args: [&str; N]) -> anyhow::Result<()> {
    run_checked(&mut command("cargo", args))
}

#[expect(clippy::disallowed_methods, reason = "xtask runs other programs")]
fn command<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(workspace_root());
    command
}

fn run_checked(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{command:?} cannot be started"))?;
    if status.success() { Ok(()) } else { bail!("{command:?} ended with {status}") }
}

fn command_succeeds<const N: usize>(program: &str, args: [&str; N]) -> bool {
    command(program, args).output().is_ok_and(|output| output.status.success())
}

fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
