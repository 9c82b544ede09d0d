//! Install Debian packages that tests need: Chromium and ngircd. On other systems, print what to install.

mod daemon_autostart;

use std::env;
use std::path::Path;

use anyhow::bail;

use crate::{command, command_succeeds, run_checked};
use daemon_autostart::AutostartBlock;

/// Tests that need the same packages.
struct PackageGroup {
    /// The subject of the tests, for people.
    test_subject: &'static str,
    /// The name of each of these tests contains one of these.
    name_filters: &'static [&'static str],
    /// The environment variable that skips the tests, if they can be skipped.
    skip_variable: Option<&'static str>,
    packages: &'static [DebianPackage],
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
            program_package("chromium", "chromium"),
            program_package("chromium-driver", "chromedriver"),
            font_package("fonts-dejavu-core", "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"),
            font_package("fonts-noto-cjk", "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc"),
        ],
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
    },
];

const fn program_package(package: &'static str, program: &'static str) -> DebianPackage {
    DebianPackage { name: package, detected_by: PackageCheck::Program(program), contents: PackageContents::Files }
}

const fn font_package(package: &'static str, file: &'static str) -> DebianPackage {
    DebianPackage { name: package, detected_by: PackageCheck::Font(file), contents: PackageContents::Files }
}

/// The action before the tests of a group.
#[derive(Debug, PartialEq, Eq)]
enum PackagePlan {
    /// All packages are installed, or no selected test needs them.
    Nothing,
    /// Print that the tests are skipped.
    SkipTests,
    /// Install these packages.
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
    can_install: bool,
}

/// Prepares the machine for the selected tests.
pub(crate) fn prepare(filters: &[String]) -> anyhow::Result<()> {
    GROUPS.iter().try_for_each(|group| prepare_group(group, filters))
}

fn prepare_group(group: &'static PackageGroup, filters: &[String]) -> anyhow::Result<()> {
    let state = PackageState {
        is_skipped: group.skip_variable.is_some_and(|name| env::var_os(name).is_some()),
        filters,
        missing: group.packages.iter().filter(|package| is_missing(package)).collect(),
        can_install: can_install(),
    };
    let tests = group.test_subject;
    match plan_group(group, &state) {
        PackagePlan::Nothing => Ok(()),
        PackagePlan::SkipTests => {
            eprintln!("{} is set: the tests of {tests} are left out", group.skip_variable.unwrap_or_default());
            Ok(())
        }
        PackagePlan::Install(names) => install(group, &names),
        PackagePlan::AskToInstall(names) => {
            let skip = group.skip_variable.map(|name| format!("\nor leave these tests out with {name}=1"));
            bail!(
                "the tests of {tests} need programs that are missing; install them, on Debian by\n    \
                 sudo apt-get install {}{}",
                names.join(" "),
                skip.unwrap_or_default()
            )
        }
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
    }
}

fn plan_group(group: &PackageGroup, state: &PackageState<'_>) -> PackagePlan {
    if !is_selected(state.filters, group.name_filters) || state.missing.is_empty() && !state.is_skipped {
        return PackagePlan::Nothing;
    }
    if state.is_skipped {
        return PackagePlan::SkipTests;
    }
    let names = state.missing.iter().map(|package| package.name).collect();
    let only_fonts = state.missing.iter().all(|package| matches!(package.detected_by, PackageCheck::Font(_)));
    match (state.can_install, only_fonts) {
        (true, _) => PackagePlan::Install(names),
        (false, true) => PackagePlan::WithoutFonts(names),
        (false, false) => PackagePlan::AskToInstall(names),
    }
}

fn install(group: &PackageGroup, names: &[&str]) -> anyhow::Result<()> {
    let brings_daemon =
        |package: &&DebianPackage| package.contents == PackageContents::Daemon && names.contains(&package.name);
    let daemons: Vec<&str> = group.packages.iter().filter(brings_daemon).map(|package| package.name).collect();
    let no_start = if daemons.is_empty() { None } else { Some(AutostartBlock::install()?) };
    install_packages(names, &format!("the tests of {}", group.test_subject))?;
    drop(no_start);
    daemons.into_iter().try_for_each(daemon_autostart::disable_daemon)
}

/// True when one of these tests is selected. Test filters are parts of names.
pub(crate) fn is_selected(filters: &[String], names: &[&str]) -> bool {
    filters.is_empty() || filters.iter().any(|filter| names.iter().any(|name| filter.contains(name)))
}

/// True for root on a system with Debian's packages.
pub(crate) fn can_install() -> bool {
    let is_root = || command("id", ["-u"]).output().is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    command_succeeds("apt-get", ["--version"]) && is_root()
}

/// Installs Debian packages for these tests.
pub(crate) fn install_packages(names: &[&str], tests: &str) -> anyhow::Result<()> {
    eprintln!("installing {} for {tests}", names.join(" "));
    // A new machine has no package lists, or old ones with files that do not exist any more.
    run_checked(&mut command("apt-get", ["update", "--quiet=2"]))?;
    let mut install = command("apt-get", ["install", "--yes", "--quiet=2", "--no-install-recommends"]);
    run_checked(install.args(names).env("DEBIAN_FRONTEND", "noninteractive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &PackageGroup = &GROUPS[0];
    const IRC: &PackageGroup = &GROUPS[1];

    fn package_state<'a>(group: &'static PackageGroup, names: &[&str], filters: &'a [String]) -> PackageState<'a> {
        let missing = group.packages.iter().filter(|package| names.contains(&package.name)).collect();
        PackageState { is_skipped: false, filters, missing, can_install: true }
    }

    #[test]
    fn missing_packages_are_installed_if_permitted() {
        let all = ["chromium", "chromium-driver", "fonts-dejavu-core", "fonts-noto-cjk"];
        let plan = |names: &[&str]| plan_group(PAGE, &package_state(PAGE, names, &[]));
        assert_eq!(plan(&all), PackagePlan::Install(all.to_vec()));
        assert_eq!(plan(&["chromium-driver"]), PackagePlan::Install(vec!["chromium-driver"]));
        assert_eq!(plan(&["fonts-noto-cjk"]), PackagePlan::Install(vec!["fonts-noto-cjk"]));
        assert_eq!(plan(&[]), PackagePlan::Nothing);
    }

    #[test]
    fn without_rights_the_command_is_shown_and_fonts_are_optional() {
        let plan = |group, names: &[&str]| {
            plan_group(group, &PackageState { can_install: false, ..package_state(group, names, &[]) })
        };
        assert_eq!(
            plan(PAGE, &["chromium", "fonts-noto-cjk"]),
            PackagePlan::AskToInstall(vec!["chromium", "fonts-noto-cjk"])
        );
        assert_eq!(plan(PAGE, &["fonts-noto-cjk"]), PackagePlan::WithoutFonts(vec!["fonts-noto-cjk"]));
        assert_eq!(plan(IRC, &["ngircd"]), PackagePlan::AskToInstall(vec!["ngircd"]));
    }

    #[test]
    fn nothing_is_installed_for_tests_that_do_not_need_it() {
        let plan =
            |group, names: &[&str], filter: &str| plan_group(group, &package_state(group, names, &[filter.to_owned()]));
        assert_eq!(plan(PAGE, &["chromium"], "tidy"), PackagePlan::Nothing);
        assert_eq!(plan(PAGE, &["chromium"], "irc"), PackagePlan::Nothing);
        assert_eq!(plan(PAGE, &["chromium"], "page::chat"), PackagePlan::Install(vec!["chromium"]));
        assert_eq!(plan(IRC, &["ngircd"], "tidy"), PackagePlan::Nothing);
        assert_eq!(plan(IRC, &["ngircd"], "irc::tests"), PackagePlan::Install(vec!["ngircd"]));
        let skipped = PackageState { is_skipped: true, ..package_state(PAGE, &["chromium"], &[]) };
        assert_eq!(super::plan_group(PAGE, &skipped), PackagePlan::SkipTests);
    }
}
