//! Install Python tools that tests need into virtual environments below `target/`: the homeserver Synapse, and the
//! tools that check the HTTP API against its OpenAPI document.
//!
//! Outside of the build directory, only Debian's package for virtual environments may be installed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::{command, command_succeeds, packages, run_checked, workspace_root};

/// A tool with its virtual environment.
struct PythonTool {
    name: &'static str,
    /// The tests that need it, for people.
    tests_text: &'static str,
    /// The directory of the environment, below the root of the workspace.
    folder: &'static str,
    /// Packages and versions to install. Their dependencies are the newest that fit them and the machine's Python.
    packages: &'static [(&'static str, &'static str)],
    /// Size of the download, for people.
    size_text: &'static str,
    /// The environment variable that skips the tests that need it.
    skip_variable: &'static str,
    /// The name of each test that needs it contains one of these. Test filters are parts of names, too.
    name_filters: &'static [&'static str],
}

const SYNAPSE: PythonTool = PythonTool {
    name: "Synapse",
    tests_text: "the tests of the Matrix channel",
    folder: "target/tools/synapse",
    packages: &[("matrix-synapse", "1.163.2")],
    size_text: "about 250 MB, which takes half a minute or more",
    skip_variable: "QUELL_SKIP_SYNAPSE",
    name_filters: &["matrix", "synapse", "channel", "network"],
};

const SCHEMATHESIS: PythonTool = PythonTool {
    name: "schemathesis",
    tests_text: "the test of the OpenAPI document",
    folder: "target/tools/schemathesis",
    packages: &[("schemathesis", "4.32.5"), ("openapi-spec-validator", "0.9.0")],
    size_text: "about 70 MB, which takes some seconds",
    skip_variable: "QUELL_SKIP_SCHEMATHESIS",
    name_filters: &["openapi", "schemathesis"],
};

const TOOLS: [&PythonTool; 2] = [&SYNAPSE, &SCHEMATHESIS];

/// Succeeds where Python 3.10 or newer can create a virtual environment with pip.
const VENV_CHECK_SCRIPT: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))";
/// Debian's packages for that.
const DEBIAN_PACKAGES: [&str; 2] = ["python3", "python3-venv"];

/// The action before the tests.
#[derive(Debug, PartialEq, Eq)]
enum PythonToolPlan {
    /// The tool is installed, or no selected test needs it.
    Nothing,
    /// Print that its tests are skipped.
    SkipTests,
    /// Install it with the existing Python.
    Install,
    /// Install Debian's packages for Python first.
    InstallPython,
    /// Ask for an installation of Python by an administrator.
    AskToInstall,
}

/// The state of the machine, and the selected tests.
struct PythonToolState<'a> {
    is_skipped: bool,
    filters: &'a [String],
    is_installed: bool,
    /// True where the existing Python can create environments.
    has_python: bool,
    can_install: bool,
}

/// Prepares the machine for the selected tests.
pub(crate) fn prepare(filters: &[String]) -> anyhow::Result<()> {
    TOOLS.iter().try_for_each(|tool| prepare_tool(tool, filters))
}

fn prepare_tool(tool: &PythonTool, filters: &[String]) -> anyhow::Result<()> {
    let state = PythonToolState {
        is_skipped: env::var_os(tool.skip_variable).is_some(),
        filters,
        is_installed: is_installed(tool),
        has_python: can_create_venv(),
        can_install: packages::can_install(),
    };
    match plan_tool(tool, &state) {
        PythonToolPlan::Nothing => Ok(()),
        PythonToolPlan::SkipTests => {
            eprintln!("{} is set: {} are left out", tool.skip_variable, tool.tests_text);
            Ok(())
        }
        PythonToolPlan::Install => install(tool),
        PythonToolPlan::InstallPython => install_python(tool).and_then(|()| install(tool)),
        PythonToolPlan::AskToInstall => bail!(
            "{} need Python 3.10 or newer with its modules venv and ensurepip; install it, on Debian by\n    sudo apt-get \
             install {}\nor leave them out with {}=1",
            tool.tests_text,
            DEBIAN_PACKAGES.join(" "),
            tool.skip_variable
        ),
    }
}

fn plan_tool(tool: &PythonTool, state: &PythonToolState<'_>) -> PythonToolPlan {
    match state {
        _ if !packages::is_selected(state.filters, tool.name_filters) => PythonToolPlan::Nothing,
        PythonToolState { is_skipped: true, .. } => PythonToolPlan::SkipTests,
        PythonToolState { is_installed: true, .. } => PythonToolPlan::Nothing,
        PythonToolState { has_python: true, .. } => PythonToolPlan::Install,
        PythonToolState { can_install: true, .. } => PythonToolPlan::InstallPython,
        PythonToolState { .. } => PythonToolPlan::AskToInstall,
    }
}

fn install_python(tool: &PythonTool) -> anyhow::Result<()> {
    packages::install_packages(&DEBIAN_PACKAGES, tool.tests_text)?;
    if can_create_venv() {
        return Ok(());
    }
    bail!(
        "the first python3 on the PATH is older than 3.10 or lacks venv or ensurepip, with Debian's packages installed as well"
    )
}

fn install(tool: &PythonTool) -> anyhow::Result<()> {
    // Created under another name, so that an interrupted installation is not taken for a complete one.
    let (folder, unfinished) =
        (workspace_root().join(tool.folder), workspace_root().join(format!("{}.unfinished", tool.folder)));
    eprintln!("installing {} from PyPI into {}, {}", tool.name, tool.folder, tool.size_text);
    let begun = Instant::now();
    for old in [&folder, &unfinished] {
        remove_if_exists(old)?;
    }
    run_checked(command("python3", ["-m", "venv"]).arg(&unfinished))?;
    let mut pip = command(python_path(&unfinished), ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    // Compile nothing: without a built package for this machine, pip fails at once.
    pip.args(["--only-binary", ":all:"]);
    pip.args(tool.packages.iter().map(|(name, version)| format!("{name}=={version}")));
    run_checked(&mut pip).with_context(|| {
        format!("{} cannot be installed from PyPI; {}=1 leaves {} out", tool.name, tool.skip_variable, tool.tests_text)
    })?;
    // Python finds its environment by the path of its program, so the directory can be renamed.
    fs::rename(&unfinished, &folder).with_context(|| format!("{} cannot be moved", unfinished.display()))?;
    eprintln!("{} is installed, in {:.0} s", tool.name, begun.elapsed().as_secs_f64());
    Ok(())
}

fn remove_if_exists(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Asks the environment's own Python for the versions, so that an environment with a replaced Python is created again.
fn is_installed(tool: &PythonTool) -> bool {
    let version = |(name, version): &(&str, &str)| {
        let asked = format!("import importlib.metadata; print(importlib.metadata.version('{name}'))");
        let answer = command(python_path(&workspace_root().join(tool.folder)), ["-c", &asked]).output();
        answer.is_ok_and(|answer| answer.status.success() && String::from_utf8_lossy(&answer.stdout).trim() == *version)
    };
    tool.packages.iter().all(version)
}

fn can_create_venv() -> bool {
    command_succeeds("python3", ["-c", VENV_CHECK_SCRIPT])
}

fn python_path(folder: &Path) -> PathBuf {
    folder.join("bin/python")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_of_new_machine(filters: &[String]) -> PythonToolState<'_> {
        PythonToolState { is_skipped: false, filters, is_installed: false, has_python: true, can_install: true }
    }

    #[test]
    fn missing_packages_are_installed_if_permitted() {
        // PyPI asks for no rights.
        for (is_installed, has_python, can_install, wanted) in [
            (false, true, true, PythonToolPlan::Install),
            (false, true, false, PythonToolPlan::Install),
            (false, false, true, PythonToolPlan::InstallPython),
            (false, false, false, PythonToolPlan::AskToInstall),
            (true, false, true, PythonToolPlan::Nothing),
        ] {
            let state = PythonToolState { is_installed, has_python, can_install, ..state_of_new_machine(&[]) };
            assert_eq!(plan_tool(&SYNAPSE, &state), wanted, "{is_installed} {has_python} {can_install}");
        }
    }

    #[test]
    fn nothing_is_installed_for_tests_that_do_not_need_it() {
        for (tool, filter, is_skipped, wanted) in [
            (&SYNAPSE, "tidy", false, PythonToolPlan::Nothing),
            (&SYNAPSE, "channel", false, PythonToolPlan::Install),
            (&SYNAPSE, "matrix", false, PythonToolPlan::Install),
            (&SYNAPSE, "openapi", false, PythonToolPlan::Nothing),
            (&SYNAPSE, "matrix", true, PythonToolPlan::SkipTests),
            (&SYNAPSE, "tidy", true, PythonToolPlan::Nothing),
            (&SCHEMATHESIS, "openapi", false, PythonToolPlan::Install),
            (&SCHEMATHESIS, "matrix", false, PythonToolPlan::Nothing),
        ] {
            let filters = [filter.to_owned()];
            let state = PythonToolState { is_skipped, ..state_of_new_machine(&filters) };
            assert_eq!(plan_tool(tool, &state), wanted, "{} {filter}", tool.name);
        }
    }
}
