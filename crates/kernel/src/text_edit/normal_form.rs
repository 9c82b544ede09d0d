//! A text in a form in which small differences vanish, with the place of each byte in the original.

use std::ops::Range;

use super::find_all;

/// What the form leaves out. Each one includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Folding {
    LineEndings,
    TrailingSpace,
    LookAlikes,
}

pub(super) struct NormalText {
    text: String,
    /// For each byte of `text`, where its character begins in the original; at last the length of the original.
    starts: Vec<usize>,
    /// For each byte of `text`, where its character ends in the original.
    ends: Vec<usize>,
    folding: Folding,
}

impl NormalText {
    pub(super) fn new(original: &str, folding: Folding) -> Self {
        let mut normal = Self { text: String::new(), starts: Vec::new(), ends: Vec::new(), folding };
        let mut offset = 0;
        for line in original.split_inclusive('\n') {
            let (content, has_end) = match line.strip_suffix('\n') {
                Some(content) => (content.strip_suffix('\r').unwrap_or(content), true),
                None => (line, false),
            };
            let kept = if folding >= Folding::TrailingSpace { content.trim_end() } else { content };
            for (at, c) in kept.char_indices() {
                normal.push(c, offset + at..offset + at + c.len_utf8());
            }
            if has_end {
                normal.push('\n', offset + kept.len()..offset + line.len());
            }
            offset += line.len();
        }
        normal
    }

    /// The places in the original whose form is that of `wanted`.
    pub(super) fn find_all(&self, wanted: &str) -> Vec<Range<usize>> {
        let wanted = Self::new(wanted, self.folding).text;
        if wanted.trim().is_empty() {
            return Vec::new();
        }
        find_all(&self.text, &wanted)
            .into_iter()
            .map(|found| self.starts[found.start]..self.ends[found.end - 1])
            .collect()
    }

    fn push(&mut self, c: char, place: Range<usize>) {
        let before = self.text.len();
        if self.folding >= Folding::LookAlikes {
            push_folded(c, &mut self.text)
        } else {
            self.text.push(c)
        }
        let added = self.text.len() - before;
        self.starts.extend(std::iter::repeat_n(place.start, added));
        self.ends.extend(std::iter::repeat_n(place.end, added));
    }
}

/// Replaces characters that look like ASCII ones by those.
pub(crate) fn fold_look_alikes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push_folded(c, &mut out));
    out
}

fn push_folded(c: char, out: &mut String) {
    match c {
        '\u{2018}'..='\u{201b}' | '\u{2032}' => out.push('\''),
        '\u{201c}'..='\u{201f}' | '\u{2033}' => out.push('"'),
        '\u{2010}'..='\u{2015}' | '\u{2212}' => out.push('-'),
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => out.push(' '),
        '\u{2026}' => out.push_str("..."),
        // Invisible.
        '\u{200b}' | '\u{2060}' | '\u{feff}' => {}
        c => out.push(c),
    }
}
