//! The lines of a text that come nearest to those that were not found in it.

use std::fmt::Write as _;

/// Lines of the wanted text that are compared.
const COMPARED_LINES: usize = 40;
/// Lines that are shown.
const SHOWN_LINES: usize = 12;
const SHOWN_LINE_BYTES: usize = 200;

/// The nearest place of a text that was not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearestLines {
    /// Its lines, each with its number.
    pub numbered: String,
    /// The first line that differs, as it was wanted; `None` if all compared lines are equal but for white space.
    pub first_difference: Option<String>,
}

/// Finds the place where most lines of `wanted` stand, ignoring white space at their ends; otherwise the line that is
/// most similar to the first. `None` if no line comes near.
pub fn nearest_lines(text: &str, wanted: &str) -> Option<NearestLines> {
    let lines: Vec<&str> = text.lines().collect();
    let wanted: Vec<&str> =
        wanted.lines().map(str::trim).skip_while(|line| line.is_empty()).take(COMPARED_LINES).collect();
    let start = nearest_start(&lines, &wanted)?;
    let mut numbered = String::new();
    for (at, line) in lines.iter().enumerate().skip(start).take(wanted.len().min(SHOWN_LINES)) {
        let _ = writeln!(numbered, "{}: {}", at + 1, &line[..line.floor_char_boundary(SHOWN_LINE_BYTES)]);
    }
    let differs = |(at, want): (usize, &&str)| lines.get(start + at).is_none_or(|have| have.trim() != *want);
    let first_difference = wanted
        .iter()
        .enumerate()
        .find(|line| differs(*line))
        .map(|(_, want)| want[..want.floor_char_boundary(SHOWN_LINE_BYTES)].to_owned());
    Some(NearestLines { numbered, first_difference })
}

fn nearest_start(lines: &[&str], wanted: &[&str]) -> Option<usize> {
    let first = wanted.first()?;
    let mut best = (0, None);
    for (at, line) in lines.iter().enumerate() {
        let pairs = lines[at..].iter().zip(wanted);
        let equal = pairs.filter(|(have, want)| !want.is_empty() && have.trim() == **want).count();
        // One equal line outweighs any similarity, so similarity decides only where no line is equal.
        let score = equal * 1000 + similarity(line.trim(), first);
        if score > best.0 {
            best = (score, Some(at));
        }
    }
    best.1
}

/// The common start and end of two lines, in thousandths of the longer one; 0 when it is less than half.
fn similarity(a: &str, b: &str) -> usize {
    let longest = a.len().max(b.len());
    let shortest = a.len().min(b.len());
    let head = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let tail = a.bytes().rev().zip(b.bytes().rev()).take_while(|(x, y)| x == y).count();
    let same = (head + tail).min(shortest);
    if longest == 0 || same * 2 < longest { 0 } else { same * 999 / longest }
}
