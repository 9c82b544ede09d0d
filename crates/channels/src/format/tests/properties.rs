//! Property tests: every piece fits, markup is balanced, no letter is lost.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::html_reader::{HtmlDialect, parse_html_text};
use crate::format::{LengthUnit, MIN_MESSAGE_LENGTH, Markup, MessageFormat, MessagePiece, format_draft, split_message};

const MARKUPS: [Markup; 6] =
    [Markup::Plain, Markup::Markdown, Markup::TelegramHtml, Markup::Discord, Markup::Slack, Markup::MatrixHtml];
const MEASURES: [LengthUnit; 3] = [LengthUnit::Chars, LengthUnit::Utf16, LengthUnit::Bytes];

/// An optimised build runs more cases.
const CASE_COUNT: u32 = if cfg!(debug_assertions) { 512 } else { 8192 };

/// A fragment of Markdown. Words have more than one letter, so that none of them is a tag of a letter style. No
/// backtick stands next to another except in a fence, because the info string of a fence is not text.
fn markdown_fragment() -> impl Strategy<Value = &'static str> {
    let words =
        ["stop", "Then", "안녕", "하세요", "停止", "、重点", "👩‍👩‍👧‍👦", "🇰🇷", "e\u{301}a\u{308}", "@everyone", "<!channel>"];
    let marks =
        ["**", "*", "_", " ~~x~~ ", " `", "` ", "~", "<", ">", "&", "\\", "!", "|", "=", "(", "**\"", "\"**", "\""];
    let links = ["[", "](https://example.org/", ")", "](", "]: "];
    let blocks =
        ["> ", "- ", "\n- ", "\n   - ", "\n1. ", "\n# ", "\n```\n", "\n```rust\n", "\n    ", "\n---\n", "\n===\n"];
    let tables = ["\n| ", " | ", "\n|--|--|\n"];
    let tags = ["<@12>", "<br>", "<b>", "</b>", "<u>"];
    let spaces = ["\n", "\n\n", "\n\n", ". ", "。", " ", " ", "  \n", "\t", "\r\n", "\u{7}"];
    prop::sample::select([&words[..], &marks, &links, &blocks, &tables, &tags, &spaces].concat())
}

fn markdown_text() -> impl Strategy<Value = String> {
    prop::collection::vec(markdown_fragment(), 1..160).prop_map(|fragments| fragments.concat())
}

fn message_format() -> impl Strategy<Value = MessageFormat> {
    let longest = prop_oneof![0..200_usize, 200..3000_usize];
    (prop::sample::select(MARKUPS.to_vec()), prop::sample::select(MEASURES.to_vec()), longest)
        .prop_map(|(markup, measure, longest)| MessageFormat { markup, max_length: longest, length_unit: measure })
}

/// Checks one piece. The length is counted in another way than in the code.
pub(super) fn assert_piece_valid(piece: &MessagePiece, form: &MessageFormat) {
    for text in [&piece.formatted, &piece.plain] {
        let length = match form.length_unit {
            LengthUnit::Chars => text.chars().count(),
            LengthUnit::Utf16 => text.encode_utf16().count(),
            LengthUnit::Bytes => text.len(),
        };
        assert!(length <= form.max_length.max(MIN_MESSAGE_LENGTH), "{length} of {form:?}: {text}");
        assert!(!text.chars().any(|c| c == '\u{fdd0}' || c.is_control() && !matches!(c, '\n' | '\t')), "{text:?}");
    }
    match form.markup {
        Markup::TelegramHtml => drop(parse_html_text(&piece.formatted, HtmlDialect::Telegram).unwrap()),
        Markup::MatrixHtml => drop(parse_html_text(&piece.formatted, HtmlDialect::Matrix).unwrap()),
        Markup::Plain => assert!(!piece.formatted.contains('\n') && piece.formatted == piece.plain, "{piece:?}"),
        Markup::Slack => {
            assert_eq!(piece.formatted.matches("```").count() % 2, 0, "{}", piece.formatted);
            for (at, _) in piece.formatted.match_indices('<') {
                let link = &piece.formatted[at + 1..];
                assert!(link.starts_with("http") && link.contains('|') && link.contains('>'), "{}", piece.formatted);
            }
        }
        Markup::Discord => assert_eq!(piece.formatted.matches("```").count() % 2, 0, "{}", piece.formatted),
        Markup::Markdown => {}
    }
}

fn alphabetic_chars(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|c| c.is_alphabetic())
}

/// The letters of a source that are text: without the language of a fence and names of tags.
fn text_without_markup(source: &str) -> String {
    ["```rust", "<br>", "<b>", "</b>", "<u>"].iter().fold(source.to_owned(), |text, markup| text.replace(markup, ""))
}

fn assert_no_letter_lost(source: &str, pieces: &[MessagePiece], form: &MessageFormat) {
    let plain: String = pieces.iter().map(|piece| piece.plain.as_str()).collect();
    let mut shown = alphabetic_chars(&plain);
    for letter in alphabetic_chars(source) {
        assert!(shown.any(|other| other == letter), "{letter} of {source:?} is lost in {form:?}: {plain:?}");
    }
    let mut counts = BTreeMap::<char, i64>::new();
    pieces.iter().flat_map(|piece| alphabetic_chars(&piece.formatted)).for_each(|c| *counts.entry(c).or_default() += 1);
    alphabetic_chars(source).for_each(|c| *counts.entry(c).or_default() -= 1);
    assert!(counts.values().all(|count| *count >= 0), "{counts:?} of {source:?} in {form:?}: {pieces:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASE_COUNT, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_piece_fits_and_is_whole_and_no_letter_is_lost(source in markdown_text(), form in message_format()) {
        let pieces = split_message(&source, &form);
        pieces.iter().for_each(|piece| assert_piece_valid(piece, &form));
        assert_no_letter_lost(&text_without_markup(&source), &pieces, &form);
        let seen = source.chars().any(char::is_alphanumeric);
        prop_assert!(!seen || !pieces.is_empty(), "{source:?} has no piece");
    }

    #[test]
    fn a_draft_fits_at_every_moment_and_ends_like_the_whole(source in markdown_text(), form in message_format(), part in 0..=1000_usize) {
        let at = source.floor_char_boundary(source.len() * part / 1000);
        assert_piece_valid(&format_draft(&source[..at], &form), &form);
        let whole = split_message(&source, &form);
        if let [only] = whole.as_slice() && super::has_no_open_markup(&source) {
            prop_assert_eq!(&format_draft(&source, &form).plain, &only.plain);
        }
    }

    #[test]
    fn any_text_at_all_fits(source in any::<String>(), form in message_format()) {
        split_message(&source, &form).iter().for_each(|piece| assert_piece_valid(piece, &form));
        assert_piece_valid(&format_draft(&source, &form), &form);
    }
}
