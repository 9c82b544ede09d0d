//! Code in Markdown: fences, and spans between backticks. What stands in them is shown as it is, whatever it looks like.

use super::scan::More;
use super::work::count;

/// A line that opens a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opener<'a> {
    mark: u8,
    length: usize,
    /// What stands behind the marks: the language.
    pub(super) info: &'a str,
    /// True when the line begins with the fence, not with a list or a quotation.
    pub(super) plain: bool,
}

/// The opener that a line is, if it is one.
pub(super) fn opener(line: &str) -> Option<Opener<'_>> {
    let inner = behind_markers(line);
    let mark = *inner.as_bytes().first().filter(|byte| matches!(byte, b'`' | b'~'))?;
    let length = inner.bytes().take_while(|byte| *byte == mark).count();
    let info = inner[length..].trim();
    let is_opener = length >= 3 && !(mark == b'`' && info.contains('`'));
    let plain = inner.len() == line.trim_start().len();
    is_opener.then_some(Opener { mark, length, info, plain })
}

/// True for a line that is nothing but marks and markers, so that it can become an opener.
pub(super) fn can_become_opener(line: &str) -> bool {
    let is_mark = |c: char| c.is_whitespace() || c.is_ascii_digit() || "`~>-*+.)".contains(c);
    line.chars().all(is_mark)
}

impl Opener<'_> {
    fn is_closed_by(&self, line: &str) -> bool {
        let inner = line.trim_matches(|c: char| c == '>' || c.is_whitespace());
        inner.len() >= self.length && inner.bytes().all(|byte| byte == self.mark)
    }

    /// Where the body that begins at `from` ends, and where the line of the closing fence ends, without its line break; none
    /// when it is not closed.
    pub(super) fn closed(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let mut at = from;
        while at < text.len() {
            let end = line_end(text, at);
            if self.is_closed_by(&text[at..end]) {
                return Some((at, end));
            }
            at = end + 1;
        }
        None
    }
}

/// Where the line at `at` ends: at its line break, or at the end of the text.
pub(super) fn line_end(text: &str, at: usize) -> usize {
    let end = text[at..].find('\n').map_or(text.len(), |length| at + length);
    count(end - at + 1);
    end
}

/// A line without its indentation and the marks of lists and quotations.
fn behind_markers(line: &str) -> &str {
    let mut inner = line.trim_start();
    loop {
        let digits = inner.bytes().take_while(u8::is_ascii_digit).count();
        let rest = match digits {
            0 => inner.strip_prefix(['>', '-', '*', '+']),
            1..=9 => inner[digits..].strip_prefix(['.', ')']),
            _ => None,
        };
        match rest {
            Some(rest) if inner.starts_with('>') || rest.starts_with([' ', '\t']) => inner = rest.trim_start(),
            _ => return inner,
        }
    }
}

/// Where spans between backticks end. Made in one pass; asked from left to right.
#[derive(Debug)]
pub(super) struct Spans {
    /// Runs of backticks: where, how many, and which later run is as long.
    runs: Vec<Run>,
    asked: usize,
    /// Where paragraphs end: a span does not go further.
    breaks: Vec<usize>,
    breaks_asked: usize,
}

#[derive(Debug)]
struct Run {
    start: usize,
    length: usize,
    next: Option<usize>,
}

/// What begins with a run of backticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Span {
    /// A span that ends there.
    Closed(usize),
    /// Nothing: its paragraph ends without another run of that length. The backticks end there.
    Never(usize),
    /// Nothing yet: the text ends before its paragraph does. The backticks end there.
    NotYet(usize),
}

impl Spans {
    /// Those of a text. If it goes on, backticks at its end do not close anything yet: more of them may come.
    pub(super) fn of(text: &str, more: More) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for (at, _) in text.match_indices('`') {
            match runs.last_mut() {
                Some(run) if run.start + run.length == at => run.length += 1,
                _ => runs.push(Run { start: at, length: 1, next: None }),
            }
        }
        let longest = runs.iter().map(|run| run.length).max().unwrap_or(0);
        let mut last_of_length = vec![None; longest + 1];
        for index in (0..runs.len()).rev() {
            let Run { start, length, .. } = runs[index];
            let may_grow = more == More::MayCome && start + length == text.len();
            runs[index].next = last_of_length[length];
            last_of_length[length] = if may_grow { None } else { Some(index) };
        }
        let mut breaks = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let end = line_end(text, at);
            let line = &text[at..end];
            if (line.trim().is_empty() && end < text.len()) || opener(line).is_some() {
                breaks.push(at);
            }
            at = end + 1;
        }
        count(text.len());
        Self { runs, asked: 0, breaks, breaks_asked: 0 }
    }

    /// What begins with the run at `at`, which is not less than it was before.
    pub(super) fn at(&mut self, at: usize) -> Span {
        while self.runs.get(self.asked).is_some_and(|run| run.start + run.length <= at) {
            count(1);
            self.asked += 1;
        }
        while self.breaks.get(self.breaks_asked).is_some_and(|end| *end <= at) {
            count(1);
            self.breaks_asked += 1;
        }
        let end_of_paragraph = self.breaks.get(self.breaks_asked).copied();
        let Some(run) = self.runs.get(self.asked) else {
            return Span::Never(at + 1);
        };
        let behind = run.start + run.length;
        let within = |next: &&Run| end_of_paragraph.is_none_or(|end| next.start < end);
        match run.next.and_then(|next| self.runs.get(next)).filter(within) {
            // After an escaped backtick the run is shorter than it stands there, and so is no opener of this length.
            Some(next) if run.start == at => Span::Closed(next.start + next.length),
            _ if end_of_paragraph.is_some() => Span::Never(behind),
            _ => Span::NotYet(behind),
        }
    }
}
