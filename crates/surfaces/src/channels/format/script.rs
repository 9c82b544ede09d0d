//! What a markup is, to those who write it: strings around marks, and how words are written so that they are only words.

use super::document::{Gap, Mark};
use super::sheet::Level;

/// A markup.
pub(super) trait Script: Sync {
    /// What stands around a mark. Nothing if it is not shown here.
    fn fence(&self, mark: &Mark, outer: &[Level]) -> Option<Fence>;

    /// Writes words.
    fn text(&self, text: &str, spot: Spot, out: &mut String);

    /// What stands in a gap; a line break in it is followed by the margins.
    fn gap(&self, gap: Gap, spot: Spot) -> &'static str;

    /// A line across.
    fn rule(&self) -> &'static str;

    /// Before the last part of something longer.
    fn more(&self) -> &'static str {
        "…\n"
    }
}

/// Where words stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spot {
    /// At the beginning of a line.
    LineStart,
    /// Further on in it.
    Within,
    /// In code.
    Code,
}

/// What stands around a mark.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fence {
    pub(super) open: String,
    /// Instead of `open` when it goes on in another piece.
    pub(super) again: String,
    pub(super) close: String,
    /// Before each further line.
    pub(super) margin: String,
    /// The same before lines of code.
    pub(super) code_margin: String,
    /// It must not touch a letter outside; a space without width keeps them apart.
    pub(super) apart: bool,
    /// Styles and links are closed before it and opened again after it.
    pub(super) alone: bool,
}

impl Fence {
    /// Opens and closes.
    pub(super) fn new(open: impl Into<String>, close: impl Into<String>) -> Self {
        let open = open.into();
        Self { again: open.clone(), open, close: close.into(), ..Self::default() }
    }

    /// Nothing is written, but what is in it is.
    pub(super) fn unseen() -> Self {
        Self::default()
    }

    /// An item of a list: a sign before its first line, as many spaces before the others.
    pub(super) fn item(sign: String) -> Self {
        let margin = " ".repeat(sign.chars().count());
        Self { open: sign, again: margin.clone(), margin, ..Self::default() }
    }

    /// A sign before each line, in code too.
    pub(super) fn every_line(sign: &str) -> Self {
        Self {
            open: sign.to_owned(),
            again: sign.to_owned(),
            margin: sign.to_owned(),
            code_margin: sign.to_owned(),
            ..Self::default()
        }
    }

    /// Lines of code have the margin too.
    pub(super) fn in_code(self) -> Self {
        Self { code_margin: self.margin.clone(), ..self }
    }

    /// See [`Fence::apart`].
    pub(super) fn apart(self) -> Self {
        Self { apart: true, ..self }
    }

    /// See [`Fence::alone`].
    pub(super) fn alone(self) -> Self {
        Self { alone: true, ..self }
    }
}

/// `• ` or `3. `.
pub(super) fn bullet(number: Option<u64>) -> String {
    number.map_or_else(|| "• ".to_owned(), |number| format!("{number}. "))
}

/// Keeps apart what would have a meaning together.
pub(super) const ZERO_WIDTH: char = '\u{200b}';

/// A row of characters that is at least `least` long and longer than any in what it stands around.
pub(super) fn row(sign: char, least: usize, inside: usize) -> String {
    std::iter::repeat_n(sign, least.max(inside + 1)).collect()
}
