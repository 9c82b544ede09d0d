//! Parse Markdown into the token stream; keep what the grammar would drop as text.
//!
//! The grammar drops definitions of links, for example. HTML is kept as text, too, except line breaks and tags of
//! letter styles.

use std::ops::Range;
use std::rc::Rc;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::cjk::{self, JOINER};
use super::document::{BlockSeparator, DocumentElement, DocumentLink, DocumentToken, TableRow, longest_backtick_run};
use super::has_visible_text;

/// Extensions that models use.
const PARSER_OPTIONS: Options =
    Options::ENABLE_TABLES.union(Options::ENABLE_STRIKETHROUGH).union(Options::ENABLE_TASKLISTS);
/// Deeper nesting is flattened.
const MAX_DEPTH: usize = 24;
/// Longest name of a programming language, in bytes.
const MAX_LANGUAGE_BYTES: usize = 32;

pub(super) fn parse_markdown(markdown: &str) -> Vec<DocumentToken> {
    let source = cjk::insert_joiners(markdown);
    let mut reader = MarkdownReader::new(&source);
    for (event, range) in Parser::new_ext(&source, PARSER_OPTIONS).into_offset_iter() {
        reader.handle_event(event, range);
    }
    reader.emit_skipped_definitions(source.len());
    reader.tokens
}

/// Parses a text as literal text, without Markdown.
pub(super) fn parse_literal(text: &str) -> Vec<DocumentToken> {
    let mut reader = MarkdownReader::new(text);
    reader.add_text(text);
    reader.tokens
}

struct MarkdownReader<'a> {
    source: &'a str,
    tokens: Vec<DocumentToken>,
    open_frames: Vec<ParserFrame>,
    /// Number of open frames that hold only text.
    open_leaf_count: usize,
    /// Next number of each open list, if it is numbered.
    list_numbers: Vec<Option<u64>>,
    /// The last content in the open block.
    last_content: LastContent,
    /// The source is read up to this byte.
    source_offset: usize,
    row_kind: TableRow,
    in_cell: bool,
    /// The source of the current row is read up to this byte.
    cell_end: usize,
    /// Index of the first token of the open code block.
    code_start: usize,
}

/// The last content on a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastContent {
    Empty,
    Text,
    Heading,
    Block,
}

/// An element of the source that is open.
struct ParserFrame {
    kind: FrameKind,
    /// Whether it is also open in the tokens.
    is_emitted: bool,
}

enum FrameKind {
    /// A block that holds blocks.
    Container,
    List,
    /// A block that holds text, and the value of `last_content` after it.
    Leaf(LastContent),
    Code,
    Inline,
    /// An HTML tag by its name.
    Html(&'static str),
    /// The link, and the position at which its label begins.
    Link(Rc<DocumentLink>, TokenMark),
}

impl<'a> MarkdownReader<'a> {
    fn new(source: &'a str) -> Self {
        Self {
            source,
            tokens: Vec::new(),
            open_frames: Vec::new(),
            open_leaf_count: 0,
            list_numbers: Vec::new(),
            last_content: LastContent::Empty,
            source_offset: 0,
            row_kind: TableRow::Body,
            in_cell: false,
            cell_end: 0,
            code_start: 0,
        }
    }

    fn handle_event(&mut self, event: Event<'_>, range: Range<usize>) {
        let in_leaf = self.open_leaf_count > 0;
        let starts = matches!(event, Event::Start(_));
        if !in_leaf {
            self.emit_skipped_definitions(if matches!(event, Event::End(_)) { range.end } else { range.start });
        }
        match event {
            Event::Start(tag) => self.start_tag(tag, range.start),
            Event::End(TagEnd::TableHead | TagEnd::TableRow) => self.end_row(range.end),
            Event::End(TagEnd::TableCell) => self.end_cell(range.end),
            Event::End(_) => self.end_tag(),
            Event::Text(text) | Event::InlineMath(text) | Event::DisplayMath(text) => self.add_text(&text),
            Event::Html(text) => self.add_text(if is_line_break_tag(&text) { "\n" } else { &text }),
            Event::InlineHtml(text) => self.handle_html_tag(&text),
            Event::Code(text) => {
                self.open_element(DocumentElement::Code(longest_backtick_run(&text)), FrameKind::Inline);
                self.add_text(&text);
                self.end_tag();
            }
            Event::FootnoteReference(name) => self.add_text(&format!("[{name}]")),
            Event::SoftBreak | Event::HardBreak => self.add_text("\n"),
            Event::Rule => {
                self.separate_from_previous();
                self.tokens.push(DocumentToken::Rule);
                self.last_content = LastContent::Block;
            }
            Event::TaskListMarker(done) => self.add_text(if done { "☑ " } else { "☐ " }),
        }
        if self.open_leaf_count == 0 {
            self.source_offset = self.source_offset.max(if starts { range.start } else { range.end });
        }
    }

    /// Emits definitions of links, which the grammar drops, between the offset and `until`.
    fn emit_skipped_definitions(&mut self, until: usize) {
        let Some(between) = self.source.get(self.source_offset..until) else { return };
        if let Some(at) = between.find('[')
            && between[at..].contains("]:")
        {
            self.start_block(DocumentElement::Paragraph, FrameKind::Leaf(LastContent::Block));
            self.add_text(between[at..].trim_end());
            self.end_tag();
        }
        self.source_offset = until;
    }

    fn start_tag(&mut self, tag: Tag<'_>, start: usize) {
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => {
                self.start_block(DocumentElement::Paragraph, FrameKind::Leaf(LastContent::Block))
            }
            Tag::Heading { level, .. } => {
                self.start_block(DocumentElement::Heading(heading_level(level)), FrameKind::Leaf(LastContent::Heading))
            }
            Tag::BlockQuote(_) => self.start_block(DocumentElement::Quote, FrameKind::Container),
            Tag::CodeBlock(CodeBlockKind::Fenced(words)) => self.start_code_block(fence_language(&words)),
            Tag::CodeBlock(CodeBlockKind::Indented) => self.start_code_block(""),
            Tag::List(first) => {
                self.start_block(DocumentElement::List(first), FrameKind::List);
                self.list_numbers.push(first);
            }
            Tag::Item => self.start_item(),
            Tag::Table(columns) => {
                self.row_kind = TableRow::Head { columns: columns.len() };
                self.start_block(
                    DocumentElement::Table { columns: columns.len() },
                    FrameKind::Leaf(LastContent::Block),
                );
            }
            Tag::TableHead | Tag::TableRow => self.start_row(start),
            Tag::TableCell => self.start_cell(),
            Tag::Emphasis => self.open_element(DocumentElement::Emphasis, FrameKind::Inline),
            Tag::Strong => self.open_element(DocumentElement::Strong, FrameKind::Inline),
            Tag::Strikethrough => self.open_element(DocumentElement::Strike, FrameKind::Inline),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => self.start_link(&dest_url),
            Tag::FootnoteDefinition(_)
            | Tag::DefinitionList
            | Tag::DefinitionListTitle
            | Tag::DefinitionListDefinition
            | Tag::Superscript
            | Tag::Subscript
            | Tag::MetadataBlock(_) => self.push_frame(FrameKind::Inline, false),
        }
    }

    fn start_block(&mut self, element: DocumentElement, kind: FrameKind) {
        self.close_open_html();
        if self.last_content == LastContent::Text && matches!(element, DocumentElement::List(_)) {
            self.push_separator(BlockSeparator::Item);
        } else {
            self.separate_from_previous();
        }
        self.open_element(element, kind);
        self.last_content = LastContent::Empty;
    }

    fn separate_from_previous(&mut self) {
        match self.last_content {
            LastContent::Empty => {}
            LastContent::Heading => self.push_separator(BlockSeparator::Heading),
            LastContent::Text | LastContent::Block => self.push_separator(BlockSeparator::Block),
        }
    }

    fn start_code_block(&mut self, language: &str) {
        self.start_block(
            DocumentElement::CodeBlock { language: language.into(), longest_backticks: 0 },
            FrameKind::Code,
        );
        self.code_start = self.tokens.len();
    }

    fn start_item(&mut self) {
        if self.last_content != LastContent::Empty {
            self.push_separator(BlockSeparator::Item);
        }
        let number = self.list_numbers.last().copied().flatten();
        self.open_element(DocumentElement::Item(number), FrameKind::Container);
        if let Some(Some(number)) = self.list_numbers.last_mut() {
            *number = number.saturating_add(1);
        }
        self.last_content = LastContent::Empty;
    }

    fn start_row(&mut self, start: usize) {
        self.cell_end = start;
        if self.row_kind == TableRow::Body {
            self.push_separator(BlockSeparator::Item);
        }
        self.open_element(DocumentElement::Row(self.row_kind), FrameKind::Inline);
    }

    fn start_cell(&mut self) {
        self.in_cell = true;
        let first = matches!(self.tokens.last(), Some(DocumentToken::Open(DocumentElement::Row(_))));
        if self.open_frames.last().is_some_and(|row| !row.is_emitted) {
            self.add_text(" ");
        }
        self.open_element(DocumentElement::Cell { row: self.row_kind, first }, FrameKind::Inline);
    }

    fn end_cell(&mut self, at: usize) {
        self.end_tag();
        self.in_cell = false;
        self.cell_end = at;
    }

    /// Adds the cells for which the head has no column: the grammar drops them.
    fn end_row(&mut self, at: usize) {
        let rest = self.source.get(self.cell_end..at).unwrap_or_default();
        let rest = rest.trim_matches(|c: char| c == '|' || c.is_whitespace());
        if !rest.is_empty() {
            self.start_cell();
            self.add_text(rest);
            self.end_cell(at);
        }
        self.end_tag();
        self.row_kind = TableRow::Body;
    }

    fn start_link(&mut self, url: &str) {
        let url: String = url.chars().filter(|c| !(c.is_control() || *c == JOINER)).collect();
        let is_linkable = ["http://", "https://", "mailto:"].iter().any(|scheme| {
            url.len() > scheme.len() && url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        });
        let label_mark = self.token_mark();
        let link = Rc::new(DocumentLink { address_text: format!(" ({url})"), url, is_bare: false });
        if is_linkable {
            self.open_element(DocumentElement::Link(Rc::clone(&link)), FrameKind::Link(link, label_mark));
        } else {
            self.push_frame(FrameKind::Link(link, label_mark), false);
        }
    }

    fn open_element(&mut self, element: DocumentElement, kind: FrameKind) {
        // Lists and tables are useless without their content, so leave room for it. A table without room for its rows
        // and cells becomes text as a whole.
        let is_emitted = match element {
            DocumentElement::Row(_) | DocumentElement::Cell { .. } => {
                self.open_frames.last().is_some_and(|parent| parent.is_emitted)
            }
            DocumentElement::Table { .. } => self.open_frames.len() + 5 < MAX_DEPTH,
            _ => self.open_frames.len() + if element.is_inline() { 0 } else { 3 } < MAX_DEPTH,
        };
        if is_emitted {
            self.tokens.push(DocumentToken::Open(element));
        }
        self.push_frame(kind, is_emitted);
    }

    fn push_frame(&mut self, kind: FrameKind, is_emitted: bool) {
        self.open_leaf_count += usize::from(kind.is_leaf());
        self.open_frames.push(ParserFrame { kind, is_emitted });
    }

    fn end_tag(&mut self) {
        self.close_open_html();
        self.pop_frame();
    }

    /// Closes HTML tags that the source did not close.
    fn close_open_html(&mut self) {
        while matches!(self.open_frames.last(), Some(ParserFrame { kind: FrameKind::Html(_), .. })) {
            self.pop_frame();
        }
    }

    fn pop_frame(&mut self) {
        let Some(frame) = self.open_frames.pop() else { return };
        self.open_leaf_count -= usize::from(frame.kind.is_leaf());
        let mut address = None;
        match frame.kind {
            FrameKind::Inline | FrameKind::Html(_) => {}
            FrameKind::Container => self.last_content = LastContent::Block,
            FrameKind::Leaf(last) => self.last_content = last,
            FrameKind::List => {
                self.list_numbers.pop();
                self.last_content = LastContent::Block;
            }
            FrameKind::Code => self.end_code_block(),
            FrameKind::Link(link, label) => address = self.end_link(link, label),
        }
        if frame.is_emitted {
            self.tokens.push(DocumentToken::Close);
        }
        match address {
            Some(address) if frame.is_emitted => self.tokens.push(DocumentToken::Address(address)),
            Some(link) => self.add_text(&link.address_text),
            None => {}
        }
    }

    fn end_code_block(&mut self) {
        self.last_content = LastContent::Block;
        while matches!(self.tokens.last(), Some(DocumentToken::Separator(BlockSeparator::Line))) {
            self.tokens.pop();
        }
        let texts = self.tokens[self.code_start..].iter().filter_map(DocumentToken::text);
        let most = texts.map(longest_backtick_run).max().unwrap_or(0);
        if let Some(DocumentToken::Open(DocumentElement::CodeBlock { longest_backticks: ticks, .. })) =
            self.tokens[..self.code_start].last_mut()
        {
            *ticks = most;
        }
    }

    /// Returns the link if its label does not show the address.
    fn end_link(&mut self, link: Rc<DocumentLink>, label_mark: TokenMark) -> Option<Rc<DocumentLink>> {
        let words = self.text_since(label_mark);
        let is_label_invisible = !has_visible_text(&words);
        if is_label_invisible {
            self.add_text(&link.url);
        }
        let is_address_visible = is_label_invisible
            || link.url.is_empty()
            || words == link.url
            || link.url.strip_prefix("mailto:") == Some(&words);
        if !(is_label_invisible || words.contains("://")) {
            return (!is_address_visible).then_some(link);
        }
        let bare =
            Rc::new(DocumentLink { url: link.url.clone(), address_text: link.address_text.clone(), is_bare: true });
        if let Some(DocumentToken::Open(DocumentElement::Link(open))) = self.tokens.get_mut(label_mark.token)
            && Rc::ptr_eq(open, &link)
        {
            *open = Rc::clone(&bare);
        }
        (!is_address_visible).then_some(bare)
    }

    fn token_mark(&self) -> TokenMark {
        let byte = self.tokens.last().and_then(DocumentToken::text).map_or(0, str::len);
        TokenMark { token: self.tokens.len(), byte }
    }

    fn text_since(&self, since: TokenMark) -> String {
        let (before, after) = self.tokens.split_at(since.token);
        let continued = before.last().and_then(DocumentToken::text).and_then(|words| words.get(since.byte..));
        continued.into_iter().chain(after.iter().filter_map(DocumentToken::text)).collect()
    }

    /// Adds text; each line break becomes a separator.
    fn add_text(&mut self, text: &str) {
        self.last_content = LastContent::Text;
        for (number, line) in text.split('\n').enumerate() {
            let line: String = line.chars().filter(|c| *c == '\t' || !(c.is_control() || *c == JOINER)).collect();
            if number > 0 {
                if self.in_cell { self.append_text(" ") } else { self.push_separator(BlockSeparator::Line) }
            }
            self.append_text(&line);
        }
    }

    fn append_text(&mut self, words: &str) {
        if words.is_empty() {
            return;
        }
        match self.tokens.last_mut() {
            Some(DocumentToken::Text(text)) => text.push_str(words),
            _ => self.tokens.push(DocumentToken::Text(words.to_owned())),
        }
    }

    fn push_separator(&mut self, separator: BlockSeparator) {
        self.tokens.push(DocumentToken::Separator(separator));
    }

    /// An inline HTML tag: a line break, a letter style, or literal text.
    fn handle_html_tag(&mut self, text: &str) {
        if is_line_break_tag(text) {
            return self.add_text("\n");
        }
        let name = text.trim_matches(['<', '>', '/']);
        let known = STYLE_TAGS.iter().find(|(style, _)| style.eq_ignore_ascii_case(name));
        match (known, text.starts_with("</")) {
            (Some((name, element)), false) => self.open_element(element.clone(), FrameKind::Html(name)),
            (Some((name, _)), true) if matches!(self.open_frames.last(), Some(ParserFrame { kind: FrameKind::Html(top), .. }) if top == name) =>
            {
                self.pop_frame();
            }
            _ => self.add_text(text),
        }
    }
}

/// A position in the tokens.
#[derive(Debug, Clone, Copy)]
struct TokenMark {
    token: usize,
    byte: usize,
}

impl FrameKind {
    /// True for a frame that holds only text: there the grammar drops nothing.
    fn is_leaf(&self) -> bool {
        !matches!(self, Self::Container | Self::List)
    }
}

const STYLE_TAGS: [(&str, DocumentElement); 8] = [
    ("b", DocumentElement::Strong),
    ("strong", DocumentElement::Strong),
    ("i", DocumentElement::Emphasis),
    ("em", DocumentElement::Emphasis),
    ("s", DocumentElement::Strike),
    ("del", DocumentElement::Strike),
    ("u", DocumentElement::Underline),
    ("ins", DocumentElement::Underline),
];

fn is_line_break_tag(tag: &str) -> bool {
    ["<br>", "<br/>", "<br />"].iter().any(|known| known.eq_ignore_ascii_case(tag.trim()))
}

fn heading_level(level: HeadingLevel) -> u8 {
    match level {
        HeadingLevel::H1 => 1,
        HeadingLevel::H2 => 2,
        HeadingLevel::H3 => 3,
        HeadingLevel::H4 => 4,
        HeadingLevel::H5 => 5,
        HeadingLevel::H6 => 6,
    }
}

/// The language in the info string of a fence, if it is valid.
fn fence_language(words: &str) -> &str {
    let name = words.split([' ', ',', '{']).next().unwrap_or_default();
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '#' | '.' | '_');
    if name.len() <= MAX_LANGUAGE_BYTES && name.chars().all(fits) { name } else { "" }
}
