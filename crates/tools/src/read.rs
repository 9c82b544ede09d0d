//! The `read_file` tool: return lines of a file of any size in bounded memory.

use std::io::Read;
use std::path::Path;

use quell_kernel::call_batch::CallConcurrency;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::confined_fs::{OpenedFile, WorkdirRoot, quoted_path};
use crate::definition::ToolArguments;
use crate::file_tool::{FileTool, FileToolContext, FileToolError, READ_CHUNK_BYTES, StopFlag, failed_call};
use crate::text::{decode_lossy, truncate, without_partial_char};

/// Lines returned when the call gives no limit.
const DEFAULT_LINES: u64 = 2000;
/// How much of a binary file is shown, in bytes: enough to recognise it.
const BINARY_BYTES: usize = 512;
/// Bytes reserved for the note at the end.
const NOTE_ROOM: usize = 200;

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

impl ToolArguments for ReadFile {
    const NAME: &'static str = "read_file";
    const ABOUT: &'static str = "Reads a text file and returns its lines exactly as they are, without line numbers. Long files are cut, and a note says \
                                 with which offset to go on.";
    const EXAMPLE: &'static str = r#"{"path": "src/main.rs", "offset": 1, "limit": 200}"#;
    const IS_SANDBOXED: bool = true;
    const CONCURRENCY: CallConcurrency = CallConcurrency::Concurrent;
}

impl FileTool for ReadFile {
    fn ledger_subject(&self) -> &str {
        &self.path
    }

    fn execute(self, context: &FileToolContext, stop: &StopFlag<'_>) -> Result<String, FileToolError> {
        let root = WorkdirRoot::open(context)?;
        let path = root.relative_path(&self.path)?;
        let source = root.open_file(&path)?;
        let mut reader = LineReader::new(source, &path, stop);
        if reader.fill_buffer()? && reader.unread().contains(&0) {
            return Ok(describe_binary(&reader, context.output_limit));
        }
        let first = self.offset.unwrap_or(1).max(1);
        let skipped = reader.skip_lines(first - 1)?;
        if skipped < first - 1 || (reader.is_at_end()? && first > 1) {
            return Err(failed_call(format!("{} has only {skipped} lines", quoted_path(&path))));
        }
        let wanted = self.limit.unwrap_or(DEFAULT_LINES).max(1);
        read_page(&mut reader, first, wanted, context.output_limit.saturating_sub(NOTE_ROOM))
    }
}

fn describe_binary(reader: &LineReader<'_>, limit: usize) -> String {
    let head = &reader.unread()[..reader.unread().len().min(BINARY_BYTES)];
    let (text, _) = decode_lossy(head);
    let note =
        format!("[binary file of {} bytes; its first {} bytes, unreadable ones replaced]\n", reader.bytes, head.len());
    let room = limit.saturating_sub(note.len());
    format!("{note}{}", truncate(&text, room))
}

fn read_page(reader: &mut LineReader<'_>, first: u64, wanted: u64, room: usize) -> Result<String, FileToolError> {
    let mut out = String::new();
    let mut damaged = false;
    let mut next = first;
    let mut note = String::new();
    while !reader.is_at_end()? {
        if next - first == wanted {
            note = format!("[more lines follow; go on with offset {next}]");
            break;
        }
        let line = reader.next_line(room.saturating_add(1))?;
        let is_whole = u64::try_from(line.kept.len()).is_ok_and(|kept| kept == line.bytes);
        let (text, is_damaged) = decode_lossy(if is_whole { &line.kept } else { without_partial_char(&line.kept) });
        if is_whole && out.len() + text.len() <= room {
            out.push_str(&text);
            damaged |= is_damaged;
            next += 1;
            continue;
        }
        if next == first {
            out.push_str(truncate(&text, room));
            damaged |= is_damaged;
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

/// Reads lines of a file in bounded memory, whatever the size of the file and its lines.
struct LineReader<'a> {
    source: OpenedFile,
    bytes: u64,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    path: &'a Path,
    stop: &'a StopFlag<'a>,
}

/// One line with its newline.
struct FileLine {
    /// The start of the line, up to the requested size.
    kept: Vec<u8>,
    /// The full length of the line.
    bytes: u64,
}

impl<'a> LineReader<'a> {
    fn new(source: OpenedFile, path: &'a Path, stop: &'a StopFlag<'a>) -> Self {
        let bytes = source.bytes;
        Self { source, bytes, buffer: vec![0; READ_CHUNK_BYTES], at: 0, end: 0, path, stop }
    }

    fn unread(&self) -> &[u8] {
        &self.buffer[self.at..self.end]
    }

    /// Reads more bytes when the buffer is empty; false at the end of the file.
    fn fill_buffer(&mut self) -> Result<bool, FileToolError> {
        if self.at < self.end {
            return Ok(true);
        }
        self.stop.check()?;
        self.at = 0;
        let got = self.source.file.read(&mut self.buffer);
        self.end = got.map_err(|e| failed_call(format!("{} cannot be read: {e}", quoted_path(self.path))))?;
        Ok(self.end > 0)
    }

    fn is_at_end(&mut self) -> Result<bool, FileToolError> {
        Ok(!self.fill_buffer()?)
    }

    /// Skips up to `count` lines. Returns how many there were.
    fn skip_lines(&mut self, count: u64) -> Result<u64, FileToolError> {
        for skipped in 0..count {
            if self.is_at_end()? {
                return Ok(skipped);
            }
            self.next_line(0)?;
        }
        Ok(count)
    }

    /// Reads the next line and keeps at most `max_bytes` bytes of it.
    fn next_line(&mut self, max_bytes: usize) -> Result<FileLine, FileToolError> {
        let mut line = FileLine { kept: Vec::new(), bytes: 0 };
        while self.fill_buffer()? {
            let chunk = self.unread();
            let newline = chunk.iter().position(|b| *b == b'\n');
            let piece = &chunk[..newline.map_or(chunk.len(), |at| at + 1)];
            line.kept.extend_from_slice(&piece[..piece.len().min(max_bytes.saturating_sub(line.kept.len()))]);
            line.bytes += u64::try_from(piece.len()).unwrap_or(u64::MAX);
            self.at += piece.len();
            if newline.is_some() {
                break;
            }
        }
        Ok(line)
    }
}
