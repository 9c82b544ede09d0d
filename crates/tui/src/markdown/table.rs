//! Lay out Markdown tables in columns, or stacked where they are too wide.

use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

use crate::text_layout::wrap;
use crate::theme::{QUIET_STYLE, STRONG_STYLE};

const COLUMN_SEPARATOR: &str = " │ ";

#[derive(Default)]
pub(super) struct MarkdownTableRows {
    rows: Vec<Vec<Vec<Span<'static>>>>,
}

impl MarkdownTableRows {
    pub(super) fn start_row(&mut self) {
        self.rows.push(Vec::new());
    }

    pub(super) fn start_cell(&mut self) {
        self.rows.iter_mut().last().into_iter().for_each(|row| row.push(Vec::new()));
    }

    pub(super) fn push_text(&mut self, text: &str, style: Style) {
        let head = self.rows.len() == 1;
        let style = if head { style.patch(STRONG_STYLE) } else { style };
        if let Some(cell) = self.rows.last_mut().and_then(|row| row.last_mut()) {
            cell.push(Span::styled(text.to_owned(), style));
        }
    }

    pub(super) fn into_rows(self, max_width: usize) -> Vec<Line<'static>> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let wide = |cell: &Vec<Span<'static>>| cell.iter().map(Span::width).sum::<usize>();
        let widths: Vec<usize> = (0..columns)
            .map(|at| self.rows.iter().filter_map(|row| row.get(at)).map(wide).max().unwrap_or(0))
            .collect();
        let whole = widths.iter().sum::<usize>() + columns.saturating_sub(1) * 3;
        if whole > max_width {
            return self.into_stacked_rows(max_width);
        }
        let mut lines = Vec::new();
        for (nth, row) in self.rows.into_iter().enumerate() {
            let mut spans = Vec::new();
            for (at, (cell, width)) in row.into_iter().zip(&widths).enumerate() {
                if at > 0 {
                    spans.push(Span::styled(COLUMN_SEPARATOR, QUIET_STYLE));
                }
                let pad = width.saturating_sub(wide(&cell));
                spans.extend(cell);
                spans.push(Span::raw(" ".repeat(pad)));
            }
            lines.push(Line::from(spans));
            if nth == 0 {
                let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
                lines.push(Line::styled(rule.join("─┼─"), QUIET_STYLE));
            }
        }
        lines
    }

    fn into_stacked_rows(self, max_width: usize) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        for row in self.rows {
            let mut spans = Vec::new();
            for (at, cell) in row.into_iter().enumerate() {
                if at > 0 {
                    spans.push(Span::styled(COLUMN_SEPARATOR, QUIET_STYLE));
                }
                spans.extend(cell);
            }
            lines.extend(wrap(&spans, max_width));
        }
        lines
    }
}
