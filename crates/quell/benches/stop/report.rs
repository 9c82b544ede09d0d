//! Table of figures and targets.

use std::cell::RefCell;
use std::fmt::Display;

use crate::times::Times;

/// One row of the table.
#[derive(Debug)]
struct FigureRow {
    what: String,
    figure: f64,
    unit: &'static str,
    target: FigureTarget,
    note: String,
}

/// The side of its target on which a figure must be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FigureTarget {
    Free,
    AtMost(f64),
    AtLeast(f64),
}

/// Which of the samples a figure is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Quantile {
    Median,
    P99,
    Max,
}

/// All rows, printed as they come and once more at the end.
#[derive(Debug, Default)]
pub(crate) struct BenchReport(RefCell<Vec<FigureRow>>);

impl BenchReport {
    /// Adds a quantile of these times, in milliseconds. The note begins with a summary of them.
    pub(crate) fn add_times(
        &self,
        what: impl Display,
        (times, quantile): (&Times, Quantile),
        target: FigureTarget,
        note: &str,
    ) {
        let (figure, name) = match quantile {
            Quantile::Median => (times.median(), "median"),
            Quantile::P99 => (times.p99(), "p99"),
            Quantile::Max => (times.max(), "longest"),
        };
        self.add(format!("{what}, {name}"), (figure, "ms"), target, format!("{times}; {note}").trim_end_matches("; "));
    }

    pub(crate) fn add(
        &self,
        what: impl Into<String>,
        (figure, unit): (f64, &'static str),
        target: FigureTarget,
        note: impl Into<String>,
    ) {
        let row = FigureRow { what: what.into(), figure, unit, target, note: note.into() };
        eprintln!("{}", row.text());
        self.0.borrow_mut().push(row);
    }

    pub(crate) fn print(&self) {
        let rows = self.0.borrow();
        let judged: Vec<bool> = rows.iter().filter_map(|row| row.target.is_reached(row.figure)).collect();
        eprintln!("\n{} of {} targets reached", judged.iter().filter(|reached| **reached).count(), judged.len());
        for row in rows.iter() {
            eprintln!("{}", row.text());
        }
    }
}

impl FigureTarget {
    /// None without a target.
    fn is_reached(self, figure: f64) -> Option<bool> {
        match self {
            Self::Free => None,
            Self::AtMost(most) => Some(figure <= most),
            Self::AtLeast(least) => Some(figure >= least),
        }
    }
}

impl FigureRow {
    fn text(&self) -> String {
        let bound = match self.target {
            FigureTarget::Free => String::new(),
            FigureTarget::AtMost(most) => format!("<= {most:.2} {}", self.unit),
            FigureTarget::AtLeast(least) => format!(">= {least:.2} {}", self.unit),
        };
        let word = match self.target.is_reached(self.figure) {
            Some(true) => "ok      ",
            Some(false) => "MISSED  ",
            None => "",
        };
        let verdict = format!("{word}{bound}");
        format!("{:<58} {:>10.3} {:<5} {verdict:<26} {}", self.what, self.figure, self.unit, self.note)
    }
}
