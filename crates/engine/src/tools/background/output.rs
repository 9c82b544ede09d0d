//! The end of a long output, readable from any place that is still kept.

/// The last bytes of an output.
#[derive(Debug)]
pub(super) struct Tail {
    text: String,
    /// The place of its first byte in the whole output.
    start: u64,
    limit: usize,
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
        Self { text: String::new(), start: 0, limit }
    }

    pub(super) fn push(&mut self, text: &str) {
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
        tail.push("one\n");
        let first = tail.excerpt(0, 100);
        assert_eq!(first, Excerpt { text: "one\n".into(), missing: 0, next: 4 });
        tail.push("two\n");
        assert_eq!(tail.excerpt(first.next, 100), Excerpt { text: "two\n".into(), missing: 0, next: 8 });
        assert_eq!(tail.excerpt(8, 100).text, "");
        assert_eq!(tail.excerpt(999, 100), Excerpt { text: String::new(), missing: 0, next: 8 });
        assert_eq!(tail.excerpt(0, 4), Excerpt { text: "two\n".into(), missing: 4, next: 8 });
    }

    proptest! {
        #[test]
        fn text_and_missing_add_up(texts in prop::collection::vec("\\PC{0,30}", 0..20), limit in 0_usize..60, after in 0_u64..400, most in 0_usize..60) {
            let mut tail = Tail::new(limit);
            texts.iter().for_each(|text| tail.push(text));
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
