//! `search_files`: lines that match a pattern, by the engine behind ripgrep, in the order of their paths.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;

use grep_matcher::{LineTerminator, Matcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, MmapChoice, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch};
use rustix::fs::FileType;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::tools::arguments::Arguments;
use crate::tools::confine::{Root, explain, file_in};
use crate::tools::list::{Pattern, notes};
use crate::tools::text::{lossy, quoted, whole_characters};
use crate::tools::walk::{Omitted, walk};
use crate::tools::{Fault, FileTool, Ground, Stop};

/// Matching lines returned when the model does not say how many.
const DEFAULT_MATCHES: u64 = 100;
/// Context lines at most.
const MOST_CONTEXT: u64 = 20;
/// Of a line, so much is shown.
const LINE_BYTES: usize = 400;
/// Of a long line, so much is shown before its match.
const BEFORE_MATCH: usize = 100;
/// A file with a longer line is given up there. With the limit on patterns it bounds the longest step that no stop can
/// interrupt: one buffer against the slowest pattern, which takes about two seconds on a slow machine.
const LONGEST_LINE: usize = 128 * 1024;
/// The largest compiled pattern, and the largest cache for it.
const PATTERN_BYTES: usize = 4 * 1024 * 1024;
const PATTERN_CACHE: usize = 8 * 1024 * 1024;
/// Left free for the notes at the end.
const NOTE_ROOM: usize = 400;

/// Arguments of `search_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchFiles {
    /// Regular expression (Rust syntax, one line at a time), or plain text with `literal`.
    pattern: String,
    /// File or directory to search, relative to the working directory; all of it when absent.
    path: Option<String>,
    /// Only files that match this glob, such as `*.rs` or `src/**/*.rs`.
    glob: Option<String>,
    /// Lines to show before and after each match; 0 when absent.
    context: Option<u64>,
    /// True to take `pattern` as plain text.
    literal: Option<bool>,
    /// The most matching lines to return; 100 when absent.
    max: Option<u64>,
}

impl Arguments for SearchFiles {
    const NAME: &'static str = "search_files";
    const ABOUT: &'static str = "Searches the content of files for a pattern and returns matching lines as path:line:text, sorted by path. Binary files \
                                 and what .gitignore hides are left out.";
    const EXAMPLE: &'static str = r#"{"pattern": "fn main\\(", "path": "src", "glob": "*.rs", "context": 2}"#;
}

impl FileTool for SearchFiles {
    fn subject(&self) -> &str {
        &self.pattern
    }

    fn work(self, ground: &Ground, stop: &Stop<'_>) -> Result<String, Fault> {
        let root = Root::open(ground)?;
        let start = root.relative(self.path.as_deref().unwrap_or("."))?;
        let glob = self.glob.as_deref().map(Pattern::parse).transpose()?;
        let mut search = Search::new(&self, ground.output_limit.saturating_sub(NOTE_ROOM))?;
        let found = root.look(&start).map_err(|e| explain(&start, e))?;
        if found.kind != FileType::Directory {
            search.file(root.file(&start)?.file, &start, stop)?;
            return Ok(search.finish(&Omitted::default()));
        }
        let omitted = walk(&root, &start, usize::MAX, stop, &mut |entry| {
            if entry.kind != FileType::RegularFile || glob.as_ref().is_some_and(|g| !g.matches(entry.path, &start)) {
                return Ok(ControlFlow::Continue(()));
            }
            let opened = file_in(entry.place, Path::new(entry.name), entry.path);
            match opened.and_then(|opened| root.permits(entry.path, opened)) {
                Ok(source) => search.file(source.file, entry.path, stop)?,
                Err(_) => search.unreadable += 1,
            }
            Ok(if search.is_done() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(search.finish(&omitted))
    }
}

struct Search {
    searcher: Searcher,
    matcher: RegexMatcher,
    has_context: bool,
    room: usize,
    /// How many matches are still wanted.
    left: u64,
    text: String,
    files: usize,
    binary: usize,
    unreadable: usize,
    is_full: bool,
}

impl Search {
    fn new(given: &SearchFiles, room: usize) -> Result<Self, Fault> {
        let matcher = RegexMatcherBuilder::new()
            .fixed_strings(given.literal.unwrap_or(false))
            // Only then are `^` and `$` the ends of a line and not those of the buffer.
            .multi_line(true)
            .crlf(true)
            .size_limit(PATTERN_BYTES)
            .dfa_size_limit(PATTERN_CACHE)
            .build(&given.pattern)
            .map_err(|e| unusable(&given.pattern, &e))?;
        let context = usize::try_from(given.context.unwrap_or(0).min(MOST_CONTEXT)).unwrap_or(0);
        let searcher = SearcherBuilder::new()
            .line_number(true)
            .line_terminator(LineTerminator::crlf())
            .binary_detection(BinaryDetection::quit(0))
            .memory_map(MmapChoice::never())
            .heap_limit(Some(LONGEST_LINE))
            .before_context(context)
            .after_context(context)
            .build();
        let left = given.max.unwrap_or(DEFAULT_MATCHES).max(1);
        Ok(Self {
            searcher,
            matcher,
            has_context: context > 0,
            room,
            left,
            text: String::new(),
            files: 0,
            binary: 0,
            unreadable: 0,
            is_full: false,
        })
    }

    /// Searches one file.
    fn file(&mut self, source: File, path: &Path, stop: &Stop<'_>) -> Result<(), Fault> {
        let name: String = path
            .to_string_lossy()
            .chars()
            .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
            .collect();
        let room = self.room.saturating_sub(self.text.len());
        let (text, left) = (String::new(), self.left);
        let mut hits = Hits { matcher: &self.matcher, path: &name, text, room, left, is_full: false, is_binary: false };
        let result = self.searcher.search_reader(&self.matcher, Stoppable { source, stop }, &mut hits);
        stop.check()?;
        self.files += 1;
        if hits.is_binary {
            self.binary += 1;
            return Ok(());
        }
        self.unreadable += usize::from(result.is_err());
        if self.has_context && !self.text.is_empty() && !hits.text.is_empty() {
            self.text.push_str(BREAK);
        }
        self.text.push_str(&hits.text);
        self.left = hits.left;
        self.is_full = hits.is_full;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.is_full || self.left == 0
    }

    fn finish(mut self, omitted: &Omitted) -> String {
        if self.text.is_empty() && !self.is_full {
            self.text = format!("[no match in {} files]\n", self.files);
        }
        if self.is_full {
            self.text += "[cut: the output is full; narrow the search with path, glob or max]\n";
        } else if self.left == 0 {
            self.text += "[that is as many matches as were asked for; there may be more]\n";
        }
        if self.binary > 0 {
            self.text += &format!("[{} binary files were passed over]\n", self.binary);
        }
        if self.unreadable > 0 {
            self.text += &format!(
                "[{} files could not be read to their end, or have a line that is too long]\n",
                self.unreadable
            );
        }
        self.text + &notes(omitted)
    }
}

fn unusable(pattern: &str, error: &grep_regex::Error) -> Fault {
    let mut text = format!("the pattern {} cannot be used: {error}", quoted(pattern));
    if text.contains("size limit") {
        text.push_str("; use `+` or `*` instead of large counts, or [A-Za-z0-9_] instead of \\w");
    }
    Fault::Told(text)
}

/// Stands between groups of lines that do not follow each other.
const BREAK: &str = "--\n";

/// The matches in one file.
struct Hits<'a> {
    matcher: &'a RegexMatcher,
    path: &'a str,
    text: String,
    room: usize,
    left: u64,
    is_full: bool,
    is_binary: bool,
}

impl Hits<'_> {
    /// Adds a line; false when it does not fit.
    fn push(&mut self, sign: char, number: Option<u64>, line: &[u8], from: usize) -> bool {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut start = if line.len() <= LINE_BYTES { 0 } else { from.saturating_sub(BEFORE_MATCH).min(line.len()) };
        if start > 0 {
            // Not in the middle of a character, of which at most three bytes are continuations.
            start += line[start..].iter().take(3).take_while(|b| **b & 0xc0 == 0x80).count();
        }
        let end = line.len().min(start + LINE_BYTES);
        let piece = if end < line.len() { whole_characters(&line[start..end]) } else { &line[start..end] };
        let before = if start > 0 { "…" } else { "" };
        let after = if end < line.len() { "…" } else { "" };
        let number = number.unwrap_or(0);
        let shown = format!("{}{sign}{number}{sign}{before}{}{after}\n", self.path, lossy(piece).0);
        self.add(&shown)
    }

    fn add(&mut self, piece: &str) -> bool {
        self.is_full |= self.text.len() + piece.len() > self.room;
        if !self.is_full {
            self.text.push_str(piece);
        }
        !self.is_full
    }
}

impl Sink for Hits<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        let at = self.matcher.find(found.bytes()).ok().flatten().map_or(0, |m| m.start());
        if !self.push(':', found.line_number(), found.bytes(), at) {
            return Ok(false);
        }
        self.left = self.left.saturating_sub(1);
        Ok(self.left > 0)
    }

    fn context(&mut self, _: &Searcher, found: &SinkContext<'_>) -> Result<bool, io::Error> {
        Ok(self.push('-', found.line_number(), found.bytes(), 0))
    }

    fn context_break(&mut self, _: &Searcher) -> Result<bool, io::Error> {
        Ok(self.add(BREAK))
    }

    fn finish(&mut self, _: &Searcher, finish: &SinkFinish) -> Result<(), io::Error> {
        self.is_binary = finish.binary_byte_offset().is_some();
        Ok(())
    }
}

/// A file that cannot be read any more after a stop: the searcher has no other way to be told.
struct Stoppable<'a> {
    source: File,
    stop: &'a Stop<'a>,
}

impl Read for Stoppable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_raised() {
            return Err(io::Error::other("stopped"));
        }
        self.source.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_stop_ends_a_search_in_the_middle_of_a_file() {
        let given = crate::tools::arguments::parse(&serde_json::json!({"pattern": "absent"})).unwrap();
        let mut search = Search::new(&given, 1000).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let flag = AtomicBool::new(false);
        let source = File::from(OwnedFd::from(reader));
        let result = std::thread::scope(|scope| {
            // A file without end: only the stop lets the reader go, and only that lets this thread go.
            scope.spawn(|| {
                let lines = "a line\n".repeat(10_000);
                for round in 0.. {
                    flag.store(round > 20, Ordering::Relaxed);
                    if writer.write_all(lines.as_bytes()).is_err() {
                        break;
                    }
                }
            });
            search.file(source, Path::new("endless"), &Stop(&flag))
        });
        assert_eq!(result, Err(Fault::Stopped));
    }
}
