//! Project commands: fmt, test, tidy, ci, structure, weight, bench, soak.
//!
//! They need only cargo. The full tier of the tests installs further tools into the user's cache, and Debian packages:
//! the browser for the page tests, the IRC server, PostgreSQL, NATS, faketime, iproute2, and Python.

mod cache;
mod cargo_tools;
mod packages;
mod structure;
mod test;
mod weight;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, bail};

use cargo_tools::DENY;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  fmt                     format everything
  test [FILTER...]        the tests that need nothing but crates, as any user: nextest when it is installed, else plain
                          cargo test; then the doc tests. A filter is a part of a test's path, or the name of a
                          package (kernel): only the packages and test binaries are built that have it
  test --full             all tests. Installs what is missing for them: nextest; Chromium for the page, ngircd for IRC,
                          PostgreSQL 15 or newer for the store, nats-server for the bus, faketime and iproute2 for
                          nodes with other clocks and networks (Debian packages, as root; no daemon is started);
                          Synapse for Matrix, schemathesis for the HTTP API, the clients of APIs (from PyPI and npm).
                          What is downloaded stays in ~/.cache/quell-dev for the next clone
  test --timing           the tests that measure a time, one after the other; prints figures and gates nothing
  test --ordinary-user    for root: what the first tier has for processes and sandboxes, as the user nobody
  tidy                    the house rules alone (part of test)
  ci [STEP...]            fmt, clippy, docs, deny, weight, test, test-as-user, soak, or only the named ones
  structure [--names]     sizes, names of types, circles between files, dependencies of the crates
  weight check            compare sizes that are equal on every machine with the budgets in weight.toml
  weight [--quick]        measure the cold build, the binary, starts and memory of this tree and of the commit before,
                          in turn; --quick leaves out the cold builds. --against REV takes another commit, --starts N
                          another number of starts than 21
  weight build [ARG...]   measure a cold build by crate: --profile P (release), --commit REV, --out FILE (JSON),
                          --keep DIR (the target directory), --ir (also lines of LLVM IR, in a second build)
  weight table A B...     compare such files
  bench [ARG...]          measure the product against a baseline in the same run (profile dist). Installs LiteLLM
                          for a comparison (from PyPI, below target/); QUELL_SKIP_LITELLM=1 leaves it out
  soak [ARG...]           all attempts to escape from a sandbox, then random runs and stops on the real binary, all
                          checked: --minutes N, --seed S, --sessions 200, --dist
";

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
        // Before anything is built or measured for it.
        _ if rest.iter().any(|arg| arg == "--help" || arg == "-h") => {
            eprint!("{USAGE}");
            Ok(())
        }
        "fmt" => cargo(["fmt", "--all"]),
        "test" => test::run(rest),
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
    ("weight", weight_check),
    ("test", all_tests),
    ("test-as-user", tests_as_ordinary_user),
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

const LINTS: [&str; 2] = ["-D", "warnings"];

fn clippy() -> anyhow::Result<()> {
    let mut command = command("cargo", ["clippy", "--locked", "--workspace", "--all-targets"]);
    run_checked(command.args(test::full_binary_args()).arg("--").args(LINTS))
}

/// Documents with the compiler of the step `clippy`, so that both share what they check.
fn docs() -> anyhow::Result<()> {
    let mut command = command("cargo", ["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"]);
    command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
    // As `cargo clippy` does it.
    let arguments: String = LINTS.iter().map(|argument| format!("{argument}__CLIPPY_HACKERY__")).collect();
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", arguments);
    run_checked(&mut command)
}

fn deny() -> anyhow::Result<()> {
    let program = DENY.find_or_build()?;
    // The check needs the crates of every platform; a new machine has downloaded only its own.
    cargo(["fetch", "--locked"])?;
    run_checked(&mut command(&program, ["--offline", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]))
}

fn weight_check() -> anyhow::Result<()> {
    weight::run(workspace_root(), &["check".to_owned()])
}

fn all_tests() -> anyhow::Result<()> {
    test::run(&["--full".to_owned()])
}

/// Root sees another product than most people: other rights, other sandboxes, other ways to end a process.
fn tests_as_ordinary_user() -> anyhow::Result<()> {
    if fs::metadata("/proc/self").context("there is no /proc")?.uid() == 0 {
        test::run(&["--ordinary-user".to_owned()])
    } else {
        eprintln!("this user is an ordinary one, and so were the tests of the step before");
        Ok(())
    }
}

fn tidy() -> anyhow::Result<()> {
    cargo(["test", "--package", "xtask", "--test", "tidy", "--quiet"])
}

fn bench(args: &[String]) -> anyhow::Result<()> {
    packages::prepare_bench(args);
    let mut command = command("cargo", ["bench", "--package", "quell", "--bench", "stop", "--profile", "dist", "--"]);
    command.args(args);
    run_checked(&mut command)
}

/// Every attempt to escape from a sandbox, in all modes, as all users; then random runs.
fn soak(args: &[String]) -> anyhow::Result<()> {
    let attempts = "but_what_the_table_says";
    cargo(["test", "--package=quell", "--test=core", "--locked", "--quiet", attempts, "--", "--include-ignored"])?;
    random_runs(args)
}

/// Runs and stops at random on the binary that the tests have built, or on the shipped build with `--dist`.
fn random_runs(args: &[String]) -> anyhow::Result<()> {
    let (dist, args): (Vec<&String>, Vec<&String>) = args.iter().partition(|arg| *arg == "--dist");
    // With the features of the whole workspace, so that it is the build of the tests.
    let (packages, profile) = if dist.is_empty() { ("--workspace", "dev") } else { ("--package=quell", "dist") };
    let mut command = command("cargo", ["bench", packages, "--bench=soak", "--locked", "--profile", profile, "--"]);
    command.args(args);
    run_checked(&mut command)
}

fn short_soak() -> anyhow::Result<()> {
    random_runs(&["--minutes", "2"].map(str::to_owned))
}

fn cargo<const N: usize>(args: [&str; N]) -> anyhow::Result<()> {
    run_checked(&mut command("cargo", args))
}

/// Runs in the root of the workspace, without the variables by which cargo describes xtask to xtask: build scripts look
/// at them, so a cargo below would build again what a cargo that was called directly has built.
#[expect(clippy::disallowed_methods, reason = "xtask runs other programs")]
fn command<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(workspace_root());
    let describes_xtask = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix)) || name == "CARGO_BIN_NAME"
    };
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(describes_xtask)) {
        command.env_remove(name);
    }
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
