//! Markdown as rows of a terminal. What it does not know (HTML, pictures) it shows as text; nothing of an answer is hidden.
//!
//! An answer that streams is rendered piece by piece: [`closed_until`] says up to where it cannot change any more.

mod table;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use self::table::Table;
use super::look::{CODE, PLAIN, QUIET, STRONG};
use super::text::{clean, wrap};

/// What models write besides the core of Markdown.
const OPTIONS: Options = Options::ENABLE_TABLES.union(Options::ENABLE_STRIKETHROUGH).union(Options::ENABLE_TASKLISTS);

/// Renders a piece of Markdown to rows of at most `most` columns.
pub(super) fn render(text: &str, most: usize) -> Vec<Line<'static>> {
    let text = clean(text);
    let mut page = Page { most: most.max(1), styles: vec![PLAIN], ..Page::default() };
    for event in Parser::new_ext(&text, OPTIONS) {
        page.take(event);
    }
    page.flush();
    page.rows
}

/// Length of the beginning of a text that later text cannot change any more: all but the last block of its whole lines. A
/// line that is not whole may yet turn out to belong to the block above it.
pub(super) fn closed_until(text: &str) -> usize {
    let text = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let (mut last, mut depth) = (0, 0_usize);
    for (event, range) in Parser::new_ext(text, OPTIONS).into_offset_iter() {
        if depth == 0 && !matches!(event, Event::End(_)) {
            last = range.start;
        }
        match event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    // What stands before a block in its first line, such as the margin of code, is part of it.
    text[..last].rfind('\n').map_or(0, |end| end + 1)
}

/// What stands before the rows of a block.
struct Margin {
    first: String,
    rest: String,
    used: bool,
}

impl Margin {
    fn new(first: String, rest: String) -> Self {
        Self { first, rest, used: false }
    }
}

/// The page while it is made.
#[derive(Default)]
struct Page {
    most: usize,
    rows: Vec<Line<'static>>,
    spans: Vec<Span<'static>>,
    styles: Vec<Style>,
    margins: Vec<Margin>,
    /// Number of the next item, or nothing for bullets; one per open list.
    lists: Vec<Option<u64>>,
    code: bool,
    link: Option<String>,
    table: Option<Table>,
}

impl Page {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.open(tag),
            Event::End(tag) => self.close(tag),
            Event::Text(text) if self.code => self.code_lines(&text),
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => self.say(&text, self.style()),
            Event::InlineMath(text) | Event::DisplayMath(text) => self.say(&text, self.style()),
            Event::Code(text) => self.say(&text, self.style().patch(CODE)),
            Event::FootnoteReference(name) => self.say(&format!("[{name}]"), self.style()),
            Event::SoftBreak => self.say(" ", self.style()),
            Event::HardBreak => self.flush(),
            Event::Rule => {
                self.gap();
                let room = self.room();
                self.put(Line::styled("─".repeat(room), QUIET));
            }
            Event::TaskListMarker(done) => self.say(if done { "[x] " } else { "[ ] " }, self.style()),
        }
    }

    fn style(&self) -> Style {
        self.styles.last().copied().unwrap_or_default()
    }

    fn say(&mut self, text: &str, style: Style) {
        match &mut self.table {
            Some(table) => table.say(text, style),
            None => self.spans.push(Span::styled(text.to_owned(), style)),
        }
    }

    fn open(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.gap(),
            Tag::Heading { level, .. } => {
                self.gap();
                let line = if level == HeadingLevel::H1 { Modifier::UNDERLINED } else { Modifier::empty() };
                self.styles.push(STRONG.add_modifier(line));
            }
            Tag::BlockQuote(_) => {
                self.gap();
                self.margins.push(Margin::new("▏ ".into(), "▏ ".into()));
                self.styles.push(self.style().patch(QUIET));
            }
            Tag::CodeBlock(kind) => {
                self.gap();
                if let CodeBlockKind::Fenced(language) = kind
                    && !language.is_empty()
                {
                    self.put(Line::styled(format!("  {language}"), QUIET));
                }
                self.code = true;
                self.margins.push(Margin::new("  ".into(), "  ".into()));
            }
            Tag::List(first) => {
                self.flush();
                if self.lists.is_empty() {
                    self.gap();
                }
                self.lists.push(first);
            }
            Tag::Item => self.item(),
            Tag::Emphasis => self.styles.push(self.style().add_modifier(Modifier::ITALIC)),
            Tag::Strong => self.styles.push(self.style().add_modifier(Modifier::BOLD)),
            Tag::Strikethrough => self.styles.push(self.style().add_modifier(Modifier::CROSSED_OUT)),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.link = Some(dest_url.into_string());
                self.styles.push(self.style().add_modifier(Modifier::UNDERLINED));
            }
            Tag::Table(_) => {
                self.gap();
                self.table = Some(Table::default());
            }
            Tag::TableCell => self.table.iter_mut().for_each(Table::cell),
            Tag::TableHead | Tag::TableRow => self.table.iter_mut().for_each(Table::row),
            _ => {}
        }
    }

    fn item(&mut self) {
        self.flush();
        let mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                let mark = format!("{number}. ");
                *number += 1;
                mark
            }
            _ => "• ".into(),
        };
        let rest = " ".repeat(super::text::width(&mark));
        self.margins.push(Margin::new(mark, rest));
    }

    fn close(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.flush(),
            TagEnd::Heading(_) => {
                self.flush();
                self.styles.pop();
            }
            TagEnd::BlockQuote(_) => {
                self.flush();
                self.margins.pop();
                self.styles.pop();
            }
            TagEnd::CodeBlock => {
                self.code = false;
                self.margins.pop();
            }
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::Item => {
                self.flush();
                // An item without text still shows its mark.
                if self.margins.last().is_some_and(|margin| !margin.used) {
                    self.put(Line::default());
                }
                self.margins.pop();
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => self.close_link(),
            TagEnd::Table => {
                let rows = self.table.take().map(|table| table.lay_out(self.room())).unwrap_or_default();
                rows.into_iter().for_each(|row| self.put(row));
            }
            _ => {}
        }
    }

    /// Says where a link leads, unless its text says so already.
    fn close_link(&mut self) {
        self.styles.pop();
        let Some(url) = self.link.take() else { return };
        let shown =
            self.spans.last().is_some_and(|span| span.content == url || format!("mailto:{}", span.content) == url);
        if !shown && !url.is_empty() {
            self.say(&format!(" ({url})"), QUIET);
        }
    }

    fn code_lines(&mut self, text: &str) {
        let room = self.room();
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            for row in wrap(&[Span::styled(line, CODE)], room) {
                self.put(row);
            }
        }
    }

    /// Columns between the margins.
    fn room(&self) -> usize {
        let taken: usize = self.margins.iter().map(|margin| super::text::width(&margin.rest)).sum();
        self.most.saturating_sub(taken).max(1)
    }

    /// Ends the paragraph that stands open.
    fn flush(&mut self) {
        if self.spans.is_empty() {
            return;
        }
        let spans = std::mem::take(&mut self.spans);
        for row in wrap(&spans, self.room()) {
            self.put(row);
        }
    }

    /// An empty row between blocks; none at the top, and none between the mark of an item and its text.
    fn gap(&mut self) {
        self.flush();
        let at_mark = self.margins.last().is_some_and(|margin| !margin.used && margin.first != margin.rest);
        if !self.rows.is_empty() && !at_mark {
            let margin: String = self.margins.iter().map(|margin| margin.rest.as_str()).collect();
            self.rows.push(Line::styled(margin.trim_end().to_owned(), QUIET));
        }
    }

    fn put(&mut self, mut row: Line<'static>) {
        let mut before = String::new();
        for margin in &mut self.margins {
            before.push_str(if margin.used { &margin.rest } else { &margin.first });
            margin.used = true;
        }
        if !before.is_empty() {
            row.spans.insert(0, Span::styled(before, QUIET));
        }
        self.rows.push(row);
    }
}

#[cfg(test)]
mod tests;
