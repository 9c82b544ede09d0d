//! The table at the end: figure, target, whether it was reached.

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
