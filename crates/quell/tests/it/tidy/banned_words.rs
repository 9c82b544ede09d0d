//! Names of files and modules that say nothing about their content, and marks of an unfinished merge.

use super::TidyFinding;
use super::source_file::SourceFile;

const BANNED_WORDS: &[&str] = &["util", "utils", "common", "misc"];

/// Checks the parts of a file's path. A module is found by its file.
pub(super) fn check_banned_words(source: &SourceFile) -> Vec<TidyFinding> {
    let words = source.path.split(|c: char| !c.is_alphanumeric());
    let banned = words.filter(|word| BANNED_WORDS.contains(word)).take(1);
    banned.map(|word| TidyFinding::new(1, format!("{word:?} in a path says nothing: name the content"))).collect()
}

const CONFLICT_MARKERS: &[&str] = &["<<<<<<<", "|||||||", ">>>>>>>"];

pub(super) fn check_conflict_markers(source: &SourceFile) -> Vec<TidyFinding> {
    let is_marker = |line: &str| {
        CONFLICT_MARKERS
            .iter()
            .any(|marker| line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
    };
    let marked = source.lines.iter().enumerate().filter(|(_, line)| is_marker(line));
    marked.map(|(at, _)| TidyFinding::new(at + 1, "resolve the rest of this merge conflict")).collect()
}
