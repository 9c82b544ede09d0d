//! Text that was made to be hard: it takes time like any other, and its pieces fit.

use rstest::rstest;

use super::properties::check;
use crate::channels::format::{Form, Markup, Measure, first_piece, pieces};

/// How long the texts are.
const SIZE: usize = if cfg!(debug_assertions) { 10_000 } else { 1_000_000 };

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
    let text = format!("begin {}", part.repeat(SIZE / part.len()));
    for markup in [Markup::Plain, Markup::TelegramHtml, Markup::MatrixHtml, Markup::Discord] {
        let form = Form { markup, longest: 4000, measure: Measure::Utf16 };
        let started = std::time::Instant::now();
        let pieces = pieces(&text, &form);
        let took = started.elapsed();
        println!("{part:?} {markup:?}: {} pieces, {took:?}", pieces.len());
        assert!(!pieces.is_empty());
        pieces.iter().for_each(|piece| check(piece, &form));
        check(&first_piece(&text, &form), &form);
    }
}
