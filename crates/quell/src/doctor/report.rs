//! Shows findings as they come: lines for a person, or one JSON value for a program.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::finding::{Finding, State};
use crate::telemetry;

/// Width of the names of checks; what follows them stands in one column.
const NAME: usize = 15;
/// Where sentences begin: label, name, and the spaces between.
const INDENT: usize = 6 + 2 + NAME + 1;

/// The findings so far, and where they are shown.
pub(super) struct Report {
    rows: Vec<Row>,
    not_made: Vec<&'static str>,
    style: Style,
    out: Box<dyn Write>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// One JSON value at the end.
    Json,
    /// Lines, without colour and progress.
    Plain,
    /// Lines on a terminal, with the check at work shown in place.
    Terminal {
        /// Whether labels are coloured too.
        color: bool,
    },
}

#[derive(Debug, Serialize)]
struct Row {
    check: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    ok: bool,
    version: &'static str,
    findings: &'a [Row],
    /// Checks that need a readable configuration and a place for data.
    not_made: &'a [&'static str],
}

impl Report {
    pub(super) fn new(style: Style, out: impl Write + 'static) -> Self {
        Self { rows: Vec::new(), not_made: Vec::new(), style, out: Box::new(out) }
    }

    /// On standard output, as it wants it.
    pub(super) fn of_process(json: bool) -> Self {
        let style = match (json, io::stdout().is_terminal()) {
            (true, _) => Style::Json,
            (false, true) => Style::Terminal { color: !telemetry::no_color() },
            (false, false) => Style::Plain,
        };
        Self::new(style, io::stdout())
    }

    /// A check starts.
    pub(super) fn begin(&mut self, check: &str) -> io::Result<()> {
        if let Style::Terminal { .. } = self.style {
            write!(self.out, "\r\x1b[K… {check}")?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// A check has ended.
    pub(super) fn found(&mut self, check: &'static str, findings: Vec<Finding>) -> io::Result<()> {
        self.clear_progress()?;
        for finding in findings {
            if self.style != Style::Json {
                self.show(check, &finding)?;
            }
            self.rows.push(Row { check, finding });
        }
        self.out.flush()
    }

    /// A check could not be made.
    pub(super) fn not_made(&mut self, check: &'static str) {
        self.not_made.push(check);
    }

    /// Sums up; true when nothing fails.
    pub(super) fn finish(&mut self) -> io::Result<bool> {
        self.clear_progress()?;
        let ok = self.count(State::Fail) == 0;
        if self.style == Style::Json {
            let (findings, not_made) = (self.rows.as_slice(), self.not_made.as_slice());
            let summary = Summary { ok, version: env!("CARGO_PKG_VERSION"), findings, not_made };
            serde_json::to_writer_pretty(&mut self.out, &summary)?;
            writeln!(self.out)?;
            return Ok(ok);
        }
        if !self.not_made.is_empty() {
            writeln!(self.out, "\nNot checked, because of the above: {}.", self.not_made.join(", "))?;
        }
        let (failed, warned) = (self.count(State::Fail), self.count(State::Warn));
        let words = match (failed, warned) {
            (0, 0) => "Everything is in order.".to_owned(),
            (0, warned) => format!("Nothing fails; {warned} to look at."),
            (failed, 0) => format!("{failed} to mend."),
            (failed, warned) => format!("{failed} to mend, {warned} to look at."),
        };
        writeln!(self.out, "\n{words}")?;
        Ok(ok)
    }

    fn count(&self, state: State) -> usize {
        self.rows.iter().filter(|row| row.finding.state == state).count()
    }

    fn show(&mut self, check: &str, finding: &Finding) -> io::Result<()> {
        let label = finding.state.label();
        let label = match self.style {
            Style::Terminal { color: true } => format!("\x1b[{}m{label}\x1b[0m", finding.state.color()),
            _ => label.to_owned(),
        };
        let mut lines = finding.says.lines();
        writeln!(self.out, "{label}  {check:NAME$} {}", lines.next().unwrap_or_default())?;
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
            Style::Terminal { .. } => write!(self.out, "\r\x1b[K"),
            Style::Json | Style::Plain => Ok(()),
        }
    }
}
