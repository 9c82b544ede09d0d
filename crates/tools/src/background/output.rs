//! A bounded tail of a command's output, readable from any offset that is still kept.
//!
//! The text only grows. Of a line that a carriage return overwrites, the first state is added at once and the last one
//! when the line ends.

use quell_kernel::terminal_output::LineOverwriter;
use quell_protocol::ToolOutputStream;

#[derive(Debug)]
pub(super) struct OutputTail {
    text: String,
    /// The offset of the first kept byte in the whole output.
    start: u64,
    limit: usize,
    /// The open lines of standard output and standard error.
    lines: [LineOverwriter; 2],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputExcerpt {
    pub text: String,
    /// Bytes between the requested offset and the text that are not kept or did not fit.
    pub missing: u64,
    /// The offset after the text, from which the next request continues.
    pub next: u64,
}

impl OutputTail {
    pub(super) fn new(limit: usize) -> Self {
        Self { text: String::new(), start: 0, limit, lines: Default::default() }
    }

    pub(super) fn push(&mut self, stream: ToolOutputStream, text: &str) {
        let lines = match stream {
            ToolOutputStream::Stdout => &mut self.lines[0],
            ToolOutputStream::Stderr => &mut self.lines[1],
        };
        let done = lines.push(text);
        let open = lines.take_open_line();
        self.append(&done);
        self.append(&open);
    }

    /// Ends the output: an overwritten line gets its last state.
    pub(super) fn finish(&mut self) {
        let rest: String = self.lines.iter_mut().map(LineOverwriter::finish).collect();
        self.append(&rest);
    }

    fn append(&mut self, text: &str) {
        self.text.push_str(text);
        // Trimmed only when it has doubled: removing text at the front moves the rest.
        if self.text.len() > self.limit.saturating_mul(2) {
            let excess = self.text.ceil_char_boundary(self.text.len() - self.limit);
            self.text.drain(..excess);
            self.start += u64::try_from(excess).unwrap_or(u64::MAX);
        }
    }

    pub(super) fn end_offset(&self) -> u64 {
        self.start + u64::try_from(self.text.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn excerpt(&self, after: u64, max_bytes: usize) -> OutputExcerpt {
        let end = self.end_offset();
        let after = after.min(end);
        let from = usize::try_from(after.saturating_sub(self.start)).unwrap_or(usize::MAX).min(self.text.len());
        let from = from.max(self.text.len().saturating_sub(max_bytes));
        let from = self.text.ceil_char_boundary(from);
        let text = self.text.get(from..).unwrap_or_default().to_owned();
        let missing = (end - u64::try_from(text.len()).unwrap_or(u64::MAX)).saturating_sub(after);
        OutputExcerpt { text, missing, next: end }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn continued_reading_returns_each_byte_once() {
        let mut tail = OutputTail::new(100);
        tail.push(ToolOutputStream::Stdout, "one\n");
        let first = tail.excerpt(0, 100);
        assert_eq!(first, OutputExcerpt { text: "one\n".into(), missing: 0, next: 4 });
        tail.push(ToolOutputStream::Stdout, "two\n");
        assert_eq!(tail.excerpt(first.next, 100), OutputExcerpt { text: "two\n".into(), missing: 0, next: 8 });
        assert_eq!(tail.excerpt(8, 100).text, "");
        assert_eq!(tail.excerpt(999, 100), OutputExcerpt { text: String::new(), missing: 0, next: 8 });
        assert_eq!(tail.excerpt(0, 4), OutputExcerpt { text: "two\n".into(), missing: 4, next: 8 });
    }

    #[test]
    fn progress_is_told_by_its_first_and_its_last_state() {
        let mut tail = OutputTail::new(100);
        for text in ["Sure? ", "10%", "\r20%", "\r30%"] {
            tail.push(ToolOutputStream::Stderr, text);
        }
        assert_eq!(tail.excerpt(0, 100).text, "Sure? 10%\n");
        tail.push(ToolOutputStream::Stdout, "meanwhile\n");
        tail.push(ToolOutputStream::Stderr, "\r99%");
        tail.finish();
        assert_eq!(tail.excerpt(0, 100).text, "Sure? 10%\nmeanwhile\n99%");
    }

    proptest! {
        #[test]
        fn text_and_missing_add_up(texts in prop::collection::vec("\\PC{0,30}", 0..20), limit in 0_usize..60, after in 0_u64..400, most in 0_usize..60) {
            let mut tail = OutputTail::new(limit);
            texts.iter().for_each(|text| tail.push(ToolOutputStream::Stdout, text));
            let all = texts.concat();
            let excerpt = tail.excerpt(after, most);
            let total = u64::try_from(all.len()).unwrap();
            prop_assert!(all.ends_with(&excerpt.text) && excerpt.text.len() <= most);
            prop_assert_eq!(excerpt.next, total);
            let read = u64::try_from(excerpt.text.len()).unwrap();
            // An offset inside a character continues after that character.
            let expected = total.saturating_sub(after);
            prop_assert!(excerpt.missing + read <= expected && expected - excerpt.missing - read < 4 || excerpt.missing + read == expected);
        }
    }
}
