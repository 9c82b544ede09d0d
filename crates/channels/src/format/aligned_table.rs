//! Replace tables by code with aligned columns, for networks without tables but with a monospaced font.

use unicode_width::UnicodeWidthStr;

use super::document::{BlockSeparator, DocumentElement, DocumentToken, longest_backtick_run};

/// Cells are padded up to this width; longer cells stick out.
const MAX_COLUMN_WIDTH: usize = 40;

pub(super) fn align_tables(tokens: Vec<DocumentToken>) -> Vec<DocumentToken> {
    let (mut aligned, mut tokens) = (Vec::with_capacity(tokens.len()), tokens.into_iter());
    while let Some(token) = tokens.next() {
        match token {
            DocumentToken::Open(DocumentElement::Table { .. }) => {
                let text = render_rows(&read_rows(&mut tokens));
                let longest_backticks = longest_backtick_run(&text);
                let code = DocumentElement::CodeBlock { language: "".into(), longest_backticks };
                aligned.push(DocumentToken::Open(code));
                for (number, line) in text.trim_end_matches('\n').split('\n').enumerate() {
                    if number > 0 {
                        aligned.push(DocumentToken::Separator(BlockSeparator::Line));
                    }
                    aligned.push(DocumentToken::Text(line.to_owned()));
                }
                aligned.push(DocumentToken::Close);
                // A list follows without an empty line, as it follows text.
                if let [DocumentToken::Separator(_), DocumentToken::Open(DocumentElement::List(_)), ..] =
                    tokens.as_slice()
                {
                    tokens.next();
                    aligned.push(DocumentToken::Separator(BlockSeparator::Item));
                }
            }
            token => aligned.push(token),
        }
    }
    aligned
}

/// Reads the texts of the cells of an open table, and the end of the table. All its text is in cells.
fn read_rows(tokens: &mut impl Iterator<Item = DocumentToken>) -> Vec<Vec<String>> {
    let (mut rows, mut depth) = (Vec::<Vec<String>>::new(), 1);
    while depth > 0
        && let Some(token) = tokens.next()
    {
        depth = match token {
            DocumentToken::Open(_) => depth + 1,
            DocumentToken::Close => depth - 1,
            _ => depth,
        };
        let text = match &token {
            DocumentToken::Open(DocumentElement::Row(_)) => {
                rows.push(Vec::new());
                continue;
            }
            DocumentToken::Open(DocumentElement::Cell { .. }) => {
                rows.last_mut().into_iter().for_each(|row| row.push(String::new()));
                continue;
            }
            DocumentToken::Text(text) => text,
            DocumentToken::Address(link) => &link.address_text,
            _ => continue,
        };
        if let Some(cell) = rows.last_mut().and_then(|row| row.last_mut()) {
            cell.push_str(text);
        }
    }
    rows
}

/// Renders all rows, with a line below the first.
fn render_rows(rows: &[Vec<String>]) -> String {
    let widths = column_widths(rows);
    let mut lines: Vec<String> = rows.iter().map(|row| format_row(row, &widths)).collect();
    if !lines.is_empty() {
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        lines.insert(1, rule.join("-+-"));
    }
    lines.join("\n")
}

fn column_widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut widths = vec![1; columns];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.width().min(MAX_COLUMN_WIDTH).max(*width);
        }
    }
    widths
}

fn format_row(row: &[String], widths: &[usize]) -> String {
    let filled = |(cell, width): (&String, &usize)| format!("{cell}{}", " ".repeat(width.saturating_sub(cell.width())));
    let cells: Vec<String> = row.iter().zip(widths).map(filled).collect();
    cells.join(" | ").trim_end().to_owned()
}
