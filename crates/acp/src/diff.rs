//! Unified diffs of changed files: for each file its hunks, as the lines before and after, and a patch of Git's form.

use std::path::{Path, PathBuf};

/// The changes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileEdit {
    pub(crate) path: PathBuf,
    pub(crate) change: EditKind,
    pub(crate) hunks: Vec<FileHunk>,
    /// The hunks below a head with absolute paths; `None` if the path would have to be quoted.
    pub(crate) patch: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EditKind {
    Added,
    Modified,
    Deleted,
}

/// The part of a file that a hunk replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileHunk {
    pub(crate) old: String,
    pub(crate) new: String,
    /// Number of the first line after the change, from 1.
    pub(crate) line: u32,
}

/// Parses the diffs of a call. `None` if any part of them is not shown, so that the text says more than the hunks.
pub(crate) fn parse_diff(diff: &str, workdir: &Path) -> Option<Vec<FileEdit>> {
    let mut lines = diff.lines().peekable();
    let mut files: Vec<FileEdit> = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(old_name) = line.strip_prefix("--- ") {
            files.push(parse_file_head(old_name, lines.next()?.strip_prefix("+++ ")?, workdir)?);
            continue;
        }
        let file = files.last_mut()?;
        let (mut old_left, mut new_left, first) = parse_hunk_head(line)?;
        let (mut old, mut new) = (String::new(), String::new());
        add_patch_line(file, line);
        while old_left > 0 || new_left > 0 || lines.peek().is_some_and(|line| line.starts_with('\\')) {
            let line = lines.next()?;
            add_patch_line(file, line);
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
        file.hunks.push(FileHunk { old, new, line: first.max(1) });
    }
    Some(files)
}

fn parse_file_head(old_name: &str, new_name: &str, workdir: &Path) -> Option<FileEdit> {
    let (change, name) = match (old_name, new_name) {
        ("/dev/null", _) => (EditKind::Added, new_name.strip_prefix("b/")?),
        (_, "/dev/null") => (EditKind::Deleted, old_name.strip_prefix("a/")?),
        _ => (EditKind::Modified, new_name.strip_prefix("b/")?),
    };
    let path = workdir.join(name);
    let patch = path.to_str().filter(|path| is_plain(path)).map(|path| {
        let old = if change == EditKind::Added { "/dev/null" } else { path };
        let new = if change == EditKind::Deleted { "/dev/null" } else { path };
        format!("diff --git {path} {path}\n--- {old}\n+++ {new}\n")
    });
    Some(FileEdit { path, change, hunks: Vec::new(), patch })
}

/// Whether Git writes a path as it is, without quotes.
fn is_plain(path: &str) -> bool {
    path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}

fn add_patch_line(file: &mut FileEdit, line: &str) {
    if let Some(patch) = &mut file.patch {
        patch.push_str(line);
        patch.push('\n');
    }
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
        let files = parse_diff(diff, Path::new("/w")).unwrap();
        let changed = FileHunk { old: "one\n-- two\nthree\n".to_owned(), new: "one\n2\nthree\n".to_owned(), line: 2 };
        let created = FileHunk { old: String::new(), new: "x\n".to_owned(), line: 1 };
        assert_eq!((files[0].path.as_path(), files[0].change), (Path::new("/w/src/a.rs"), EditKind::Modified));
        assert_eq!((files[1].path.as_path(), files[1].change), (Path::new("/w/n"), EditKind::Added));
        assert_eq!((&files[0].hunks, &files[1].hunks), (&vec![changed], &vec![created]));
    }

    #[test]
    fn a_patch_names_absolute_paths() {
        let diff = "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n--- a/ö\n+++ b/ö\n@@ -1 +1 @@\n-x\n+y\n";
        let files = parse_diff(diff, Path::new("/w")).unwrap();
        let patch = "diff --git /w/n /w/n\n--- /dev/null\n+++ /w/n\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n";
        assert_eq!(files[0].patch.as_deref(), Some(patch));
        assert_eq!(files[1].patch, None, "Git would quote this name");
    }

    #[test]
    fn a_deleted_file_keeps_its_name() {
        let files = parse_diff("--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", Path::new("/w")).unwrap();
        assert_eq!((files[0].path.as_path(), files[0].change), (Path::new("/w/old"), EditKind::Deleted));
        assert_eq!(files[0].hunks[0].new, "");
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
