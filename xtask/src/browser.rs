//! What the tests of the page need of the machine: Chromium, its driver, and fonts for the languages of the page. Debian's
//! packages of these are installed when something is missing; elsewhere it says what to install.

use std::env;
use std::path::Path;

use anyhow::bail;

use crate::{checked, command, succeeds};

/// A Debian package, and what shows that it is there.
struct Package {
    name: &'static str,
    shown_by: Proof,
}

enum Proof {
    /// A program that answers `--version`.
    Program(&'static str),
    /// A file of the package.
    File(&'static str),
}

const PACKAGES: &[Package] = &[
    Package { name: "chromium", shown_by: Proof::Program("chromium") },
    Package { name: "chromium-driver", shown_by: Proof::Program("chromedriver") },
    Package { name: "fonts-dejavu-core", shown_by: Proof::File("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf") },
    Package { name: "fonts-noto-cjk", shown_by: Proof::File("/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc") },
];

/// What to do before the tests.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Everything is there, or none of the tests needs it.
    Nothing,
    /// Say that the tests of the page are left out.
    LeaveOut,
    /// Install these packages.
    Install(Vec<&'static str>),
    /// Say that these packages have to be installed by somebody who may.
    Ask(Vec<&'static str>),
    /// Go on without these fonts: only pictures look different.
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
    let is_missing = |package: &&Package| match package.shown_by {
        Proof::Program(name) => !succeeds(name, ["--version"]),
        Proof::File(path) => !Path::new(path).exists(),
    };
    let facts = Facts {
        is_skipped: env::var_os("QUELL_SKIP_BROWSER").is_some(),
        filters,
        missing: PACKAGES.iter().filter(is_missing).collect(),
        can_install: succeeds("apt-get", ["--version"]) && is_root(),
    };
    match plan(&facts) {
        Plan::Nothing => Ok(()),
        Plan::LeaveOut => {
            eprintln!("QUELL_SKIP_BROWSER is set: the tests of the page are left out");
            Ok(())
        }
        Plan::Install(names) => install(&names),
        Plan::Ask(names) => bail!(
            "the tests of the page need Chromium and its driver; install them, on Debian by\n    \
             sudo apt-get install {}\nor leave these tests out with QUELL_SKIP_BROWSER=1",
            names.join(" ")
        ),
        Plan::WithoutFonts(names) => {
            eprintln!("without {}: screenshots of the page will lack some letters", names.join(", "));
            Ok(())
        }
    }
}

fn plan(facts: &Facts<'_>) -> Plan {
    // Filters are parts of names, and all tests in a browser have one of these in theirs.
    let meant = facts.filters.is_empty() || facts.filters.iter().any(|f| f.contains("page") || f.contains("browser"));
    if !meant || facts.missing.is_empty() && !facts.is_skipped {
        return Plan::Nothing;
    }
    if facts.is_skipped {
        return Plan::LeaveOut;
    }
    let names = facts.missing.iter().map(|package| package.name).collect();
    let only_fonts = facts.missing.iter().all(|package| matches!(package.shown_by, Proof::File(_)));
    match (facts.can_install, only_fonts) {
        (true, _) => Plan::Install(names),
        (false, true) => Plan::WithoutFonts(names),
        (false, false) => Plan::Ask(names),
    }
}

fn install(names: &[&str]) -> anyhow::Result<()> {
    eprintln!("installing {} for the tests of the page", names.join(" "));
    // A new machine has no lists of packages, or old ones that name files which are gone.
    checked(&mut command("apt-get", ["update", "--quiet=2"]))?;
    let mut install = command("apt-get", ["install", "--yes", "--quiet=2", "--no-install-recommends"]);
    install.args(names).env("DEBIAN_FRONTEND", "noninteractive");
    checked(&mut install)
}

fn is_root() -> bool {
    let answer = command("id", ["-u"]).output();
    answer.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(names: &[&str]) -> Vec<&'static Package> {
        PACKAGES.iter().filter(|package| names.contains(&package.name)).collect()
    }

    fn facts<'a>(names: &[&str], filters: &'a [String], can_install: bool) -> Facts<'a> {
        Facts { is_skipped: false, filters, missing: missing(names), can_install }
    }

    #[test]
    fn what_is_missing_is_installed_by_who_may() {
        let all = ["chromium", "chromium-driver", "fonts-dejavu-core", "fonts-noto-cjk"];
        assert_eq!(plan(&facts(&all, &[], true)), Plan::Install(all.to_vec()));
        assert_eq!(plan(&facts(&["chromium-driver"], &[], true)), Plan::Install(vec!["chromium-driver"]));
        assert_eq!(plan(&facts(&["fonts-noto-cjk"], &[], true)), Plan::Install(vec!["fonts-noto-cjk"]));
        assert_eq!(plan(&facts(&[], &[], true)), Plan::Nothing);
    }

    #[test]
    fn who_may_not_is_told_and_goes_on_without_fonts() {
        assert_eq!(
            plan(&facts(&["chromium", "fonts-noto-cjk"], &[], false)),
            Plan::Ask(vec!["chromium", "fonts-noto-cjk"])
        );
        assert_eq!(plan(&facts(&["fonts-noto-cjk"], &[], false)), Plan::WithoutFonts(vec!["fonts-noto-cjk"]));
    }

    #[test]
    fn nothing_is_installed_for_tests_without_a_browser() {
        let filters = |name: &str| vec![name.to_owned()];
        assert_eq!(plan(&facts(&["chromium"], &filters("tidy"), true)), Plan::Nothing);
        assert_eq!(plan(&facts(&["chromium"], &filters("page::chat"), true)), Plan::Install(vec!["chromium"]));
        let skipped = Facts { is_skipped: true, ..facts(&["chromium"], &[], true) };
        assert_eq!(plan(&skipped), Plan::LeaveOut);
    }
}
