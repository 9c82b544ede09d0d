//! Turns terminal output into plain text: strips escape sequences and applies carriage returns.
//!
//! A line that is rewritten to show progress keeps only its last state. Output comes in pieces; the cuts do not change
//! the result.

#[cfg(test)]
mod tests;

use anstyle_parse::state::{Action, State, state_change};

/// Maximum bytes of a line that is held back. A longer line is emitted and not overwritten.
const MAX_OPEN_LINE_BYTES: usize = 4096;

/// Removes escape sequences and control characters other than tab, newline and carriage return. A sequence ends with
/// its line at the latest, so that a stray one does not hide the rest of the output.
#[derive(Debug, Default)]
pub struct EscapeStripper {
    state: State,
}

impl EscapeStripper {
    /// Returns the readable part of the next piece.
    pub fn strip(&mut self, text: &str) -> String {
        let mut plain = String::with_capacity(text.len());
        for c in text.chars() {
            let is_readable = match c {
                '\n' => {
                    self.state = State::Ground;
                    true
                }
                // An 8-bit control character stands for ESC and a second character.
                '\u{80}'..='\u{9f}' => self.advance(0x1b) | self.advance((c as u8) - 0x40),
                _ => match u8::try_from(c) {
                    Ok(byte) if byte.is_ascii() => self.advance(byte),
                    _ => self.accept_non_ascii(),
                },
            };
            if is_readable {
                plain.push(c);
            }
        }
        plain
    }

    /// Advances the state machine. Returns true when the byte is readable.
    fn advance(&mut self, byte: u8) -> bool {
        let (next, action) = state_change(self.state, byte);
        // `Anywhere` means no change.
        if next != State::Anywhere {
            self.state = next;
        }
        match action {
            Action::Print => byte != 0x7f,
            Action::Execute => matches!(byte, b'\t' | b'\r'),
            _ => false,
        }
    }

    /// Inside a string sequence, such as a window title, the character is hidden. In any other sequence it ends the
    /// sequence.
    fn accept_non_ascii(&mut self) -> bool {
        use State::{DcsEntry, DcsIgnore, DcsIntermediate, DcsParam, DcsPassthrough, OscString, SosPmApcString};
        let strings = [OscString, SosPmApcString, DcsEntry, DcsIgnore, DcsIntermediate, DcsParam, DcsPassthrough];
        if strings.contains(&self.state) {
            return false;
        }
        self.state = State::Ground;
        true
    }
}

/// Applies carriage returns: text after one replaces the line before it.
#[derive(Debug, Default)]
pub struct LineOverwriter {
    /// The part of the open line that was not emitted.
    open: String,
    /// The last character was a carriage return: the next text restarts the line.
    carriage_returned: bool,
    was_restarted: bool,
    /// The beginning of the open line was emitted.
    was_emitted: bool,
}

impl LineOverwriter {
    /// Adds the next piece. Returns the lines that are complete with it.
    pub fn push(&mut self, text: &str) -> String {
        let mut done = String::new();
        for piece in text.split_inclusive(['\n', '\r']) {
            let line = piece.trim_end_matches(['\n', '\r']);
            if !line.is_empty() {
                self.append_to_line(line, &mut done);
            }
            if piece.ends_with('\n') {
                done.push_str(&std::mem::take(self).open);
                done.push('\n');
            }
            self.carriage_returned |= piece.ends_with('\r');
        }
        done
    }

    /// Takes the open line unless it was restarted, which means progress. The taken part is not overwritten later.
    pub fn take_open_line(&mut self) -> String {
        if self.was_restarted || self.carriage_returned || self.open.is_empty() {
            return String::new();
        }
        self.was_emitted = true;
        std::mem::take(&mut self.open)
    }

    /// Returns the open line at the end of the text.
    pub fn finish(&mut self) -> String {
        std::mem::take(self).open
    }

    fn append_to_line(&mut self, line: &str, done: &mut String) {
        if std::mem::take(&mut self.carriage_returned) {
            if std::mem::take(&mut self.was_emitted) {
                done.push('\n');
            }
            self.open.clear();
            self.was_restarted = true;
        }
        self.open.push_str(line);
        if self.open.len() > MAX_OPEN_LINE_BYTES {
            done.push_str(&std::mem::take(&mut self.open));
            (self.was_restarted, self.was_emitted) = (false, true);
        }
    }
}

/// Applies carriage returns to a complete text.
#[must_use]
pub fn overwrite_lines(text: &str) -> String {
    let mut lines = LineOverwriter::default();
    let done = lines.push(text);
    done + &lines.finish()
}

/// Applies carriage returns for a live view. Each returned piece has at most one carriage return, at its beginning,
/// which removes the open line.
#[derive(Debug, Default)]
pub struct LiveOutput {
    carriage_returned: bool,
    /// A part of the open line was returned.
    line_shown: bool,
}

impl LiveOutput {
    /// Returns the text to append for the next piece.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for piece in text.split_inclusive(['\n', '\r']) {
            let line = piece.trim_end_matches(['\n', '\r']);
            if !line.is_empty() {
                if std::mem::take(&mut self.carriage_returned) {
                    self.restart_line(&mut out);
                }
                out.push_str(line);
            }
            if piece.ends_with('\n') {
                out.push('\n');
                self.carriage_returned = false;
            }
            self.carriage_returned |= piece.ends_with('\r');
        }
        self.line_shown = match out.rfind('\n') {
            Some(at) => at + 1 < out.len(),
            None => self.line_shown || !out.is_empty(),
        };
        out
    }

    fn restart_line(&self, out: &mut String) {
        match out.rfind('\n') {
            Some(at) => out.truncate(at + 1),
            None => {
                out.clear();
                out.push_str(if self.line_shown { "\r" } else { "" });
            }
        }
    }
}
