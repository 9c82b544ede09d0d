//! Sizes, names, heads, unfinished merges, and the documentation of async functions.

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

pub(super) fn check_cancel_safety(source: &SourceFile) -> Vec<TidyFinding> {
    // A wait of a test is dropped only when its test ends.
    if source.path.starts_with("crates/testkit/") {
        return Vec::new();
    }
    let functions = source.lines.iter().enumerate().filter_map(|(at, line)| {
        let name = line.trim_start().strip_prefix("pub async fn ")?.split(['(', '<']).next()?;
        Some((at + 1, name))
    });
    let undocumented = functions
        .filter(|(line, _)| !lines_above_item(source, *line).iter().any(|line| line.trim() == "/// # Cancel safety"));
    let remedy = |name| format!("say in a \"# Cancel safety\" section what happens when `{name}` is dropped half-way");
    undocumented.map(|(line, name)| TidyFinding::new(line, remedy(name))).collect()
}

/// The documentation and the attributes of the item in this line.
pub(super) fn lines_above_item(source: &SourceFile, line: usize) -> Vec<&String> {
    source.lines[..line - 1].iter().rev().take_while(|line| belongs_to_the_item_below(line)).collect()
}

/// Documentation and attributes, also over several lines: everything up to a blank line or the end of the item before.
fn belongs_to_the_item_below(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("///") || !(line.is_empty() || line.ends_with(['{', '}', ';']))
}
