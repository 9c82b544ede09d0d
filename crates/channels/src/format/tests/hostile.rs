//! Adversarial input: time stays linear and every piece fits.

use rstest::rstest;

use super::properties::assert_piece_valid;
use crate::format::{LengthUnit, Markup, MessageFormat, format_draft, split_message};

const TEXT_BYTES: usize = if cfg!(debug_assertions) { 10_000 } else { 1_000_000 };

#[rstest]
#[case::stars("*")]
#[case::pairs("**a ")]
#[case::underscores("_a")]
#[case::brackets("[")]
#[case::links("[a](")]
#[case::images("![a](https://")]
#[case::quotes("> ")]
#[case::items("- ")]
#[case::ticks("` `` ")]
#[case::fences("```\n")]
#[case::tags("<b>")]
#[case::unclosed_tags("<a ")]
#[case::comments("<!--")]
#[case::entities("&")]
#[case::pipes("| ")]
#[case::tables("|a|\n|-|\n")]
#[case::word("a")]
#[case::accents("\u{301}")]
#[case::hangul("가**“")]
#[case::flags("🇰🇷")]
#[case::lines("a\n")]
#[case::empty_lines("\n")]
#[case::definitions("[a]: b\n")]
#[case::deep("  - ")]
#[case::escapes("\\")]
fn hard_text_fits_and_takes_no_longer_than_its_length_says(#[case] part: &str) {
    check_repeated(part, TEXT_BYTES, 4000);
}

/// Nearly every piece ends within a step.
#[test]
fn a_long_word_in_short_pieces_takes_no_longer_than_its_length_says() {
    check_repeated("a", 16 * TEXT_BYTES, 400);
}

fn check_repeated(part: &str, bytes: usize, max_length: usize) {
    let text = format!("begin {}", part.repeat(bytes / part.len()));
    for markup in [Markup::Plain, Markup::TelegramHtml, Markup::MatrixHtml, Markup::Discord] {
        let form = MessageFormat { markup, max_length, length_unit: LengthUnit::Utf16 };
        let started = std::time::Instant::now();
        let pieces = split_message(&text, &form);
        let took = started.elapsed();
        println!("{part:?} {markup:?}: {} pieces, {took:?}", pieces.len());
        assert!(!pieces.is_empty());
        pieces.iter().for_each(|piece| assert_piece_valid(piece, &form));
        assert_piece_valid(&format_draft(&text, &form), &form);
    }
}
