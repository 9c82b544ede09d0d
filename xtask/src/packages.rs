//! What tests need of the machine besides Rust: a browser for those of the page, a server for those of IRC. Debian's packages
//! of these are installed when something is missing; elsewhere it says what to install.

mod daemon;

use std::env;
use std::path::Path;

use anyhow::bail;

use crate::{checked, command, succeeds};
use daemon::NoStart;

/// Tests that need the same packages.
struct Group {
    /// How people call them.
    tests: &'static str,
    /// What stands in the names of all of them, one or the other.
    named: &'static [&'static str],
    /// The environment variable that leaves them out, if they can be.
    skipped_by: Option<&'static str>,
    packages: &'static [Package],
}

/// A Debian package, and what shows that it is there.
struct Package {
    name: &'static str,
    shown_by: Proof,
    brings: Brings,
}

enum Proof {
    /// A program that answers `--version`.
    Program(&'static str),
    /// A font: without it only pictures look different.
    Font(&'static str),
}

/// What comes with a package.
#[derive(PartialEq, Eq)]
enum Brings {
    Files,
    /// A daemon of the same name, which Debian starts with the installation and with the machine. Nobody asked for that here.
    Daemon,
}

const GROUPS: &[Group] = &[
    Group {
        tests: "the page",
        named: &["page", "browser"],
        skipped_by: Some("QUELL_SKIP_BROWSER"),
        packages: &[
            program("chromium", "chromium"),
            program("chromium-driver", "chromedriver"),
            font("fonts-dejavu-core", "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"),
            font("fonts-noto-cjk", "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc"),
        ],
    },
    Group {
        tests: "IRC",
        named: &["irc", "channel", "network"],
        skipped_by: None,
        packages: &[Package { name: "ngircd", shown_by: Proof::Program("ngircd"), brings: Brings::Daemon }],
    },
];

const fn program(package: &'static str, program: &'static str) -> Package {
    Package { name: package, shown_by: Proof::Program(program), brings: Brings::Files }
}

const fn font(package: &'static str, file: &'static str) -> Package {
    Package { name: package, shown_by: Proof::Font(file), brings: Brings::Files }
}

/// What to do before the tests of a group.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Everything is there, or none of the tests needs it.
    Nothing,
    /// Say that the tests are left out.
    LeaveOut,
    /// Install these packages.
    Install(Vec<&'static str>),
    /// Say that these packages have to be installed by somebody who may.
    Ask(Vec<&'static str>),
    /// Go on without these fonts.
    WithoutFonts(Vec<&'static str>),
}

/// What is known of the machine and of the tests that were asked for.
struct Facts<'a> {
    is_skipped: bool,
    filters: &'a [String],
    missing: Vec<&'static Package>,
    /// True for root on a system with Debian's packages.
    can_install: bool,
}

/// Makes the machine ready for the tests that were asked for.
pub(crate) fn prepare(filters: &[String]) -> anyhow::Result<()> {
    GROUPS.iter().try_for_each(|group| prepare_group(group, filters))
}

fn prepare_group(group: &'static Group, filters: &[String]) -> anyhow::Result<()> {
    let facts = Facts {
        is_skipped: group.skipped_by.is_some_and(|name| env::var_os(name).is_some()),
        filters,
        missing: group.packages.iter().filter(|package| is_missing(package)).collect(),
        can_install: succeeds("apt-get", ["--version"]) && is_root(),
    };
    let tests = group.tests;
    match plan(group, &facts) {
        Plan::Nothing => Ok(()),
        Plan::LeaveOut => {
            eprintln!("{} is set: the tests of {tests} are left out", group.skipped_by.unwrap_or_default());
            Ok(())
        }
        Plan::Install(names) => install(group, &names),
        Plan::Ask(names) => {
            let skip = group.skipped_by.map(|name| format!("\nor leave these tests out with {name}=1"));
            bail!(
                "the tests of {tests} need programs that are missing; install them, on Debian by\n    \
                 sudo apt-get install {}{}",
                names.join(" "),
                skip.unwrap_or_default()
            )
        }
        Plan::WithoutFonts(names) => {
            eprintln!("without {}: screenshots of {tests} will lack some letters", names.join(", "));
            Ok(())
        }
    }
}

fn is_missing(package: &Package) -> bool {
    match package.shown_by {
        // Debian's folder of daemons is in root's path alone.
        Proof::Program(name) => !succeeds(name, ["--version"]) && !Path::new("/usr/sbin").join(name).exists(),
        Proof::Font(path) => !Path::new(path).exists(),
    }
}

fn plan(group: &Group, facts: &Facts<'_>) -> Plan {
    // Filters are parts of names.
    let is_meant = |filter: &String| group.named.iter().any(|name| filter.contains(name));
    let meant = facts.filters.is_empty() || facts.filters.iter().any(is_meant);
    if !meant || facts.missing.is_empty() && !facts.is_skipped {
        return Plan::Nothing;
    }
    if facts.is_skipped {
        return Plan::LeaveOut;
    }
    let names = facts.missing.iter().map(|package| package.name).collect();
    let only_fonts = facts.missing.iter().all(|package| matches!(package.shown_by, Proof::Font(_)));
    match (facts.can_install, only_fonts) {
        (true, _) => Plan::Install(names),
        (false, true) => Plan::WithoutFonts(names),
        (false, false) => Plan::Ask(names),
    }
}

fn install(group: &Group, names: &[&str]) -> anyhow::Result<()> {
    eprintln!("installing {} for the tests of {}", names.join(" "), group.tests);
    // A new machine has no lists of packages, or old ones that name files which are gone.
    checked(&mut command("apt-get", ["update", "--quiet=2"]))?;
    let brings_daemon = |package: &&Package| package.brings == Brings::Daemon && names.contains(&package.name);
    let daemons: Vec<&str> = group.packages.iter().filter(brings_daemon).map(|package| package.name).collect();
    let no_start = if daemons.is_empty() { None } else { Some(NoStart::declare()?) };
    let mut install = command("apt-get", ["install", "--yes", "--quiet=2", "--no-install-recommends"]);
    install.args(names).env("DEBIAN_FRONTEND", "noninteractive");
    checked(&mut install)?;
    drop(no_start);
    daemons.into_iter().try_for_each(daemon::disable)
}

fn is_root() -> bool {
    let answer = command("id", ["-u"]).output();
    answer.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &Group = &GROUPS[0];
    const IRC: &Group = &GROUPS[1];

    fn facts<'a>(group: &'static Group, names: &[&str], filters: &'a [String]) -> Facts<'a> {
        let missing = group.packages.iter().filter(|package| names.contains(&package.name)).collect();
        Facts { is_skipped: false, filters, missing, can_install: true }
    }

    fn filters(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }

    #[test]
    fn what_is_missing_is_installed_by_who_may() {
        let all = ["chromium", "chromium-driver", "fonts-dejavu-core", "fonts-noto-cjk"];
        let plan = |names: &[&str]| plan(PAGE, &facts(PAGE, names, &[]));
        assert_eq!(plan(&all), Plan::Install(all.to_vec()));
        assert_eq!(plan(&["chromium-driver"]), Plan::Install(vec!["chromium-driver"]));
        assert_eq!(plan(&["fonts-noto-cjk"]), Plan::Install(vec!["fonts-noto-cjk"]));
        assert_eq!(plan(&[]), Plan::Nothing);
    }

    #[test]
    fn who_may_not_is_told_and_goes_on_without_fonts() {
        let plan = |group, names: &[&str]| plan(group, &Facts { can_install: false, ..facts(group, names, &[]) });
        assert_eq!(plan(PAGE, &["chromium", "fonts-noto-cjk"]), Plan::Ask(vec!["chromium", "fonts-noto-cjk"]));
        assert_eq!(plan(PAGE, &["fonts-noto-cjk"]), Plan::WithoutFonts(vec!["fonts-noto-cjk"]));
        assert_eq!(plan(IRC, &["ngircd"]), Plan::Ask(vec!["ngircd"]));
    }

    #[test]
    fn nothing_is_installed_for_tests_that_do_not_need_it() {
        let plan = |group, names: &[&str], filter| plan(group, &facts(group, names, &filters(filter)));
        assert_eq!(plan(PAGE, &["chromium"], "tidy"), Plan::Nothing);
        assert_eq!(plan(PAGE, &["chromium"], "irc"), Plan::Nothing);
        assert_eq!(plan(PAGE, &["chromium"], "page::chat"), Plan::Install(vec!["chromium"]));
        assert_eq!(plan(IRC, &["ngircd"], "tidy"), Plan::Nothing);
        assert_eq!(plan(IRC, &["ngircd"], "channels::irc"), Plan::Install(vec!["ngircd"]));
        let skipped = Facts { is_skipped: true, ..facts(PAGE, &["chromium"], &[]) };
        assert_eq!(super::plan(PAGE, &skipped), Plan::LeaveOut);
    }
}
