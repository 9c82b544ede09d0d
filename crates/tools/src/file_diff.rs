//! Unified diffs of changed files, for people.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use similar::{Algorithm, TextDiff};

use crate::text::truncate;

/// The maximum size of all diffs of a call. The rest is left out, with a note.
const MAX_DIFF_BYTES: usize = 48 * 1024;
/// Larger contents are not compared.
const MAX_COMPARED_BYTES: usize = 1024 * 1024;
/// After this time the comparison ends, and the diff is correct but not the smallest.
const COMPARE_TIME: Duration = Duration::from_millis(200);
/// Unchanged lines around a change.
const CONTEXT_LINES: usize = 3;
const NOTE_BYTES: usize = 60;

/// A changed file.
pub(crate) struct FileDiff<'a> {
    pub(crate) path: &'a Path,
    /// `None`: a new file. `Some(None)`: too large.
    pub(crate) before: Option<Option<&'a [u8]>>,
    /// `None`: the file is deleted.
    pub(crate) after: Option<&'a [u8]>,
}

impl FileDiff<'_> {
    fn write_to(&self, out: &mut String) {
        let path = shown_path(self.path);
        let old_name = self.before.map_or_else(|| "/dev/null".to_owned(), |_| format!("a/{path}"));
        let new_name = self.after.map_or_else(|| "/dev/null".to_owned(), |_| format!("b/{path}"));
        let _ = writeln!(out, "--- {old_name}\n+++ {new_name}");
        let before = self.before.unwrap_or(Some(b""));
        match (before.and_then(comparable_text), comparable_text(self.after.unwrap_or_default())) {
            (Some(before), Some(after)) => write_hunks(before, after, out),
            (None, _) | (_, None) => out.push_str("[not shown: binary or larger than 1 MiB]\n"),
        }
    }
}

/// The diffs one after the other, bounded.
pub(crate) fn join_diffs<'a>(files: impl Iterator<Item = FileDiff<'a>>) -> String {
    let mut out = String::new();
    for file in files {
        file.write_to(&mut out);
        if out.len() > MAX_DIFF_BYTES {
            let kept = truncate(&out, MAX_DIFF_BYTES - NOTE_BYTES);
            // Whole lines only.
            let kept = kept.rfind('\n').map_or(kept, |end| &kept[..=end]);
            return format!("{kept}[cut here: the diff is longer]\n");
        }
    }
    out
}

fn write_hunks(before: &str, after: &str, out: &mut String) {
    let mut config = TextDiff::configure();
    config.algorithm(Algorithm::Myers).timeout(COMPARE_TIME);
    let diff = config.diff_lines(before, after);
    for hunk in diff.unified_diff().context_radius(CONTEXT_LINES).iter_hunks() {
        let _ = write!(out, "{hunk}");
        if !out.ends_with('\n') {
            out.push('\n');
        }
        if out.len() > MAX_DIFF_BYTES {
            return;
        }
    }
}

fn comparable_text(content: &[u8]) -> Option<&str> {
    if content.len() > MAX_COMPARED_BYTES || content.contains(&0) {
        return None;
    }
    std::str::from_utf8(content).ok()
}

/// A path on one line.
fn shown_path(path: &Path) -> String {
    path.to_string_lossy().chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(before: Option<&str>, after: Option<&str>) -> String {
        let before = before.map(|text| Some(text.as_bytes()));
        join_diffs([FileDiff { path: Path::new("src/a.txt"), before, after: after.map(str::as_bytes) }].into_iter())
    }

    #[test]
    fn changed_new_and_deleted_files_have_unified_diffs() {
        let changed = diff(Some("a\nb\nc\nd\ne\nf\n"), Some("a\nb\nc\nd\nE\nf\n"));
        assert_eq!(changed, "--- a/src/a.txt\n+++ b/src/a.txt\n@@ -2,5 +2,5 @@\n b\n c\n d\n-e\n+E\n f\n");
        assert_eq!(diff(None, Some("x\n")), "--- /dev/null\n+++ b/src/a.txt\n@@ -0,0 +1 @@\n+x\n");
        assert_eq!(diff(Some("x\n"), None), "--- a/src/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n");
        let without_end = diff(Some("x"), Some("y"));
        assert!(without_end.contains("-x\n\\ No newline at end of file\n+y\n"), "{without_end}");
    }

    #[test]
    fn what_is_no_text_and_what_is_long_is_said() {
        assert!(diff(Some("a\0b"), Some("c")).ends_with("[not shown: binary or larger than 1 MiB]\n"));
        let large = FileDiff { path: Path::new("a\nb"), before: Some(None), after: Some(b"x") };
        assert_eq!(
            join_diffs([large].into_iter()),
            "--- a/a\u{fffd}b\n+++ b/a\u{fffd}b\n[not shown: binary or larger than 1 MiB]\n"
        );
        let long = diff(None, Some(&"a line\n".repeat(20_000)));
        assert!(long.len() <= MAX_DIFF_BYTES && long.ends_with("+a line\n[cut here: the diff is longer]\n"));
    }

    #[test]
    fn a_hopeless_comparison_ends_soon() {
        let words = |seed: u64| {
            let next = |n: &u64| Some(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            std::iter::successors(Some(seed), next).take(40_000).fold(String::new(), |mut out, n| {
                let _ = writeln!(out, "{}", (n >> 33) % 5000);
                out
            })
        };
        let begun = std::time::Instant::now();
        assert!(!diff(Some(&words(1)), Some(&words(2))).is_empty());
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}
