//! Where a text may be cut: words and sentences, and never inside of what is seen as one letter.

use unicode_segmentation::UnicodeSegmentation;

/// The longest chunk, in bytes. A longer word is several of them, and a longer "letter" is not one.
const LONGEST: usize = 512;

/// How good a place is to end a piece, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Between blocks.
    Block,
    /// Between lines, items and rows.
    Line,
    /// Between sentences.
    Sentence,
    /// Between words.
    Word,
}

/// The number of ranks.
pub(super) const RANKS: usize = 4;

/// Where the chunk that begins at `from` ends: spaces, then a word or a part of a long one.
pub(super) fn chunk_end(text: &str, from: usize) -> usize {
    let window = &text[from..text.floor_char_boundary(from + LONGEST)];
    let spaces = window.len() - window.trim_start_matches([' ', '\t']).len();
    let mut before = None;
    for (at, c) in window[spaces..].char_indices() {
        if matches!(c, ' ' | '\t') || before.is_some_and(ends_word) && !closes(c) && at > 0 {
            return from + spaces + at;
        }
        before = Some(c);
    }
    if from + window.len() == text.len() { text.len() } else { from + letters(window) }
}

/// How much of the beginning of a text are whole letters. The last one may go on behind its end.
fn letters(window: &str) -> usize {
    window.grapheme_indices(true).next_back().map_or(window.len(), |(at, _)| if at == 0 { window.len() } else { at })
}

/// The places between the letters of a chunk.
pub(super) fn cuts(chunk: &str) -> Vec<usize> {
    chunk.grapheme_indices(true).map(|(at, _)| at).skip(1).collect()
}

/// How good it is to cut before `at`, if it is not inside a word.
pub(super) fn rank_before(text: &str, at: usize) -> Option<Rank> {
    let (before, after) = text.split_at(at);
    let spaced = after.starts_with([' ', '\t']);
    let last = before.trim_end_matches(closes).chars().next_back()?;
    match last {
        '。' | '！' | '？' | '…' => Some(Rank::Sentence),
        '.' | '!' | '?' if spaced => Some(Rank::Sentence),
        '，' | '、' | '；' | '：' => Some(Rank::Word),
        _ => spaced.then_some(Rank::Word),
    }
}

fn ends_word(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '，' | '、' | '；' | '：') || closes(c)
}

fn closes(c: char) -> bool {
    matches!(c, '”' | '’' | '」' | '』' | '）' | '】' | '》' | ')' | '"' | '\'')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(text: &str) -> Vec<&str> {
        let (mut at, mut chunks) = (0, Vec::new());
        while at < text.len() {
            let end = chunk_end(text, at);
            chunks.push(&text[at..end]);
            at = end;
        }
        chunks
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
                .all(|chunk| chunk.len() <= LONGEST && chunk.starts_with('👩') && chunk.ends_with('👦'))
        );
        let endless = format!("a{}", "\u{301}".repeat(1000));
        assert!(chunks(&endless).iter().all(|chunk| chunk.len() <= LONGEST));
    }

    #[test]
    fn sentences_rank_above_words() {
        assert_eq!(rank_before("He said (no.) Then", 13), Some(Rank::Sentence));
        assert_eq!(rank_before("a b", 1), Some(Rank::Word));
        assert_eq!(rank_before("停。走", 6), Some(Rank::Sentence));
        assert_eq!(rank_before("3.14", 2), None);
    }
}
