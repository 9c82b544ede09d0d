//! The `edit_file` tool: replace an exact text, or show the nearest match.

use std::fmt::Write as _;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::atomic_write::AtomicWriteTarget;
use crate::confined_fs::{OpenedFile, WorkdirRoot, quoted_path};
use crate::definition::ToolArguments;
use crate::file_tool::{FileTool, FileToolContext, FileToolError, StopFlag, failed_call, read_at_most};
use crate::text::truncate;

/// The largest file that can be edited. It is held in memory twice: before and after.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// The maximum size of all inserted text when every match is replaced.
const MAX_NEW_BYTES: usize = 64 * 1024 * 1024;
/// How much of the file a hint shows.
const HINT_LINES: usize = 12;
const HINT_BYTES: usize = 1200;
/// Lines compared between two checks of the stop flag.
const LINES_PER_STOP_CHECK: usize = 200;
/// Lines of the wanted text that are compared in the search for the nearest match.
const COMPARED_LINES: usize = 40;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditFile {
    /// File to edit, relative to the working directory.
    path: String,
    /// The text to replace, exactly as it is in the file, with enough around it to stand there only once.
    old: String,
    /// What to put there instead.
    new: String,
    /// True to replace every place where `old` stands.
    all: Option<bool>,
}

impl ToolArguments for EditFile {
    const NAME: &'static str = "edit_file";
    const ABOUT: &'static str = "Replaces a piece of text in a file. The old text must match exactly and stand there only once, unless all is true.";
    const EXAMPLE: &'static str = r#"{"path": "src/main.rs", "old": "let a = 1;", "new": "let a = 2;"}"#;
    const IS_SANDBOXED: bool = true;
}

impl FileTool for EditFile {
    fn ledger_subject(&self) -> &str {
        &self.path
    }

    fn execute(self, context: &FileToolContext, stop: &StopFlag<'_>) -> Result<String, FileToolError> {
        if self.old.is_empty() {
            return Err(failed_call("`old` is empty: give the text to replace, or use write_file for a whole file"));
        }
        if self.old == self.new {
            return Err(failed_call("`old` and `new` are the same, so there is nothing to change"));
        }
        let root = WorkdirRoot::open(context)?;
        let path = root.relative_path(&self.path)?;
        let text = read_whole_file(root.open_file(&path)?, &path, stop)?;
        let Some(first) = text.find(&self.old) else {
            return Err(failed_call(not_found_message(&text, &self.old, &path, stop)?));
        };
        let all = self.all.unwrap_or(false);
        let line = line_number(&text, first);
        let (edited, places) = if all {
            let count = text.matches(&self.old).count();
            if count.saturating_mul(self.new.len()) > MAX_NEW_BYTES {
                return Err(failed_call(format!("`old` stands {count} times: the file would become too large")));
            }
            (text.replace(&self.old, &self.new), count)
        } else {
            require_unique(&text, &self.old, first, &path)?;
            let after = &text[first + self.old.len()..];
            ([&text[..first], &self.new, after].concat(), 1)
        };
        stop.check()?;
        AtomicWriteTarget::resolve(&root, &path)?.replace_content(edited.as_bytes(), stop)?;
        let places = if places == 1 { "1 place".to_owned() } else { format!("{places} places") };
        Ok(format!("Replaced {places} in {} ({} line {line})", quoted_path(&path), if all { "first at" } else { "at" }))
    }
}

fn read_whole_file(source: OpenedFile, path: &Path, stop: &StopFlag<'_>) -> Result<String, FileToolError> {
    let too_large =
        || failed_call(format!("{} is too large to edit: more than {MAX_FILE_BYTES} bytes", quoted_path(path)));
    if source.bytes > MAX_FILE_BYTES {
        return Err(too_large());
    }
    let read = read_at_most(&source.file, MAX_FILE_BYTES, stop);
    stop.check()?;
    let bytes = read.map_err(|e| failed_call(format!("{} cannot be read: {e}", quoted_path(path))))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(too_large());
    }
    String::from_utf8(bytes).map_err(|_| {
        failed_call(format!("{} is not valid UTF-8 text, so it cannot be edited this way", quoted_path(path)))
    })
}

/// Refuses if `old` occurs more than once, also where two occurrences overlap.
fn require_unique(text: &str, old: &str, first: usize, path: &Path) -> Result<(), FileToolError> {
    let step = old.chars().next().map_or(1, char::len_utf8);
    if !text[first + step..].contains(old) {
        return Ok(());
    }
    let lines: Vec<_> = text.match_indices(old).map(|(at, _)| line_number(text, at).to_string()).take(10).collect();
    let count = text.matches(old).count().max(2);
    Err(failed_call(format!(
        "`old` stands {count} times in {} (lines {}): give more of the text around it so that it is unique, or set all to true",
        quoted_path(path),
        lines.join(", ")
    )))
}

fn line_number(text: &str, at: usize) -> usize {
    text[..at].bytes().filter(|b| *b == b'\n').count() + 1
}

/// Says that `old` was not found and shows the nearest match in the file.
fn not_found_message(text: &str, old: &str, path: &Path, stop: &StopFlag<'_>) -> Result<String, FileToolError> {
    let mut out = format!("`old` does not stand in {}; nothing was changed.", quoted_path(path));
    if text.contains("\r\n") && text.replace("\r\n", "\n").contains(&old.replace("\r\n", "\n")) {
        out.push_str(" The lines of this file end in \\r\\n: write `old` with \\r\\n too.");
        return Ok(out);
    }
    let lines: Vec<&str> = text.lines().collect();
    let wanted: Vec<&str> = old.lines().map(str::trim).skip_while(|l| l.is_empty()).take(COMPARED_LINES).collect();
    let Some(start) = nearest_line(&lines, &wanted, stop)? else {
        out.push_str(" No line of it comes near; read the file first.");
        return Ok(out);
    };
    let mut shown_text = String::new();
    for line in lines.iter().skip(start).take(wanted.len().min(HINT_LINES)) {
        shown_text.push_str(line);
        shown_text.push('\n');
    }
    let _ = write!(out, " The nearest place, from line {}, is:\n{}", start + 1, truncate(&shown_text, HINT_BYTES));
    Ok(out)
}

/// The line at which the most wanted lines match, ignoring white space at their ends; otherwise the line most similar
/// to the first.
fn nearest_line(lines: &[&str], wanted: &[&str], stop: &StopFlag<'_>) -> Result<Option<usize>, FileToolError> {
    let Some(first) = wanted.first() else { return Ok(None) };
    let mut best = (0, None);
    for (at, line) in lines.iter().enumerate() {
        if at % LINES_PER_STOP_CHECK == 0 {
            stop.check()?;
        }
        let equal =
            lines[at..].iter().zip(wanted).filter(|(have, want)| !want.is_empty() && have.trim() == **want).count();
        // One equal line outweighs any similarity, so similarity decides only where no line is equal.
        let score = equal * 1000 + similarity(line.trim(), first);
        if score > best.0 {
            best = (score, Some(at));
        }
    }
    Ok(best.1)
}

/// The common start and end of two lines, in thousandths of the longer one; 0 when it is less than half.
fn similarity(a: &str, b: &str) -> usize {
    let longest = a.len().max(b.len());
    let shortest = a.len().min(b.len());
    let head = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let tail = a.bytes().rev().zip(b.bytes().rev()).take_while(|(x, y)| x == y).count();
    let same = (head + tail).min(shortest);
    if longest == 0 || same * 2 < longest { 0 } else { same * 999 / longest }
}
