//! Write answers to stdout and messages to stderr without mixing their lines on a shared terminal.
//!
//! A stream is any writer, so that tests can read the output. [`CliOutput`] keeps the two streams from writing into
//! each other's lines.

use std::io::{self, Write};

use serde::Serialize;

use crate::text_format::{is_invisible, strip_invisible, strip_terminal_controls};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CliOutputStreamKind {
    /// Not a terminal: no colour, no progress.
    Pipe,
    /// A terminal without colour.
    Plain,
    /// A terminal with the sixteen ANSI colours.
    Colored,
}

pub struct CliOutputStream {
    writer: Box<dyn Write + Send>,
    kind: CliOutputStreamKind,
}

impl CliOutputStream {
    pub fn new(writer: impl Write + Send + 'static, kind: CliOutputStreamKind) -> Self {
        Self { writer: Box::new(writer), kind }
    }

    pub fn is_terminal(&self) -> bool {
        self.kind != CliOutputStreamKind::Pipe
    }

    /// The text in its style; unchanged where there is no colour.
    #[must_use]
    pub fn apply_style(&self, tone: OutputStyle, text: &str) -> String {
        match self.kind {
            CliOutputStreamKind::Colored => format!("\x1b[{}m{text}\x1b[0m", tone.ansi_code()),
            CliOutputStreamKind::Pipe | CliOutputStreamKind::Plain => text.into(),
        }
    }

    /// All output goes through here: a terminal gets no invisible characters that could reorder its text.
    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.is_terminal() && text.contains(is_invisible) {
            self.writer.write_all(strip_invisible(text).as_bytes())?;
        } else {
            self.writer.write_all(text.as_bytes())?;
        }
        self.writer.flush()
    }
}

/// Meaning of a colour. A colour is never used without a glyph or a word that says the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStyle {
    /// Less important than the answer: thinking, tool lines, hints.
    Quiet,
    Strong,
    /// Only for a stop in progress.
    Stopping,
    /// Something failed or is left over.
    Failure,
    Waiting,
    Done,
    Stopped,
}

impl OutputStyle {
    fn ansi_code(self) -> &'static str {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnfinishedLine {
    Nothing,
    Quiet,
    Status,
}

/// Stdout and stderr with their unfinished lines. If both are terminals, they are taken to be the same one.
pub struct CliOutput {
    out: CliOutputStream,
    err: CliOutputStream,
    answer_line_open: bool,
    stderr_line: UnfinishedLine,
}

impl CliOutput {
    pub fn new(out: CliOutputStream, err: CliOutputStream) -> Self {
        Self { out, err, answer_line_open: false, stderr_line: UnfinishedLine::Nothing }
    }

    pub fn stdout(&self) -> &CliOutputStream {
        &self.out
    }

    pub fn stderr(&self) -> &CliOutputStream {
        &self.err
    }

    /// Streams a part of an answer. A pipe gets it byte for byte; a terminal gets it without control characters.
    pub fn stream_answer(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.clear_stderr_for_answer()?;
        if self.out.is_terminal() {
            self.out.write(&strip_terminal_controls(text))?
        } else {
            self.out.write(text)?
        }
        self.answer_line_open = !text.ends_with('\n');
        Ok(())
    }

    pub fn end_answer_line(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.answer_line_open) { self.out.write("\n") } else { Ok(()) }
    }

    /// Streams dimmed text to stderr, if that is a terminal.
    pub fn stream_quiet(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() || !self.err.is_terminal() {
            return Ok(());
        }
        if self.stderr_line != UnfinishedLine::Quiet {
            self.end_answer_for_stderr()?;
            self.clear_stderr_line()?;
        }
        let text = self.err.apply_style(OutputStyle::Quiet, &strip_terminal_controls(text));
        self.err.write(&text)?;
        self.stderr_line = UnfinishedLine::Quiet;
        Ok(())
    }

    /// Prints a whole line to stdout.
    pub fn print_line(&mut self, text: &str) -> io::Result<()> {
        self.clear_stderr_for_answer()?;
        self.end_answer_line()?;
        self.out.write(&format!("{text}\n"))
    }

    /// Prints one JSON value on a line of its own.
    pub fn print_json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(value)?;
        self.print_line(&text)
    }

    /// Prints a whole line to stderr.
    pub fn eprint_line(&mut self, text: &str) -> io::Result<()> {
        self.end_answer_for_stderr()?;
        self.clear_stderr_line()?;
        self.err.write(&format!("{text}\n"))
    }

    /// Shows a status line that is replaced by the next output. Does nothing in a pipe, nor within an unfinished answer
    /// line. The terminal cuts the line at its edge, so that redrawing never scrolls.
    pub fn show_status(&mut self, tone: OutputStyle, text: &str) -> io::Result<()> {
        let is_blocked =
            self.stderr_line == UnfinishedLine::Quiet || (self.answer_line_open && self.is_shared_terminal());
        if is_blocked || !self.err.is_terminal() {
            return Ok(());
        }
        let text = self.err.apply_style(tone, text);
        self.err.write(&format!("\r\x1b[K\x1b[?7l{text}\x1b[?7h"))?;
        self.stderr_line = UnfinishedLine::Status;
        Ok(())
    }

    /// Replaces `above` lines, counted upwards from the cursor, by `lines`, to redraw a table in place.
    pub fn redraw_lines(&mut self, above: usize, lines: &[String]) -> io::Result<()> {
        self.end_open_lines()?;
        let up = if above == 0 { String::new() } else { format!("\x1b[{above}A") };
        let body: String = lines.iter().map(|line| format!("{line}\x1b[K\n")).collect();
        self.out.write(&format!("{up}\r\x1b[?7l{body}\x1b[J\x1b[?7h"))
    }

    pub fn end_open_lines(&mut self) -> io::Result<()> {
        self.clear_stderr_line()?;
        self.end_answer_line()
    }

    fn is_shared_terminal(&self) -> bool {
        self.out.is_terminal() && self.err.is_terminal()
    }

    fn clear_stderr_for_answer(&mut self) -> io::Result<()> {
        if self.is_shared_terminal() { self.clear_stderr_line() } else { Ok(()) }
    }

    fn end_answer_for_stderr(&mut self) -> io::Result<()> {
        if self.is_shared_terminal() { self.end_answer_line() } else { Ok(()) }
    }

    fn clear_stderr_line(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.stderr_line, UnfinishedLine::Nothing) {
            UnfinishedLine::Nothing => Ok(()),
            UnfinishedLine::Quiet => self.err.write("\n"),
            UnfinishedLine::Status => self.err.write("\r\x1b[K"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{CapturedStreams, capturing_output};

    #[test]
    fn a_remark_never_lands_in_the_line_of_an_answer() {
        let (mut screen, seen) = capturing_output(CliOutputStreamKind::Plain);
        screen.stream_answer("half a li").unwrap();
        screen.eprint_line("connection lost").unwrap();
        screen.stream_answer("ne").unwrap();
        screen.end_open_lines().unwrap();
        assert_eq!(seen.interleaved(), "half a li\nconnection lost\nne\n");
    }

    #[test]
    fn a_status_is_wiped_before_anything_else_is_printed_and_never_cuts_an_answer() {
        let (mut screen, seen) = capturing_output(CliOutputStreamKind::Plain);
        screen.show_status(OutputStyle::Waiting, "waiting").unwrap();
        screen.stream_answer("text").unwrap();
        screen.show_status(OutputStyle::Waiting, "still waiting").unwrap();
        screen.end_open_lines().unwrap();
        assert_eq!(seen.interleaved(), "\r\x1b[K\x1b[?7lwaiting\x1b[?7h\r\x1b[Ktext\n");
    }

    #[test]
    fn an_answer_in_a_pipe_is_not_torn_by_remarks() {
        let (mut screen, seen) = capturing_output(CliOutputStreamKind::Pipe);
        screen.stream_answer("half a li").unwrap();
        screen.eprint_line("connection lost").unwrap();
        screen.stream_answer("ne").unwrap();
        screen.end_open_lines().unwrap();
        assert_eq!((seen.out(), seen.err()), ("half a line\n".into(), "connection lost\n".into()));
    }

    #[test]
    fn a_pipe_gets_no_progress_no_colour_and_every_byte() {
        let (mut screen, seen) = capturing_output(CliOutputStreamKind::Pipe);
        screen.show_status(OutputStyle::Stopping, "stopping").unwrap();
        screen.stream_quiet("thinking").unwrap();
        screen.stream_answer("a\u{1b}[1mb").unwrap();
        screen.end_open_lines().unwrap();
        assert_eq!((seen.out(), seen.err()), ("a\u{1b}[1mb\n".into(), String::new()));
        assert_eq!(screen.stdout().apply_style(OutputStyle::Done, "x"), "x");
    }

    #[test]
    fn no_line_of_a_terminal_holds_hidden_marks() {
        let (mut screen, seen) = capturing_output(CliOutputStreamKind::Plain);
        screen.print_line("session a\u{202e}b").unwrap();
        screen.eprint_line("c\u{200b}d").unwrap();
        screen.redraw_lines(0, &["e\u{2066}f".to_owned()]).unwrap();
        assert!(!seen.interleaved().contains(is_invisible), "{:?}", seen.interleaved());
    }

    #[test]
    fn an_answer_cannot_send_escape_sequences_to_a_terminal() {
        let (mut screen, seen): (CliOutput, CapturedStreams) = capturing_output(CliOutputStreamKind::Colored);
        screen.stream_answer("a\u{1b}]0;title\u{7}b\n").unwrap();
        assert_eq!(seen.out(), "a]0;titleb\n");
    }
}
