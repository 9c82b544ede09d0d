//! Lay out the input and find the cursor's row and column.

use ratatui_core::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;

use crate::state::ChatState;
use crate::text_layout::display_width;
use crate::theme::{QUIET_STYLE, STRONG_STYLE};

pub(crate) struct InputLayout {
    pub(crate) rows: Vec<Line<'static>>,
    /// Row and column of the cursor.
    pub(crate) cursor: (usize, usize),
}

/// Width of the prompt in columns.
const PROMPT_WIDTH: usize = 2;

/// Lays out the input in `max_width` columns and at most `height` rows around the cursor.
pub(crate) fn layout_input(chat: &ChatState, max_width: usize, height: usize) -> InputLayout {
    let text = chat.composer.text();
    if text.is_empty() {
        let hint = super::single_line(chat.texts.get("term.input.hint"), max_width.saturating_sub(PROMPT_WIDTH));
        let row = Line::from(vec![Span::styled("› ", STRONG_STYLE), Span::styled(hint, QUIET_STYLE)]);
        return InputLayout { rows: vec![row], cursor: (0, PROMPT_WIDTH) };
    }
    let (rows, cursor) = wrap_input(text, chat.composer.cursor(), max_width.saturating_sub(PROMPT_WIDTH + 1).max(1));
    let height = height.max(1);
    let first = (cursor.0 + 1).saturating_sub(height).min(rows.len().saturating_sub(height));
    let shown = rows.into_iter().enumerate().skip(first).take(height).map(|(at, row)| {
        let mark = if at == 0 { Span::styled("› ", STRONG_STYLE) } else { Span::raw("  ") };
        Line::from(vec![mark, Span::raw(row)])
    });
    InputLayout { rows: shown.collect(), cursor: (cursor.0 - first, cursor.1 + PROMPT_WIDTH) }
}

/// Breaks text into full rows, so that every character has a cell, and finds the cell of the cursor.
fn wrap_input(text: &str, cursor: usize, max_width: usize) -> (Vec<String>, (usize, usize)) {
    let mut rows = vec![String::new()];
    let (mut column, mut place) = (0, None);
    for (at, grapheme) in text.grapheme_indices(true) {
        let shown = match grapheme {
            "\t" => "    ",
            other => other,
        };
        if grapheme != "\n" && column + display_width(shown) > max_width && column > 0 {
            rows.push(String::new());
            column = 0;
        }
        if at == cursor {
            place = Some((rows.len() - 1, column));
        }
        if grapheme == "\n" {
            rows.push(String::new());
            column = 0;
        } else if display_width(shown) <= max_width {
            rows.iter_mut().last().into_iter().for_each(|row| row.push_str(shown));
            column += display_width(shown);
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
        let (wrapped, at) = wrap_input(text, cursor, most);
        assert_eq!((wrapped.iter().map(String::as_str).collect::<Vec<_>>(), at), (rows.to_vec(), place));
    }
}
