//! A table as lines with columns, for networks that have no tables but letters of one width.

use unicode_width::UnicodeWidthStr;

/// Cells are not filled up beyond so many columns: what is longer sticks out.
const WIDEST: usize = 40;

/// A table while it is read.
#[derive(Debug, Default)]
pub(super) struct Aligned {
    rows: Vec<Vec<String>>,
}

impl Aligned {
    /// A row begins.
    pub(super) fn row(&mut self) {
        self.rows.push(Vec::new());
    }

    /// A cell begins.
    pub(super) fn cell(&mut self) {
        if let Some(row) = self.rows.last_mut() {
            row.push(String::new());
        }
    }

    /// Words of the cell.
    pub(super) fn say(&mut self, words: &str) {
        if let Some(cell) = self.rows.last_mut().and_then(|row| row.last_mut()) {
            cell.push_str(words);
        }
    }

    /// The length of the cell.
    pub(super) fn length(&self) -> usize {
        self.current().len()
    }

    /// What was said in the cell from there on.
    pub(super) fn since(&self, length: usize) -> &str {
        self.current().get(length..).unwrap_or_default()
    }

    fn current(&self) -> &str {
        self.rows.last().and_then(|row| row.last()).map_or("", String::as_str)
    }

    /// All of it, with a line under the first row.
    pub(super) fn lines(&self) -> String {
        let widths = self.widths();
        let mut lines: Vec<String> = self.rows.iter().map(|row| line(row, &widths)).collect();
        if !lines.is_empty() {
            let under: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            lines.insert(1, under.join("-+-"));
        }
        lines.join("\n")
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![1; columns];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.width().min(WIDEST).max(*width);
            }
        }
        widths
    }
}

fn line(row: &[String], widths: &[usize]) -> String {
    let filled = |(cell, width): (&String, &usize)| format!("{cell}{}", " ".repeat(width.saturating_sub(cell.width())));
    let cells: Vec<String> = row.iter().zip(widths).map(filled).collect();
    cells.join(" | ").trim_end().to_owned()
}
