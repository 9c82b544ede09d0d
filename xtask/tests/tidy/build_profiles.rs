//! The levels of optimisation of packages. The profile `dist` inherits those of `dev`, which suit tests, and sets each
//! again; one that it forgets would be shipped as the tests want it.

use super::TidyFinding;
use super::source_file::SourceFile;

/// Packages of which nothing is shipped.
const OF_TESTS: [&str; 1] = ["proptest"];

/// Finds packages with a level in `dev` and none in `dist`.
pub(super) fn check_build_profiles(source: &SourceFile) -> Vec<TidyFinding> {
    if source.path != "Cargo.toml" {
        return Vec::new();
    }
    let shipped: Vec<&str> = levels(source, "[profile.dist.package]").map(|(_, package)| package).collect();
    levels(source, "[profile.dev.package]")
        .filter(|(_, package)| !shipped.contains(package) && !OF_TESTS.contains(package))
        .map(|(line, package)| TidyFinding::new(line, format!("give {package} a level in [profile.dist.package], too")))
        .collect()
}

/// The lines, counted from 1, and packages of a table of levels.
fn levels<'s>(source: &'s SourceFile, table: &'s str) -> impl Iterator<Item = (usize, &'s str)> {
    let lines = source.lines.iter().enumerate().skip_while(move |(_, line)| line.as_str() != table).skip(1);
    let of_table = lines.take_while(|(_, line)| !line.starts_with('['));
    of_table.filter_map(|(at, line)| Some((at + 1, line.split_once(".opt-level")?.0)))
}
