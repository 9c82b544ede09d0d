//! What the tests stand on: fixed receipts, a terminal that can be read, and scripted daemons on loopback.

use std::io;
use std::io::Write;

use tokio::sync::watch;

use crate::term::{Color, Interrupts, Io, Locale, Pane, PaneKind, Screen};

pub(crate) mod daemon;
pub(crate) mod receipts;

/// What was printed, by pane and in order.
#[derive(Clone)]
pub(crate) struct Seen(watch::Sender<Vec<Part>>);

type Part = (Side, Vec<u8>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Out,
    Err,
}

struct Tap {
    side: Side,
    seen: Seen,
}

impl Write for Tap {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.seen.0.send_modify(|parts| parts.push((self.side, bytes.to_vec())));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seen {
    pub(crate) fn out(&self) -> String {
        self.text(&[Side::Out])
    }

    pub(crate) fn err(&self) -> String {
        self.text(&[Side::Err])
    }

    /// As a terminal would have shown it.
    pub(crate) fn both(&self) -> String {
        self.text(&[Side::Out, Side::Err])
    }

    /// The one JSON value that was printed.
    pub(crate) fn json(&self) -> serde_json::Value {
        let out = self.out();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out:?}"))
    }

    /// Waits until the answer pane shows this.
    pub(crate) async fn shows(&self, text: &str) {
        self.0.subscribe().wait_for(|parts| text_of(parts, &[Side::Out]).contains(text)).await.unwrap();
    }

    fn text(&self, sides: &[Side]) -> String {
        text_of(&self.0.borrow(), sides)
    }
}

fn text_of(parts: &[Part], sides: &[Side]) -> String {
    let wanted = parts.iter().filter(|(side, _)| sides.contains(side));
    String::from_utf8(wanted.flat_map(|(_, bytes)| bytes.clone()).collect()).unwrap()
}

/// A screen whose two panes can be read.
pub(crate) fn shown(kind: PaneKind) -> (Screen, Seen) {
    let seen = Seen(watch::Sender::new(Vec::new()));
    let pane = |side| Pane::new(Tap { side, seen: seen.clone() }, kind);
    (Screen::new(pane(Side::Out), pane(Side::Err)), seen)
}

/// What a verb is given in a test: panes that can be read, an input, and presses of Ctrl-C that the test makes.
pub(crate) struct Desk {
    pub(crate) io: Io,
    pub(crate) seen: Seen,
    pub(crate) ctrl_c: tokio::sync::mpsc::Sender<()>,
}

impl Desk {
    pub(crate) fn new(kind: PaneKind) -> Self {
        Self::with_input(kind, "")
    }

    pub(crate) fn with_input(kind: PaneKind, input: &str) -> Self {
        let (screen, seen) = shown(kind);
        let (ctrl_c, presses) = tokio::sync::mpsc::channel(8);
        let interrupts = Interrupts::new(futures_util::stream::unfold(presses, |mut presses| async move {
            presses.recv().await.map(|()| ((), presses))
        }));
        let input = Box::new(io::Cursor::new(input.as_bytes().to_vec()));
        let (color, locale) = (Color::Auto, Locale::default());
        Self { io: Io { screen, input, interrupts, color, locale }, seen, ctrl_c }
    }
}

/// A pane of remarks over the same record.
pub(crate) fn err_pane(seen: &Seen) -> Pane {
    Pane::new(Tap { side: Side::Err, seen: seen.clone() }, PaneKind::Pipe)
}
