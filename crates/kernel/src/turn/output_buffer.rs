//! Bounded buffer that keeps head and tail of a call's output and counts the bytes between them.

use std::borrow::Cow;

/// Bytes kept of each end.
const END_BYTES: usize = 8 * 1024;

/// Head and tail of a text that comes in pieces. The result does not depend on the cuts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HeadTailBuffer {
    head: String,
    /// The head is complete: text that did not fit went to the tail.
    full: bool,
    /// At least the last [`END_BYTES`] bytes of the rest. It is truncated at twice that size, so that the total cost is
    /// linear in the length of the output.
    tail: String,
    dropped: usize,
}

impl HeadTailBuffer {
    pub(crate) fn push(&mut self, text: &str) {
        let mut rest = text;
        if !self.full {
            let fits = text.floor_char_boundary(END_BYTES - self.head.len());
            self.head.push_str(&text[..fits]);
            rest = &text[fits..];
            self.full = !rest.is_empty();
        }
        // Keep only the end of a huge piece.
        let start = tail_start(rest, END_BYTES);
        if start > 0 {
            self.dropped += self.tail.len() + start;
            self.tail.clear();
        }
        self.tail.push_str(&rest[start..]);
        if self.tail.len() > 2 * END_BYTES {
            let start = tail_start(&self.tail, END_BYTES);
            self.tail.drain(..start);
            self.dropped += start;
        }
    }

    /// The whole text, or both ends with a line between them that names the bytes left out.
    pub(crate) fn text(&self) -> String {
        let start = tail_start(&self.tail, END_BYTES);
        let tail = &self.tail[start..];
        match self.dropped + start {
            0 => format!("{}{tail}", self.head),
            dropped => format!("{}\n[... {dropped} bytes left out ...]\n{tail}", self.head),
        }
    }
}

/// Shortens a text to about `max_bytes`: both ends, with a line between them that names the bytes left out.
#[must_use]
pub fn keep_both_ends(text: &str, max_bytes: usize) -> Cow<'_, str> {
    if text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    let (head, tail) = (text.floor_char_boundary(max_bytes / 2), tail_start(text, max_bytes / 2));
    Cow::Owned(format!("{}\n[... {} bytes left out ...]\n{}", &text[..head], tail - head, &text[tail..]))
}

/// Bytes kept of each end of a shortened result.
const SHORT_END_BYTES: usize = 512;

/// Shortens a long result to both ends, with a line between them that names the bytes left out.
pub(super) fn shorten_result(text: &str) -> String {
    if text.len() <= 3 * SHORT_END_BYTES {
        return text.to_owned();
    }
    let (head, tail) = (text.floor_char_boundary(SHORT_END_BYTES), tail_start(text, SHORT_END_BYTES));
    format!("{}\n[... {} bytes left out to make room ...]\n{}", &text[..head], tail - head, &text[tail..])
}

/// Start of the last `keep` bytes, moved forward to a character boundary.
fn tail_start(text: &str, keep: usize) -> usize {
    text.ceil_char_boundary(text.len().saturating_sub(keep))
}
