//! Finds Markdown code fences and inline code spans. Code is shown unchanged.

use super::ReplyCompleteness;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FenceOpener<'a> {
    mark: u8,
    length: usize,
    /// The text behind the marks: the language.
    pub(super) info: &'a str,
    /// True when the line begins with the fence, not with the marker of a list or quotation.
    pub(super) at_line_start: bool,
}

pub(super) fn parse_fence_opener(line: &str) -> Option<FenceOpener<'_>> {
    let inner = strip_block_markers(line);
    let mark = *inner.as_bytes().first().filter(|byte| matches!(byte, b'`' | b'~'))?;
    let length = inner.bytes().take_while(|byte| *byte == mark).count();
    let info = inner[length..].trim();
    let is_opener = length >= 3 && !(mark == b'`' && info.contains('`'));
    let plain = inner.len() == line.trim_start().len();
    is_opener.then_some(FenceOpener { mark, length, info, at_line_start: plain })
}

/// True for a line of nothing but marks and block markers, which more text can make an opener.
pub(super) fn may_become_fence_opener(line: &str) -> bool {
    let is_mark = |c: char| c.is_whitespace() || c.is_ascii_digit() || "`~>-*+.)".contains(c);
    line.chars().all(is_mark)
}

impl FenceOpener<'_> {
    fn is_closed_by(&self, line: &str) -> bool {
        let inner = line.trim_matches(|c: char| c == '>' || c.is_whitespace());
        inner.len() >= self.length && inner.bytes().all(|byte| byte == self.mark)
    }

    /// Returns where the body that begins at `from` ends, and where the line of the closing fence ends, without its
    /// line break. Returns `None` if the fence is not closed.
    pub(super) fn find_closing_fence(&self, text: &str, from: usize) -> Option<(usize, usize)> {
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

/// End of the line that contains `at`: its line break, or the end of the text.
pub(super) fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |length| at + length)
}

/// Strips the indentation and the markers of lists and quotations.
fn strip_block_markers(line: &str) -> &str {
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

/// Index of the code spans of a text.
#[derive(Debug)]
pub(super) struct CodeSpans {
    /// Runs of backticks. `next` is the index of the next run of the same length.
    runs: Vec<BacktickRun>,
    /// Offsets where paragraphs end. A code span does not cross them.
    paragraph_breaks: Vec<usize>,
}

#[derive(Debug)]
struct BacktickRun {
    start: usize,
    length: usize,
    next: Option<usize>,
}

/// What a run of backticks opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeSpan {
    /// A code span that ends at this offset.
    Closed(usize),
    /// No span: its paragraph has no other run of this length. The backticks end at this offset.
    Unclosed(usize),
    /// No span yet: the text ends before its paragraph does. The backticks end at this offset.
    Undecided(usize),
}

impl CodeSpans {
    /// Indexes a text. In a partial text, backticks at the very end close nothing yet: more of them may follow.
    pub(super) fn new(text: &str, completeness: ReplyCompleteness) -> Self {
        let mut runs: Vec<BacktickRun> = Vec::new();
        for (at, _) in text.match_indices('`') {
            match runs.last_mut() {
                Some(run) if run.start + run.length == at => run.length += 1,
                _ => runs.push(BacktickRun { start: at, length: 1, next: None }),
            }
        }
        let longest = runs.iter().map(|run| run.length).max().unwrap_or(0);
        let mut last_of_length = vec![None; longest + 1];
        for index in (0..runs.len()).rev() {
            let BacktickRun { start, length, .. } = runs[index];
            let may_grow = completeness == ReplyCompleteness::Partial && start + length == text.len();
            runs[index].next = last_of_length[length];
            last_of_length[length] = if may_grow { None } else { Some(index) };
        }
        let mut paragraph_breaks = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let end = line_end(text, at);
            let line = &text[at..end];
            if (line.trim().is_empty() && end < text.len()) || parse_fence_opener(line).is_some() {
                paragraph_breaks.push(at);
            }
            at = end + 1;
        }
        Self { runs, paragraph_breaks }
    }

    /// Classifies the run of backticks at `at`.
    pub(super) fn span_at(&self, at: usize) -> CodeSpan {
        let next_break = self.paragraph_breaks.partition_point(|end| *end <= at);
        let end_of_paragraph = self.paragraph_breaks.get(next_break).copied();
        let Some(run) = self.runs.get(self.runs.partition_point(|run| run.start + run.length <= at)) else {
            return CodeSpan::Unclosed(at + 1);
        };
        let behind = run.start + run.length;
        let within = |next: &&BacktickRun| end_of_paragraph.is_none_or(|end| next.start < end);
        match run.next.and_then(|next| self.runs.get(next)).filter(within) {
            // After an escaped backtick the run is shorter than indexed, so it is no opener of this length.
            Some(next) if run.start == at => CodeSpan::Closed(next.start + next.length),
            _ if end_of_paragraph.is_some() => CodeSpan::Unclosed(behind),
            _ => CodeSpan::Undecided(behind),
        }
    }
}
