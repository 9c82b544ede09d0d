//! Find the text that an edit replaces, although a model has written it down slightly wrong.
//!
//! The matching becomes more tolerant step by step, and the first step with a match decides. A match counts only if it
//! is the only one of its step.

mod nearest;
mod normal_form;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use nearest::{NearestLines, nearest_lines};
pub(crate) use normal_form::fold_look_alikes;
use normal_form::{Folding, NormalText};

/// Larger texts are matched exactly or not at all, because the other steps cost memory.
pub const MAX_TOLERANT_BYTES: usize = 2 * 1024 * 1024;

/// Lines that are named when a text stands in several places.
const MAX_NAMED_LINES: usize = 10;

/// What was ignored to find a match, in the order in which it is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MatchTolerance {
    Exact,
    /// `\r\n` counts as `\n`.
    LineEndings,
    /// White space at the ends of lines.
    TrailingSpace,
    /// Typographic quotes, dashes and spaces count as their ASCII forms.
    LookAlikes,
    /// Line numbers before the lines of the wanted text.
    LineNumbers,
    /// The indentation of whole lines. The new text gets that of the file.
    Indentation,
}

impl MatchTolerance {
    /// Completes the sentence "It matched after …"; empty for an exact match.
    pub fn description(self) -> &'static str {
        match self {
            Self::Exact => "",
            Self::LineEndings => "ignoring the kind of line ends",
            Self::TrailingSpace => "ignoring white space at line ends",
            Self::LookAlikes => "taking typographic quotes, dashes and spaces for plain ones",
            Self::LineNumbers => "leaving out line numbers",
            Self::Indentation => "ignoring the indentation, which was adapted",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplaceMode {
    /// The wanted text must stand in one place.
    Unique,
    Everywhere,
}

#[derive(Debug, Clone, Copy)]
pub struct TextEdit<'a> {
    pub old: &'a str,
    pub new: &'a str,
    pub mode: ReplaceMode,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditedText {
    pub text: String,
    /// The first line that was replaced, from 1.
    pub first_line: usize,
    pub places: usize,
    pub tolerance: MatchTolerance,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditProblem {
    /// The text stands in several places: `lines` has the first of them.
    Ambiguous {
        lines: Vec<usize>,
        places: usize,
        tolerance: MatchTolerance,
    },
    NotFound,
    TooLarge {
        places: usize,
    },
}

/// A place of the wanted text, with what replaces it there.
struct Replacement {
    range: Range<usize>,
    new: String,
}

/// Replaces `old` by `new`. The result has at most `max_bytes` bytes.
///
/// # Errors
/// [`EditProblem`] says why nothing was replaced.
pub fn edit_text(text: &str, edit: TextEdit<'_>, max_bytes: usize) -> Result<EditedText, EditProblem> {
    let (tolerance, found) = find_replacements(text, edit).ok_or(EditProblem::NotFound)?;
    let line_of = |at: usize| text[..at].bytes().filter(|b| *b == b'\n').count() + 1;
    if edit.mode == ReplaceMode::Unique && found.len() > 1 {
        let lines = found.iter().take(MAX_NAMED_LINES).map(|place| line_of(place.range.start)).collect();
        return Err(EditProblem::Ambiguous { lines, places: found.len(), tolerance });
    }
    let mut out = String::with_capacity(text.len());
    let (mut at, mut places, mut first_line) = (0, 0, 0);
    for Replacement { range, new } in found {
        // Overlaps the place before.
        if range.start < at {
            continue;
        }
        if places == 0 {
            first_line = line_of(range.start);
        }
        places += 1;
        out.push_str(&text[at..range.start]);
        out.push_str(&new);
        at = range.end;
        if out.len() > max_bytes {
            return Err(EditProblem::TooLarge { places });
        }
    }
    out.push_str(&text[at..]);
    if out.len() > max_bytes {
        return Err(EditProblem::TooLarge { places });
    }
    Ok(EditedText { text: out, first_line, places, tolerance })
}

/// All places of the first step that finds any, in order; they may overlap.
fn find_replacements(text: &str, edit: TextEdit<'_>) -> Option<(MatchTolerance, Vec<Replacement>)> {
    let TextEdit { old, new, .. } = edit;
    let new = with_line_ends_of(text, new);
    let replace_all = |ranges: Vec<Range<usize>>, new: &str| {
        ranges.into_iter().map(|range| Replacement { range, new: new.to_owned() }).collect::<Vec<_>>()
    };
    let exact = find_all(text, old);
    if !exact.is_empty() {
        return Some((MatchTolerance::Exact, replace_all(exact, &new)));
    }
    if text.len() > MAX_TOLERANT_BYTES {
        return None;
    }
    let steps = [
        (MatchTolerance::LineEndings, Folding::LineEndings),
        (MatchTolerance::TrailingSpace, Folding::TrailingSpace),
        (MatchTolerance::LookAlikes, Folding::LookAlikes),
    ];
    for (tolerance, folding) in steps {
        let found = NormalText::new(text, folding).find_all(old);
        if !found.is_empty() {
            return Some((tolerance, replace_all(found, &new)));
        }
    }
    for separator in ["", " "] {
        let Some(plain_old) = without_line_numbers(old, separator) else { break };
        let found = NormalText::new(text, Folding::LookAlikes).find_all(&plain_old);
        if !found.is_empty() {
            let plain_new = without_line_numbers(&new, separator).unwrap_or(new);
            return Some((MatchTolerance::LineNumbers, replace_all(found, &plain_new)));
        }
    }
    let found = find_reindented(text, old, &new);
    (!found.is_empty()).then_some((MatchTolerance::Indentation, found))
}

/// All places of `wanted`, also those that overlap.
fn find_all(text: &str, wanted: &str) -> Vec<Range<usize>> {
    let Some(first) = wanted.chars().next() else { return Vec::new() };
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(wanted).map(|at| from + at) {
        found.push(at..at + wanted.len());
        from = at + first.len_utf8();
    }
    found
}

/// A file whose lines all end in `\r\n` keeps that.
fn with_line_ends_of(text: &str, new: &str) -> String {
    let line_feeds = text.bytes().filter(|b| *b == b'\n').count();
    if line_feeds > 0 && text.matches("\r\n").count() == line_feeds {
        new.replace("\r\n", "\n").replace('\n', "\r\n")
    } else {
        new.to_owned()
    }
}

/// The text without the numbers before its lines, and without `separator` behind their mark; `None` unless all lines are
/// numbered, each one more than the line before.
fn without_line_numbers(text: &str, separator: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut last: Option<u64> = None;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim_start_matches([' ', '\t']);
        let digits = trimmed.len() - trimmed.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = trimmed[..digits].parse().ok()?;
        if last.is_some_and(|last| number != last + 1) {
            return None;
        }
        last = Some(number);
        let rest = &trimmed[digits..];
        match rest.chars().next() {
            Some(mark @ (':' | '|' | '\u{2192}' | '\t')) => {
                let rest = &rest[mark.len_utf8()..];
                out.push_str(rest.strip_prefix(separator).unwrap_or(rest));
            }
            // A number alone is the number of an empty line.
            Some('\n' | '\r') | None => out.push_str(rest),
            Some(_) => return None,
        }
    }
    last.map(|_| out)
}

/// The whole lines that equal those of `old` but for their indentation, where that differs in the same way on all lines.
fn find_reindented(text: &str, old: &str, new: &str) -> Vec<Replacement> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let wanted: Vec<&str> = old.lines().collect();
    if wanted.iter().all(|line| line.trim().is_empty()) || wanted.len() > lines.len() {
        return Vec::new();
    }
    let folded: Vec<String> = lines.iter().map(|line| fold_look_alikes(line.trim())).collect();
    let folded_wanted: Vec<String> = wanted.iter().map(|line| fold_look_alikes(line.trim())).collect();
    let mut starts = Vec::with_capacity(lines.len() + 1);
    starts.push(0);
    for line in &lines {
        starts.push(starts.last().copied().unwrap_or(0) + line.len());
    }
    let mut found = Vec::new();
    for at in 0..=lines.len() - wanted.len() {
        let end = at + wanted.len();
        if folded[at..end] != folded_wanted[..] {
            continue;
        }
        let Some(change) = IndentChange::between(&wanted, &lines[at..end]) else { continue };
        // Without a line end in `old`, that of the last line stays.
        let last = lines[end - 1];
        let kept = if old.ends_with('\n') { 0 } else { last.len() - last.trim_end_matches(['\n', '\r']).len() };
        found.push(Replacement { range: starts[at]..starts[end] - kept, new: change.apply(new) });
    }
    found
}

/// How the indentation of a file differs from that in the wanted text: pairs of wanted and found.
struct IndentChange<'a>(Vec<(&'a str, &'a str)>);

impl<'a> IndentChange<'a> {
    /// `None` if one indentation of the wanted text would become two.
    fn between(wanted: &[&'a str], found: &[&'a str]) -> Option<Self> {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for (wanted, found) in wanted.iter().zip(found).filter(|(wanted, _)| !wanted.trim().is_empty()) {
            let (wanted, found) = (indent_of(wanted), indent_of(found));
            match pairs.iter().find(|(known, _)| *known == wanted) {
                Some((_, known)) if *known != found => return None,
                Some(_) => {}
                None => pairs.push((wanted, found)),
            }
        }
        // The longest first, so that a deeper line of the new text finds the nearest.
        pairs.sort_by_key(|(wanted, _)| std::cmp::Reverse(wanted.len()));
        Some(Self(pairs))
    }

    fn apply(&self, new: &str) -> String {
        new.split_inclusive('\n').map(|line| self.apply_to_line(line)).collect()
    }

    fn apply_to_line(&self, line: &str) -> String {
        if line.trim().is_empty() {
            return line.to_owned();
        }
        let indent = indent_of(line);
        let deeper = self.0.iter().find_map(|(wanted, found)| Some((indent.strip_prefix(wanted)?, found)));
        match deeper {
            Some((rest, found)) => format!("{found}{rest}{}", &line[indent.len()..]),
            // Less than all known: the same is taken away as from the least indented line.
            None => self.outdent(line, indent),
        }
    }

    fn outdent(&self, line: &str, indent: &str) -> String {
        let Some((wanted, found)) = self.0.last() else { return line.to_owned() };
        let missing = wanted.len().saturating_sub(indent.len());
        let kept = &found[..found.len().saturating_sub(missing)];
        format!("{kept}{}", &line[indent.len()..])
    }
}

fn indent_of(line: &str) -> &str {
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}
