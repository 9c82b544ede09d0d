//! `read_file`: lines of a file, as many as fit, and how to go on.

use std::io::Read;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::tools::arguments::Arguments;
use crate::tools::confine::{Readable, Root, shown};
use crate::tools::text::{cut, lossy, whole_characters};
use crate::tools::{Fault, FileTool, Ground, Stop};

/// Bytes read between two looks at the stop flag.
pub(super) const CHUNK: usize = 64 * 1024;
/// Lines returned when the model does not say how many.
const DEFAULT_LINES: u64 = 2000;
/// How much of a binary file is shown: enough to recognise it.
const BINARY_BYTES: usize = 512;
/// Left free for the note at the end.
const NOTE_ROOM: usize = 200;

/// Arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    /// File to read, relative to the working directory.
    path: String,
    /// First line to return, counted from 1.
    offset: Option<u64>,
    /// How many lines to return; 2000 when absent.
    limit: Option<u64>,
}

impl Arguments for ReadFile {
    const NAME: &'static str = "read_file";
    const ABOUT: &'static str = "Reads a text file and returns its lines exactly as they are, without line numbers. Long files are cut, and a note says \
                                 with which offset to go on.";
    const EXAMPLE: &'static str = r#"{"path": "src/main.rs", "offset": 1, "limit": 200}"#;
}

impl FileTool for ReadFile {
    fn subject(&self) -> &str {
        &self.path
    }

    fn work(self, ground: &Ground, stop: &Stop<'_>) -> Result<String, Fault> {
        let root = Root::open(ground)?;
        let path = root.relative(&self.path)?;
        let source = root.file(&path)?;
        let mut reader = Lines::new(source, &path, stop);
        if reader.fill()? && reader.chunk().contains(&0) {
            return Ok(binary(&reader, ground.output_limit));
        }
        let first = self.offset.unwrap_or(1).max(1);
        let skipped = reader.skip(first - 1)?;
        if skipped < first - 1 || (reader.is_at_end()? && first > 1) {
            return Err(Fault::told(format!("{} has only {skipped} lines", shown(&path))));
        }
        let wanted = self.limit.unwrap_or(DEFAULT_LINES).max(1);
        page(&mut reader, first, wanted, ground.output_limit.saturating_sub(NOTE_ROOM))
    }
}

fn binary(reader: &Lines<'_>, limit: usize) -> String {
    let head = &reader.chunk()[..reader.chunk().len().min(BINARY_BYTES)];
    let (text, _) = lossy(head);
    let note =
        format!("[binary file of {} bytes; its first {} bytes, unreadable ones replaced]\n", reader.bytes, head.len());
    let room = limit.saturating_sub(note.len());
    format!("{note}{}", cut(&text, room))
}

fn page(reader: &mut Lines<'_>, first: u64, wanted: u64, room: usize) -> Result<String, Fault> {
    let mut out = String::new();
    let mut damaged = false;
    let mut next = first;
    let mut note = String::new();
    while !reader.is_at_end()? {
        if next - first == wanted {
            note = format!("[more lines follow; go on with offset {next}]");
            break;
        }
        let line = reader.line(room.saturating_add(1))?;
        let is_whole = u64::try_from(line.kept.len()).is_ok_and(|kept| kept == line.bytes);
        let (text, bad) = lossy(if is_whole { &line.kept } else { whole_characters(&line.kept) });
        if is_whole && out.len() + text.len() <= room {
            out.push_str(&text);
            damaged |= bad;
            next += 1;
            continue;
        }
        if next == first {
            out.push_str(cut(&text, room));
            damaged |= bad;
            let shown = out.len();
            note = format!(
                "[line {next} has {} bytes, of which about {shown} are shown; go on with offset {}]",
                line.bytes,
                next + 1
            );
        } else {
            note = format!("[cut: the output is full; go on with offset {next}]");
        }
        break;
    }
    if damaged {
        note = format!("[not valid UTF-8: unreadable bytes are shown as \u{fffd}]{note}");
    }
    if out.is_empty() && note.is_empty() {
        return Ok("[the file is empty]".into());
    }
    if !note.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    Ok(out + &note)
}

/// Lines of a file of any size with lines of any size, in bounded memory.
struct Lines<'a> {
    source: Readable,
    bytes: u64,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    path: &'a Path,
    stop: &'a Stop<'a>,
}

/// One line, its newline included.
struct Line {
    /// Its beginning, as much as was asked for.
    kept: Vec<u8>,
    /// How long it is.
    bytes: u64,
}

impl<'a> Lines<'a> {
    fn new(source: Readable, path: &'a Path, stop: &'a Stop<'a>) -> Self {
        let bytes = source.bytes;
        Self { source, bytes, buffer: vec![0; CHUNK], at: 0, end: 0, path, stop }
    }

    fn chunk(&self) -> &[u8] {
        &self.buffer[self.at..self.end]
    }

    /// Reads on when nothing is left; false at the end of the file.
    fn fill(&mut self) -> Result<bool, Fault> {
        if self.at < self.end {
            return Ok(true);
        }
        self.stop.check()?;
        self.at = 0;
        let got = self.source.file.read(&mut self.buffer);
        self.end = got.map_err(|e| Fault::told(format!("{} cannot be read: {e}", shown(self.path))))?;
        Ok(self.end > 0)
    }

    fn is_at_end(&mut self) -> Result<bool, Fault> {
        Ok(!self.fill()?)
    }

    /// Passes over `count` lines, and says how many there were.
    fn skip(&mut self, count: u64) -> Result<u64, Fault> {
        for skipped in 0..count {
            if self.is_at_end()? {
                return Ok(skipped);
            }
            self.line(0)?;
        }
        Ok(count)
    }

    /// The next line, of which at most `most` bytes are kept.
    fn line(&mut self, most: usize) -> Result<Line, Fault> {
        let mut line = Line { kept: Vec::new(), bytes: 0 };
        while self.fill()? {
            let chunk = self.chunk();
            let newline = chunk.iter().position(|b| *b == b'\n');
            let piece = &chunk[..newline.map_or(chunk.len(), |at| at + 1)];
            line.kept.extend_from_slice(&piece[..piece.len().min(most.saturating_sub(line.kept.len()))]);
            line.bytes += u64::try_from(piece.len()).unwrap_or(u64::MAX);
            self.at += piece.len();
            if newline.is_some() {
                break;
            }
        }
        Ok(line)
    }
}
