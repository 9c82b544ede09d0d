//! Render Markdown to terminal rows, incrementally while an answer streams. Unknown parts (HTML, images) are shown as
//! text; nothing of an answer is hidden.
//!
//! [`stable_prefix_len`] finds the beginning that later text cannot change.

mod table;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};

use self::table::MarkdownTableRows;
use crate::text_layout::{sanitize, wrap};
use crate::theme::{CODE_STYLE, PLAIN_STYLE, QUIET_STYLE, STRONG_STYLE};

/// Extensions of Markdown that models use.
const PARSER_OPTIONS: Options =
    Options::ENABLE_TABLES.union(Options::ENABLE_STRIKETHROUGH).union(Options::ENABLE_TASKLISTS);

/// Renders Markdown to rows of at most `max_width` columns.
pub(crate) fn render(text: &str, max_width: usize) -> Vec<Line<'static>> {
    let text = sanitize(text);
    let mut renderer =
        MarkdownRows { max_width: max_width.max(1), styles: vec![PLAIN_STYLE], ..MarkdownRows::default() };
    for event in Parser::new_ext(&text, PARSER_OPTIONS) {
        renderer.handle_event(event);
    }
    renderer.flush_paragraph();
    renderer.rows
}

/// Length in bytes of the beginning that later text cannot change: all complete lines except the last block. An
/// incomplete line may still become part of the block above it.
pub(crate) fn stable_prefix_len(text: &str) -> usize {
    let text = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let (mut last, mut depth) = (0, 0_usize);
    for (event, range) in Parser::new_ext(text, PARSER_OPTIONS).into_offset_iter() {
        if depth == 0 && !matches!(event, Event::End(_)) {
            last = range.start;
        }
        match event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    // Indentation before a block in its first line, such as that of code, is part of the block.
    text[..last].rfind('\n').map_or(0, |end| end + 1)
}

/// Prefixes of the rows of a block: first row and other rows.
struct BlockMargin {
    first: String,
    rest: String,
    used: bool,
}

impl BlockMargin {
    fn new(first: String, rest: String) -> Self {
        Self { first, rest, used: false }
    }
}

#[derive(Default)]
struct MarkdownRows {
    max_width: usize,
    rows: Vec<Line<'static>>,
    spans: Vec<Span<'static>>,
    styles: Vec<Style>,
    margins: Vec<BlockMargin>,
    /// Number of the next item, none for bullets; one element per open list.
    lists: Vec<Option<u64>>,
    in_code_block: bool,
    link_url: Option<String>,
    table: Option<MarkdownTableRows>,
}

impl MarkdownRows {
    fn handle_event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.open_tag(tag),
            Event::End(tag) => self.close_tag(tag),
            Event::Text(text) if self.in_code_block => self.push_code_lines(&text),
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => {
                self.push_text(&text, self.current_style())
            }
            Event::InlineMath(text) | Event::DisplayMath(text) => self.push_text(&text, self.current_style()),
            Event::Code(text) => self.push_text(&text, self.current_style().patch(CODE_STYLE)),
            Event::FootnoteReference(name) => self.push_text(&format!("[{name}]"), self.current_style()),
            Event::SoftBreak => self.push_text(" ", self.current_style()),
            Event::HardBreak => self.flush_paragraph(),
            Event::Rule => {
                self.push_gap();
                let room = self.available_width();
                self.push_row(Line::styled("─".repeat(room), QUIET_STYLE));
            }
            Event::TaskListMarker(done) => self.push_text(if done { "[x] " } else { "[ ] " }, self.current_style()),
        }
    }

    fn current_style(&self) -> Style {
        self.styles.last().copied().unwrap_or_default()
    }

    fn push_text(&mut self, text: &str, style: Style) {
        match &mut self.table {
            Some(table) => table.push_text(text, style),
            None => self.spans.push(Span::styled(text.to_owned(), style)),
        }
    }

    fn open_tag(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.push_gap(),
            Tag::Heading { level, .. } => {
                self.push_gap();
                let line = if level == HeadingLevel::H1 { Modifier::UNDERLINED } else { Modifier::empty() };
                self.styles.push(STRONG_STYLE.add_modifier(line));
            }
            Tag::BlockQuote(_) => {
                self.push_gap();
                self.margins.push(BlockMargin::new("▏ ".into(), "▏ ".into()));
                self.styles.push(self.current_style().patch(QUIET_STYLE));
            }
            Tag::CodeBlock(kind) => {
                self.push_gap();
                if let CodeBlockKind::Fenced(language) = kind
                    && !language.is_empty()
                {
                    self.push_row(Line::styled(format!("  {language}"), QUIET_STYLE));
                }
                self.in_code_block = true;
                self.margins.push(BlockMargin::new("  ".into(), "  ".into()));
            }
            Tag::List(first) => {
                self.flush_paragraph();
                if self.lists.is_empty() {
                    self.push_gap();
                }
                self.lists.push(first);
            }
            Tag::Item => self.open_item(),
            Tag::Emphasis => self.styles.push(self.current_style().add_modifier(Modifier::ITALIC)),
            Tag::Strong => self.styles.push(self.current_style().add_modifier(Modifier::BOLD)),
            Tag::Strikethrough => self.styles.push(self.current_style().add_modifier(Modifier::CROSSED_OUT)),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.link_url = Some(dest_url.into_string());
                self.styles.push(self.current_style().add_modifier(Modifier::UNDERLINED));
            }
            Tag::Table(_) => {
                self.push_gap();
                self.table = Some(MarkdownTableRows::default());
            }
            Tag::TableCell => self.table.iter_mut().for_each(MarkdownTableRows::start_cell),
            Tag::TableHead | Tag::TableRow => self.table.iter_mut().for_each(MarkdownTableRows::start_row),
            _ => {}
        }
    }

    fn open_item(&mut self) {
        self.flush_paragraph();
        let mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                let mark = format!("{number}. ");
                *number += 1;
                mark
            }
            _ => "• ".into(),
        };
        let rest = " ".repeat(crate::text_layout::display_width(&mark));
        self.margins.push(BlockMargin::new(mark, rest));
    }

    fn close_tag(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.flush_paragraph(),
            TagEnd::Heading(_) => {
                self.flush_paragraph();
                self.styles.pop();
            }
            TagEnd::BlockQuote(_) => {
                self.flush_paragraph();
                self.margins.pop();
                self.styles.pop();
            }
            TagEnd::CodeBlock => {
                self.in_code_block = false;
                self.margins.pop();
            }
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::Item => {
                self.flush_paragraph();
                // An item without text still shows its bullet or number.
                if self.margins.last().is_some_and(|margin| !margin.used) {
                    self.push_row(Line::default());
                }
                self.margins.pop();
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => self.close_link(),
            TagEnd::Table => {
                let rows = self.table.take().map(|table| table.into_rows(self.available_width())).unwrap_or_default();
                rows.into_iter().for_each(|row| self.push_row(row));
            }
            _ => {}
        }
    }

    /// Appends the URL of a link, unless its text is the URL.
    fn close_link(&mut self) {
        self.styles.pop();
        let Some(url) = self.link_url.take() else { return };
        let shown =
            self.spans.last().is_some_and(|span| span.content == url || format!("mailto:{}", span.content) == url);
        if !shown && !url.is_empty() {
            self.push_text(&format!(" ({url})"), QUIET_STYLE);
        }
    }

    fn push_code_lines(&mut self, text: &str) {
        let room = self.available_width();
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            for row in wrap(&[Span::styled(line, CODE_STYLE)], room) {
                self.push_row(row);
            }
        }
    }

    /// Columns left between the margins.
    fn available_width(&self) -> usize {
        let taken: usize = self.margins.iter().map(|margin| crate::text_layout::display_width(&margin.rest)).sum();
        self.max_width.saturating_sub(taken).max(1)
    }

    fn flush_paragraph(&mut self) {
        if self.spans.is_empty() {
            return;
        }
        let spans = std::mem::take(&mut self.spans);
        for row in wrap(&spans, self.available_width()) {
            self.push_row(row);
        }
    }

    /// Inserts an empty row between blocks; none at the top, and none between an item's bullet and its text.
    fn push_gap(&mut self) {
        self.flush_paragraph();
        let at_mark = self.margins.last().is_some_and(|margin| !margin.used && margin.first != margin.rest);
        if !self.rows.is_empty() && !at_mark {
            let margin: String = self.margins.iter().map(|margin| margin.rest.as_str()).collect();
            self.rows.push(Line::styled(margin.trim_end().to_owned(), QUIET_STYLE));
        }
    }

    fn push_row(&mut self, mut row: Line<'static>) {
        let mut before = String::new();
        for margin in &mut self.margins {
            before.push_str(if margin.used { &margin.rest } else { &margin.first });
            margin.used = true;
        }
        if !before.is_empty() {
            row.spans.insert(0, Span::styled(before, QUIET_STYLE));
        }
        self.rows.push(row);
    }
}

#[cfg(test)]
mod tests;
