//! Unified diffs of changed files as the protocol's diffs: for each hunk the lines before and after.

use std::path::{Path, PathBuf};

/// The part of a file that a hunk replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileHunk {
    pub(crate) path: PathBuf,
    /// `None`: a new file.
    pub(crate) old: Option<String>,
    /// Empty if the file was deleted.
    pub(crate) new: String,
    /// Number of the first line after the change, from 1.
    pub(crate) line: u32,
}

/// Parses the diffs of a call. `None` if any part of them is not shown, so that the text says more than the hunks.
pub(crate) fn parse_diff(diff: &str, workdir: &Path) -> Option<Vec<FileHunk>> {
    let mut lines = diff.lines().peekable();
    let (mut hunks, mut file) = (Vec::new(), None);
    while let Some(line) = lines.next() {
        if let Some(old_name) = line.strip_prefix("--- ") {
            let new_name = lines.next()?.strip_prefix("+++ ")?;
            let is_new = old_name == "/dev/null";
            let name =
                if new_name == "/dev/null" { old_name.strip_prefix("a/")? } else { new_name.strip_prefix("b/")? };
            file = Some((workdir.join(name), is_new));
            continue;
        }
        let (path, is_new) = file.as_ref()?;
        let (mut old_left, mut new_left, first) = parse_hunk_head(line)?;
        let (mut old, mut new) = (String::new(), String::new());
        while old_left > 0 || new_left > 0 || lines.peek().is_some_and(|line| line.starts_with('\\')) {
            let line = lines.next()?;
            let (mark, text) = line.split_at_checked(1).unwrap_or((" ", ""));
            match mark {
                // No line end at the end of the file.
                "\\" => continue,
                "-" => add_line(&mut old, text, &mut old_left)?,
                "+" => add_line(&mut new, text, &mut new_left)?,
                " " => {
                    add_line(&mut old, text, &mut old_left)?;
                    add_line(&mut new, text, &mut new_left)?;
                }
                _ => return None,
            }
        }
        hunks.push(FileHunk { path: path.clone(), old: (!is_new).then_some(old), new, line: first.max(1) });
    }
    Some(hunks)
}

fn add_line(text: &mut String, line: &str, left: &mut u32) -> Option<()> {
    *left = left.checked_sub(1)?;
    text.push_str(line);
    text.push('\n');
    Some(())
}

/// Numbers of old and new lines, and the first new line, of `@@ -1,3 +1,4 @@`.
fn parse_hunk_head(line: &str) -> Option<(u32, u32, u32)> {
    let (ranges, _) = line.strip_prefix("@@ -")?.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    let parse = |range: &str| -> Option<(u32, u32)> {
        let (first, count) = range.split_once(',').unwrap_or((range, "1"));
        Some((first.parse().ok()?, count.parse().ok()?))
    };
    let ((_, old_count), (first, new_count)) = (parse(old)?, parse(new)?);
    Some((old_count, new_count, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_become_the_lines_before_and_after() {
        let diff = "--- a/src/a.rs\n+++ b/src/a.rs\n@@ -2,3 +2,3 @@\n one\n--- two\n+2\n three\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n";
        let hunks = parse_diff(diff, Path::new("/w")).unwrap();
        let changed = FileHunk {
            path: "/w/src/a.rs".into(),
            old: Some("one\n-- two\nthree\n".to_owned()),
            new: "one\n2\nthree\n".to_owned(),
            line: 2,
        };
        let created = FileHunk { path: "/w/n".into(), old: None, new: "x\n".to_owned(), line: 1 };
        assert_eq!(hunks, [changed, created]);
    }

    #[test]
    fn a_deleted_file_keeps_its_name() {
        let hunks = parse_diff("--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", Path::new("/w")).unwrap();
        assert_eq!((hunks[0].path.as_path(), hunks[0].new.as_str()), (Path::new("/w/old"), ""));
    }

    #[test]
    fn a_shortened_diff_stays_text() {
        let head = "--- a/a\n+++ b/a\n";
        for rest in [
            "@@ -1,9 +1,9 @@\n one\n",
            "[not shown: binary or larger than 1 MiB]\n",
            "@@ -1 +1 @@\n-a\n+b\n[cut here]\n",
        ] {
            assert_eq!(parse_diff(&format!("{head}{rest}"), Path::new("/w")), None, "{rest}");
        }
    }
}
