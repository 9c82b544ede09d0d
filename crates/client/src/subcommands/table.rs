//! Format rows as aligned columns; cells for run and agent states.

use quell_protocol::Verdict;
use quell_protocol::api::{ComputeStatus, RunView};

use crate::term::{CliOutputStream, OutputStyle};
use crate::text_format::one_line;

#[derive(Debug, Clone)]
pub(super) struct CliTableCell {
    text: String,
    style: Option<OutputStyle>,
}

impl CliTableCell {
    /// Text from outside, cut to `max_chars` characters.
    pub(super) fn truncated(text: &str, max_chars: usize) -> Self {
        Self { text: one_line(text, max_chars), style: None }
    }

    pub(super) fn styled(tone: OutputStyle, text: String) -> Self {
        Self { text, style: Some(tone) }
    }
}

impl From<String> for CliTableCell {
    /// Trusted text without control characters: our own words and ids.
    fn from(text: String) -> Self {
        Self { text, style: None }
    }
}

/// Formats rows below their heads; each column is as wide as its widest cell.
pub(super) fn format_table<const N: usize>(
    stream: &CliOutputStream,
    heads: [&str; N],
    rows: &[[CliTableCell; N]],
) -> Vec<String> {
    let chars = |text: &str| text.chars().count();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| chars(&row[column].text));
        cells.chain([chars(heads[column])]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: &[CliTableCell; N]| {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let gap = if column + 1 == N { 0 } else { widths[column] - chars(&cell.text) + 2 };
            line.push_str(&cell.style.map_or_else(|| cell.text.clone(), |tone| stream.apply_style(tone, &cell.text)));
            line.push_str(&" ".repeat(gap));
        }
        line.trim_end().to_owned()
    };
    let heads = heads.map(|head| CliTableCell::styled(OutputStyle::Quiet, head.into()));
    std::iter::once(&heads).chain(rows).map(line).collect()
}

/// State of a run as a glyph and a word.
pub(super) fn run_state_cell(run: &RunView) -> CliTableCell {
    match (run.state.as_str(), &run.verdict, run.phase) {
        ("ended", Some(verdict), _) => verdict_cell(verdict),
        ("ending", Some(Verdict::Aborted { .. }), _) => {
            CliTableCell::styled(OutputStyle::Stopping, "◆ stopping".into())
        }
        ("ending", _, _) => CliTableCell::styled(OutputStyle::Quiet, "◇ finishing".into()),
        ("queued", _, _) => CliTableCell::styled(OutputStyle::Waiting, "○ queued".into()),
        ("running", _, Some(ComputeStatus::WaitingLlm)) => {
            CliTableCell::styled(OutputStyle::Waiting, "◔ waiting for the model".into())
        }
        ("running", _, _) => CliTableCell::from("● running".to_owned()),
        (other, _, _) => CliTableCell::truncated(other, 24),
    }
}

/// Verdict of a run as a glyph and a word.
pub(super) fn verdict_cell(verdict: &Verdict) -> CliTableCell {
    match verdict {
        Verdict::Completed => CliTableCell::styled(OutputStyle::Done, "✓ completed".into()),
        Verdict::Failed { .. } => CliTableCell::styled(OutputStyle::Failure, "▲ failed".into()),
        Verdict::Aborted { .. } => CliTableCell::styled(OutputStyle::Stopped, "■ stopped".into()),
    }
}

/// State of an agent as a glyph and a word.
pub(super) fn compute_cell(status: ComputeStatus) -> CliTableCell {
    match status {
        ComputeStatus::Idle => CliTableCell::styled(OutputStyle::Quiet, "idle".into()),
        ComputeStatus::WaitingLlm => CliTableCell::styled(OutputStyle::Waiting, "◔ waiting for the model".into()),
        ComputeStatus::Processing => CliTableCell::from("● processing".to_owned()),
        ComputeStatus::Stopping => CliTableCell::styled(OutputStyle::Stopping, "◆ stopping".into()),
    }
}

pub(super) fn cell_text(stream: &CliOutputStream, cell: &CliTableCell) -> String {
    cell.style.map_or_else(|| cell.text.clone(), |tone| stream.apply_style(tone, &cell.text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::CliOutputStreamKind;

    #[test]
    fn columns_line_up_with_and_without_colour() {
        let rows = [
            [CliTableCell::from("a".to_owned()), verdict_cell(&Verdict::Completed), CliTableCell::truncated("x\ny", 9)],
            [
                CliTableCell::from("longer".to_owned()),
                CliTableCell::from(String::new()),
                CliTableCell::from("z".to_owned()),
            ],
        ];
        let plain = format_table(
            &CliOutputStream::new(std::io::sink(), CliOutputStreamKind::Plain),
            ["ID", "STATE", "TEXT"],
            &rows,
        );
        assert_eq!(plain, ["ID      STATE        TEXT", "a       ✓ completed  x y", "longer               z"]);
        let colored = format_table(
            &CliOutputStream::new(std::io::sink(), CliOutputStreamKind::Colored),
            ["ID", "STATE", "TEXT"],
            &rows,
        );
        assert_eq!(colored[1], "a       \u{1b}[32m✓ completed\u{1b}[0m  x y");
    }
}
