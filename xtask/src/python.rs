//! What some tests need from PyPI: Synapse, a homeserver, and the tools that hold the HTTP API against its OpenAPI document. Each
//! goes into a virtual environment of Python below `target/`, so that nothing outside of the build directory changes but for
//! Debian's package of the module that makes such environments.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::{checked, command, root, succeeds};

/// One environment.
struct Tool {
    /// For people.
    name: &'static str,
    /// The tests that need it, for people.
    tests: &'static str,
    /// The environment, below the workspace's root.
    folder: &'static str,
    /// The releases that are installed. What they need in turn is the newest that they and the machine's Python take.
    packages: &'static [(&'static str, &'static str)],
    /// How much that is, for people.
    size: &'static str,
    /// Leaves the tests that need it out.
    skip: &'static str,
    /// Filters are parts of names, and all tests that need it have one of these in theirs.
    words: &'static [&'static str],
}

const SYNAPSE: Tool = Tool {
    name: "Synapse",
    tests: "the tests of the Matrix channel",
    folder: "target/tools/synapse",
    packages: &[("matrix-synapse", "1.163.2")],
    size: "about 250 MB, which takes half a minute or more",
    skip: "QUELL_SKIP_SYNAPSE",
    words: &["matrix", "synapse", "channel", "network"],
};

const SCHEMATHESIS: Tool = Tool {
    name: "schemathesis",
    tests: "the test of the OpenAPI document",
    folder: "target/tools/schemathesis",
    packages: &[("schemathesis", "4.32.5"), ("openapi-spec-validator", "0.9.0")],
    size: "about 70 MB, which takes some seconds",
    skip: "QUELL_SKIP_SCHEMATHESIS",
    words: &["openapi", "schemathesis"],
};

const TOOLS: [&Tool; 2] = [&SYNAPSE, &SCHEMATHESIS];

/// Ends well where a virtual environment with pip in it can be made, by a Python that these releases take.
const CAN_MAKE: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))";
/// Debian's packages for that.
const DEBIAN: [&str; 2] = ["python3", "python3-venv"];

/// What to do before the tests.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Everything is there, or none of the tests needs it.
    Nothing,
    /// Say that its tests are left out.
    LeaveOut,
    /// Install it with the Python that is there.
    Install,
    /// Install Debian's packages first.
    InstallPython,
    /// Say that Python has to be installed by somebody who may.
    Ask,
}

/// What is known of the machine and of the tests that were asked for.
struct Facts<'a> {
    is_skipped: bool,
    filters: &'a [String],
    is_installed: bool,
    /// True where the Python that is there can make environments.
    has_python: bool,
    /// True for root on a system with Debian's packages.
    can_install: bool,
}

/// Makes the machine ready for the tests that were asked for.
pub(crate) fn prepare(filters: &[String]) -> anyhow::Result<()> {
    TOOLS.iter().try_for_each(|tool| prepare_one(tool, filters))
}

fn prepare_one(tool: &Tool, filters: &[String]) -> anyhow::Result<()> {
    let facts = Facts {
        is_skipped: env::var_os(tool.skip).is_some(),
        filters,
        is_installed: is_installed(tool),
        has_python: can_make(),
        can_install: succeeds("apt-get", ["--version"]) && is_root(),
    };
    match plan(tool, &facts) {
        Plan::Nothing => Ok(()),
        Plan::LeaveOut => {
            eprintln!("{} is set: {} are left out", tool.skip, tool.tests);
            Ok(())
        }
        Plan::Install => install(tool),
        Plan::InstallPython => install_python(tool).and_then(|()| install(tool)),
        Plan::Ask => bail!(
            "{} need Python 3.10 or newer with its modules venv and ensurepip; install it, on Debian by\n    sudo apt-get \
             install {}\nor leave them out with {}=1",
            tool.tests,
            DEBIAN.join(" "),
            tool.skip
        ),
    }
}

fn plan(tool: &Tool, facts: &Facts<'_>) -> Plan {
    let is_meant = |filter: &String| tool.words.iter().any(|word| filter.contains(word));
    let meant = facts.filters.is_empty() || facts.filters.iter().any(is_meant);
    match facts {
        _ if !meant => Plan::Nothing,
        Facts { is_skipped: true, .. } => Plan::LeaveOut,
        Facts { is_installed: true, .. } => Plan::Nothing,
        Facts { has_python: true, .. } => Plan::Install,
        Facts { can_install: true, .. } => Plan::InstallPython,
        Facts { .. } => Plan::Ask,
    }
}

fn install_python(tool: &Tool) -> anyhow::Result<()> {
    eprintln!("installing {} for {}", DEBIAN.join(" "), tool.tests);
    // A new machine has no lists of packages, or old ones that name files which are gone.
    checked(&mut command("apt-get", ["update", "--quiet=2"]))?;
    let mut install = command("apt-get", ["install", "--yes", "--quiet=2", "--no-install-recommends"]);
    install.args(DEBIAN).env("DEBIAN_FRONTEND", "noninteractive");
    checked(&mut install)?;
    if can_make() {
        return Ok(());
    }
    bail!(
        "the first python3 on the PATH is older than 3.10 or lacks venv or ensurepip, with Debian's packages installed as well"
    )
}

fn install(tool: &Tool) -> anyhow::Result<()> {
    // Made beside its place, so that an interrupted installation is not taken for a finished one.
    let (folder, unfinished) = (root().join(tool.folder), root().join(format!("{}.unfinished", tool.folder)));
    eprintln!("installing {} from PyPI into {}, {}", tool.name, tool.folder, tool.size);
    let begun = Instant::now();
    for old in [&folder, &unfinished] {
        remove(old)?;
    }
    checked(command("python3", ["-m", "venv"]).arg(&unfinished))?;
    let mut pip = command(python(&unfinished), ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    // Nothing is compiled: where there is no built package for this machine, that is said at once.
    pip.args(["--only-binary", ":all:"]);
    pip.args(tool.packages.iter().map(|(name, version)| format!("{name}=={version}")));
    checked(&mut pip).with_context(|| {
        format!("{} cannot be installed from PyPI; {}=1 leaves {} out", tool.name, tool.skip, tool.tests)
    })?;
    // Python finds its environment by where its program lies, so that it may be moved.
    fs::rename(&unfinished, &folder).with_context(|| format!("{} cannot be moved", unfinished.display()))?;
    eprintln!("{} is installed, in {:.0} s", tool.name, begun.elapsed().as_secs_f64());
    Ok(())
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Python itself is asked for the versions, so that an environment whose Python was exchanged below it is made anew.
fn is_installed(tool: &Tool) -> bool {
    let version = |(name, version): &(&str, &str)| {
        let asked = format!("import importlib.metadata; print(importlib.metadata.version('{name}'))");
        let answer = command(python(&root().join(tool.folder)), ["-c", &asked]).output();
        answer.is_ok_and(|answer| answer.status.success() && String::from_utf8_lossy(&answer.stdout).trim() == *version)
    };
    tool.packages.iter().all(version)
}

fn can_make() -> bool {
    succeeds("python3", ["-c", CAN_MAKE])
}

fn python(folder: &Path) -> PathBuf {
    folder.join("bin/python")
}

fn is_root() -> bool {
    let answer = command("id", ["-u"]).output();
    answer.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_machine(filters: &[String]) -> Facts<'_> {
        Facts { is_skipped: false, filters, is_installed: false, has_python: true, can_install: true }
    }

    #[test]
    fn what_is_missing_is_installed_by_who_may() {
        let plan = |facts: &Facts<'_>| plan(&SYNAPSE, facts);
        assert_eq!(plan(&new_machine(&[])), Plan::Install);
        assert_eq!(plan(&Facts { has_python: false, ..new_machine(&[]) }), Plan::InstallPython);
        assert_eq!(plan(&Facts { can_install: false, ..new_machine(&[]) }), Plan::Install, "PyPI asks for no rights");
        assert_eq!(plan(&Facts { has_python: false, can_install: false, ..new_machine(&[]) }), Plan::Ask);
        assert_eq!(plan(&Facts { is_installed: true, has_python: false, ..new_machine(&[]) }), Plan::Nothing);
    }

    #[test]
    fn nothing_is_installed_for_tests_that_do_not_need_it() {
        let cases = [
            (&SYNAPSE, "tidy", Plan::Nothing),
            (&SYNAPSE, "channels::irc", Plan::Install),
            (&SYNAPSE, "matrix", Plan::Install),
            (&SYNAPSE, "openapi", Plan::Nothing),
            (&SCHEMATHESIS, "openapi", Plan::Install),
            (&SCHEMATHESIS, "matrix", Plan::Nothing),
        ];
        for (tool, filter, wanted) in cases {
            assert_eq!(plan(tool, &new_machine(&[filter.to_owned()])), wanted, "{} {filter}", tool.name);
        }
        assert_eq!(plan(&SYNAPSE, &Facts { is_skipped: true, ..new_machine(&[]) }), Plan::LeaveOut);
        assert_eq!(plan(&SYNAPSE, &Facts { is_skipped: true, ..new_machine(&["tidy".to_owned()]) }), Plan::Nothing);
    }
}
