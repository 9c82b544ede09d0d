//! Table of figures and targets.

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
pub(crate) struct BenchReport(Vec<FigureRow>);

impl BenchReport {
    /// Adds a figure that must not exceed its target.
    pub(crate) fn at_most(&mut self, what: &str, figure: f64, target: FigureTarget, note: String) {
        let FigureTarget(most, unit) = target;
        self.push(FigureRow { what: what.to_owned(), figure, unit, target: Some(FigureBound::AtMost(most)), note });
    }

    /// Adds a figure that must reach its target.
    pub(crate) fn at_least(&mut self, what: &str, figure: f64, target: FigureTarget, note: String) {
        let FigureTarget(least, unit) = target;
        self.push(FigureRow { what: what.to_owned(), figure, unit, target: Some(FigureBound::AtLeast(least)), note });
    }

    /// Adds a figure in milliseconds without a target.
    pub(crate) fn report_ms(&mut self, what: &str, figure: f64, note: String) {
        self.report_value(what, (figure, "ms"), note);
    }

    /// Adds a figure in another unit without a target.
    pub(crate) fn report_value(&mut self, what: &str, (figure, unit): (f64, &'static str), note: String) {
        self.push(FigureRow { what: what.to_owned(), figure, unit, target: None, note });
    }

    fn push(&mut self, line: FigureRow) {
        eprintln!("{}", line.text());
        self.0.push(line);
    }

    pub(crate) fn print(&self) {
        eprintln!("\n{} of {} targets reached", self.reached(), self.targets());
        for line in &self.0 {
            eprintln!("{}", line.text());
        }
    }

    fn targets(&self) -> usize {
        self.0.iter().filter(|line| line.target.is_some()).count()
    }

    fn reached(&self) -> usize {
        self.0.iter().filter(|line| line.target.is_some_and(|target| target.holds(line.figure))).count()
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
