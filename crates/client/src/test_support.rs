//! Captured output streams, fixed receipts and scripted daemons for tests.

use std::io;
use std::io::Write;

use tokio::sync::watch;

use crate::term::{
    CliOutput, CliOutputStream, CliOutputStreamKind, ColorMode, CommandIo, Interruption, Interrupts, Locale,
};

pub mod daemon;
pub mod receipts;

/// Everything printed, with its stream and in order.
#[derive(Clone)]
pub struct CapturedStreams(watch::Sender<Vec<CapturedPart>>);

type CapturedPart = (CapturedSide, Vec<u8>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum CapturedSide {
    Out,
    Err,
}

struct CapturingWriter {
    side: CapturedSide,
    captured: CapturedStreams,
}

impl Write for CapturingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.captured.0.send_modify(|parts| parts.push((self.side, bytes.to_vec())));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl CapturedStreams {
    pub fn out(&self) -> String {
        self.text(&[CapturedSide::Out])
    }

    pub fn err(&self) -> String {
        self.text(&[CapturedSide::Err])
    }

    /// Both streams in the order written, as a shared terminal shows them.
    pub fn interleaved(&self) -> String {
        self.text(&[CapturedSide::Out, CapturedSide::Err])
    }

    /// The one JSON value on stdout.
    pub fn json(&self) -> serde_json::Value {
        let out = self.out();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out:?}"))
    }

    /// Waits until stdout contains this text.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn wait_for_text(&self, text: &str) {
        self.0.subscribe().wait_for(|parts| text_of(parts, &[CapturedSide::Out]).contains(text)).await.unwrap();
    }

    fn text(&self, sides: &[CapturedSide]) -> String {
        text_of(&self.0.borrow(), sides)
    }
}

fn text_of(parts: &[CapturedPart], sides: &[CapturedSide]) -> String {
    let wanted = parts.iter().filter(|(side, _)| sides.contains(side));
    String::from_utf8(wanted.flat_map(|(_, bytes)| bytes.clone()).collect()).unwrap()
}

/// An output whose two streams can be read.
pub fn capturing_output(kind: CliOutputStreamKind) -> (CliOutput, CapturedStreams) {
    let seen = CapturedStreams(watch::Sender::new(Vec::new()));
    let pane = |side| CliOutputStream::new(CapturingWriter { side, captured: seen.clone() }, kind);
    (CliOutput::new(pane(CapturedSide::Out), pane(CapturedSide::Err)), seen)
}

/// Input, output and interruptions of a subcommand under test.
pub struct TestIo {
    pub io: CommandIo,
    pub captured: CapturedStreams,
    pub interruptions: tokio::sync::mpsc::Sender<Interruption>,
}

impl TestIo {
    pub fn new(kind: CliOutputStreamKind) -> Self {
        Self::with_input(kind, "")
    }

    pub fn with_input(kind: CliOutputStreamKind, input: &str) -> Self {
        let (screen, captured) = capturing_output(kind);
        let (interruptions, received) = tokio::sync::mpsc::channel(8);
        let interrupts = Interrupts::new(futures_util::stream::unfold(received, |mut received| async move {
            received.recv().await.map(|interruption| (interruption, received))
        }));
        let input = Box::new(io::Cursor::new(input.as_bytes().to_vec()));
        let (color, locale) = (ColorMode::Auto, Locale::default());
        Self { io: CommandIo { output: screen, input, interrupts, color, locale }, captured, interruptions }
    }
}

/// A stderr stream that writes to the same record.
pub fn capturing_stderr(seen: &CapturedStreams) -> CliOutputStream {
    CliOutputStream::new(CapturingWriter { side: CapturedSide::Err, captured: seen.clone() }, CliOutputStreamKind::Pipe)
}
