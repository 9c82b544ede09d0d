//! Install what some tests need: Debian packages, and tools from PyPI below `target/`. On other systems, print what to
//! install.

mod daemon_autostart;
mod python_tools;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::{command, command_succeeds, run_checked};
use daemon_autostart::AutostartBlock;
use python_tools::{A2A_CLIENT, FASTMCP, LITELLM, MCP_CLIENT, MODEL_CLIENTS, PythonTool, SCHEMATHESIS, SYNAPSE};

/// Tests that need the same packages.
struct PackageGroup {
    /// The subject of the tests, for people.
    test_subject: &'static str,
    /// The name of each of these tests contains one of these. Test filters are parts of names, too.
    name_filters: &'static [&'static str],
    /// The environment variable that skips the tests, if they can be skipped.
    skip_variable: Option<&'static str>,
    packages: &'static [DebianPackage],
    /// A tool from PyPI, which the packages make possible.
    python_tool: Option<&'static PythonTool>,
}

/// A Debian package, and a check whether it is installed.
struct DebianPackage {
    name: &'static str,
    detected_by: PackageCheck,
    contents: PackageContents,
}

enum PackageCheck {
    /// A program that supports `--version`.
    Program(&'static str),
    /// A font file: without it only screenshots look different.
    Font(&'static str),
    /// A Python 3.10 or newer that can create a virtual environment.
    PythonVenv,
    /// A PostgreSQL server of [`OLDEST_POSTGRES`] or newer, in Debian's directory or on the PATH.
    PostgresServer,
}

#[derive(PartialEq, Eq)]
enum PackageContents {
    Files,
    /// A daemon of the same name, which Debian starts at the installation and at boot. The tests must prevent both.
    Daemon,
}

const GROUPS: &[PackageGroup] = &[
    PackageGroup {
        test_subject: "the page",
        name_filters: &["page", "browser"],
        skip_variable: Some("QUELL_SKIP_BROWSER"),
        packages: &[
            file_package("chromium", PackageCheck::Program("chromium")),
            file_package("chromium-driver", PackageCheck::Program("chromedriver")),
            file_package("fonts-dejavu-core", PackageCheck::Font("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")),
            file_package(
                "fonts-noto-cjk",
                PackageCheck::Font("/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc"),
            ),
        ],
        python_tool: None,
    },
    PackageGroup {
        test_subject: "IRC",
        name_filters: &["irc", "channel", "network"],
        skip_variable: None,
        packages: &[DebianPackage {
            name: "ngircd",
            detected_by: PackageCheck::Program("ngircd"),
            contents: PackageContents::Daemon,
        }],
        python_tool: None,
    },
    PackageGroup {
        test_subject: "the Matrix channel",
        name_filters: &["matrix", "synapse", "channel", "network"],
        skip_variable: Some("QUELL_SKIP_SYNAPSE"),
        packages: VENV_PACKAGES,
        python_tool: Some(&SYNAPSE),
    },
    PackageGroup {
        test_subject: "the OpenAPI document",
        name_filters: &["openapi", "schemathesis"],
        skip_variable: Some("QUELL_SKIP_SCHEMATHESIS"),
        packages: VENV_PACKAGES,
        python_tool: Some(&SCHEMATHESIS),
    },
    PackageGroup {
        test_subject: "the official clients of model providers",
        name_filters: &[
            "official_clients",
            "dialects",
            "anthropic_api",
            "openai_chat",
            "openai_responses",
            "api_doc_examples",
        ],
        skip_variable: Some("QUELL_SKIP_MODEL_CLIENTS"),
        packages: VENV_PACKAGES,
        python_tool: Some(&MODEL_CLIENTS),
    },
    PackageGroup {
        test_subject: "the examples of the pages about APIs",
        name_filters: &["api_doc_examples"],
        skip_variable: None,
        packages: &[file_package("curl", PackageCheck::Program("curl"))],
        python_tool: None,
    },
    PackageGroup {
        test_subject: "MCP servers in Python",
        name_filters: &["mcp", "fastmcp"],
        skip_variable: Some("QUELL_SKIP_FASTMCP"),
        packages: VENV_PACKAGES,
        python_tool: Some(&FASTMCP),
    },
    PackageGroup {
        test_subject: "the official client of MCP",
        name_filters: &["mcp"],
        skip_variable: Some("QUELL_SKIP_MCP_CLIENT"),
        packages: VENV_PACKAGES,
        python_tool: Some(&MCP_CLIENT),
    },
    PackageGroup {
        test_subject: "the official client of A2A",
        name_filters: &["a2a"],
        skip_variable: Some("QUELL_SKIP_A2A_CLIENT"),
        packages: VENV_PACKAGES,
        python_tool: Some(&A2A_CLIENT),
    },
    PackageGroup {
        test_subject: "PostgreSQL 15 or newer",
        name_filters: &["postgres", "cluster"],
        skip_variable: Some("QUELL_SKIP_POSTGRES"),
        packages: &[
            DebianPackage {
                name: "postgresql",
                detected_by: PackageCheck::PostgresServer,
                contents: PackageContents::Daemon,
            },
            file_package("postgresql-client", PackageCheck::Program("psql")),
        ],
        python_tool: None,
    },
    PackageGroup {
        test_subject: "NATS",
        name_filters: &["nats", "cluster"],
        skip_variable: Some("QUELL_SKIP_NATS"),
        packages: &[DebianPackage {
            name: "nats-server",
            detected_by: PackageCheck::Program("nats-server"),
            contents: PackageContents::Daemon,
        }],
        python_tool: None,
    },
    PackageGroup {
        test_subject: "partitions and clocks of nodes",
        name_filters: &["cluster", "testkit", "network"],
        // They need its server.
        skip_variable: Some("QUELL_SKIP_NATS"),
        packages: &[
            file_package("faketime", PackageCheck::Program("faketime")),
            file_package("iproute2", PackageCheck::Program("ip")),
        ],
        python_tool: None,
    },
    PackageGroup {
        test_subject: "clients in Node",
        name_filters: &[
            "clients",
            "page",
            "browser",
            "acp",
            "mcp",
            "a2a",
            "openai",
            "anthropic",
            "openclaw",
            "gateway",
        ],
        skip_variable: Some("QUELL_SKIP_NODE"),
        packages: &[
            file_package("nodejs", PackageCheck::Program("node")),
            file_package("npm", PackageCheck::Program("npm")),
        ],
        python_tool: None,
    },
];

/// The major version that the tests need at least.
const OLDEST_POSTGRES: u32 = 15;
/// Debian installs each major version into a directory of its own, which is not on the PATH.
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";

const VENV_PACKAGES: &[DebianPackage] =
    &[file_package("python3", PackageCheck::PythonVenv), file_package("python3-venv", PackageCheck::PythonVenv)];

const fn file_package(name: &'static str, detected_by: PackageCheck) -> DebianPackage {
    DebianPackage { name, detected_by, contents: PackageContents::Files }
}

/// The action before the tests of a group.
#[derive(Debug, PartialEq, Eq)]
enum PackagePlan {
    /// Everything is installed, or no selected test needs it.
    Nothing,
    /// Print that the tests are skipped.
    SkipTests,
    /// Install these packages, then the tool from PyPI.
    Install(Vec<&'static str>),
    /// Ask for an installation of these packages by an administrator.
    AskToInstall(Vec<&'static str>),
    /// Continue without these fonts.
    WithoutFonts(Vec<&'static str>),
}

/// The state of the machine, and the selected tests.
struct PackageState<'a> {
    is_skipped: bool,
    filters: &'a [String],
    missing: Vec<&'static DebianPackage>,
    is_python_tool_missing: bool,
    can_install: bool,
}

/// Prepares the machine for the selected tests.
pub(crate) fn prepare(filters: &[String]) -> anyhow::Result<()> {
    GROUPS.iter().try_for_each(|group| prepare_group(group, filters))
}

/// Installs what the bench measures beside Quell, unless `QUELL_SKIP_LITELLM` is set. Without it the bench leaves its
/// figures out.
pub(crate) fn prepare_bench(args: &[String]) {
    let is_selected = args.iter().all(|arg| arg.starts_with("--")) || args.iter().any(|arg| "model-apis".contains(arg));
    if !is_selected || env::var_os("QUELL_SKIP_LITELLM").is_some() || LITELLM.is_installed() {
        return;
    }
    if !can_create_venv() {
        eprintln!("without LiteLLM: the first python3 on the PATH is older than 3.10, or lacks venv or ensurepip");
    } else if let Err(error) = LITELLM.install() {
        eprintln!("without LiteLLM: it cannot be installed from PyPI: {error:#}");
    }
}

fn prepare_group(group: &'static PackageGroup, filters: &[String]) -> anyhow::Result<()> {
    let is_python_tool_missing = group.python_tool.is_some_and(|tool| !tool.is_installed());
    // An installed tool needs the packages no more.
    let needs_packages = group.python_tool.is_none() || is_python_tool_missing;
    let state = PackageState {
        is_skipped: group.skip_variable.is_some_and(|name| env::var_os(name).is_some()),
        filters,
        missing: group.packages.iter().filter(|package| needs_packages && is_missing(package)).collect(),
        is_python_tool_missing,
        // The machine's own daemon must not be disabled, and Debian would install the same version.
        can_install: can_install() && !group.packages.iter().any(is_older),
    };
    let tests = group.test_subject;
    let skip = group.skip_variable.map(|name| format!("; {name}=1 leaves these tests out")).unwrap_or_default();
    let python = if group.python_tool.is_some() { " (Python 3.10 or newer, with venv and ensurepip)" } else { "" };
    match plan_group(group, &state) {
        PackagePlan::Nothing => Ok(()),
        PackagePlan::SkipTests => {
            eprintln!("{} is set: the tests of {tests} are left out", group.skip_variable.unwrap_or_default());
            Ok(())
        }
        PackagePlan::Install(names) => {
            install_packages(group, &names)?;
            if group.packages.iter().any(is_older) {
                bail!("Debian's packages here are too old for the tests of {tests}{skip}")
            }
            let Some(tool) = group.python_tool else { return Ok(()) };
            if !can_create_venv() {
                bail!("the first python3 on the PATH is older than 3.10, or lacks venv or ensurepip{skip}")
            }
            tool.install().with_context(|| format!("{} cannot be installed from PyPI{skip}", tool.name))
        }
        PackagePlan::AskToInstall(names) => bail!(
            "the tests of {tests} need programs that are missing{python}; install them, on Debian by\n    \
             sudo apt-get install {}\n{}",
            names.join(" "),
            skip.trim_start_matches("; ")
        ),
        PackagePlan::WithoutFonts(names) => {
            eprintln!("without {}: screenshots of {tests} will lack some letters", names.join(", "));
            Ok(())
        }
    }
}

fn is_missing(package: &DebianPackage) -> bool {
    match package.detected_by {
        // Debian's directory of daemons is only in the PATH of root.
        PackageCheck::Program(name) => {
            !command_succeeds(name, ["--version"]) && !Path::new("/usr/sbin").join(name).exists()
        }
        PackageCheck::Font(path) => !Path::new(path).exists(),
        PackageCheck::PythonVenv => !can_create_venv(),
        PackageCheck::PostgresServer => !has_postgres_server(),
    }
}

/// True if the package is installed, but older than the tests need.
fn is_older(package: &DebianPackage) -> bool {
    matches!(package.detected_by, PackageCheck::PostgresServer)
        && debian_postgres_dirs().any(|dir| dir.join("postgres").exists())
        && !has_postgres_server()
}

fn debian_postgres_dirs() -> impl Iterator<Item = PathBuf> {
    fs::read_dir(DEBIAN_POSTGRES).into_iter().flatten().flatten().map(|version| version.path().join("bin"))
}

fn has_postgres_server() -> bool {
    let on_path = env::var_os("PATH").unwrap_or_default();
    let mut dirs = debian_postgres_dirs().chain(env::split_paths(&on_path));
    dirs.any(|dir| dir.join("initdb").exists() && postgres_version(&dir) >= Some(OLDEST_POSTGRES))
}

fn postgres_version(dir: &Path) -> Option<u32> {
    let output = command(dir.join("postgres"), ["--version"]).output().ok()?;
    parse_postgres_version(&String::from_utf8_lossy(&output.stdout))
}

/// The major version in `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn parse_postgres_version(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("(PostgreSQL) ")?;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn can_create_venv() -> bool {
    command_succeeds("python3", ["-c", "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))"])
}

fn plan_group(group: &PackageGroup, state: &PackageState<'_>) -> PackagePlan {
    let is_selected = |filter: &String| group.name_filters.iter().any(|name| filter.contains(name));
    if !state.filters.is_empty() && !state.filters.iter().any(is_selected) {
        return PackagePlan::Nothing;
    }
    if state.is_skipped {
        return PackagePlan::SkipTests;
    }
    if state.missing.is_empty() {
        // PyPI asks for no rights.
        return if state.is_python_tool_missing { PackagePlan::Install(Vec::new()) } else { PackagePlan::Nothing };
    }
    let names = state.missing.iter().map(|package| package.name).collect();
    let only_fonts = state.missing.iter().all(|package| matches!(package.detected_by, PackageCheck::Font(_)));
    match (state.can_install, only_fonts) {
        (true, _) => PackagePlan::Install(names),
        (false, true) => PackagePlan::WithoutFonts(names),
        (false, false) => PackagePlan::AskToInstall(names),
    }
}

/// True for root on a system with Debian's packages.
fn can_install() -> bool {
    let is_root = || command("id", ["-u"]).output().is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    command_succeeds("apt-get", ["--version"]) && is_root()
}

fn install_packages(group: &PackageGroup, names: &[&str]) -> anyhow::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let brings_daemon =
        |package: &&DebianPackage| package.contents == PackageContents::Daemon && names.contains(&package.name);
    let daemons: Vec<&str> = group.packages.iter().filter(brings_daemon).map(|package| package.name).collect();
    let no_start = if daemons.is_empty() { None } else { Some(AutostartBlock::install()?) };
    eprintln!("installing {} for the tests of {}", names.join(" "), group.test_subject);
    // A new machine has no package lists, or old ones with files that do not exist any more.
    run_checked(&mut command("apt-get", ["update", "--quiet=2"]))?;
    let mut install = command("apt-get", ["install", "--yes", "--quiet=2", "--no-install-recommends"]);
    run_checked(install.args(names).env("DEBIAN_FRONTEND", "noninteractive"))?;
    drop(no_start);
    daemons.into_iter().try_for_each(daemon_autostart::disable_daemon)
}

#[cfg(test)]
mod tests {
    use super::PackagePlan::{AskToInstall, Install, Nothing, SkipTests, WithoutFonts};
    use super::*;

    const PAGE: &PackageGroup = &GROUPS[0];
    const IRC: &PackageGroup = &GROUPS[1];
    const MATRIX: &PackageGroup = &GROUPS[2];
    const OPENAPI: &PackageGroup = &GROUPS[3];
    const MODEL_CLIENTS_GROUP: &PackageGroup = &GROUPS[4];
    const API_EXAMPLES: &PackageGroup = &GROUPS[5];
    const MCP: &PackageGroup = &GROUPS[6];
    const MCP_CLIENT_GROUP: &PackageGroup = &GROUPS[7];
    const A2A_CLIENT_GROUP: &PackageGroup = &GROUPS[8];
    const POSTGRES: &PackageGroup = &GROUPS[9];
    const NATS: &PackageGroup = &GROUPS[10];
    const NODES: &PackageGroup = &GROUPS[11];
    const NODE_CLIENTS: &PackageGroup = &GROUPS[12];

    fn package_state<'a>(group: &'static PackageGroup, names: &[&str], filters: &'a [String]) -> PackageState<'a> {
        let missing = group.packages.iter().filter(|package| names.contains(&package.name)).collect();
        let is_python_tool_missing = group.python_tool.is_some();
        PackageState { is_skipped: false, filters, missing, is_python_tool_missing, can_install: true }
    }

    #[test]
    fn missing_packages_are_installed_if_permitted() {
        let all = ["chromium", "chromium-driver", "fonts-dejavu-core", "fonts-noto-cjk"];
        let (python, page_programs) = (["python3", "python3-venv"], ["chromium", "fonts-noto-cjk"]);
        for (group, missing, with_rights, without) in [
            (PAGE, &all[..], Install(all.to_vec()), AskToInstall(all.to_vec())),
            (PAGE, &page_programs, Install(page_programs.to_vec()), AskToInstall(page_programs.to_vec())),
            (PAGE, &all[3..], Install(all[3..].to_vec()), WithoutFonts(all[3..].to_vec())),
            (PAGE, &[], Nothing, Nothing),
            (IRC, &["ngircd"], Install(vec!["ngircd"]), AskToInstall(vec!["ngircd"])),
            (MATRIX, &python, Install(python.to_vec()), AskToInstall(python.to_vec())),
            (MATRIX, &[], Install(vec![]), Install(vec![])),
            (POSTGRES, &["postgresql"], Install(vec!["postgresql"]), AskToInstall(vec!["postgresql"])),
            (POSTGRES, &[], Nothing, Nothing),
            (NATS, &["nats-server"], Install(vec!["nats-server"]), AskToInstall(vec!["nats-server"])),
            (NODES, &["faketime"], Install(vec!["faketime"]), AskToInstall(vec!["faketime"])),
        ] {
            for (can_install, plan) in [(true, with_rights), (false, without)] {
                let state = PackageState { can_install, ..package_state(group, missing, &[]) };
                assert_eq!(plan_group(group, &state), plan, "{missing:?} {can_install}");
            }
        }
        let installed = PackageState { is_python_tool_missing: false, ..package_state(MATRIX, &[], &[]) };
        assert_eq!(plan_group(MATRIX, &installed), Nothing);
    }

    #[test]
    fn nothing_is_installed_for_tests_that_do_not_need_it() {
        for (group, missing, filter, plan) in [
            (PAGE, "chromium", "tidy", Nothing),
            (PAGE, "chromium", "irc", Nothing),
            (PAGE, "chromium", "page::chat", Install(vec!["chromium"])),
            (IRC, "ngircd", "tidy", Nothing),
            (IRC, "ngircd", "irc::tests", Install(vec!["ngircd"])),
            (MATRIX, "python3", "openapi", Nothing),
            (MATRIX, "python3", "channel", Install(vec!["python3"])),
            (OPENAPI, "python3", "matrix", Nothing),
            (MODEL_CLIENTS_GROUP, "python3", "dialects::official_clients", Install(vec!["python3"])),
            (MCP, "python3", "mcp::real_servers", Install(vec!["python3"])),
            (MCP_CLIENT_GROUP, "python3", "mcp_server::official_clients", Install(vec!["python3"])),
            (A2A_CLIENT_GROUP, "python3", "a2a::official_clients", Install(vec!["python3"])),
            (API_EXAMPLES, "curl", "api_doc_examples", Install(vec!["curl"])),
            (OPENAPI, "python3", "openapi", Install(vec!["python3"])),
            (POSTGRES, "postgresql", "tidy", Nothing),
            (POSTGRES, "postgresql", "store::postgres", Install(vec!["postgresql"])),
            (NATS, "nats-server", "letter::tests", Nothing),
            (NATS, "nats-server", "nats::tests", Install(vec!["nats-server"])),
            (NODES, "iproute2", "store", Nothing),
            (NODES, "iproute2", "cluster::cut_off", Install(vec!["iproute2"])),
            (NODE_CLIENTS, "npm", "acp", Install(vec!["npm"])),
            (NODE_CLIENTS, "npm", "cluster", Nothing),
        ] {
            let filters = [filter.to_owned()];
            let skipped = if plan == Nothing { Nothing } else { SkipTests };
            for (is_skipped, plan) in [(false, plan), (true, skipped)] {
                let state = PackageState { is_skipped, ..package_state(group, &[missing], &filters) };
                assert_eq!(plan_group(group, &state), plan, "{missing} {filter} {is_skipped}");
            }
        }
    }

    #[test]
    fn the_version_of_postgres_is_read() {
        let debian = "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n";
        assert_eq!(parse_postgres_version(debian), Some(15));
        assert_eq!(parse_postgres_version("postgres (PostgreSQL) 19devel\n"), Some(19));
        assert_eq!(parse_postgres_version("not found"), None);
    }
}
