//! Read, limit and decode the output of a command: it is passed on as it arrives, and both ends are kept.
//!
//! Bytes dropped in the middle are counted, escape sequences are removed, and progress lines are kept in their last
//! state ([`quell_kernel::terminal_output`]).

use std::io;
use std::time::Duration;

use quell_kernel::terminal_output::{EscapeStripper, LineOverwriter, LiveOutput};
use quell_protocol::ToolOutputStream;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{OutputSink, ProcessEnd, SpawnError};

/// Time to read the rest of the output after the last process has ended. Only a process outside of the tree can still
/// hold the pipe open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);
const CHUNK_BYTES: usize = 32 * 1024;

/// Output of a command, in the order of arrival, without its middle if it is too long. Invalid UTF-8 is replaced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapturedOutput {
    pub head: String,
    /// The end; empty unless bytes were dropped or `head` is full.
    pub tail: String,
    /// Bytes between `head` and `tail` that were not kept.
    pub dropped: u64,
}

impl CapturedOutput {
    /// Returns both ends, with a line between them that says how much is missing.
    pub fn text(&self) -> String {
        match self.dropped {
            0 => format!("{}{}", self.head, self.tail),
            dropped => format!("{}\n[... {dropped} bytes of output dropped ...]\n{}", self.head, self.tail),
        }
    }
}

/// Both output pipes of a command; each is `None` after its end of file.
#[derive(Debug)]
pub(super) struct OutputPipes {
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
}

impl OutputPipes {
    pub(super) fn new(stdout: Receiver, stderr: Receiver) -> Self {
        Self { stdout: Some(stdout), stderr: Some(stderr) }
    }

    /// Gives standard output to the caller; it is no longer collected.
    pub(super) fn take_stdout(&mut self) -> Option<Receiver> {
        self.stdout.take()
    }
}

/// Collects the output until the watch task has ended and the pipes are empty, and adds it to the end of the command.
///
/// # Cancel safety
/// Dropping it closes the pipes and loses what was read; the watch task continues.
pub(super) async fn collect_output(
    streams: OutputPipes,
    limit: usize,
    sink: &mut dyn OutputSink,
    mut watch: JoinHandle<Result<ProcessEnd, SpawnError>>,
) -> Result<ProcessEnd, SpawnError> {
    let mut reader = OutputReader {
        streams,
        sink,
        capture: OutputCapture::new(limit),
        texts: Default::default(),
        last_stream: None,
        chunk: vec![0; CHUNK_BYTES],
    };
    let end = loop {
        // Safe to drop: bytes are read only when they are available, and then kept at once.
        tokio::select! {
            () = reader.read_some() => {}
            end = &mut watch => break end,
        }
    };
    // After a time-out as well, the result is what was read.
    let _ = timeout(DRAIN_TIMEOUT, reader.read_all()).await;
    let outcome = match end {
        Ok(outcome) => outcome,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => Err(SpawnError::Warden(io::Error::other(error))),
    };
    Ok(ProcessEnd { output: reader.into_captured(), ..outcome? })
}

struct OutputReader<'a> {
    streams: OutputPipes,
    sink: &'a mut dyn OutputSink,
    capture: OutputCapture,
    texts: [StreamText; 2],
    /// The stream that was passed on last.
    last_stream: Option<ToolOutputStream>,
    chunk: Vec<u8>,
}

#[derive(Debug, Default)]
struct StreamText {
    decoder: Utf8StreamDecoder,
    plain: EscapeStripper,
    lines: LineOverwriter,
    live: LiveOutput,
}

impl OutputReader<'_> {
    /// Reads from a pipe that has data; never returns when both have ended.
    async fn read_some(&mut self) {
        tokio::select! {
            () = wait_readable(self.streams.stdout.as_ref()) => self.read_stream(ToolOutputStream::Stdout),
            () = wait_readable(self.streams.stderr.as_ref()) => self.read_stream(ToolOutputStream::Stderr),
        }
    }

    async fn read_all(&mut self) {
        while self.streams.stdout.is_some() || self.streams.stderr.is_some() {
            self.read_some().await;
        }
    }

    fn read_stream(&mut self, stream: ToolOutputStream) {
        let [stdout, stderr] = &mut self.texts;
        let (receiver, text_state, other_state) = match stream {
            ToolOutputStream::Stdout => (&mut self.streams.stdout, stdout, stderr),
            ToolOutputStream::Stderr => (&mut self.streams.stderr, stderr, stdout),
        };
        let Some(open) = receiver.as_ref() else { return };
        let text = match open.try_read(&mut self.chunk) {
            Ok(read @ 1..) => text_state.decoder.decode(self.chunk.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(0) | Err(_) => {
                *receiver = None;
                text_state.decoder.finish()
            }
        };
        let text = text_state.plain.strip(&text);
        if text.is_empty() {
            return;
        }
        // Text of the two streams keeps its order of arrival. Progress lines wait for their last state.
        self.capture.push(&other_state.lines.take_open_line());
        self.capture.push(&text_state.lines.push(&text));
        let live = text_state.live.push(&text);
        if live.is_empty() {
            return;
        }
        // A carriage return may overwrite a line of its own stream only.
        match live.strip_prefix('\r') {
            Some(line) if self.last_stream.is_some_and(|last| last != stream) => {
                self.sink.output(stream, &format!("\n{line}"))
            }
            Some(_) | None => self.sink.output(stream, &live),
        }
        self.last_stream = Some(stream);
    }

    fn into_captured(mut self) -> CapturedOutput {
        for text in &mut self.texts {
            let rest = text.plain.strip(&text.decoder.finish());
            self.capture.push(&text.lines.push(&rest));
            self.capture.push(&text.lines.finish());
        }
        self.capture.into_captured()
    }
}

async fn wait_readable(receiver: Option<&Receiver>) {
    match receiver {
        // The read that follows reports an error again.
        Some(receiver) => drop(receiver.readable().await),
        None => std::future::pending().await,
    }
}

/// Decodes the bytes of one stream, also when a character is split between two reads.
#[derive(Debug, Default)]
struct Utf8StreamDecoder {
    partial_char: Vec<u8>,
}

impl Utf8StreamDecoder {
    fn decode(&mut self, bytes: &[u8]) -> String {
        let mut input = std::mem::take(&mut self.partial_char);
        input.extend_from_slice(bytes);
        let mut text = String::with_capacity(input.len());
        let mut chunks = input.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let cut = chunks.peek().is_none() && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if cut {
                self.partial_char = invalid.to_vec();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }

    fn finish(&mut self) -> String {
        let cut = std::mem::take(&mut self.partial_char);
        if cut.is_empty() { String::new() } else { char::REPLACEMENT_CHARACTER.to_string() }
    }
}

/// Keeps the beginning and the end of a text.
#[derive(Debug)]
struct OutputCapture {
    head: String,
    head_limit: usize,
    tail: String,
    tail_limit: usize,
    dropped: u64,
}

impl OutputCapture {
    fn new(limit: usize) -> Self {
        let head_limit = limit / 2;
        Self { head: String::new(), head_limit, tail: String::new(), tail_limit: limit - head_limit, dropped: 0 }
    }

    fn push(&mut self, text: &str) {
        let room = if self.tail.is_empty() && self.dropped == 0 { self.head_limit - self.head.len() } else { 0 };
        let (head, rest) = text.split_at(text.floor_char_boundary(room));
        self.head.push_str(head);
        self.tail.push_str(rest);
        // Trimmed only now and then, because removing from the front moves the rest.
        if self.tail.len() > self.tail_limit.saturating_mul(2).max(CHUNK_BYTES) {
            self.trim();
        }
    }

    fn trim(&mut self) {
        let excess = self.tail.ceil_char_boundary(self.tail.len().saturating_sub(self.tail_limit));
        self.tail.drain(..excess);
        self.dropped += u64::try_from(excess).unwrap_or(u64::MAX);
    }

    fn into_captured(mut self) -> CapturedOutput {
        self.trim();
        CapturedOutput { head: self.head, tail: self.tail, dropped: self.dropped }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_output_is_kept_whole() {
        let mut capture = OutputCapture::new(10);
        capture.push("hello");
        capture.push("wor");
        assert_eq!(capture.into_captured().text(), "hellowor");
    }

    #[test]
    fn the_middle_goes_and_is_counted() {
        let mut capture = OutputCapture::new(10);
        for text in ["0123456789", "abcdefghij", "KLMNOPQRST"] {
            capture.push(text);
        }
        let kept = capture.into_captured();
        assert_eq!((kept.head.as_str(), kept.tail.as_str(), kept.dropped), ("01234", "PQRST", 20));
        assert_eq!(kept.text(), "01234\n[... 20 bytes of output dropped ...]\nPQRST");
    }

    #[test]
    fn nothing_is_kept_without_room() {
        let mut capture = OutputCapture::new(0);
        capture.push("hello");
        assert_eq!(capture.into_captured(), CapturedOutput { dropped: 5, ..CapturedOutput::default() });
    }

    #[test]
    fn an_unfinished_character_at_the_end_is_shown_as_such() {
        let mut decoder = Utf8StreamDecoder::default();
        assert_eq!(decoder.decode(b"a\xe2\x82"), "a");
        assert_eq!(decoder.finish(), "\u{fffd}");
        assert_eq!(decoder.finish(), "");
    }

    proptest! {
        #[test]
        fn cuts_between_reads_change_nothing(bytes: Vec<u8>, cuts in proptest::collection::vec(1_usize..5, 0..40)) {
            let mut decoder = Utf8StreamDecoder::default();
            let mut text = String::new();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                text.push_str(&decoder.decode(now));
                rest = later;
            }
            text.push_str(&decoder.decode(rest));
            text.push_str(&decoder.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes).into_owned());
        }

        #[test]
        fn kept_and_dropped_add_up(texts in proptest::collection::vec("\\PC{0,40}", 0..20), limit in 0_usize..200) {
            let mut capture = OutputCapture::new(limit);
            texts.iter().for_each(|text| capture.push(text));
            let all = texts.concat();
            let kept = capture.into_captured();
            prop_assert!(kept.head.len() + kept.tail.len() <= limit);
            prop_assert!(all.starts_with(&kept.head) && all.ends_with(&kept.tail));
            let total = kept.head.len() + kept.tail.len() + usize::try_from(kept.dropped).unwrap();
            prop_assert_eq!(total, all.len());
        }
    }
}
