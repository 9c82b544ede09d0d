//! Which packages and targets have the tests of a filter, so that one test does not build all of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::{structure, workspace_root};

/// Test binaries of the package `quell` that only the full tier builds.
const FULL_BINARIES: [&str; 3] = ["clients", "cluster", "page"];

/// Test targets, as arguments of cargo.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TestSelection {
    /// Every target with `test = true`.
    FirstTier,
    /// Also those that only the full tier builds.
    Everything,
    Targets(BTreeSet<TestTarget>),
}

/// A target of a package that has tests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TestTarget {
    package: String,
    kind: TestTargetKind,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum TestTargetKind {
    Library,
    Programs,
    Test(String),
}

/// Cargo's arguments for the test binaries that only the full tier builds; without them `--tests` leaves them out.
pub(crate) fn full_binary_args() -> Vec<String> {
    FULL_BINARIES.iter().map(|name| format!("--test={name}")).collect()
}

impl TestTarget {
    fn is_of_full_tier(&self) -> bool {
        matches!(&self.kind, TestTargetKind::Test(name) if FULL_BINARIES.contains(&name.as_str()))
    }
}

impl TestSelection {
    /// The targets with a test whose path contains the filter; those of the full tier only if `is_full`.
    ///
    /// # Errors
    /// No test of the tier has the filter in its path.
    pub(super) fn for_filter(filter: &str, is_full: bool) -> anyhow::Result<Self> {
        let root = workspace_root();
        let packages: Vec<(String, PathBuf)> =
            structure::manifests(root)?.into_iter().map(|(package, folder)| (package, root.join(folder))).collect();
        let mut found = BTreeSet::new();
        let is_package = packages.iter().any(|(package, _)| is_name_of(package, filter));
        let is_binary = packages.iter().any(|(_, folder)| has_named_binary(folder, filter));
        let is_candidate = |package: &str, folder: &Path| {
            (!is_package || is_name_of(package, filter)) && (!is_binary || has_named_binary(folder, filter))
        };
        for (package, folder) in packages.iter().filter(|(package, folder)| is_candidate(package, folder)) {
            find_targets(package, folder, filter, &mut found)?;
        }
        let all = found.len();
        found.retain(|target| is_full || !target.is_of_full_tier());
        match (found.is_empty(), all) {
            (false, _) => Ok(Self::Targets(found)),
            (true, 0) => bail!("no test has {filter:?} in its path, and no package has that name"),
            (true, _) => {
                bail!("the tests with {filter:?} in their path need more than crates: use test --full {filter}")
            }
        }
    }

    pub(super) fn cargo_args(&self) -> Vec<String> {
        match self {
            Self::FirstTier => ["--workspace", "--tests"].map(str::to_owned).into(),
            Self::Everything => [Self::FirstTier.cargo_args(), full_binary_args()].concat(),
            Self::Targets(targets) => {
                let packages = targets.iter().map(|target| format!("--package={}", target.package));
                let kinds = targets.iter().map(|target| match &target.kind {
                    TestTargetKind::Library => "--lib".to_owned(),
                    TestTargetKind::Programs => "--bins".to_owned(),
                    TestTargetKind::Test(name) => format!("--test={name}"),
                });
                packages.chain(kinds).collect::<BTreeSet<_>>().into_iter().collect()
            }
        }
    }

    /// The filter as both runners know it: without the name of the test binary, which stands before the names of its
    /// tests in docs/races.md. `None` for a package's name, which selects all of its tests.
    pub(super) fn test_filter(&self, filter: &str) -> Option<String> {
        match self {
            Self::Targets(targets) if targets.iter().any(|target| is_name_of(&target.package, filter)) => None,
            _ => match filter.split_once("::") {
                Some((first, rest)) if self.has_binary(first) => Some(rest.to_owned()),
                _ => Some(filter.to_owned()),
            },
        }
    }

    fn has_binary(&self, name: &str) -> bool {
        let Self::Targets(targets) = self else { return false };
        targets.iter().any(|target| target.kind == TestTargetKind::Test(name.to_owned()))
    }
}

/// True if the filter begins with the name of a test binary of this package.
fn has_named_binary(folder: &Path, filter: &str) -> bool {
    filter.split_once("::").is_some_and(|(first, _)| folder.join("tests").join(first).is_dir())
}

fn is_name_of(package: &str, filter: &str) -> bool {
    filter == package || package.strip_prefix("quell-") == Some(filter)
}

/// Adds the targets of a package that have a file or a function with the last name of the filter.
fn find_targets(package: &str, folder: &Path, filter: &str, found: &mut BTreeSet<TestTarget>) -> anyhow::Result<()> {
    // A case of a table may have no name in the source: `a_test::case_3`.
    let name = filter.split("::").filter(|part| !part.starts_with("case_")).last().unwrap_or(filter);
    let binary = filter.split_once("::").map(|(first, _)| first);
    let is_package = is_name_of(package, filter);
    for file in structure::rust_files(folder)? {
        let Ok(path) = file.strip_prefix(folder) else { continue };
        let Some(kind) = target_kind(package, path) else { continue };
        let is_other_binary = has_named_binary(folder, filter)
            && !matches!(&kind, TestTargetKind::Test(test) if Some(test.as_str()) == binary);
        if is_other_binary {
            continue;
        }
        let is_in_path = || path.with_extension("").iter().any(|part| part.to_string_lossy().contains(name));
        if is_package || is_in_path() || has_function(&fs::read_to_string(&file)?, name) {
            found.insert(TestTarget { package: package.to_owned(), kind });
        }
    }
    Ok(())
}

/// The target that a source file below a package's folder belongs to.
fn target_kind(package: &str, path: &Path) -> Option<TestTargetKind> {
    let mut parts = path.iter().map(|part| part.to_string_lossy());
    match (parts.next()?.as_ref(), parts.next()?) {
        ("src", _) if matches!(package, "quell" | "xtask") => Some(TestTargetKind::Programs),
        ("src", _) => Some(TestTargetKind::Library),
        ("tests", test) => Some(TestTargetKind::Test(test.trim_end_matches(".rs").to_owned())),
        _ => None,
    }
}

/// True if a function of this text, which may be a test, has `name` in its name.
fn has_function(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let Some((_, after)) = line.split_once("fn ") else { return false };
        after.split(|c: char| !c.is_alphanumeric() && c != '_').next().is_some_and(|function| function.contains(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(filter: &str) -> (Vec<String>, Option<String>) {
        let selection = TestSelection::for_filter(filter, false).unwrap();
        (selection.cargo_args(), selection.test_filter(filter))
    }

    #[test]
    fn a_filter_builds_the_targets_that_have_it() {
        let (kernel, filters) = args("kernel");
        assert_eq!(kernel, ["--lib", "--package=quell-kernel", "--test=sanitise", "--test=sessions"], "a package");
        assert_eq!(filters, None, "all of its tests run");
        let (stop, filter) = args("stop::sweep");
        assert_eq!(stop, ["--package=quell", "--test=stop"], "a test binary");
        assert_eq!(filter.as_deref(), Some("sweep"));
        let (own, filter) = args("other_versions_have_another_directory");
        assert_eq!(own, ["--bins", "--package=xtask"], "a function");
        assert_eq!(filter.as_deref(), Some("other_versions_have_another_directory"));
    }

    #[test]
    fn a_filter_that_selects_nothing_says_why() {
        let problem = |filter: &str| TestSelection::for_filter(filter, false).unwrap_err().to_string();
        let unknown = ["no", "such", "test"].join("_");
        assert!(problem(&unknown).starts_with(&format!("no test has {unknown:?} in its path")));
        assert!(problem("cluster::random_kills").ends_with("use test --full cluster::random_kills"));
    }

    #[test]
    fn the_first_tier_leaves_out_the_binaries_of_the_full_one() {
        assert!(!args("openapi").0.contains(&"--test=clients".to_owned()));
        let full = TestSelection::for_filter("openapi", true).unwrap().cargo_args();
        assert!(full.contains(&"--test=clients".to_owned()), "{full:?}");
    }
}
