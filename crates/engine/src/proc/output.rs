//! What a command prints: always read, handed on as it comes, kept at both ends, counted where it was dropped. Escape sequences
//! are taken out on the way, and progress is kept as its last state ([`quell_kernel::printed`]).

use std::io;
use std::time::Duration;

use quell_kernel::printed::{Lines, Live, Plain};
use quell_protocol::ToolOutputStream;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::OutputSink;
use super::SpawnError;
use super::watch::WatchEnd;

/// How long the rest of the output may take after the last process is gone. Only somebody outside the tree can hold it open.
const DRAIN: Duration = Duration::from_millis(100);
/// Read at once.
const CHUNK: usize = 32 * 1024;

/// Output of a command, in the order of arrival, the middle dropped when it was too long. Invalid UTF-8 is replaced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapturedOutput {
    /// From the beginning.
    pub head: String,
    /// Up to the end; empty unless something was dropped or `head` is full.
    pub tail: String,
    /// Bytes between them that were not kept.
    pub dropped: u64,
}

impl CapturedOutput {
    /// Both ends, with a line between them that says what is missing.
    #[must_use]
    pub fn text(&self) -> String {
        match self.dropped {
            0 => format!("{}{}", self.head, self.tail),
            dropped => format!("{}\n[... {dropped} bytes of output dropped ...]\n{}", self.head, self.tail),
        }
    }
}

/// Both output pipes of a command; each is none after its end.
#[derive(Debug)]
pub(super) struct Streams {
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
}

impl Streams {
    pub(super) fn new(stdout: Receiver, stderr: Receiver) -> Self {
        Self { stdout: Some(stdout), stderr: Some(stderr) }
    }

    /// Gives standard output away; from then on it is not collected.
    pub(super) fn take_stdout(&mut self) -> Option<Receiver> {
        self.stdout.take()
    }
}

/// Collects the output until the watch is over and the pipes are empty.
///
/// # Cancel safety
/// Dropping it closes the pipes and loses what was read; the watch goes on.
pub(super) async fn collect(
    streams: Streams,
    limit: usize,
    sink: &mut dyn OutputSink,
    mut watch: JoinHandle<Result<WatchEnd, SpawnError>>,
) -> (Result<WatchEnd, SpawnError>, CapturedOutput) {
    let mut reader = Reader {
        streams,
        sink,
        capture: Capture::new(limit),
        texts: Default::default(),
        last: None,
        chunk: vec![0; CHUNK],
    };
    let end = loop {
        // Reading is safe to drop: bytes are taken only when they are there, and then kept at once.
        tokio::select! {
            () = reader.read_some() => {}
            end = &mut watch => break end,
        }
    };
    // Whether it ran out of time or out of output, the result is what was read.
    let _ = timeout(DRAIN, reader.read_all()).await;
    let outcome = match end {
        Ok(outcome) => outcome,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => Err(SpawnError::Warden(io::Error::other(error))),
    };
    (outcome, reader.finish())
}

struct Reader<'a> {
    streams: Streams,
    sink: &'a mut dyn OutputSink,
    capture: Capture,
    texts: [StreamText; 2],
    /// Which stream was handed on last.
    last: Option<ToolOutputStream>,
    chunk: Vec<u8>,
}

/// The text of one stream.
#[derive(Debug, Default)]
struct StreamText {
    decoder: Decoder,
    plain: Plain,
    lines: Lines,
    live: Live,
}

impl Reader<'_> {
    /// Reads from whichever pipe has something; never returns when both have ended.
    async fn read_some(&mut self) {
        tokio::select! {
            () = ready(self.streams.stdout.as_ref()) => self.take(ToolOutputStream::Stdout),
            () = ready(self.streams.stderr.as_ref()) => self.take(ToolOutputStream::Stderr),
        }
    }

    async fn read_all(&mut self) {
        while self.streams.stdout.is_some() || self.streams.stderr.is_some() {
            self.read_some().await;
        }
    }

    fn take(&mut self, stream: ToolOutputStream) {
        let [stdout, stderr] = &mut self.texts;
        let (receiver, own, other) = match stream {
            ToolOutputStream::Stdout => (&mut self.streams.stdout, stdout, stderr),
            ToolOutputStream::Stderr => (&mut self.streams.stderr, stderr, stdout),
        };
        let Some(open) = receiver.as_ref() else { return };
        let text = match open.try_read(&mut self.chunk) {
            Ok(read @ 1..) => own.decoder.decode(self.chunk.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(0) | Err(_) => {
                *receiver = None;
                own.decoder.finish()
            }
        };
        let text = own.plain.push(&text);
        if text.is_empty() {
            return;
        }
        // The order of arrival is kept; progress waits for its last state.
        self.capture.push(&other.lines.settle());
        self.capture.push(&own.lines.push(&text));
        let live = own.live.push(&text);
        if live.is_empty() {
            return;
        }
        // A return takes back a line of its own stream only.
        match live.strip_prefix('\r') {
            Some(line) if self.last.is_some_and(|last| last != stream) => {
                self.sink.output(stream, &format!("\n{line}"))
            }
            Some(_) | None => self.sink.output(stream, &live),
        }
        self.last = Some(stream);
    }

    fn finish(mut self) -> CapturedOutput {
        for text in &mut self.texts {
            let rest = text.plain.push(&text.decoder.finish());
            self.capture.push(&text.lines.push(&rest));
            self.capture.push(&text.lines.finish());
        }
        self.capture.finish()
    }
}

async fn ready(receiver: Option<&Receiver>) {
    match receiver {
        // An error shows again at the read that follows.
        Some(receiver) => drop(receiver.readable().await),
        None => std::future::pending().await,
    }
}

/// Bytes of one stream into text; a character that is cut between two reads is put together.
#[derive(Debug, Default)]
struct Decoder {
    cut: Vec<u8>,
}

impl Decoder {
    fn decode(&mut self, bytes: &[u8]) -> String {
        let mut input = std::mem::take(&mut self.cut);
        input.extend_from_slice(bytes);
        let mut text = String::with_capacity(input.len());
        let mut chunks = input.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let cut = chunks.peek().is_none() && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if cut {
                self.cut = invalid.to_vec();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }

    fn finish(&mut self) -> String {
        let cut = std::mem::take(&mut self.cut);
        if cut.is_empty() { String::new() } else { char::REPLACEMENT_CHARACTER.to_string() }
    }
}

/// Keeps both ends of a text.
#[derive(Debug)]
struct Capture {
    head: String,
    head_limit: usize,
    tail: String,
    tail_limit: usize,
    dropped: u64,
}

impl Capture {
    fn new(limit: usize) -> Self {
        let head_limit = limit / 2;
        Self { head: String::new(), head_limit, tail: String::new(), tail_limit: limit - head_limit, dropped: 0 }
    }

    fn push(&mut self, text: &str) {
        let room = if self.tail.is_empty() && self.dropped == 0 { self.head_limit - self.head.len() } else { 0 };
        let (head, rest) = text.split_at(text.floor_char_boundary(room));
        self.head.push_str(head);
        self.tail.push_str(rest);
        // Trimmed now and then, not at each push: dropping from the front moves what stays.
        if self.tail.len() > self.tail_limit.saturating_mul(2).max(CHUNK) {
            self.trim();
        }
    }

    fn trim(&mut self) {
        let excess = self.tail.ceil_char_boundary(self.tail.len().saturating_sub(self.tail_limit));
        self.tail.drain(..excess);
        self.dropped += u64::try_from(excess).unwrap_or(u64::MAX);
    }

    fn finish(mut self) -> CapturedOutput {
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
        let mut capture = Capture::new(10);
        capture.push("hello");
        capture.push("wor");
        assert_eq!(capture.finish().text(), "hellowor");
    }

    #[test]
    fn the_middle_goes_and_is_counted() {
        let mut capture = Capture::new(10);
        for text in ["0123456789", "abcdefghij", "KLMNOPQRST"] {
            capture.push(text);
        }
        let kept = capture.finish();
        assert_eq!((kept.head.as_str(), kept.tail.as_str(), kept.dropped), ("01234", "PQRST", 20));
        assert_eq!(kept.text(), "01234\n[... 20 bytes of output dropped ...]\nPQRST");
    }

    #[test]
    fn nothing_is_kept_without_room() {
        let mut capture = Capture::new(0);
        capture.push("hello");
        assert_eq!(capture.finish(), CapturedOutput { dropped: 5, ..CapturedOutput::default() });
    }

    #[test]
    fn an_unfinished_character_at_the_end_is_shown_as_such() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(b"a\xe2\x82"), "a");
        assert_eq!(decoder.finish(), "\u{fffd}");
        assert_eq!(decoder.finish(), "");
    }

    proptest! {
        #[test]
        fn cuts_between_reads_change_nothing(bytes: Vec<u8>, cuts in proptest::collection::vec(1_usize..5, 0..40)) {
            let mut decoder = Decoder::default();
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
            let mut capture = Capture::new(limit);
            texts.iter().for_each(|text| capture.push(text));
            let all = texts.concat();
            let kept = capture.finish();
            prop_assert!(kept.head.len() + kept.tail.len() <= limit);
            prop_assert!(all.starts_with(&kept.head) && all.ends_with(&kept.tail));
            let total = kept.head.len() + kept.tail.len() + usize::try_from(kept.dropped).unwrap();
            prop_assert_eq!(total, all.len());
        }
    }
}
