//! Sanitize, measure, truncate and wrap text for terminal cells.

use quell_client::text_format::strip_invisible;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

const TAB_WIDTH: usize = 4;

/// Cleans foreign text for the screen: keeps line breaks, expands tabs, and removes all other characters that could
/// move the cursor or reorder text.
pub(crate) fn sanitize(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut column = 0;
    for c in strip_invisible(text).chars() {
        match c {
            '\n' => {
                clean.push(c);
                column = 0;
            }
            '\t' => {
                let wide = TAB_WIDTH - column % TAB_WIDTH;
                clean.extend(std::iter::repeat_n(' ', wide));
                column += wide;
            }
            c if c.is_control() => {}
            c => {
                clean.push(c);
                column += 1;
            }
        }
    }
    clean
}

/// Width in terminal columns.
pub(crate) fn display_width(text: &str) -> usize {
    text.width()
}

/// Truncates a text to a number of columns; a cut text ends in `…`.
pub(crate) fn truncate(text: &str, max_width: usize) -> String {
    if display_width(text) <= max_width {
        return text.into();
    }
    let mut short = String::new();
    let mut taken = 0;
    for grapheme in text.graphemes(true) {
        let wide = display_width(grapheme);
        if taken + wide >= max_width {
            break;
        }
        taken += wide;
        short.push_str(grapheme);
    }
    if max_width > 0 {
        short.push('…');
    }
    short
}

#[derive(Clone, Copy)]
struct StyledGrapheme<'a> {
    text: &'a str,
    style: Style,
    columns: usize,
}

/// Wraps one logical line into rows of at most `max_width` columns, at spaces and between wide characters where
/// possible. Returns at least one row. Line breaks count as spaces.
pub(crate) fn wrap(spans: &[Span<'_>], max_width: usize) -> Vec<Line<'static>> {
    let max_width = max_width.max(1);
    let cells = spans.iter().flat_map(|span| {
        span.content.graphemes(true).map(|text| StyledGrapheme {
            text,
            style: span.style,
            columns: display_width(text),
        })
    });
    let mut rows = Vec::new();
    let mut row: Vec<StyledGrapheme<'_>> = Vec::new();
    let (mut taken, mut last_break) = (0, None);
    for cell in cells.filter(|cell| cell.columns <= max_width) {
        let cell = if cell.text.contains('\n') { StyledGrapheme { text: " ", columns: 1, ..cell } } else { cell };
        let full = taken + cell.columns > max_width;
        while taken + cell.columns > max_width {
            let rest = match last_break.take() {
                // A row may end before a space and before a wide character.
                _ if cell.text == " " || cell.columns == 2 => Vec::new(),
                Some(at) => row.split_off(at),
                None => Vec::new(),
            };
            rows.push(line_from_graphemes(&row, RowEnd::Wrapped));
            row = rest;
            taken = row.iter().map(|cell| cell.columns).sum();
        }
        if full && cell.text == " " {
            continue;
        }
        row.push(cell);
        taken += cell.columns;
        if cell.text == " " || cell.columns == 2 {
            last_break = Some(row.len());
        }
    }
    rows.push(line_from_graphemes(&row, RowEnd::LineEnd));
    rows
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RowEnd {
    Wrapped,
    LineEnd,
}

/// Merges neighbouring graphemes of one style into spans.
fn line_from_graphemes(cells: &[StyledGrapheme<'_>], edge: RowEnd) -> Line<'static> {
    let end = match edge {
        RowEnd::Wrapped => cells.iter().rposition(|cell| cell.text != " ").map_or(0, |at| at + 1),
        RowEnd::LineEnd => cells.len(),
    };
    let mut spans: Vec<Span<'static>> = Vec::new();
    for cell in cells.get(..end).unwrap_or_default() {
        match spans.last_mut().filter(|span| span.style == cell.style) {
            Some(span) => span.content.to_mut().push_str(cell.text),
            None => spans.push(Span::styled(cell.text.to_owned(), cell.style)),
        }
    }
    Line::from(spans)
}

/// Wraps lines of text in one style, with `first` before the first row and `rest` before all others.
pub(crate) fn wrap_block(
    text: &str,
    style: Style,
    first: &'static str,
    rest: &'static str,
    max_width: usize,
) -> Vec<Line<'static>> {
    let room = max_width.saturating_sub(display_width(first).max(display_width(rest)));
    let mut rows = Vec::new();
    for line in text.split('\n') {
        for mut row in wrap(&[Span::styled(line, style)], room) {
            row.spans.insert(0, Span::styled(if rows.is_empty() { first } else { rest }, style));
            rows.push(row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn rows(text: &str, most: usize) -> Vec<String> {
        wrap(&[Span::raw(text)], most).iter().map(ToString::to_string).collect()
    }

    #[rstest]
    #[case("one two three", 7, &["one two", "three"])]
    #[case("one two", 3, &["one", "two"])]
    #[case("abcdefgh", 3, &["abc", "def", "gh"])]
    #[case("", 5, &[""])]
    #[case("한국어 글", 5, &["한국", "어 글"])]
    #[case("中文字符", 4, &["中文", "字符"])]
    #[case("a 中文字", 5, &["a 中", "文字"])]
    #[case("  indented text", 10, &["  indented", "text"])]
    #[case("중", 1, &[""])]
    fn rows_break_where_a_reader_would(#[case] text: &str, #[case] most: usize, #[case] expected: &[&str]) {
        assert_eq!(rows(text, most), expected);
    }

    #[test]
    fn control_and_direction_characters_are_removed() {
        assert_eq!(sanitize("a\u{1b}[2Jb\r\n\tc\u{202e}d\u{9b}e"), "a[2Jb\n    cde");
        assert_eq!(sanitize("ab\tc"), "ab  c");
    }

    #[rstest]
    #[case("short", 10, "short")]
    #[case("too long a text", 8, "too lon…")]
    #[case("한국어글", 5, "한국…")]
    #[case("abc", 0, "")]
    fn a_cut_says_that_it_is_one(#[case] text: &str, #[case] most: usize, #[case] expected: &str) {
        assert_eq!(truncate(text, most), expected);
    }

    proptest! {
        #[test]
        fn no_row_is_wider_than_asked_and_no_word_is_lost(text in "[a-z한中😀 ]{0,60}", most in 2_usize..20) {
            let rows = rows(&text, most);
            prop_assert!(rows.iter().all(|row| display_width(row) <= most), "{:?}", rows);
            let glue = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
            prop_assert_eq!(glue(&rows.concat()), glue(&text));
        }

        #[test]
        fn clean_text_has_nothing_but_line_breaks_to_move_the_cursor(text in any::<String>()) {
            prop_assert!(sanitize(&text).chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
}
