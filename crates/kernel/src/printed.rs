//! What a command prints, as text that people and models read: without escape sequences, and of a line that is written again
//! and again, as progress is shown, its last state. The text comes in pieces; where it is cut changes nothing.

#[cfg(test)]
mod tests;

use anstyle_parse::state::{Action, State, state_change};

/// The longest line that waits for its end, bytes. A longer one shows no progress.
const LONGEST: usize = 4096;

/// Takes out escape sequences and control characters other than tab, newline and carriage return. A sequence ends at the
/// latest with its line, so that a stray one does not hide the rest of an output.
#[derive(Debug, Default)]
pub struct Plain {
    state: State,
}

impl Plain {
    /// The readable part of the next piece.
    pub fn push(&mut self, text: &str) -> String {
        let mut plain = String::with_capacity(text.len());
        for c in text.chars() {
            let shown = match c {
                '\n' => {
                    self.state = State::Ground;
                    true
                }
                // One character for ESC and another one, as terminals with eight bits have it.
                '\u{80}'..='\u{9f}' => self.step(0x1b) | self.step((c as u8) - 0x40),
                _ => match u8::try_from(c) {
                    Ok(byte) if byte.is_ascii() => self.step(byte),
                    _ => self.wide(),
                },
            };
            if shown {
                plain.push(c);
            }
        }
        plain
    }

    /// True when the byte is to be read.
    fn step(&mut self, byte: u8) -> bool {
        let (next, action) = state_change(self.state, byte);
        // It stands for no change.
        if next != State::Anywhere {
            self.state = next;
        }
        match action {
            Action::Print => byte != 0x7f,
            Action::Execute => matches!(byte, b'\t' | b'\r'),
            _ => false,
        }
    }

    /// A character beyond ASCII belongs to a string, such as the title of a window, and to no other sequence.
    fn wide(&mut self) -> bool {
        use State::{DcsEntry, DcsIgnore, DcsIntermediate, DcsParam, DcsPassthrough, OscString, SosPmApcString};
        let strings = [OscString, SosPmApcString, DcsEntry, DcsIgnore, DcsIntermediate, DcsParam, DcsPassthrough];
        if strings.contains(&self.state) {
            return false;
        }
        self.state = State::Ground;
        true
    }
}

/// The lines of a plain text: what a carriage return begins anew replaces what the line said before.
#[derive(Debug, Default)]
pub struct Lines {
    /// The line that has not ended, as far as nobody has it.
    open: String,
    /// A carriage return came last: what follows begins the line anew.
    returned: bool,
    /// The line has begun anew.
    anew: bool,
    /// The beginning of the line was given away.
    given: bool,
}

impl Lines {
    /// Takes the next piece. Answers the lines that have ended with it.
    pub fn push(&mut self, text: &str) -> String {
        let mut done = String::new();
        for piece in text.split_inclusive(['\n', '\r']) {
            let line = piece.trim_end_matches(['\n', '\r']);
            if !line.is_empty() {
                self.write(line, &mut done);
            }
            if piece.ends_with('\n') {
                done.push_str(&std::mem::take(self).open);
                done.push('\n');
            }
            self.returned |= piece.ends_with('\r');
        }
        done
    }

    /// The open line as far as it has not shown itself to be progress: from then on it is not taken back.
    pub fn settle(&mut self) -> String {
        if self.anew || self.returned || self.open.is_empty() {
            return String::new();
        }
        self.given = true;
        std::mem::take(&mut self.open)
    }

    /// The open line, at the end of the text.
    pub fn finish(&mut self) -> String {
        std::mem::take(self).open
    }

    fn write(&mut self, line: &str, done: &mut String) {
        if std::mem::take(&mut self.returned) {
            if std::mem::take(&mut self.given) {
                done.push('\n');
            }
            self.open.clear();
            self.anew = true;
        }
        self.open.push_str(line);
        if self.open.len() > LONGEST {
            done.push_str(&std::mem::take(&mut self.open));
            (self.anew, self.given) = (false, true);
        }
    }
}

/// A text as it stands in the end, where it came whole.
#[must_use]
pub fn folded(text: &str) -> String {
    let mut lines = Lines::default();
    let done = lines.push(text);
    done + &lines.finish()
}

/// A plain text for who sees it while it comes: at most one carriage return stands in each piece, at its beginning, and takes
/// back the line that is open.
#[derive(Debug, Default)]
pub struct Live {
    returned: bool,
    /// The open line has been shown in part.
    shown: bool,
}

impl Live {
    /// What is to be shown of the next piece.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for piece in text.split_inclusive(['\n', '\r']) {
            let line = piece.trim_end_matches(['\n', '\r']);
            if !line.is_empty() {
                if std::mem::take(&mut self.returned) {
                    self.begin_anew(&mut out);
                }
                out.push_str(line);
            }
            if piece.ends_with('\n') {
                out.push('\n');
                self.returned = false;
            }
            self.returned |= piece.ends_with('\r');
        }
        self.shown = match out.rfind('\n') {
            Some(at) => at + 1 < out.len(),
            None => self.shown || !out.is_empty(),
        };
        out
    }

    fn begin_anew(&self, out: &mut String) {
        match out.rfind('\n') {
            Some(at) => out.truncate(at + 1),
            None => {
                out.clear();
                out.push_str(if self.shown { "\r" } else { "" });
            }
        }
    }
}

/// What a reader of [`Live`] has who put `piece` behind `shown`.
pub fn append(shown: &mut String, piece: &str) {
    let text = piece.strip_prefix('\r').unwrap_or(piece);
    if text.len() < piece.len() {
        shown.truncate(shown.rfind('\n').map_or(0, |at| at + 1));
    }
    shown.push_str(text);
}
