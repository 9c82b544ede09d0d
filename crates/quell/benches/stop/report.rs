//! The table at the end: figure, target, whether it was reached.

/// What a figure must not exceed, or must reach, and its unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target(pub(crate) f64, pub(crate) &'static str);

/// One line of the table.
#[derive(Debug)]
struct Line {
    what: String,
    figure: f64,
    unit: &'static str,
    target: Option<Bound>,
    note: String,
}

/// On which side of its target a figure has to be.
#[derive(Debug, Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// All lines, printed as they come and once more at the end.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Line>);

impl Report {
    /// A figure with the target that it must not exceed.
    pub(crate) fn target(&mut self, what: &str, figure: f64, target: Target, note: String) {
        let Target(most, unit) = target;
        self.push(Line { what: what.to_owned(), figure, unit, target: Some(Bound::AtMost(most)), note });
    }

    /// A figure with the target that it must reach.
    pub(crate) fn at_least(&mut self, what: &str, figure: f64, target: Target, note: String) {
        let Target(least, unit) = target;
        self.push(Line { what: what.to_owned(), figure, unit, target: Some(Bound::AtLeast(least)), note });
    }

    /// A figure in milliseconds without a target.
    pub(crate) fn figure(&mut self, what: &str, figure: f64, note: String) {
        self.measure(what, (figure, "ms"), note);
    }

    /// A figure in another unit without a target.
    pub(crate) fn measure(&mut self, what: &str, (figure, unit): (f64, &'static str), note: String) {
        self.push(Line { what: what.to_owned(), figure, unit, target: None, note });
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
        self.0.iter().filter(|line| line.target.is_some_and(|target| target.holds(line.figure))).count()
    }
}

impl Bound {
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

impl Line {
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
