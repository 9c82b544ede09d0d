//! The table at the end: figure, target, whether it was reached.

use std::time::Duration;

/// Times of one thing, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1000.0);
    }

    /// The value below which `part` (0 to 1) of the samples lie.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a place in a list of samples"
        )]
        let at = ((sorted.len().saturating_sub(1)) as f64 * part).round() as usize;
        sorted.get(at).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    pub(crate) fn max(&self) -> f64 {
        self.quantile(1.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// What a figure must not exceed, and its unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target(pub(crate) f64, pub(crate) &'static str);

/// One line of the table.
#[derive(Debug)]
struct Line {
    what: String,
    figure: f64,
    unit: &'static str,
    target: Option<f64>,
    note: String,
}

/// All lines, printed as they come and once more at the end.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Line>);

impl Report {
    /// A figure with the target that it must not exceed.
    pub(crate) fn target(&mut self, what: &str, figure: f64, target: Target, note: String) {
        let Target(most, unit) = target;
        self.push(Line { what: what.to_owned(), figure, unit, target: Some(most), note });
    }

    /// A figure in milliseconds without a target.
    pub(crate) fn figure(&mut self, what: &str, figure: f64, note: String) {
        self.push(Line { what: what.to_owned(), figure, unit: "ms", target: None, note });
    }

    fn push(&mut self, line: Line) {
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
        self.0.iter().filter(|line| line.target.is_some_and(|target| line.figure <= target)).count()
    }
}

impl Line {
    fn text(&self) -> String {
        let verdict = match self.target {
            Some(target) if self.figure <= target => format!("ok      <= {target:.2} {}", self.unit),
            Some(target) => format!("MISSED  <= {target:.2} {}", self.unit),
            None => String::new(),
        };
        format!("{:<58} {:>10.3} {:<5} {verdict:<26} {}", self.what, self.figure, self.unit, self.note)
    }
}
