//! The `search_files` tool: regex search with the ripgrep libraries, sorted by path.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use grep_matcher::{LineTerminator, Matcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, MmapChoice, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch};
use quell_kernel::call_batch::CallConcurrency;
use rustix::fs::FileType;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::confined_fs::{WorkdirRoot, open_file_in, path_error};
use crate::definition::ToolArguments;
use crate::file_tool::{FileTool, FileToolContext, FileToolError, StopFlag, StoppableReader};
use crate::glob_pattern::GlobPattern;
use crate::list::omission_notes;
use crate::text::{decode_lossy, quoted, without_partial_char};
use crate::walk::{WalkOmissions, walk};

/// Matching lines returned when the call gives no limit.
const DEFAULT_MATCHES: u64 = 100;
/// The maximum number of context lines before and after a match.
const MAX_CONTEXT_LINES: u64 = 20;
/// How much of a line is shown, in bytes.
const MAX_SHOWN_LINE_BYTES: usize = 400;
/// How much of a long line is shown before its match, in bytes.
const MAX_BYTES_BEFORE_MATCH: usize = 100;
/// A file with a longer line is not searched further. Together with the limit on patterns this bounds the longest step
/// that a stop cannot interrupt: one buffer against the slowest pattern takes about two seconds on a slow machine.
const MAX_LINE_BYTES: usize = 128 * 1024;
/// The maximum size of a compiled pattern, and of its cache.
const MAX_PATTERN_BYTES: usize = 4 * 1024 * 1024;
const MAX_PATTERN_CACHE_BYTES: usize = 8 * 1024 * 1024;
/// Bytes reserved for the notes at the end.
const NOTE_ROOM: usize = 400;

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

impl ToolArguments for SearchFiles {
    const NAME: &'static str = "search_files";
    const ABOUT: &'static str = "Searches the content of files for a pattern and returns matching lines as path:line:text, sorted by path. Binary files \
                                 and what .gitignore hides are left out.";
    const EXAMPLE: &'static str = r#"{"pattern": "fn main\\(", "path": "src", "glob": "*.rs", "context": 2}"#;
    const IS_SANDBOXED: bool = true;
    const CONCURRENCY: CallConcurrency = CallConcurrency::Concurrent;
}

impl FileTool for SearchFiles {
    fn ledger_subject(&self) -> &str {
        &self.pattern
    }

    fn execute(self, context: &FileToolContext, stop: &StopFlag<'_>) -> Result<String, FileToolError> {
        let root = WorkdirRoot::open(context)?;
        let start = root.relative_path(self.path.as_deref().unwrap_or("."))?;
        let glob = self.glob.as_deref().map(GlobPattern::parse).transpose()?;
        let mut search = FileSearch::new(&self, context.output_limit.saturating_sub(NOTE_ROOM))?;
        let found = root.find_path(&start).map_err(|e| path_error(&start, e))?;
        if found.kind != FileType::Directory {
            search.search_file(root.open_file(&start)?.file, &start, stop)?;
            return Ok(search.into_text(&WalkOmissions::default()));
        }
        let omitted = walk(&root, &start, usize::MAX, stop, &mut |entry| {
            if entry.kind != FileType::RegularFile || glob.as_ref().is_some_and(|g| !g.matches(entry.path, &start)) {
                return Ok(ControlFlow::Continue(()));
            }
            let opened = open_file_in(entry.directory, Path::new(entry.name), entry.path);
            match opened.and_then(|opened| root.check_not_protected(entry.path, opened)) {
                Ok(source) => search.search_file(source.file, entry.path, stop)?,
                Err(_) => search.unreadable += 1,
            }
            Ok(if search.is_done() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(search.into_text(&omitted))
    }
}

struct FileSearch {
    searcher: Searcher,
    matcher: RegexMatcher,
    has_context: bool,
    room: usize,
    remaining_matches: u64,
    text: String,
    files: usize,
    binary: usize,
    unreadable: usize,
    is_full: bool,
}

impl FileSearch {
    fn new(given: &SearchFiles, room: usize) -> Result<Self, FileToolError> {
        let matcher = RegexMatcherBuilder::new()
            .fixed_strings(given.literal.unwrap_or(false))
            // Without this, `^` and `$` match only at the ends of the buffer, not of each line.
            .multi_line(true)
            .crlf(true)
            .size_limit(MAX_PATTERN_BYTES)
            .dfa_size_limit(MAX_PATTERN_CACHE_BYTES)
            .build(&given.pattern)
            .map_err(|e| pattern_error(&given.pattern, &e))?;
        let context = usize::try_from(given.context.unwrap_or(0).min(MAX_CONTEXT_LINES)).unwrap_or(0);
        let searcher = SearcherBuilder::new()
            .line_number(true)
            .line_terminator(LineTerminator::crlf())
            .binary_detection(BinaryDetection::quit(0))
            .memory_map(MmapChoice::never())
            .heap_limit(Some(MAX_LINE_BYTES))
            .before_context(context)
            .after_context(context)
            .build();
        let remaining_matches = given.max.unwrap_or(DEFAULT_MATCHES).max(1);
        Ok(Self {
            searcher,
            matcher,
            has_context: context > 0,
            room,
            remaining_matches,
            text: String::new(),
            files: 0,
            binary: 0,
            unreadable: 0,
            is_full: false,
        })
    }

    fn search_file(&mut self, source: File, path: &Path, stop: &StopFlag<'_>) -> Result<(), FileToolError> {
        let name: String = path
            .to_string_lossy()
            .chars()
            .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
            .collect();
        let room = self.room.saturating_sub(self.text.len());
        let (text, remaining_matches) = (String::new(), self.remaining_matches);
        let mut matches = FileMatches {
            matcher: &self.matcher,
            path: &name,
            text,
            room,
            remaining_matches,
            is_full: false,
            is_binary: false,
        };
        let result =
            self.searcher.search_reader(&self.matcher, StoppableReader { source: &source, stop }, &mut matches);
        stop.check()?;
        self.files += 1;
        if matches.is_binary {
            self.binary += 1;
            return Ok(());
        }
        self.unreadable += usize::from(result.is_err());
        if self.has_context && !self.text.is_empty() && !matches.text.is_empty() {
            self.text.push_str(GROUP_SEPARATOR);
        }
        self.text.push_str(&matches.text);
        self.remaining_matches = matches.remaining_matches;
        self.is_full = matches.is_full;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.is_full || self.remaining_matches == 0
    }

    fn into_text(mut self, omitted: &WalkOmissions) -> String {
        if self.text.is_empty() && !self.is_full {
            self.text = format!("[no match in {} files]\n", self.files);
        }
        if self.is_full {
            self.text += "[cut: the output is full; narrow the search with path, glob or max]\n";
        } else if self.remaining_matches == 0 {
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
        self.text + &omission_notes(omitted)
    }
}

fn pattern_error(pattern: &str, error: &grep_regex::Error) -> FileToolError {
    let mut text = format!("the pattern {} cannot be used: {error}", quoted(pattern));
    if text.contains("size limit") {
        text.push_str("; use `+` or `*` instead of large counts, or [A-Za-z0-9_] instead of \\w");
    }
    FileToolError::Failed(text)
}

/// Printed between groups of lines that are not adjacent.
const GROUP_SEPARATOR: &str = "--\n";

struct FileMatches<'a> {
    matcher: &'a RegexMatcher,
    path: &'a str,
    text: String,
    room: usize,
    remaining_matches: u64,
    is_full: bool,
    is_binary: bool,
}

impl FileMatches<'_> {
    /// Adds a line. Returns false when it does not fit.
    fn push_line(&mut self, sign: char, number: Option<u64>, line: &[u8], from: usize) -> bool {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut start = if line.len() <= MAX_SHOWN_LINE_BYTES {
            0
        } else {
            from.saturating_sub(MAX_BYTES_BEFORE_MATCH).min(line.len())
        };
        if start > 0 {
            // Do not start inside a character; at most three of its bytes are continuations.
            start += line[start..].iter().take(3).take_while(|b| **b & 0xc0 == 0x80).count();
        }
        let end = line.len().min(start + MAX_SHOWN_LINE_BYTES);
        let piece = if end < line.len() { without_partial_char(&line[start..end]) } else { &line[start..end] };
        let before = if start > 0 { "…" } else { "" };
        let after = if end < line.len() { "…" } else { "" };
        let number = number.unwrap_or(0);
        let shown = format!("{}{sign}{number}{sign}{before}{}{after}\n", self.path, decode_lossy(piece).0);
        self.push_text(&shown)
    }

    fn push_text(&mut self, piece: &str) -> bool {
        self.is_full |= self.text.len() + piece.len() > self.room;
        if !self.is_full {
            self.text.push_str(piece);
        }
        !self.is_full
    }
}

impl Sink for FileMatches<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        let at = self.matcher.find(found.bytes()).ok().flatten().map_or(0, |m| m.start());
        if !self.push_line(':', found.line_number(), found.bytes(), at) {
            return Ok(false);
        }
        self.remaining_matches = self.remaining_matches.saturating_sub(1);
        Ok(self.remaining_matches > 0)
    }

    fn context(&mut self, _: &Searcher, found: &SinkContext<'_>) -> Result<bool, io::Error> {
        Ok(self.push_line('-', found.line_number(), found.bytes(), 0))
    }

    fn context_break(&mut self, _: &Searcher) -> Result<bool, io::Error> {
        Ok(self.push_text(GROUP_SEPARATOR))
    }

    fn finish(&mut self, _: &Searcher, finish: &SinkFinish) -> Result<(), io::Error> {
        self.is_binary = finish.binary_byte_offset().is_some();
        Ok(())
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
        let given = crate::definition::parse_arguments(&serde_json::json!({"pattern": "absent"})).unwrap();
        let mut search = FileSearch::new(&given, 1000).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let flag = AtomicBool::new(false);
        let source = File::from(OwnedFd::from(reader));
        let result = std::thread::scope(|scope| {
            // A file without end: only the stop lets the reader return, and only then can this thread end.
            scope.spawn(|| {
                let lines = "a line\n".repeat(10_000);
                for round in 0.. {
                    flag.store(round > 20, Ordering::Relaxed);
                    if writer.write_all(lines.as_bytes()).is_err() {
                        break;
                    }
                }
            });
            search.search_file(source, Path::new("endless"), &StopFlag(&flag))
        });
        assert_eq!(result, Err(FileToolError::Cancelled));
    }
}
