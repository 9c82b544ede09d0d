//! The two panes, answers and remarks, and what stands unfinished on them.
//!
//! A pane is any writer, so that tests read what a terminal would have shown. Remarks and answers share one terminal as a
//! rule; [`Screen`] keeps them from writing into each other's lines.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;

use crate::words::{harmless, is_hidden, without_hidden};

/// What a pane can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaneKind {
    /// No terminal: no colour, no progress.
    Pipe,
    /// A terminal without colour.
    Plain,
    /// A terminal with the sixteen colours.
    Colored,
}

/// One output.
pub struct Pane {
    writer: Box<dyn Write + Send>,
    kind: PaneKind,
}

impl fmt::Debug for Pane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pane").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Pane {
    /// A pane over any writer.
    #[must_use]
    pub fn new(writer: impl Write + Send + 'static, kind: PaneKind) -> Self {
        Self { writer: Box::new(writer), kind }
    }

    /// True when a person is taken to look at it.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.kind != PaneKind::Pipe
    }

    /// The text in its tone, where there is colour.
    #[must_use]
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        match self.kind {
            PaneKind::Colored => format!("\x1b[{}m{text}\x1b[0m", tone.code()),
            PaneKind::Pipe | PaneKind::Plain => text.into(),
        }
    }

    /// The one way to the writer: no terminal gets what would show its lines in another order.
    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.is_terminal() && text.contains(is_hidden) {
            self.writer.write_all(without_hidden(text).as_bytes())?;
        } else {
            self.writer.write_all(text.as_bytes())?;
        }
        self.writer.flush()
    }
}

/// What a colour means. Never used without a glyph or a word that says the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Second to the answer: thinking, tool lines, hints.
    Quiet,
    /// Headings.
    Strong,
    /// A stop in progress, and nothing else.
    Stopping,
    /// Something went wrong or is left over.
    Failure,
    /// Somebody waits.
    Waiting,
    /// Finished.
    Done,
    /// Was stopped.
    Stopped,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Self::Quiet => "2",
            Self::Strong => "1",
            Self::Stopping => "31",
            Self::Failure => "33",
            Self::Waiting => "34",
            Self::Done => "32",
            Self::Stopped => "90",
        }
    }
}

/// What stands unfinished on the pane of remarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Murmur,
    Status,
}

/// The two panes and what stands unfinished on them. Where both are terminals they are taken to be the same one.
#[derive(Debug)]
pub struct Screen {
    out: Pane,
    err: Pane,
    answering: bool,
    open: Open,
}

impl Screen {
    /// A screen of two panes.
    #[must_use]
    pub fn new(out: Pane, err: Pane) -> Self {
        Self { out, err, answering: false, open: Open::Nothing }
    }

    /// The pane of answers.
    #[must_use]
    pub fn out(&self) -> &Pane {
        &self.out
    }

    /// The pane of remarks.
    #[must_use]
    pub fn err(&self) -> &Pane {
        &self.err
    }

    /// Streams a part of an answer. A pipe gets it byte for byte; a terminal without what could move its cursor.
    ///
    /// # Errors
    /// What the writer says.
    pub fn answer(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.clear_remarks_for_answer()?;
        if self.out.is_terminal() {
            self.out.write(&harmless(text))?
        } else {
            self.out.write(text)?
        }
        self.answering = !text.ends_with('\n');
        Ok(())
    }

    /// Ends the line of an answer, if one stands open.
    ///
    /// # Errors
    /// What the writer says.
    pub fn end_answer(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.answering) { self.out.write("\n") } else { Ok(()) }
    }

    /// Streams quiet text to the remarks; nothing when nobody looks.
    ///
    /// # Errors
    /// What the writer says.
    pub fn murmur(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() || !self.err.is_terminal() {
            return Ok(());
        }
        if self.open != Open::Murmur {
            self.clear_answer_for_remarks()?;
            self.clear_remarks()?;
        }
        let text = self.err.paint(Tone::Quiet, &harmless(text));
        self.err.write(&text)?;
        self.open = Open::Murmur;
        Ok(())
    }

    /// A whole line of the answer.
    ///
    /// # Errors
    /// What the writer says.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.clear_remarks_for_answer()?;
        self.end_answer()?;
        self.out.write(&format!("{text}\n"))
    }

    /// One JSON value on a line of its own.
    ///
    /// # Errors
    /// What the writer says.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(value)?;
        self.line(&text)
    }

    /// A whole line of remarks.
    ///
    /// # Errors
    /// What the writer says.
    pub fn remark(&mut self, text: &str) -> io::Result<()> {
        self.clear_answer_for_remarks()?;
        self.clear_remarks()?;
        self.err.write(&format!("{text}\n"))
    }

    /// Shows what is going on, in place, until something else is printed. Nothing in a pipe, and nothing in the middle of an
    /// answer, which moves by itself. The terminal cuts it at its edge, so that redrawing never scrolls.
    ///
    /// # Errors
    /// What the writer says.
    pub fn status(&mut self, tone: Tone, text: &str) -> io::Result<()> {
        let taken = self.open == Open::Murmur || (self.answering && self.shared());
        if taken || !self.err.is_terminal() {
            return Ok(());
        }
        let text = self.err.paint(tone, text);
        self.err.write(&format!("\r\x1b[K\x1b[?7l{text}\x1b[?7h"))?;
        self.open = Open::Status;
        Ok(())
    }

    /// Replaces `above` lines, counted from the cursor upwards, by `lines`: a table that is redrawn in place.
    ///
    /// # Errors
    /// What the writer says.
    pub fn redraw(&mut self, above: usize, lines: &[String]) -> io::Result<()> {
        self.finish()?;
        let up = if above == 0 { String::new() } else { format!("\x1b[{above}A") };
        let body: String = lines.iter().map(|line| format!("{line}\x1b[K\n")).collect();
        self.out.write(&format!("{up}\r\x1b[?7l{body}\x1b[J\x1b[?7h"))
    }

    /// Ends whatever stands unfinished on either pane.
    ///
    /// # Errors
    /// What the writer says.
    pub fn finish(&mut self) -> io::Result<()> {
        self.clear_remarks()?;
        self.end_answer()
    }

    fn shared(&self) -> bool {
        self.out.is_terminal() && self.err.is_terminal()
    }

    fn clear_remarks_for_answer(&mut self) -> io::Result<()> {
        if self.shared() { self.clear_remarks() } else { Ok(()) }
    }

    fn clear_answer_for_remarks(&mut self) -> io::Result<()> {
        if self.shared() { self.end_answer() } else { Ok(()) }
    }

    fn clear_remarks(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => Ok(()),
            Open::Murmur => self.err.write("\n"),
            Open::Status => self.err.write("\r\x1b[K"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Seen, shown};

    #[test]
    fn a_remark_never_lands_in_the_line_of_an_answer() {
        let (mut screen, seen) = shown(PaneKind::Plain);
        screen.answer("half a li").unwrap();
        screen.remark("connection lost").unwrap();
        screen.answer("ne").unwrap();
        screen.finish().unwrap();
        assert_eq!(seen.both(), "half a li\nconnection lost\nne\n");
    }

    #[test]
    fn a_status_is_wiped_before_anything_else_is_printed_and_never_cuts_an_answer() {
        let (mut screen, seen) = shown(PaneKind::Plain);
        screen.status(Tone::Waiting, "waiting").unwrap();
        screen.answer("text").unwrap();
        screen.status(Tone::Waiting, "still waiting").unwrap();
        screen.finish().unwrap();
        assert_eq!(seen.both(), "\r\x1b[K\x1b[?7lwaiting\x1b[?7h\r\x1b[Ktext\n");
    }

    #[test]
    fn an_answer_in_a_pipe_is_not_torn_by_remarks() {
        let (mut screen, seen) = shown(PaneKind::Pipe);
        screen.answer("half a li").unwrap();
        screen.remark("connection lost").unwrap();
        screen.answer("ne").unwrap();
        screen.finish().unwrap();
        assert_eq!((seen.out(), seen.err()), ("half a line\n".into(), "connection lost\n".into()));
    }

    #[test]
    fn a_pipe_gets_no_progress_no_colour_and_every_byte() {
        let (mut screen, seen) = shown(PaneKind::Pipe);
        screen.status(Tone::Stopping, "stopping").unwrap();
        screen.murmur("thinking").unwrap();
        screen.answer("a\u{1b}[1mb").unwrap();
        screen.finish().unwrap();
        assert_eq!((seen.out(), seen.err()), ("a\u{1b}[1mb\n".into(), String::new()));
        assert_eq!(screen.out().paint(Tone::Done, "x"), "x");
    }

    #[test]
    fn no_line_of_a_terminal_holds_hidden_marks() {
        let (mut screen, seen) = shown(PaneKind::Plain);
        screen.line("session a\u{202e}b").unwrap();
        screen.remark("c\u{200b}d").unwrap();
        screen.redraw(0, &["e\u{2066}f".to_owned()]).unwrap();
        assert!(!seen.both().contains(is_hidden), "{:?}", seen.both());
    }

    #[test]
    fn an_answer_cannot_send_escape_sequences_to_a_terminal() {
        let (mut screen, seen): (Screen, Seen) = shown(PaneKind::Colored);
        screen.answer("a\u{1b}]0;title\u{7}b\n").unwrap();
        assert_eq!(seen.out(), "a]0;titleb\n");
    }
}
