//! Render a table as aligned text columns, for networks without tables but with a monospaced font.

use unicode_width::UnicodeWidthStr;

/// Cells are padded up to this width; longer cells stick out.
const MAX_COLUMN_WIDTH: usize = 40;

/// A table under construction.
#[derive(Debug, Default)]
pub(super) struct AlignedTable {
    rows: Vec<Vec<String>>,
}

impl AlignedTable {
    pub(super) fn start_row(&mut self) {
        self.rows.push(Vec::new());
    }

    pub(super) fn start_cell(&mut self) {
        if let Some(row) = self.rows.last_mut() {
            row.push(String::new());
        }
    }

    /// Appends to the current cell.
    pub(super) fn append_text(&mut self, text: &str) {
        if let Some(cell) = self.rows.last_mut().and_then(|row| row.last_mut()) {
            cell.push_str(text);
        }
    }

    /// Length of the current cell in bytes.
    pub(super) fn cell_length(&self) -> usize {
        self.current_cell().len()
    }

    /// Text of the current cell from the byte `length` on.
    pub(super) fn cell_text_from(&self, length: usize) -> &str {
        self.current_cell().get(length..).unwrap_or_default()
    }

    fn current_cell(&self) -> &str {
        self.rows.last().and_then(|row| row.last()).map_or("", String::as_str)
    }

    /// Renders all rows, with a line below the first.
    pub(super) fn render(&self) -> String {
        let widths = self.column_widths();
        let mut lines: Vec<String> = self.rows.iter().map(|row| format_row(row, &widths)).collect();
        if !lines.is_empty() {
            let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            lines.insert(1, rule.join("-+-"));
        }
        lines.join("\n")
    }

    fn column_widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![1; columns];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.width().min(MAX_COLUMN_WIDTH).max(*width);
            }
        }
        widths
    }
}

fn format_row(row: &[String], widths: &[usize]) -> String {
    let filled = |(cell, width): (&String, &usize)| format!("{cell}{}", " ".repeat(width.saturating_sub(cell.width())));
    let cells: Vec<String> = row.iter().zip(widths).map(filled).collect();
    cells.join(" | ").trim_end().to_owned()
}
