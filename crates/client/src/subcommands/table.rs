//! Format rows as aligned columns; the table of runs; cells for run and agent states.

use std::io;

use jiff::Timestamp;
use quell_protocol::Verdict;
use quell_protocol::api::{ComputeStatus, RunView};
use serde::Serialize;

use super::{Exit, SubcommandContext, SubcommandResult};
use crate::term::{CliOutputStream, OutputStyle};
use crate::text_format::{age, one_line};

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

impl SubcommandContext<'_> {
    /// Prints rows as JSON, or as a table below their heads. Where there are none, prints `nothing` to stderr instead of
    /// a table.
    pub(super) fn print_table<T: Serialize, const N: usize>(
        &mut self,
        rows: &[T],
        heads: [&str; N],
        cells: impl Fn(&T) -> [CliTableCell; N],
        nothing: &str,
    ) -> SubcommandResult {
        if self.print_json(&rows)? {
            return Ok(Exit::Done);
        }
        if rows.is_empty() {
            self.io.output.eprint_line(nothing)?;
        } else {
            self.print_rows(heads, &rows.iter().map(cells).collect::<Vec<_>>())?;
        }
        Ok(Exit::Done)
    }

    pub(super) fn print_rows<const N: usize>(
        &mut self,
        heads: [&str; N],
        rows: &[[CliTableCell; N]],
    ) -> io::Result<()> {
        let output = &mut self.io.output;
        format_table(output.stdout(), heads, rows).iter().try_for_each(|line| output.print_line(line))
    }
}

/// Formats rows below their heads; each column is as wide as its widest cell.
fn format_table<const N: usize>(stream: &CliOutputStream, heads: [&str; N], rows: &[[CliTableCell; N]]) -> Vec<String> {
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
            line.push_str(&cell_text(stream, cell));
            line.push_str(&" ".repeat(gap));
        }
        line.trim_end().to_owned()
    };
    let heads = heads.map(|head| CliTableCell::styled(OutputStyle::Quiet, head.into()));
    std::iter::once(&heads).chain(rows).map(line).collect()
}

pub(super) fn runs_table(stream: &CliOutputStream, runs: &[RunView], now: Timestamp) -> Vec<String> {
    let rows: Vec<[CliTableCell; 7]> = runs.iter().map(|run| run_row(run, now)).collect();
    format_table(stream, ["RUN", "STATE", "AGE", "TOKENS", "PROCESSES", "AGENT", "SESSION"], &rows)
}

fn run_row(run: &RunView, now: Timestamp) -> [CliTableCell; 7] {
    let processes = if run.processes == 0 { String::new() } else { run.processes.to_string() };
    [
        run.run_id.to_string().into(),
        run_state_cell(run),
        age(&run.accepted_at, now).unwrap_or_default().into(),
        tokens_text(run).into(),
        processes.into(),
        CliTableCell::truncated(run.agent.as_str(), 24),
        CliTableCell::truncated(run.session_key.as_str(), 60),
    ]
}

fn tokens_text(run: &RunView) -> String {
    let about = if run.usage.estimated { "~" } else { "" };
    format!("{about}{}", run.usage.input_tokens.saturating_add(run.usage.output_tokens))
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
