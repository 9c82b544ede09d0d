//! `edit_file`: replaces an exact piece of text, and helps to find it when it is not there.

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::tools::arguments::Arguments;
use crate::tools::confine::{Readable, Root, shown};
use crate::tools::read::CHUNK;
use crate::tools::replace::Target;
use crate::tools::text::cut;
use crate::tools::{Fault, FileTool, Ground, Stop};

/// The largest file that is edited: it is held in memory, old and new.
const MOST_BYTES: u64 = 16 * 1024 * 1024;
/// The most that replacing every place may add.
const MOST_NEW_BYTES: usize = 64 * 1024 * 1024;
/// How much of the file a hint shows.
const HINT_LINES: usize = 12;
const HINT_BYTES: usize = 1200;
/// Lines compared between two looks at the stop flag.
const LINES_PER_LOOK: usize = 200;
/// Lines of the wanted text that are compared when looking for the nearest place.
const COMPARED_LINES: usize = 40;

/// Arguments of `edit_file`.
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

impl Arguments for EditFile {
    const NAME: &'static str = "edit_file";
    const ABOUT: &'static str = "Replaces a piece of text in a file. The old text must match exactly and stand there only once, unless all is true.";
    const EXAMPLE: &'static str = r#"{"path": "src/main.rs", "old": "let a = 1;", "new": "let a = 2;"}"#;
}

impl FileTool for EditFile {
    fn subject(&self) -> &str {
        &self.path
    }

    fn work(self, ground: &Ground, stop: &Stop<'_>) -> Result<String, Fault> {
        if self.old.is_empty() {
            return Err(Fault::told("`old` is empty: give the text to replace, or use write_file for a whole file"));
        }
        if self.old == self.new {
            return Err(Fault::told("`old` and `new` are the same, so there is nothing to change"));
        }
        let root = Root::open(ground)?;
        let path = root.relative(&self.path)?;
        let text = whole(root.file(&path)?, &path, stop)?;
        let Some(first) = text.find(&self.old) else {
            return Err(Fault::told(missing(&text, &self.old, &path, stop)?));
        };
        let all = self.all.unwrap_or(false);
        let line = line_of(&text, first);
        let (edited, places) = if all {
            let count = text.matches(&self.old).count();
            if count.saturating_mul(self.new.len()) > MOST_NEW_BYTES {
                return Err(Fault::told(format!("`old` stands {count} times: the file would become too large")));
            }
            (text.replace(&self.old, &self.new), count)
        } else {
            unique(&text, &self.old, first, &path)?;
            let after = &text[first + self.old.len()..];
            ([&text[..first], &self.new, after].concat(), 1)
        };
        stop.check()?;
        Target::find(&root, &path)?.fill(edited.as_bytes(), stop)?;
        let places = if places == 1 { "1 place".to_owned() } else { format!("{places} places") };
        Ok(format!("Replaced {places} in {} ({} line {line})", shown(&path), if all { "first at" } else { "at" }))
    }
}

fn whole(mut source: Readable, path: &Path, stop: &Stop<'_>) -> Result<String, Fault> {
    let too_large = || Fault::told(format!("{} is too large to edit: more than {MOST_BYTES} bytes", shown(path)));
    if source.bytes > MOST_BYTES {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        stop.check()?;
        let got = source.file.read(&mut buffer);
        let got = got.map_err(|e| Fault::told(format!("{} cannot be read: {e}", shown(path))))?;
        if got == 0 {
            break;
        }
        bytes.extend_from_slice(&buffer[..got]);
        if bytes.len() as u64 > MOST_BYTES {
            return Err(too_large());
        }
    }
    String::from_utf8(bytes)
        .map_err(|_| Fault::told(format!("{} is not valid UTF-8 text, so it cannot be edited this way", shown(path))))
}

/// Refuses when `old` stands elsewhere too, also where it overlaps itself.
fn unique(text: &str, old: &str, first: usize, path: &Path) -> Result<(), Fault> {
    let step = old.chars().next().map_or(1, char::len_utf8);
    if !text[first + step..].contains(old) {
        return Ok(());
    }
    let lines: Vec<_> = text.match_indices(old).map(|(at, _)| line_of(text, at).to_string()).take(10).collect();
    let count = text.matches(old).count().max(2);
    Err(Fault::told(format!(
        "`old` stands {count} times in {} (lines {}): give more of the text around it so that it is unique, or set all to true",
        shown(path),
        lines.join(", ")
    )))
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].bytes().filter(|b| *b == b'\n').count() + 1
}

/// Says that `old` is not there, and shows what in the file comes nearest.
fn missing(text: &str, old: &str, path: &Path, stop: &Stop<'_>) -> Result<String, Fault> {
    let mut out = format!("`old` does not stand in {}; nothing was changed.", shown(path));
    if text.contains("\r\n") && text.replace("\r\n", "\n").contains(&old.replace("\r\n", "\n")) {
        out.push_str(" The lines of this file end in \\r\\n: write `old` with \\r\\n too.");
        return Ok(out);
    }
    let lines: Vec<&str> = text.lines().collect();
    let wanted: Vec<&str> = old.lines().map(str::trim).skip_while(|l| l.is_empty()).take(COMPARED_LINES).collect();
    let Some(start) = nearest(&lines, &wanted, stop)? else {
        out.push_str(" No line of it comes near; read the file first.");
        return Ok(out);
    };
    let mut shown_text = String::new();
    for line in lines.iter().skip(start).take(wanted.len().min(HINT_LINES)) {
        shown_text.push_str(line);
        shown_text.push('\n');
    }
    let _ = write!(out, " The nearest place, from line {}, is:\n{}", start + 1, cut(&shown_text, HINT_BYTES));
    Ok(out)
}

/// Where most of the wanted lines stand, white space at their ends aside; else the line most like the first of them.
fn nearest(lines: &[&str], wanted: &[&str], stop: &Stop<'_>) -> Result<Option<usize>, Fault> {
    let Some(first) = wanted.first() else { return Ok(None) };
    let mut best = (0, None);
    for (at, line) in lines.iter().enumerate() {
        if at % LINES_PER_LOOK == 0 {
            stop.check()?;
        }
        let equal =
            lines[at..].iter().zip(wanted).filter(|(have, want)| !want.is_empty() && have.trim() == **want).count();
        // A line counts for more than any likeness, so that likeness only decides where no line is equal.
        let score = equal * 1000 + likeness(line.trim(), first);
        if score > best.0 {
            best = (score, Some(at));
        }
    }
    Ok(best.1)
}

/// How much two lines share at their ends, in thousandths; 0 when that is less than half.
fn likeness(a: &str, b: &str) -> usize {
    let longest = a.len().max(b.len());
    let shortest = a.len().min(b.len());
    let head = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let tail = a.bytes().rev().zip(b.bytes().rev()).take_while(|(x, y)| x == y).count();
    let same = (head + tail).min(shortest);
    if longest == 0 || same * 2 < longest { 0 } else { same * 999 / longest }
}
