//! Whatever a model writes: every piece fits, its markup is whole, and no letter is lost.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::tags::{Dialect, words};
use crate::channels::format::{Form, LEAST, Markup, Measure, Piece, first_piece, pieces};

const MARKUPS: [Markup; 6] =
    [Markup::Plain, Markup::Markdown, Markup::TelegramHtml, Markup::Discord, Markup::Slack, Markup::MatrixHtml];
const MEASURES: [Measure; 3] = [Measure::Chars, Measure::Utf16, Measure::Bytes];

/// An optimised build has the time for more.
const CASES: u32 = if cfg!(debug_assertions) { 512 } else { 8192 };

/// What Markdown is made of. Words have more than one letter, so that none of them is a tag of a letter style, and no backtick
/// comes next to another but as a fence: what stands after a fence is not text.
fn fragment() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "stop",
        "Then",
        "안녕",
        "하세요",
        "停止",
        "、重点",
        "👩‍👩‍👧‍👦",
        "🇰🇷",
        "e\u{301}a\u{308}",
        "**",
        "*",
        "_",
        " ~~x~~ ",
        " `",
        "` ",
        "\n",
        "\n\n",
        "\n\n",
        "> ",
        "- ",
        "\n- ",
        "\n   - ",
        "\n1. ",
        "\n# ",
        "\n```\n",
        "\n```rust\n",
        "\n    ",
        "\n| ",
        " | ",
        "\n|--|--|\n",
        "[",
        "](https://example.org/",
        ")",
        "](",
        "]: ",
        "<",
        ">",
        "&",
        "\\",
        "\n---\n",
        "@everyone",
        "<@12>",
        "<!channel>",
        "<br>",
        "<b>",
        "</b>",
        "<u>",
        ". ",
        "。",
        "\"",
        " ",
        " ",
        "  \n",
        "!",
        "~",
        "|",
        "=",
        "\n===\n",
        "\t",
        "\r\n",
        "\u{7}",
        "(",
        "**\"",
        "\"**",
    ])
}

fn markdown() -> impl Strategy<Value = String> {
    prop::collection::vec(fragment(), 1..160).prop_map(|fragments| fragments.concat())
}

fn form() -> impl Strategy<Value = Form> {
    let longest = prop_oneof![0..200_usize, 200..3000_usize];
    (prop::sample::select(MARKUPS.to_vec()), prop::sample::select(MEASURES.to_vec()), longest)
        .prop_map(|(markup, measure, longest)| Form { markup, longest, measure })
}

/// What has to be true of one piece. Lengths are counted here in another way.
pub(super) fn check(piece: &Piece, form: &Form) {
    for text in [&piece.marked, &piece.plain] {
        let length = match form.measure {
            Measure::Chars => text.chars().count(),
            Measure::Utf16 => text.encode_utf16().count(),
            Measure::Bytes => text.len(),
        };
        assert!(length <= form.longest.max(LEAST), "{length} of {form:?}: {text}");
        assert!(!text.chars().any(|c| c == '\u{fdd0}' || c.is_control() && !matches!(c, '\n' | '\t')), "{text:?}");
    }
    match form.markup {
        Markup::TelegramHtml => drop(words(&piece.marked, Dialect::Telegram).unwrap()),
        Markup::MatrixHtml => drop(words(&piece.marked, Dialect::Matrix).unwrap()),
        Markup::Plain => assert!(!piece.marked.contains('\n') && piece.marked == piece.plain, "{piece:?}"),
        Markup::Slack => {
            assert_eq!(piece.marked.matches("```").count() % 2, 0, "{}", piece.marked);
            for (at, _) in piece.marked.match_indices('<') {
                let link = &piece.marked[at + 1..];
                assert!(link.starts_with("http") && link.contains('|') && link.contains('>'), "{}", piece.marked);
            }
        }
        Markup::Discord => assert_eq!(piece.marked.matches("```").count() % 2, 0, "{}", piece.marked),
        Markup::Markdown => {}
    }
}

fn letters(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|c| c.is_alphabetic())
}

/// The letters of a source that are text: a fence's language is not, nor is the name of a tag.
fn said(source: &str) -> String {
    ["```rust", "<br>", "<b>", "</b>", "<u>"].iter().fold(source.to_owned(), |text, markup| text.replace(markup, ""))
}

fn assert_kept(source: &str, pieces: &[Piece], form: &Form) {
    let plain: String = pieces.iter().map(|piece| piece.plain.as_str()).collect();
    let mut shown = letters(&plain);
    for letter in letters(source) {
        assert!(shown.any(|other| other == letter), "{letter} of {source:?} is lost in {form:?}: {plain:?}");
    }
    let mut counts = BTreeMap::<char, i64>::new();
    pieces.iter().flat_map(|piece| letters(&piece.marked)).for_each(|c| *counts.entry(c).or_default() += 1);
    letters(source).for_each(|c| *counts.entry(c).or_default() -= 1);
    assert!(counts.values().all(|count| *count >= 0), "{counts:?} of {source:?} in {form:?}: {pieces:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_piece_fits_and_is_whole_and_no_letter_is_lost(source in markdown(), form in form()) {
        let pieces = pieces(&source, &form);
        pieces.iter().for_each(|piece| check(piece, &form));
        assert_kept(&said(&source), &pieces, &form);
        let seen = source.chars().any(char::is_alphanumeric);
        prop_assert!(!seen || !pieces.is_empty(), "{source:?} has no piece");
    }

    #[test]
    fn a_draft_fits_at_every_moment_and_ends_like_the_whole(source in markdown(), form in form(), part in 0..=1000_usize) {
        let at = source.floor_char_boundary(source.len() * part / 1000);
        check(&first_piece(&source[..at], &form), &form);
        let whole = pieces(&source, &form);
        if let [only] = whole.as_slice() && super::is_closed(&source) {
            prop_assert_eq!(&first_piece(&source, &form).plain, &only.plain);
        }
    }

    #[test]
    fn any_text_at_all_fits(source in any::<String>(), form in form()) {
        pieces(&source, &form).iter().for_each(|piece| check(piece, &form));
        check(&first_piece(&source, &form), &form);
    }
}
