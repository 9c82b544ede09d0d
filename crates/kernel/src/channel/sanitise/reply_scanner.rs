//! Scans a reply once from left to right and classifies each span as text, protocol or undecided.

use std::ops::Range;

use super::json::{JsonEnd, JsonScan, JsonShape, ToolMatch, scan_json_value};
use super::markdown_code::{CodeSpan, CodeSpans, line_end, may_become_fence_opener, parse_fence_opener};
use super::tags::{ClosingTags, TagClass, TagMatch, match_tag};
use super::{ReplyCompleteness, SanitiserRules};

#[derive(Debug)]
pub(super) struct ScannedReply {
    /// Protocol spans, in text order.
    pub(super) cuts: Vec<ProtocolSpan>,
    /// Offset from which the text is undecided. The length of the text when all of it is decided.
    pub(super) decided_until: usize,
    /// The reply contains something besides whitespace and protocol.
    pub(super) has_text: bool,
}

#[derive(Debug)]
pub(super) struct ProtocolSpan {
    pub(super) range: Range<usize>,
    pub(super) removal: RemovalRule,
    /// Text of the message, which is shown in its place.
    pub(super) replacement: Option<String>,
}

/// When protocol is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalRule {
    /// In any reply.
    Always,
    /// Only if the reply contains nothing else. Beside other text it is an example.
    OnlyWithoutText,
}

/// Class of a span, with the offset of its end.
#[derive(Debug)]
pub(super) enum SpanClass {
    Text(usize),
    Protocol {
        end: usize,
        removal: RemovalRule,
        kind: PrecedingContent,
        replacement: Option<String>,
    },
    /// Depends on text that has not arrived.
    Undecided,
}

impl SpanClass {
    /// A call, which is removed from any reply.
    pub(super) fn call(end: usize) -> Self {
        Self::removed(end, RemovalRule::Always)
    }

    /// A call, which is removed by this rule.
    pub(super) fn removed(end: usize, removal: RemovalRule) -> Self {
        Self::Protocol { end, removal, kind: PrecedingContent::Call, replacement: None }
    }

    /// Protocol without a call, which is removed from any reply.
    pub(super) fn other_protocol(end: usize) -> Self {
        let (removal, kind) = (RemovalRule::Always, PrecedingContent::Protocol);
        Self::Protocol { end, removal, kind, replacement: None }
    }
}

/// What precedes a position, apart from whitespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrecedingContent {
    /// Text, or the beginning of the reply.
    Text,
    /// Protocol without a call.
    Protocol,
    Call,
}

/// Scans a text in time linear in its length, but for binary searches. Text that is read ahead is also skipped, and the
/// ends of tags and code spans are indexed once, before the scan.
pub(super) fn scan_reply(text: &str, rules: &SanitiserRules<'_>, completeness: ReplyCompleteness) -> ScannedReply {
    let mut scanner = ReplyScanner {
        text,
        rules,
        completeness,
        closing_tags: ClosingTags::new(text),
        code_spans: CodeSpans::new(text, completeness),
        position: 0,
        line_content_start: 0,
        preceding: PrecedingContent::Text,
        after_blank_line: true,
        may_be_in_code_span: false,
        scanned: ScannedReply { cuts: Vec::new(), decided_until: text.len(), has_text: false },
    };
    while scanner.position < scanner.scanned.decided_until {
        scanner.step();
    }
    scanner.scanned
}

pub(super) struct ReplyScanner<'a> {
    pub(super) text: &'a str,
    pub(super) rules: &'a SanitiserRules<'a>,
    completeness: ReplyCompleteness,
    pub(super) closing_tags: ClosingTags,
    code_spans: CodeSpans,
    position: usize,
    /// Offset where the text of this line begins, or continues behind a cut.
    line_content_start: usize,
    preceding: PrecedingContent,
    /// The previous line was blank, or indented code.
    after_blank_line: bool,
    /// Inside a code span that may still be closed.
    may_be_in_code_span: bool,
    scanned: ScannedReply,
}

impl ReplyScanner<'_> {
    fn step(&mut self) {
        if self.position == 0 || self.text.as_bytes()[self.position - 1] == b'\n' {
            self.scan_line_start();
        } else {
            self.scan_within_line();
        }
    }

    pub(super) fn byte_at(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    /// Offset of the first character from `at` on that is no whitespace, or the end of the text.
    pub(super) fn skip_whitespace(&self, at: usize) -> usize {
        self.text.len() - self.text[at..].trim_start().len()
    }

    /// True when only whitespace or protocol precedes `at` on its line.
    pub(super) fn is_line_content_start(&self, at: usize) -> bool {
        self.line_content_start == at
    }

    /// True when text other than protocol was found so far.
    pub(super) fn has_text(&self) -> bool {
        self.scanned.has_text
    }

    pub(super) fn is_partial(&self) -> bool {
        self.completeness == ReplyCompleteness::Partial
    }

    pub(super) fn undecided_or(&self, otherwise: SpanClass) -> SpanClass {
        if self.is_partial() { SpanClass::Undecided } else { otherwise }
    }

    fn apply_span_class(&mut self, start: usize, class: SpanClass) {
        match class {
            SpanClass::Text(to) => {
                self.scanned.has_text = true;
                self.preceding = PrecedingContent::Text;
                self.position = to;
            }
            // Undecided too while an open code span may still enclose it.
            SpanClass::Protocol { .. } if self.may_be_in_code_span => self.scanned.decided_until = start,
            SpanClass::Protocol { end, removal, kind, replacement } => {
                self.scanned.has_text |= replacement.is_some();
                self.scanned.cuts.push(ProtocolSpan { range: start..end, removal, replacement });
                (self.position, self.line_content_start, self.preceding) = (end, end, kind);
            }
            SpanClass::Undecided => self.scanned.decided_until = start,
        }
    }

    fn scan_line_start(&mut self) {
        let (start, end) = (self.position, line_end(self.text, self.position));
        let line = &self.text[start..end];
        let inner = line.trim_start();
        let indentation = line.len() - inner.len();
        let is_code = indentation >= 4 || line.starts_with('\t');
        if inner.is_empty() {
            self.after_blank_line = true;
            self.position = (end + 1).min(self.text.len());
        } else if let Some(opener) = parse_fence_opener(line) {
            self.after_blank_line = false;
            let class = self.classify_fence(opener, end);
            self.apply_span_class(start, class);
        } else if end == self.text.len() && self.is_partial() && may_become_fence_opener(line) {
            self.scanned.decided_until = start;
        } else if is_code && self.after_blank_line && self.scanned.has_text {
            self.apply_span_class(start, SpanClass::Text(end));
        } else {
            self.after_blank_line = false;
            self.position = start + indentation;
            self.line_content_start = self.position;
            match self.byte_at(self.position) {
                Some(b'{' | b'[') => self.scan_bracket(),
                _ => self.scan_within_line(),
            }
        }
    }

    fn scan_within_line(&mut self) {
        let start = self.position;
        match self.byte_at(start) {
            Some(b'\n') => self.position += 1,
            Some(byte) if byte.is_ascii_whitespace() => {
                self.line_content_start += usize::from(self.line_content_start == start);
                self.position += 1;
            }
            Some(b'{' | b'[') if self.is_line_content_start(start) && self.preceding != PrecedingContent::Text => {
                self.scan_bracket()
            }
            Some(b'\\') if matches!(self.byte_at(start + 1), Some(b'`' | b'<')) => {
                self.apply_span_class(start, SpanClass::Text(start + 2))
            }
            Some(b'`') => self.scan_backticks(),
            Some(b'<') => self.scan_tag(),
            _ => {
                let rest = &self.text.as_bytes()[start + 1..];
                let length = rest.iter().take_while(|byte| !matches!(byte, b'\n' | b'\\' | b'`' | b'<')).count();
                self.apply_span_class(start, SpanClass::Text(start + 1 + length));
            }
        }
    }

    fn scan_backticks(&mut self) {
        let to = match self.code_spans.span_at(self.position) {
            CodeSpan::Closed(to) | CodeSpan::Unclosed(to) => to,
            CodeSpan::Undecided(to) => {
                self.may_be_in_code_span = self.is_partial();
                to
            }
        };
        self.apply_span_class(self.position, SpanClass::Text(to));
    }

    fn scan_tag(&mut self) {
        let start = self.position;
        let class = match match_tag(self.text, start) {
            TagMatch::Text => SpanClass::Text(start + 1),
            TagMatch::Partial => self.undecided_or(SpanClass::Text(start + 1)),
            // A closing tag without an opening tag is a remainder of the protocol that was removed just before.
            TagMatch::Tag(tag) if tag.closing && self.preceding != PrecedingContent::Text => SpanClass::Protocol {
                end: tag.end,
                removal: RemovalRule::Always,
                kind: self.preceding,
                replacement: None,
            },
            TagMatch::Tag(tag) if tag.closing => SpanClass::Text(tag.end),
            TagMatch::Tag(tag) => match tag.class {
                TagClass::Think => self.classify_thought(start, &tag),
                TagClass::Result => self.classify_tool_result(start, &tag),
                TagClass::Call | TagClass::Invoke | TagClass::Tool => self.classify_call(start, &tag),
                TagClass::CallPart => SpanClass::Text(tag.end),
            },
        };
        self.apply_span_class(start, class);
    }

    /// Handles a bracket at the beginning of a line: a header, or a JSON value.
    fn scan_bracket(&mut self) {
        let start = self.position;
        let class = self.classify_header(start).unwrap_or_else(|| self.classify_bare_json(start));
        self.apply_span_class(start, class);
    }

    fn classify_bare_json(&self, start: usize) -> SpanClass {
        let value = scan_json_value(self.text, start, self.rules);
        match value.end {
            JsonEnd::Complete(end) => self.classify_complete_json(end, value),
            JsonEnd::Unfinished if value.is_torn_protocol() => self.undecided_or(SpanClass::call(self.text.len())),
            JsonEnd::Unfinished if value.has_foreign_keys => SpanClass::Text(self.text.len()),
            JsonEnd::Unfinished => self.undecided_or(SpanClass::Text(self.text.len())),
            JsonEnd::Invalid(at) if value.is_torn_protocol() => self.classify_broken_call(at),
            JsonEnd::Invalid(at) => SpanClass::Text(at.max(start + 1)),
        }
    }

    fn classify_complete_json(&self, end: usize, JsonScan { shape, .. }: JsonScan) -> SpanClass {
        let is_protocol = match shape {
            JsonShape::Call(ToolMatch::Known) | JsonShape::Message(..) | JsonShape::ToolResult => true,
            JsonShape::BareOutput => self.preceding == PrecedingContent::Call,
            JsonShape::Call(ToolMatch::Unknown) | JsonShape::Other => false,
        };
        if !is_protocol {
            return SpanClass::Text(end);
        }
        let rest = self.text.as_bytes()[end..].iter();
        let blanks = rest.take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r')).count();
        match (self.byte_at(end + blanks), shape) {
            (None, _) if self.is_partial() => SpanClass::Undecided,
            (None | Some(b'\n' | b'{' | b'[' | b'<'), JsonShape::Message(ToolMatch::Unknown, _)) => {
                SpanClass::removed(end, RemovalRule::OnlyWithoutText)
            }
            (None | Some(b'\n' | b'{' | b'[' | b'<'), JsonShape::Message(ToolMatch::Known, Some(text)))
                // Keep the text of the message, unless it contains protocol itself.
                if scan_reply(&text, self.rules, ReplyCompleteness::Complete).cuts.is_empty() =>
            {
                let (removal, kind) = (RemovalRule::Always, PrecedingContent::Call);
                SpanClass::Protocol { end, removal, kind, replacement: Some(text) }
            }
            (None | Some(b'\n' | b'{' | b'[' | b'<'), _) => SpanClass::call(end),
            _ => SpanClass::Text(end),
        }
    }

    /// Finds the end of a call that is no JSON from `at` on: the end of that line and of following lines that look like
    /// JSON.
    pub(super) fn classify_broken_call(&self, at: usize) -> SpanClass {
        let mut end = line_end(self.text, at);
        while end < self.text.len() {
            let next = line_end(self.text, end + 1);
            let line = self.text[end + 1..next].trim_start();
            if !line.starts_with(['{', '}', '[', ']', '"', ',', ':']) {
                return SpanClass::call(end);
            }
            end = next;
        }
        self.undecided_or(SpanClass::call(end))
    }
}
