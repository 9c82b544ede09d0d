//! Apply the chunks of a patch to the text of a file.

use super::{PatchChunk, PatchError, PatchLine};
use crate::text_edit::fold_look_alikes;

/// Lines of a chunk in an error.
const SHOWN_LINES: usize = 12;
const MAX_NAMED_LINES: usize = 10;

/// How lines are compared. Each way is more tolerant than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineMatch {
    Exact,
    TrailingSpace,
    /// Also typographic characters and the space before the line.
    LookAlikes,
}

/// Applies the chunks in order, each below the one before.
///
/// # Errors
/// [`PatchError`] says which lines were not found, or stand in several places.
pub fn apply_chunks(text: &str, chunks: &[PatchChunk]) -> Result<String, PatchError> {
    let file = FileLines::new(text);
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for chunk in chunks {
        let place = file.find_chunk(chunk, at)?;
        file.copy(at..place.start, &mut out);
        file.write_chunk(chunk, place.clone(), &mut out);
        at = place.end;
    }
    file.copy(at..file.lines.len(), &mut out);
    Ok(out)
}

struct FileLines<'a> {
    /// Each with its line end.
    lines: Vec<&'a str>,
    line_end: &'static str,
}

impl<'a> FileLines<'a> {
    fn new(text: &'a str) -> Self {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let with_return = lines.iter().filter(|line| line.ends_with("\r\n")).count();
        let line_end = if with_return * 2 > lines.len() { "\r\n" } else { "\n" };
        Self { lines, line_end }
    }

    /// The lines that the chunk's context and removed lines are, from line `from` on.
    fn find_chunk(&self, chunk: &PatchChunk, from: usize) -> Result<std::ops::Range<usize>, PatchError> {
        let from = match &chunk.anchor {
            Some(anchor) => self.find_anchor(anchor, from)?,
            None => from,
        };
        let old: Vec<&str> = chunk.lines.iter().filter_map(PatchLine::old).collect();
        if old.is_empty() {
            // Only added lines: below the anchor, or at the end.
            let at = if chunk.anchor.is_some() && !chunk.is_at_end { from } else { self.lines.len() };
            return Ok(at..at);
        }
        let wanted = || {
            let more = if old.len() > SHOWN_LINES { "\n…" } else { "" };
            old[..old.len().min(SHOWN_LINES)].join("\n") + more
        };
        for way in [LineMatch::Exact, LineMatch::TrailingSpace, LineMatch::LookAlikes] {
            let places = self.places(&old, from, way);
            let at_end = places.last().filter(|place| chunk.is_at_end && **place + old.len() == self.lines.len());
            let place = match (at_end, &places[..]) {
                (Some(place), _) | (None, [place]) => *place,
                (None, []) => continue,
                // An exact place is the first below the chunk before.
                (None, [first, ..]) if way == LineMatch::Exact => *first,
                (None, several) => {
                    let lines = several.iter().take(MAX_NAMED_LINES).map(|place| place + 1).collect();
                    return Err(PatchError::ChunkAmbiguous { wanted: wanted(), lines });
                }
            };
            return Ok(place..place + old.len());
        }
        Err(PatchError::ChunkNotFound { wanted: wanted(), from: from + 1 })
    }

    /// The line below the anchor. One at `from` counts, because a chunk may begin with its anchor.
    fn find_anchor(&self, anchor: &str, from: usize) -> Result<usize, PatchError> {
        for way in [LineMatch::Exact, LineMatch::LookAlikes] {
            if let Some(place) = self.places(&[anchor], from, way).first() {
                return Ok(place + 1);
            }
        }
        Err(PatchError::AnchorNotFound(anchor.to_owned()))
    }

    fn places(&self, wanted: &[&str], from: usize, way: LineMatch) -> Vec<usize> {
        let wanted: Vec<String> = wanted.iter().map(|line| comparable(line, way)).collect();
        let lines: Vec<String> =
            self.lines[from.min(self.lines.len())..].iter().map(|line| comparable(line, way)).collect();
        let equal = lines.windows(wanted.len()).enumerate().filter(|(_, window)| **window == wanted[..]);
        equal.map(|(at, _)| from + at).collect()
    }

    fn copy(&self, lines: std::ops::Range<usize>, out: &mut String) {
        self.lines[lines].iter().for_each(|line| out.push_str(line));
    }

    /// Context lines stay as the file has them.
    fn write_chunk(&self, chunk: &PatchChunk, place: std::ops::Range<usize>, out: &mut String) {
        let is_last = place.end == self.lines.len();
        let had_line_end = self.lines.last().is_none_or(|line| line.ends_with('\n'));
        let mut at = place.start;
        for line in &chunk.lines {
            match line {
                PatchLine::Context(_) => {
                    self.finish_line(out);
                    out.push_str(self.lines[at]);
                    at += 1;
                }
                PatchLine::Remove(_) => at += 1,
                PatchLine::Add(added) => {
                    self.finish_line(out);
                    out.push_str(added);
                    out.push_str(self.line_end);
                }
            }
        }
        // The last line of a file without a line end still has none.
        if is_last && !had_line_end && !self.lines.is_empty() && out.ends_with(self.line_end) {
            out.truncate(out.len() - self.line_end.len());
        }
    }

    /// Ends the line before another one follows.
    fn finish_line(&self, out: &mut String) {
        if !out.is_empty() && !out.ends_with('\n') {
            out.push_str(self.line_end);
        }
    }
}

fn comparable(line: &str, way: LineMatch) -> String {
    let line = line.strip_suffix('\n').unwrap_or(line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    match way {
        LineMatch::Exact => line.to_owned(),
        LineMatch::TrailingSpace => line.trim_end().to_owned(),
        LineMatch::LookAlikes => fold_look_alikes(line).trim().to_owned(),
    }
}
