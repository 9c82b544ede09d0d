//! Truncate, quote and decode text for the model.

use std::borrow::Cow;

/// The maximum length of quoted foreign text.
const MAX_QUOTE_BYTES: usize = 200;

/// The longest prefix of `text` with at most `limit` bytes that ends between two characters.
pub(super) fn truncate(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

/// `text` in at most `limit` bytes, with a note of how much is missing.
pub(super) fn truncate_with_note(text: String, limit: usize) -> String {
    if text.len() <= limit {
        return text;
    }
    // The room for the note is computed with the largest numbers that it can hold, so the final note is never longer.
    let room = limit.saturating_sub(cut_note(text.len(), text.len()).len());
    let kept = truncate(&text, room);
    let note = cut_note(text.len() - kept.len(), text.len());
    if kept.is_empty() { truncate(&text, limit).to_owned() } else { format!("{kept}{note}") }
}

fn cut_note(missing: usize, total: usize) -> String {
    format!("\n[cut here: {missing} of {total} bytes are not shown]")
}

/// Foreign text for use inside a sentence: quoted, without control characters, shortened.
pub(super) fn quoted(text: &str) -> String {
    let kept = truncate(text, MAX_QUOTE_BYTES);
    let more = if kept.len() < text.len() { "…" } else { "" };
    format!("{kept:?}{more}")
}

/// The bytes without an incomplete character at their end.
pub(super) fn without_partial_char(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

/// Decodes bytes as text and tells whether something was replaced. Control characters that confuse a reader are
/// replaced too.
pub(super) fn decode_lossy(bytes: &[u8]) -> (String, bool) {
    let text = String::from_utf8_lossy(bytes);
    let is_odd = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{1b}');
    let damaged = matches!(text, Cow::Owned(_));
    if !text.contains(is_odd) {
        return (text.into_owned(), damaged);
    }
    (text.chars().map(|c| if is_odd(c) { char::REPLACEMENT_CHARACTER } else { c }).collect(), true)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bounded_text_keeps_its_limit_and_its_characters(text in "\\PC{0,300}", limit in 0usize..400) {
            let out = truncate_with_note(text.clone(), limit);
            prop_assert!(out.len() <= limit);
            let kept = out.split("\n[cut here").next().unwrap_or_default();
            prop_assert!(text.starts_with(kept));
            if text.len() <= limit { prop_assert_eq!(out, text); }
        }

        #[test]
        fn a_cut_loses_less_than_one_character(text in "\\PC{0,100}", limit in 0usize..500) {
            let kept = truncate(&text, limit);
            prop_assert!(text.starts_with(kept) && kept.len() <= limit);
            prop_assert!(kept.len() == text.len() || kept.len() + 4 > limit);
        }

        #[test]
        fn quotes_are_short_and_on_one_line(text in ".{0,600}") {
            let quote = quoted(&text);
            prop_assert!(quote.len() <= 10 * MAX_QUOTE_BYTES + 5);
            prop_assert!(!quote.contains(['\n', '\0']));
        }
    }

    #[test]
    fn a_note_says_what_is_missing() {
        let out = truncate_with_note("x".repeat(1000), 100);
        assert!(out.len() <= 100 && out.ends_with("of 1000 bytes are not shown]"), "{out}");
        assert_eq!(truncate_with_note("ü".repeat(50), 3), "ü");
    }

    #[test]
    fn lossy_text_says_so() {
        assert_eq!(decode_lossy("gut\n\t".as_bytes()), ("gut\n\t".into(), false));
        assert_eq!(decode_lossy(b"a\xffb"), ("a\u{fffd}b".into(), true));
        assert_eq!(decode_lossy(b"a\0b"), ("a\u{fffd}b".into(), true));
    }
}
