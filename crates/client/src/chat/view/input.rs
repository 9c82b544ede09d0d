//! The input as rows, and where the cursor stands in them.

use ratatui::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;

use super::super::look::{QUIET, STRONG};
use super::super::state::Chat;
use super::super::text::width;

/// The input, laid out.
pub(crate) struct Laid {
    pub(crate) rows: Vec<Line<'static>>,
    /// Row and column of the cursor.
    pub(crate) cursor: (usize, usize),
}

/// Columns of the mark before the input.
const MARK: usize = 2;

/// Lays the input out in `most` columns: `high` rows around the cursor.
pub(crate) fn lay_out(chat: &Chat, most: usize, high: usize) -> Laid {
    let text = chat.composer.text();
    if text.is_empty() {
        let hint = super::one(chat.texts.say("term.input.hint"), most.saturating_sub(MARK));
        let row = Line::from(vec![Span::styled("› ", STRONG), Span::styled(hint, QUIET)]);
        return Laid { rows: vec![row], cursor: (0, MARK) };
    }
    let (rows, cursor) = flow(text, chat.composer.cursor(), most.saturating_sub(MARK + 1).max(1));
    let high = high.max(1);
    let first = (cursor.0 + 1).saturating_sub(high).min(rows.len().saturating_sub(high));
    let shown = rows.into_iter().enumerate().skip(first).take(high).map(|(at, row)| {
        let mark = if at == 0 { Span::styled("› ", STRONG) } else { Span::raw("  ") };
        Line::from(vec![mark, Span::raw(row)])
    });
    Laid { rows: shown.collect(), cursor: (cursor.0 - first, cursor.1 + MARK) }
}

/// Breaks text into rows wherever they are full, so that every character has its place, and finds the cursor's.
fn flow(text: &str, cursor: usize, most: usize) -> (Vec<String>, (usize, usize)) {
    let mut rows = vec![String::new()];
    let (mut column, mut place) = (0, None);
    for (at, grapheme) in text.grapheme_indices(true) {
        let shown = match grapheme {
            "\t" => "    ",
            other => other,
        };
        if grapheme != "\n" && column + width(shown) > most && column > 0 {
            rows.push(String::new());
            column = 0;
        }
        if at == cursor {
            place = Some((rows.len() - 1, column));
        }
        if grapheme == "\n" {
            rows.push(String::new());
            column = 0;
        } else if width(shown) <= most {
            rows.iter_mut().last().into_iter().for_each(|row| row.push_str(shown));
            column += width(shown);
        }
    }
    let end = (rows.len() - 1, column);
    (rows, place.unwrap_or(end))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("abc", 3, 10, &["abc"], (0, 3))]
    #[case("abcdef", 4, 4, &["abcd", "ef"], (1, 0))]
    #[case("a\nb", 1, 10, &["a", "b"], (0, 1))]
    #[case("a\n", 2, 10, &["a", ""], (1, 0))]
    #[case("한국어", 3, 5, &["한국", "어"], (0, 2))]
    #[case("a\tb", 2, 10, &["a    b"], (0, 5))]
    fn the_cursor_stands_where_the_next_letter_goes(
        #[case] text: &str,
        #[case] cursor: usize,
        #[case] most: usize,
        #[case] rows: &[&str],
        #[case] place: (usize, usize),
    ) {
        let (flown, at) = flow(text, cursor, most);
        assert_eq!((flown.iter().map(String::as_str).collect::<Vec<_>>(), at), (rows.to_vec(), place));
    }
}
