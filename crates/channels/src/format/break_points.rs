//! Find places where text may be broken: words, sentences, grapheme boundaries.

use unicode_segmentation::UnicodeSegmentation;

/// Longest chunk in bytes. A longer word becomes several chunks, and a longer grapheme is cut.
const MAX_CHUNK_BYTES: usize = 512;

/// Quality of a break point, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BreakRank {
    Block,
    /// Between lines, items and rows.
    Line,
    Sentence,
    Word,
}

pub(super) const BREAK_RANKS: usize = 4;

/// The chunks of a text, each with the rank of a break before it.
pub(super) fn ranked_chunks(text: &str) -> impl Iterator<Item = (&str, Option<BreakRank>)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = from;
        from = if start < text.len() { chunk_end(text, start) } else { return None };
        let rank =
            if start > 0 { break_rank_before(text, start) } else { text.starts_with(' ').then_some(BreakRank::Word) };
        Some((&text[start..from], rank))
    })
}

/// End of the chunk that begins at `from`: spaces, then a word or a part of a long word.
fn chunk_end(text: &str, from: usize) -> usize {
    let window = &text[from..text.floor_char_boundary(from + MAX_CHUNK_BYTES)];
    let spaces = window.len() - window.trim_start_matches([' ', '\t']).len();
    let mut before = None;
    for (at, c) in window[spaces..].char_indices() {
        if matches!(c, ' ' | '\t') || before.is_some_and(ends_word) && !is_closing_mark(c) && at > 0 {
            return from + spaces + at;
        }
        before = Some(c);
    }
    if from + window.len() == text.len() { text.len() } else { from + whole_graphemes_len(window) }
}

/// Length of the whole graphemes in `window`. The last one may continue after its end.
fn whole_graphemes_len(window: &str) -> usize {
    window.grapheme_indices(true).next_back().map_or(window.len(), |(at, _)| if at == 0 { window.len() } else { at })
}

/// Byte offsets between the graphemes of a chunk.
pub(super) fn grapheme_boundaries(chunk: &str) -> Vec<usize> {
    chunk.grapheme_indices(true).map(|(at, _)| at).skip(1).collect()
}

/// Rank of a break before `at`; none inside a word.
fn break_rank_before(text: &str, at: usize) -> Option<BreakRank> {
    let (before, after) = text.split_at(at);
    let spaced = after.starts_with([' ', '\t']);
    let last = before.trim_end_matches(is_closing_mark).chars().next_back()?;
    match last {
        '。' | '！' | '？' | '…' => Some(BreakRank::Sentence),
        '.' | '!' | '?' if spaced => Some(BreakRank::Sentence),
        '，' | '、' | '；' | '：' => Some(BreakRank::Word),
        _ => spaced.then_some(BreakRank::Word),
    }
}

fn ends_word(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '，' | '、' | '；' | '：') || is_closing_mark(c)
}

fn is_closing_mark(c: char) -> bool {
    matches!(c, '”' | '’' | '」' | '』' | '）' | '】' | '》' | ')' | '"' | '\'')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(text: &str) -> Vec<&str> {
        ranked_chunks(text).map(|(chunk, _)| chunk).collect()
    }

    #[test]
    fn a_chunk_is_a_word_with_the_spaces_before_it() {
        assert_eq!(chunks("Stop it.  Now!"), ["Stop", " it.", "  Now!"]);
        assert_eq!(chunks("停。“走？”好"), ["停。", "“走？”", "好"]);
        assert_eq!(chunks("안녕, 세상 "), ["안녕,", " 세상", " "]);
    }

    #[test]
    fn a_long_word_is_cut_between_letters_and_an_endless_letter_anywhere() {
        let family = "👩‍👩‍👧‍👦".repeat(40);
        assert!(
            chunks(&family)
                .iter()
                .all(|chunk| chunk.len() <= MAX_CHUNK_BYTES && chunk.starts_with('👩') && chunk.ends_with('👦'))
        );
        let endless = format!("a{}", "\u{301}".repeat(1000));
        assert!(chunks(&endless).iter().all(|chunk| chunk.len() <= MAX_CHUNK_BYTES));
    }

    #[test]
    fn sentences_rank_above_words() {
        assert_eq!(break_rank_before("He said (no.) Then", 13), Some(BreakRank::Sentence));
        assert_eq!(break_rank_before("a b", 1), Some(BreakRank::Word));
        assert_eq!(break_rank_before("停。走", 6), Some(BreakRank::Sentence));
        assert_eq!(break_rank_before("3.14", 2), None);
    }
}
