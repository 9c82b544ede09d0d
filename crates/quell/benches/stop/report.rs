//! Table of figures and targets.

use std::cell::RefCell;

/// The bound of a figure, and its unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FigureTarget(pub(crate) f64, pub(crate) &'static str);

/// One row of the table.
#[derive(Debug)]
struct FigureRow {
    what: String,
    figure: f64,
    unit: &'static str,
    target: Option<FigureBound>,
    note: String,
}

/// The side of its target on which a figure must be.
#[derive(Debug, Clone, Copy)]
enum FigureBound {
    AtMost(f64),
    AtLeast(f64),
}

/// All rows, printed as they come and once more at the end.
#[derive(Debug, Default)]
pub(crate) struct BenchReport(RefCell<Vec<FigureRow>>);

impl BenchReport {
    /// Adds a figure that must not exceed its target.
    pub(crate) fn at_most(&self, what: impl Into<String>, figure: f64, most: FigureTarget, note: impl Into<String>) {
        self.push(what, (figure, most.1), Some(FigureBound::AtMost(most.0)), note);
    }

    /// Adds a figure in milliseconds that must not exceed its target.
    pub(crate) fn at_most_ms(&self, what: impl Into<String>, figure: f64, most: f64, note: impl Into<String>) {
        self.at_most(what, figure, FigureTarget(most, "ms"), note);
    }

    /// Adds a figure that must reach its target.
    pub(crate) fn at_least(&self, what: impl Into<String>, figure: f64, least: FigureTarget, note: impl Into<String>) {
        self.push(what, (figure, least.1), Some(FigureBound::AtLeast(least.0)), note);
    }

    /// Adds a figure in milliseconds without a target.
    pub(crate) fn report_ms(&self, what: impl Into<String>, figure: f64, note: impl Into<String>) {
        self.push(what, (figure, "ms"), None, note);
    }

    /// Adds a figure in another unit without a target.
    pub(crate) fn report_value(&self, what: impl Into<String>, value: (f64, &'static str), note: impl Into<String>) {
        self.push(what, value, None, note);
    }

    fn push(
        &self,
        what: impl Into<String>,
        (figure, unit): (f64, &'static str),
        target: Option<FigureBound>,
        note: impl Into<String>,
    ) {
        let row = FigureRow { what: what.into(), figure, unit, target, note: note.into() };
        eprintln!("{}", row.text());
        self.0.borrow_mut().push(row);
    }

    pub(crate) fn print(&self) {
        let rows = self.0.borrow();
        let bounds = || rows.iter().filter_map(|row| Some((row.target?, row.figure)));
        let reached = bounds().filter(|(target, figure)| target.holds(*figure)).count();
        eprintln!("\n{reached} of {} targets reached", bounds().count());
        for row in rows.iter() {
            eprintln!("{}", row.text());
        }
    }
}

impl FigureBound {
    fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtMost(most) => figure <= most,
            Self::AtLeast(least) => figure >= least,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(most) => format!("<= {most:.2}"),
            Self::AtLeast(least) => format!(">= {least:.2}"),
        }
    }
}

impl FigureRow {
    fn text(&self) -> String {
        let verdict = match self.target {
            Some(target) => {
                let word = if target.holds(self.figure) { "ok    " } else { "MISSED" };
                format!("{word}  {} {}", target.text(), self.unit)
            }
            None => String::new(),
        };
        format!("{:<58} {:>10.3} {:<5} {verdict:<26} {}", self.what, self.figure, self.unit, self.note)
    }
}
