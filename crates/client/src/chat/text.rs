//! Text on its way to cells: cleaned of what could move the cursor, measured as a terminal measures it, and wrapped. It knows
//! styles only as something that sticks to characters.

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use crate::words::without_hidden;

/// Columns between two stops of a tab.
const TAB: usize = 4;

/// Foreign text made fit for the screen: line breaks stay, tabs become spaces, everything else that could move the cursor or
/// turn the direction of what follows is left out.
pub(super) fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut column = 0;
    for c in without_hidden(text).chars() {
        match c {
            '\n' => {
                clean.push(c);
                column = 0;
            }
            '\t' => {
                let wide = TAB - column % TAB;
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

/// Columns that a text takes.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// Cuts a text at a number of columns; what was cut ends in `…`.
pub(super) fn cut(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.into();
    }
    let mut short = String::new();
    let mut taken = 0;
    for grapheme in text.graphemes(true) {
        let wide = width(grapheme);
        if taken + wide >= most {
            break;
        }
        taken += wide;
        short.push_str(grapheme);
    }
    if most > 0 {
        short.push('…');
    }
    short
}

/// One character as people count them, with its style.
#[derive(Clone, Copy)]
struct Cell<'a> {
    text: &'a str,
    style: Style,
    wide: usize,
}

/// Breaks one logical line into rows of at most `most` columns, at spaces and between wide characters where there are some.
/// There is always at least one row. Line breaks inside count as spaces.
pub(super) fn wrap(spans: &[Span<'_>], most: usize) -> Vec<Line<'static>> {
    let most = most.max(1);
    let cells = spans
        .iter()
        .flat_map(|span| span.content.graphemes(true).map(|text| Cell { text, style: span.style, wide: width(text) }));
    let mut rows = Vec::new();
    let mut row: Vec<Cell<'_>> = Vec::new();
    let (mut taken, mut last_break) = (0, None);
    for cell in cells.filter(|cell| cell.wide <= most) {
        let cell = if cell.text.contains('\n') { Cell { text: " ", wide: 1, ..cell } } else { cell };
        let full = taken + cell.wide > most;
        while taken + cell.wide > most {
            let rest = match last_break.take() {
                // A row may end before a space and before a wide character.
                _ if cell.text == " " || cell.wide == 2 => Vec::new(),
                Some(at) => row.split_off(at),
                None => Vec::new(),
            };
            rows.push(line_of(&row, Edge::Wrapped));
            row = rest;
            taken = row.iter().map(|cell| cell.wide).sum();
        }
        if full && cell.text == " " {
            continue;
        }
        row.push(cell);
        taken += cell.wide;
        if cell.text == " " || cell.wide == 2 {
            last_break = Some(row.len());
        }
    }
    rows.push(line_of(&row, Edge::Open));
    rows
}

/// Whether a row ends because there was no more place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edge {
    Wrapped,
    Open,
}

/// Cells of one style next to each other become one span.
fn line_of(cells: &[Cell<'_>], edge: Edge) -> Line<'static> {
    let end = match edge {
        Edge::Wrapped => cells.iter().rposition(|cell| cell.text != " ").map_or(0, |at| at + 1),
        Edge::Open => cells.len(),
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

/// Wraps text of several lines in one style, with something before the first row and something before all others.
pub(super) fn block(
    text: &str,
    style: Style,
    before: (Span<'static>, Span<'static>),
    most: usize,
) -> Vec<Line<'static>> {
    let (first, rest) = before;
    let room = most.saturating_sub(first.width().max(rest.width()));
    let mut rows = Vec::new();
    for line in text.split('\n') {
        for mut row in wrap(&[Span::styled(line, style)], room) {
            let mark = if rows.is_empty() { first.clone() } else { rest.clone() };
            row.spans.insert(0, mark);
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
    fn what_moves_the_cursor_or_turns_the_text_is_left_out() {
        assert_eq!(clean("a\u{1b}[2Jb\r\n\tc\u{202e}d\u{9b}e"), "a[2Jb\n    cde");
        assert_eq!(clean("ab\tc"), "ab  c");
    }

    #[rstest]
    #[case("short", 10, "short")]
    #[case("too long a text", 8, "too lon…")]
    #[case("한국어글", 5, "한국…")]
    #[case("abc", 0, "")]
    fn a_cut_says_that_it_is_one(#[case] text: &str, #[case] most: usize, #[case] expected: &str) {
        assert_eq!(cut(text, most), expected);
    }

    proptest! {
        #[test]
        fn no_row_is_wider_than_asked_and_no_word_is_lost(text in "[a-z한中😀 ]{0,60}", most in 2_usize..20) {
            let rows = rows(&text, most);
            prop_assert!(rows.iter().all(|row| width(row) <= most), "{:?}", rows);
            let glue = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
            prop_assert_eq!(glue(&rows.concat()), glue(&text));
        }

        #[test]
        fn clean_text_has_nothing_but_line_breaks_to_move_the_cursor(text in any::<String>()) {
            prop_assert!(clean(&text).chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
}
