//! The output of a call while it runs, bounded: its head and its tail are kept, what lies between is counted.

use std::borrow::Cow;

/// Bytes kept of either end.
const END: usize = 8 * 1024;

/// Head and tail of a text that comes in pieces. What is kept does not depend on how it was cut into pieces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Clipped {
    head: String,
    /// The head takes nothing more: something that did not fit went to the tail.
    full: bool,
    /// At least the last [`END`] bytes of what did not fit; cut back when it has doubled, so that a flood costs no more
    /// than its length.
    tail: String,
    dropped: usize,
}

impl Clipped {
    pub(crate) fn push(&mut self, text: &str) {
        let mut rest = text;
        if !self.full {
            let fits = text.floor_char_boundary(END - self.head.len());
            self.head.push_str(&text[..fits]);
            rest = &text[fits..];
            self.full = !rest.is_empty();
        }
        // Only the end of a huge piece can stay.
        let start = last(rest, END);
        if start > 0 {
            self.dropped += self.tail.len() + start;
            self.tail.clear();
        }
        self.tail.push_str(&rest[start..]);
        if self.tail.len() > 2 * END {
            let start = last(&self.tail, END);
            self.tail.drain(..start);
            self.dropped += start;
        }
    }

    /// The whole text, or both ends with a line that says how much is missing.
    pub(crate) fn text(&self) -> String {
        let start = last(&self.tail, END);
        let tail = &self.tail[start..];
        match self.dropped + start {
            0 => format!("{}{tail}", self.head),
            dropped => format!("{}\n[... {dropped} bytes left out ...]\n{tail}", self.head),
        }
    }
}

/// A text in about `most` bytes: a longer one as both its ends, with a line between them that says how much is left out.
#[must_use]
pub fn with_ends(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let (head, tail) = (text.floor_char_boundary(most / 2), last(text, most / 2));
    Cow::Owned(format!("{}\n[... {} bytes left out ...]\n{}", &text[..head], tail - head, &text[tail..]))
}

/// Bytes kept of either end of a result that has to make room.
const SHORT_END: usize = 512;

/// Both ends of a long text, with a line that says how much is missing; a short one as it is.
pub(super) fn shortened(text: &str) -> String {
    if text.len() <= 3 * SHORT_END {
        return text.to_owned();
    }
    let (head, tail) = (text.floor_char_boundary(SHORT_END), last(text, SHORT_END));
    format!("{}\n[... {} bytes left out to make room ...]\n{}", &text[..head], tail - head, &text[tail..])
}

/// Where the last `keep` bytes begin, moved up to a character's border.
fn last(text: &str, keep: usize) -> usize {
    text.ceil_char_boundary(text.len().saturating_sub(keep))
}
