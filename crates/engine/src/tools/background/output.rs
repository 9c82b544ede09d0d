//! The end of a long output, readable from any place that is still kept. Nothing is taken back: of a line that begins anew its
//! first state is told at once, and its last one when the line is over.

use quell_kernel::printed::Lines;
use quell_protocol::ToolOutputStream;

/// The last bytes of an output.
#[derive(Debug)]
pub(super) struct Tail {
    text: String,
    /// The place of its first byte in the whole output.
    start: u64,
    limit: usize,
    /// The open lines of standard output and standard error.
    lines: [Lines; 2],
}

/// A piece of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// The text.
    pub text: String,
    /// Bytes between the place asked for and the text that are not kept or were not asked for.
    pub missing: u64,
    /// The place after the text: ask from here for what comes next.
    pub next: u64,
}

impl Tail {
    pub(super) fn new(limit: usize) -> Self {
        Self { text: String::new(), start: 0, limit, lines: Default::default() }
    }

    pub(super) fn push(&mut self, stream: ToolOutputStream, text: &str) {
        let lines = match stream {
            ToolOutputStream::Stdout => &mut self.lines[0],
            ToolOutputStream::Stderr => &mut self.lines[1],
        };
        let done = lines.push(text);
        let open = lines.settle();
        self.keep(&done);
        self.keep(&open);
    }

    /// Nothing more comes: progress has its last state.
    pub(super) fn finish(&mut self) {
        let rest: String = self.lines.iter_mut().map(Lines::finish).collect();
        self.keep(&rest);
    }

    fn keep(&mut self, text: &str) {
        self.text.push_str(text);
        // Trimmed now and then, not at each push: dropping from the front moves what stays.
        if self.text.len() > self.limit.saturating_mul(2) {
            let excess = self.text.ceil_char_boundary(self.text.len() - self.limit);
            self.text.drain(..excess);
            self.start += u64::try_from(excess).unwrap_or(u64::MAX);
        }
    }

    /// The place after all that was printed so far.
    pub(super) fn end(&self) -> u64 {
        self.start + u64::try_from(self.text.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn excerpt(&self, after: u64, most: usize) -> Excerpt {
        let end = self.end();
        let after = after.min(end);
        let from = usize::try_from(after.saturating_sub(self.start)).unwrap_or(usize::MAX).min(self.text.len());
        let from = from.max(self.text.len().saturating_sub(most));
        let from = self.text.ceil_char_boundary(from);
        let text = self.text.get(from..).unwrap_or_default().to_owned();
        let missing = (end - u64::try_from(text.len()).unwrap_or(u64::MAX)).saturating_sub(after);
        Excerpt { text, missing, next: end }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_read_on_is_read_once_and_whole() {
        let mut tail = Tail::new(100);
        tail.push(ToolOutputStream::Stdout, "one\n");
        let first = tail.excerpt(0, 100);
        assert_eq!(first, Excerpt { text: "one\n".into(), missing: 0, next: 4 });
        tail.push(ToolOutputStream::Stdout, "two\n");
        assert_eq!(tail.excerpt(first.next, 100), Excerpt { text: "two\n".into(), missing: 0, next: 8 });
        assert_eq!(tail.excerpt(8, 100).text, "");
        assert_eq!(tail.excerpt(999, 100), Excerpt { text: String::new(), missing: 0, next: 8 });
        assert_eq!(tail.excerpt(0, 4), Excerpt { text: "two\n".into(), missing: 4, next: 8 });
    }

    #[test]
    fn progress_is_told_by_its_first_and_its_last_state() {
        let mut tail = Tail::new(100);
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
            let mut tail = Tail::new(limit);
            texts.iter().for_each(|text| tail.push(ToolOutputStream::Stdout, text));
            let all = texts.concat();
            let excerpt = tail.excerpt(after, most);
            let total = u64::try_from(all.len()).unwrap();
            prop_assert!(all.ends_with(&excerpt.text) && excerpt.text.len() <= most);
            prop_assert_eq!(excerpt.next, total);
            let read = u64::try_from(excerpt.text.len()).unwrap();
            // A place inside of a character reads on behind it.
            let expected = total.saturating_sub(after);
            prop_assert!(excerpt.missing + read <= expected && expected - excerpt.missing - read < 4 || excerpt.missing + read == expected);
        }
    }
}
