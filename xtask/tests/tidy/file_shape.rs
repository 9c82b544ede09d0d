//! Sizes, names, heads, unfinished merges, tests that a plain run leaves out.

use super::TidyFinding;
use super::source_file::SourceFile;

const FILE_LINES: usize = 800;

pub(super) fn check_file_length(source: &SourceFile) -> Vec<TidyFinding> {
    let lines = source.lines.len();
    if lines <= FILE_LINES {
        return Vec::new();
    }
    vec![TidyFinding::new(FILE_LINES + 1, format!("{lines} lines, at most {FILE_LINES}: split it by ideas"))]
}

pub(super) fn check_head(source: &SourceFile) -> Vec<TidyFinding> {
    let first = source.lines.first().map_or("", String::as_str);
    if first.strip_prefix("//!").is_some_and(|text| text.trim().split(' ').count() > 1) {
        return Vec::new();
    }
    vec![TidyFinding::new(1, "say in a `//!` line at the top what this file is for")]
}

/// A module is found by its file.
pub(super) fn check_file_name(source: &SourceFile) -> Vec<TidyFinding> {
    let mut words = source.path.split(|c: char| !c.is_alphanumeric());
    let banned = words.find(|word| ["util", "utils", "common", "misc"].contains(word));
    let remedy = |word| TidyFinding::new(1, format!("{word:?} in a path says nothing: name the content"));
    banned.map(remedy).into_iter().collect()
}

pub(super) fn check_conflict_markers(source: &SourceFile) -> Vec<TidyFinding> {
    let is_marker = |line: &str| {
        let rest = ["<<<<<<<", "|||||||", ">>>>>>>"].iter().find_map(|marker| line.strip_prefix(marker));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let marked = source.lines.iter().enumerate().filter(|(_, line)| is_marker(line));
    marked.map(|(at, _)| TidyFinding::new(at + 1, "resolve the rest of this merge conflict")).collect()
}

/// A test that a plain run leaves out belongs to the full tests, and says what it needs or why it takes long.
pub(super) fn check_ignored_tests(source: &SourceFile) -> Vec<TidyFinding> {
    let ignored =
        source.lines.iter().enumerate().filter(|(_, line)| {
            line.trim().strip_prefix("#[ignore").is_some_and(|rest| !rest.starts_with(" = \"full: "))
        });
    let remedy = "the reason of an ignored test begins with `full: `: `cargo xtask test --full` runs it";
    ignored.map(|(at, _)| TidyFinding::new(at + 1, remedy)).collect()
}
