//! Print findings as text or JSON, one check after the other.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::finding::{DoctorFinding, FindingStatus};
use crate::telemetry;

/// Width of the column with the names of checks.
const NAME_WIDTH: usize = 15;
/// Indentation of sentences: label, name, and the spaces between.
const INDENT: usize = 6 + 2 + NAME_WIDTH + 1;

pub(super) struct DoctorReport<W> {
    rows: Vec<ReportRow>,
    skipped: Vec<&'static str>,
    style: ReportStyle,
    out: W,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportStyle {
    /// One JSON value at the end.
    Json,
    /// Lines, without colour and progress.
    Plain,
    /// Lines on a terminal, with the name of the current check until it ends.
    Terminal { color: bool },
}

#[derive(Debug, Serialize)]
struct ReportRow {
    check: &'static str,
    #[serde(flatten)]
    finding: DoctorFinding,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportSummary<'a> {
    ok: bool,
    version: &'static str,
    findings: &'a [ReportRow],
    /// Checks that need a readable configuration and a data directory.
    not_made: &'a [&'static str],
}

impl DoctorReport<io::Stdout> {
    /// Chooses the style for standard output.
    pub(super) fn for_stdout(json: bool) -> Self {
        let style = match (json, io::stdout().is_terminal()) {
            (true, _) => ReportStyle::Json,
            (false, true) => ReportStyle::Terminal { color: !telemetry::no_color() },
            (false, false) => ReportStyle::Plain,
        };
        Self::new(style, io::stdout())
    }
}

impl<W: Write> DoctorReport<W> {
    pub(super) fn new(style: ReportStyle, out: W) -> Self {
        Self { rows: Vec::new(), skipped: Vec::new(), style, out }
    }

    pub(super) fn start_check(&mut self, check: &str) -> io::Result<()> {
        if let ReportStyle::Terminal { .. } = self.style {
            write!(self.out, "\r\x1b[K… {check}")?;
            self.out.flush()?;
        }
        Ok(())
    }

    pub(super) fn add_findings(&mut self, check: &'static str, findings: Vec<DoctorFinding>) -> io::Result<()> {
        self.clear_progress()?;
        for finding in findings {
            if self.style != ReportStyle::Json {
                self.print_finding(check, &finding)?;
            }
            self.rows.push(ReportRow { check, finding });
        }
        self.out.flush()
    }

    /// Keeps the name of a check that could not be made.
    pub(super) fn skip_check(&mut self, check: &'static str) {
        self.skipped.push(check);
    }

    /// Prints the summary. Returns true when no check failed.
    pub(super) fn finish(&mut self) -> io::Result<bool> {
        self.clear_progress()?;
        let ok = self.count(FindingStatus::Fail) == 0;
        if self.style == ReportStyle::Json {
            let (findings, not_made) = (self.rows.as_slice(), self.skipped.as_slice());
            let summary = ReportSummary { ok, version: env!("CARGO_PKG_VERSION"), findings, not_made };
            serde_json::to_writer_pretty(&mut self.out, &summary)?;
            writeln!(self.out)?;
            return Ok(ok);
        }
        if !self.skipped.is_empty() {
            writeln!(self.out, "\nNot checked, because of the above: {}.", self.skipped.join(", "))?;
        }
        let (failed, warned) = (self.count(FindingStatus::Fail), self.count(FindingStatus::Warn));
        let words = match (failed, warned) {
            (0, 0) => "Everything is in order.".to_owned(),
            (0, warned) => format!("Nothing fails; {warned} to look at."),
            (failed, 0) => format!("{failed} to mend."),
            (failed, warned) => format!("{failed} to mend, {warned} to look at."),
        };
        writeln!(self.out, "\n{words}")?;
        Ok(ok)
    }

    fn count(&self, state: FindingStatus) -> usize {
        self.rows.iter().filter(|row| row.finding.state == state).count()
    }

    fn print_finding(&mut self, check: &str, finding: &DoctorFinding) -> io::Result<()> {
        let label = finding.state.label();
        let label = match self.style {
            ReportStyle::Terminal { color: true } => format!("\x1b[{}m{label}\x1b[0m", finding.state.color()),
            _ => label.to_owned(),
        };
        let mut lines = finding.says.lines();
        writeln!(self.out, "{label}  {check:NAME_WIDTH$} {}", lines.next().unwrap_or_default())?;
        for line in lines {
            writeln!(self.out, "{:INDENT$}{line}", "")?;
        }
        if let Some(remedy) = &finding.remedy {
            writeln!(self.out, "{:INDENT$}→ {remedy}", "")?;
        }
        Ok(())
    }

    fn clear_progress(&mut self) -> io::Result<()> {
        match self.style {
            ReportStyle::Terminal { .. } => write!(self.out, "\r\x1b[K"),
            ReportStyle::Json | ReportStyle::Plain => Ok(()),
        }
    }
}
