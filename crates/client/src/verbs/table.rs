//! Rows of text in columns, and the words and glyphs for the states of runs.

use quell_protocol::Verdict;
use quell_protocol::api::{ComputeStatus, RunView};

use crate::term::{Pane, Tone};
use crate::words::one_line;

/// A cell: text, and the tone it is shown in.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    text: String,
    tone: Option<Tone>,
}

impl Cell {
    /// Foreign text, cut to `most` characters.
    pub(super) fn cut(text: &str, most: usize) -> Self {
        Self { text: one_line(text, most), tone: None }
    }

    pub(super) fn toned(tone: Tone, text: String) -> Self {
        Self { text, tone: Some(tone) }
    }
}

impl From<String> for Cell {
    /// Text that is shown as it is: our own words, and ids, which hold no control characters.
    fn from(text: String) -> Self {
        Self { text, tone: None }
    }
}

/// Lays rows out under their heads; each column is as wide as its widest cell.
pub(super) fn lay_out<const N: usize>(pane: &Pane, heads: [&str; N], rows: &[[Cell; N]]) -> Vec<String> {
    let chars = |text: &str| text.chars().count();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| chars(&row[column].text));
        cells.chain([chars(heads[column])]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: &[Cell; N]| {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let gap = if column + 1 == N { 0 } else { widths[column] - chars(&cell.text) + 2 };
            line.push_str(&cell.tone.map_or_else(|| cell.text.clone(), |tone| pane.paint(tone, &cell.text)));
            line.push_str(&" ".repeat(gap));
        }
        line.trim_end().to_owned()
    };
    let heads = heads.map(|head| Cell::toned(Tone::Quiet, head.into()));
    std::iter::once(&heads).chain(rows).map(line).collect()
}

/// What a run does now, as a glyph with a word.
pub(super) fn run_state(run: &RunView) -> Cell {
    match (run.state.as_str(), &run.verdict, run.phase) {
        ("ended", Some(verdict), _) => verdict_cell(verdict),
        ("ending", Some(Verdict::Aborted { .. }), _) => Cell::toned(Tone::Stopping, "◆ stopping".into()),
        ("ending", _, _) => Cell::toned(Tone::Quiet, "◇ finishing".into()),
        ("queued", _, _) => Cell::toned(Tone::Waiting, "○ queued".into()),
        ("running", _, Some(ComputeStatus::WaitingLlm)) => Cell::toned(Tone::Waiting, "◔ waiting for the model".into()),
        ("running", _, _) => Cell::from("● running".to_owned()),
        (other, _, _) => Cell::cut(other, 24),
    }
}

/// How a run ended, as a glyph with a word.
pub(super) fn verdict_cell(verdict: &Verdict) -> Cell {
    match verdict {
        Verdict::Completed => Cell::toned(Tone::Done, "✓ completed".into()),
        Verdict::Failed { .. } => Cell::toned(Tone::Failure, "▲ failed".into()),
        Verdict::Aborted { .. } => Cell::toned(Tone::Stopped, "■ stopped".into()),
    }
}

/// What an agent does now.
pub(super) fn compute_cell(status: ComputeStatus) -> Cell {
    match status {
        ComputeStatus::Idle => Cell::toned(Tone::Quiet, "idle".into()),
        ComputeStatus::WaitingLlm => Cell::toned(Tone::Waiting, "◔ waiting for the model".into()),
        ComputeStatus::Processing => Cell::from("● processing".to_owned()),
        ComputeStatus::Stopping => Cell::toned(Tone::Stopping, "◆ stopping".into()),
    }
}

/// The cell's text in its tone.
pub(super) fn painted(pane: &Pane, cell: &Cell) -> String {
    cell.tone.map_or_else(|| cell.text.clone(), |tone| pane.paint(tone, &cell.text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::PaneKind;

    #[test]
    fn columns_line_up_with_and_without_colour() {
        let rows = [
            [Cell::from("a".to_owned()), verdict_cell(&Verdict::Completed), Cell::cut("x\ny", 9)],
            [Cell::from("longer".to_owned()), Cell::from(String::new()), Cell::from("z".to_owned())],
        ];
        let plain = lay_out(&Pane::new(std::io::sink(), PaneKind::Plain), ["ID", "STATE", "TEXT"], &rows);
        assert_eq!(plain, ["ID      STATE        TEXT", "a       ✓ completed  x y", "longer               z"]);
        let colored = lay_out(&Pane::new(std::io::sink(), PaneKind::Colored), ["ID", "STATE", "TEXT"], &rows);
        assert_eq!(colored[1], "a       \u{1b}[32m✓ completed\u{1b}[0m  x y");
    }
}
