//! What the tests of the Matrix channel need of the machine: Synapse, a homeserver, from PyPI. It goes into a virtual environment
//! of Python below `target/`, so that nothing outside of the build directory changes but for Debian's package of the module that
//! makes such environments.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::{checked, command, root, succeeds};

/// The release that is installed. What it needs in turn is the newest that this release and the machine's Python take.
const VERSION: &str = "1.163.2";
/// The environment, below the workspace's root.
const FOLDER: &str = "target/tools/synapse";
/// Where it is made, so that an interrupted installation is not taken for a finished one.
const UNFINISHED: &str = "target/tools/synapse.unfinished";
/// Ends well where a virtual environment with pip in it can be made, by a Python that this release of Synapse takes.
const CAN_MAKE: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))";
/// Debian's packages for that.
const PACKAGES: [&str; 2] = ["python3", "python3-venv"];
/// Leaves the tests that need it out.
const SKIP: &str = "QUELL_SKIP_SYNAPSE";

/// What to do before the tests.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Everything is there, or none of the tests needs it.
    Nothing,
    /// Say that the tests of the Matrix channel are left out.
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
    let facts = Facts {
        is_skipped: env::var_os(SKIP).is_some(),
        filters,
        is_installed: installed().is_some_and(|version| version == VERSION),
        has_python: can_make(),
        can_install: succeeds("apt-get", ["--version"]) && is_root(),
    };
    match plan(&facts) {
        Plan::Nothing => Ok(()),
        Plan::LeaveOut => {
            eprintln!("{SKIP} is set: the tests of the Matrix channel are left out");
            Ok(())
        }
        Plan::Install => install(),
        Plan::InstallPython => install_python().and_then(|()| install()),
        Plan::Ask => bail!(
            "the tests of the Matrix channel need Python 3.10 or newer with its modules venv and ensurepip; install it, on \
             Debian by\n    sudo apt-get install {}\nor leave these tests out with {SKIP}=1",
            PACKAGES.join(" ")
        ),
    }
}

fn plan(facts: &Facts<'_>) -> Plan {
    // Filters are parts of names, and all tests with a homeserver have one of these in theirs.
    let words = ["matrix", "synapse", "channel", "network"];
    let meant = facts.filters.is_empty() || facts.filters.iter().any(|f| words.iter().any(|word| f.contains(word)));
    match facts {
        _ if !meant => Plan::Nothing,
        Facts { is_skipped: true, .. } => Plan::LeaveOut,
        Facts { is_installed: true, .. } => Plan::Nothing,
        Facts { has_python: true, .. } => Plan::Install,
        Facts { can_install: true, .. } => Plan::InstallPython,
        Facts { .. } => Plan::Ask,
    }
}

fn install_python() -> anyhow::Result<()> {
    eprintln!("installing {} for the tests of the Matrix channel", PACKAGES.join(" "));
    // A new machine has no lists of packages, or old ones that name files which are gone.
    checked(&mut command("apt-get", ["update", "--quiet=2"]))?;
    let mut install = command("apt-get", ["install", "--yes", "--quiet=2", "--no-install-recommends"]);
    install.args(PACKAGES).env("DEBIAN_FRONTEND", "noninteractive");
    checked(&mut install)?;
    if can_make() {
        return Ok(());
    }
    bail!(
        "the first python3 on the PATH is older than 3.10 or lacks venv or ensurepip, with Debian's packages installed as well"
    )
}

fn install() -> anyhow::Result<()> {
    let (folder, unfinished) = (root().join(FOLDER), root().join(UNFINISHED));
    eprintln!("installing Synapse {VERSION} from PyPI into {FOLDER}, about 250 MB, which takes half a minute or more");
    let begun = Instant::now();
    for old in [&folder, &unfinished] {
        remove(old)?;
    }
    checked(command("python3", ["-m", "venv"]).arg(&unfinished))?;
    let mut pip = command(python(&unfinished), ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    // Nothing is compiled: where there is no built package for this machine, that is said at once.
    pip.args(["--only-binary", ":all:"]).arg(format!("matrix-synapse=={VERSION}"));
    checked(&mut pip).with_context(|| {
        format!("Synapse cannot be installed from PyPI; {SKIP}=1 leaves the tests of the Matrix channel out")
    })?;
    // Python finds its environment by where its program lies, so that it may be moved.
    fs::rename(&unfinished, &folder).with_context(|| format!("{} cannot be moved", unfinished.display()))?;
    eprintln!("Synapse is installed, in {:.0} s", begun.elapsed().as_secs_f64());
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

/// The version in the environment. Python itself is asked, so that one whose Python was exchanged below it is made anew.
fn installed() -> Option<String> {
    let asked = "import importlib.metadata; print(importlib.metadata.version('matrix-synapse'))";
    let answer = command(python(&root().join(FOLDER)), ["-c", asked]).output().ok()?;
    answer.status.success().then(|| String::from_utf8_lossy(&answer.stdout).trim().to_owned())
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
        assert_eq!(plan(&new_machine(&[])), Plan::Install);
        assert_eq!(plan(&Facts { has_python: false, ..new_machine(&[]) }), Plan::InstallPython);
        assert_eq!(plan(&Facts { can_install: false, ..new_machine(&[]) }), Plan::Install, "PyPI asks for no rights");
        assert_eq!(plan(&Facts { has_python: false, can_install: false, ..new_machine(&[]) }), Plan::Ask);
        assert_eq!(plan(&Facts { is_installed: true, has_python: false, ..new_machine(&[]) }), Plan::Nothing);
    }

    #[test]
    fn nothing_is_installed_for_tests_without_a_homeserver() {
        for (filter, wanted) in [("tidy", Plan::Nothing), ("channels::irc", Plan::Install), ("matrix", Plan::Install)] {
            assert_eq!(plan(&new_machine(&[filter.to_owned()])), wanted, "{filter}");
        }
        assert_eq!(plan(&Facts { is_skipped: true, ..new_machine(&[]) }), Plan::LeaveOut);
        assert_eq!(plan(&Facts { is_skipped: true, ..new_machine(&["tidy".to_owned()]) }), Plan::Nothing);
    }
}
