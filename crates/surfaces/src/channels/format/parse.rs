//! Markdown to tokens. What its grammar swallows without showing it, such as definitions of links, is kept as words; HTML is words
//! too, but for line breaks and the tags of letter styles.

use std::ops::Range;
use std::rc::Rc;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::document::{Gap, Link, Mark, Row, Token, longest_ticks};
use super::east::{self, JOINT};
use super::table::Aligned;
use super::visible;

/// What models write besides the core of Markdown.
const OPTIONS: Options = Options::ENABLE_TABLES.union(Options::ENABLE_STRIKETHROUGH).union(Options::ENABLE_TASKLISTS);
/// What is nested deeper is shown without the nesting.
const DEEPEST: usize = 24;
/// The longest name of a programming language.
const LANGUAGE: usize = 32;

/// How tables are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tables {
    /// As rows of cells.
    Rows,
    /// As lines of code with columns.
    Aligned,
}

/// Reads Markdown.
pub(super) fn document(markdown: &str, tables: Tables) -> Vec<Token> {
    let source = east::joined(markdown);
    let mut reader = Reader::new(&source, tables);
    for (event, range) in Parser::new_ext(&source, OPTIONS).into_offset_iter() {
        reader.take(event, range);
    }
    reader.swallowed(source.len());
    reader.tokens
}

/// Takes a text as words, whatever they mean in Markdown.
pub(super) fn literal(text: &str) -> Vec<Token> {
    let mut reader = Reader::new(text, Tables::Rows);
    reader.say(text);
    reader.tokens
}

struct Reader<'a> {
    source: &'a str,
    tables: Tables,
    tokens: Vec<Token>,
    frames: Vec<Frame>,
    /// How many of them hold words only.
    leaves: usize,
    /// The next number of each open list, if it has numbers.
    lists: Vec<Option<u64>>,
    /// What came last in the block that is open.
    last: Last,
    /// How far the source was read.
    seen: usize,
    aligned: Option<Aligned>,
    row: Row,
    in_cell: bool,
    /// How far the source of a row was read.
    cell_end: usize,
    in_code: bool,
    /// Where its lines begin in the tokens.
    code_at: usize,
}

/// What came last on a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Nothing,
    Words,
    Heading,
    Block,
}

/// Something of the source that is open.
struct Frame {
    kind: Kind,
    /// Whether it is open in the tokens, too.
    shown: bool,
}

enum Kind {
    /// A block that holds blocks.
    Container,
    List,
    /// A block that holds words; what it was to what comes next.
    Leaf(Last),
    Code,
    Inline,
    /// A tag, by its name.
    Html(&'static str),
    /// Where it leads, and where its words begin.
    Link(Rc<Link>, Since),
}

impl<'a> Reader<'a> {
    fn new(source: &'a str, tables: Tables) -> Self {
        Self {
            source,
            tables,
            tokens: Vec::new(),
            frames: Vec::new(),
            leaves: 0,
            lists: Vec::new(),
            last: Last::Nothing,
            seen: 0,
            aligned: None,
            row: Row::Body,
            in_cell: false,
            cell_end: 0,
            in_code: false,
            code_at: 0,
        }
    }

    fn take(&mut self, event: Event<'_>, range: Range<usize>) {
        let in_leaf = self.leaves > 0;
        let starts = matches!(event, Event::Start(_));
        if !in_leaf {
            self.swallowed(if matches!(event, Event::End(_)) { range.end } else { range.start });
        }
        match event {
            Event::Start(tag) => self.start(tag, range.start),
            Event::End(TagEnd::TableHead | TagEnd::TableRow) => self.end_row(range.end),
            Event::End(TagEnd::TableCell) => self.end_cell(range.end),
            Event::End(_) => self.end(),
            Event::Text(text) | Event::InlineMath(text) | Event::DisplayMath(text) => self.say(&text),
            Event::Html(text) => self.say(if is_break(&text) { "\n" } else { &text }),
            Event::InlineHtml(text) => self.tag(&text),
            Event::Code(text) => {
                self.open(Mark::Code(longest_ticks(&text)), Kind::Inline);
                self.say(&text);
                self.end();
            }
            Event::FootnoteReference(name) => self.say(&format!("[{name}]")),
            Event::SoftBreak | Event::HardBreak => self.say("\n"),
            Event::Rule => {
                self.before_block();
                self.tokens.push(Token::Rule);
                self.last = Last::Block;
            }
            Event::TaskListMarker(done) => self.say(if done { "☑ " } else { "☐ " }),
        }
        if self.leaves == 0 {
            self.seen = self.seen.max(if starts { range.start } else { range.end });
        }
    }

    /// Shows definitions of links, which the grammar leaves out, between what was read and `until`.
    fn swallowed(&mut self, until: usize) {
        let Some(between) = self.source.get(self.seen..until) else { return };
        if let Some(at) = between.find('[')
            && between[at..].contains("]:")
        {
            self.block(Mark::Paragraph, Kind::Leaf(Last::Block));
            self.say(between[at..].trim_end());
            self.end();
        }
        self.seen = until;
    }

    fn start(&mut self, tag: Tag<'_>, start: usize) {
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.block(Mark::Paragraph, Kind::Leaf(Last::Block)),
            Tag::Heading { level, .. } => self.block(Mark::Heading(depth(level)), Kind::Leaf(Last::Heading)),
            Tag::BlockQuote(_) => self.block(Mark::Quote, Kind::Container),
            Tag::CodeBlock(CodeBlockKind::Fenced(words)) => self.code(language(&words)),
            Tag::CodeBlock(CodeBlockKind::Indented) => self.code(""),
            Tag::List(first) => {
                self.block(Mark::List(first), Kind::List);
                self.lists.push(first);
            }
            Tag::Item => self.item(),
            Tag::Table(_) if self.tables == Tables::Aligned => {
                self.code("");
                self.aligned = Some(Aligned::default());
            }
            Tag::Table(columns) => {
                self.row = Row::Head { columns: columns.len() };
                self.block(Mark::Table { columns: columns.len() }, Kind::Leaf(Last::Block));
            }
            Tag::TableHead | Tag::TableRow => self.table_row(start),
            Tag::TableCell => self.cell(),
            Tag::Emphasis => self.open(Mark::Emphasis, Kind::Inline),
            Tag::Strong => self.open(Mark::Strong, Kind::Inline),
            Tag::Strikethrough => self.open(Mark::Strike, Kind::Inline),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => self.link(&dest_url),
            Tag::FootnoteDefinition(_)
            | Tag::DefinitionList
            | Tag::DefinitionListTitle
            | Tag::DefinitionListDefinition
            | Tag::Superscript
            | Tag::Subscript
            | Tag::MetadataBlock(_) => self.push(Kind::Inline, false),
        }
    }

    fn block(&mut self, mark: Mark, kind: Kind) {
        self.close_html();
        if self.last == Last::Words && matches!(mark, Mark::List(_)) {
            self.gap(Gap::Item);
        } else {
            self.before_block();
        }
        self.open(mark, kind);
        self.last = Last::Nothing;
    }

    fn before_block(&mut self) {
        match self.last {
            Last::Nothing => {}
            Last::Heading => self.gap(Gap::Heading),
            Last::Words | Last::Block => self.gap(Gap::Block),
        }
    }

    fn code(&mut self, language: &str) {
        self.block(Mark::CodeBlock { language: language.into(), ticks: 0 }, Kind::Code);
        self.in_code = true;
        self.code_at = self.tokens.len();
    }

    fn item(&mut self) {
        if self.last != Last::Nothing {
            self.gap(Gap::Item);
        }
        let number = self.lists.last().copied().flatten();
        self.open(Mark::Item(number), Kind::Container);
        if let Some(Some(number)) = self.lists.last_mut() {
            *number = number.saturating_add(1);
        }
        self.last = Last::Nothing;
    }

    fn table_row(&mut self, start: usize) {
        self.cell_end = start;
        if let Some(aligned) = &mut self.aligned {
            aligned.row();
            return self.push(Kind::Inline, false);
        }
        if self.row == Row::Body {
            self.gap(Gap::Item);
        }
        self.open(Mark::Row(self.row), Kind::Inline);
    }

    fn cell(&mut self) {
        if let Some(aligned) = &mut self.aligned {
            aligned.cell();
            return self.push(Kind::Inline, false);
        }
        self.in_cell = true;
        let first = matches!(self.tokens.last(), Some(Token::Open(Mark::Row(_))));
        self.open(Mark::Cell { row: self.row, first }, Kind::Inline);
    }

    fn end_cell(&mut self, at: usize) {
        self.end();
        self.in_cell = false;
        self.cell_end = at;
    }

    /// Cells that the head has no column for are left out by the grammar.
    fn end_row(&mut self, at: usize) {
        let rest = self.source.get(self.cell_end..at).unwrap_or_default();
        let rest = rest.trim_matches(|c: char| c == '|' || c.is_whitespace());
        if !rest.is_empty() {
            self.cell();
            self.say(rest);
            self.end_cell(at);
        }
        self.end();
        self.row = Row::Body;
    }

    fn link(&mut self, url: &str) {
        let url: String = url.chars().filter(|c| !(c.is_control() || *c == JOINT)).collect();
        let linked = ["http://", "https://", "mailto:"].iter().any(|scheme| {
            url.len() > scheme.len() && url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        });
        let label = self.now();
        let link = Rc::new(Link { address: format!(" ({url})"), url, bare: false });
        if linked {
            self.open(Mark::Link(Rc::clone(&link)), Kind::Link(link, label));
        } else {
            self.push(Kind::Link(link, label), false);
        }
    }

    fn open(&mut self, mark: Mark, kind: Kind) {
        // Lists and tables are of no use without what is in them.
        let room = if mark.is_inline() { 0 } else { 3 };
        let shown = self.frames.len() + room < DEEPEST && self.aligned.is_none();
        if shown {
            self.tokens.push(Token::Open(mark));
        }
        self.push(kind, shown);
    }

    fn push(&mut self, kind: Kind, shown: bool) {
        self.leaves += usize::from(kind.is_leaf());
        self.frames.push(Frame { kind, shown });
    }

    fn end(&mut self) {
        self.close_html();
        self.pop();
    }

    /// Closes tags that the source forgot to close.
    fn close_html(&mut self) {
        while matches!(self.frames.last(), Some(Frame { kind: Kind::Html(_), .. })) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        let Some(frame) = self.frames.pop() else { return };
        self.leaves -= usize::from(frame.kind.is_leaf());
        let mut address = None;
        match frame.kind {
            Kind::Inline | Kind::Html(_) => {}
            Kind::Container => self.last = Last::Block,
            Kind::Leaf(last) => self.last = last,
            Kind::List => {
                self.lists.pop();
                self.last = Last::Block;
            }
            Kind::Code => self.end_code(),
            Kind::Link(link, label) => address = self.end_link(link, label),
        }
        if frame.shown {
            self.tokens.push(Token::Close);
        }
        match address {
            Some(address) if frame.shown => self.tokens.push(Token::Address(address)),
            Some(link) => self.say(&link.address),
            None => {}
        }
    }

    fn end_code(&mut self) {
        self.in_code = false;
        self.last = Last::Block;
        if let Some(aligned) = self.aligned.take() {
            self.say(&aligned.lines());
        }
        while matches!(self.tokens.last(), Some(Token::Gap(Gap::Line))) {
            self.tokens.pop();
        }
        let texts = self.tokens[self.code_at..].iter().filter_map(Token::words);
        let most = texts.map(longest_ticks).max().unwrap_or(0);
        if let Some(Token::Open(Mark::CodeBlock { ticks, .. })) = self.tokens[..self.code_at].last_mut() {
            *ticks = most;
        }
    }

    /// The link, if its words do not say where it leads.
    fn end_link(&mut self, link: Rc<Link>, label: Since) -> Option<Rc<Link>> {
        let words = self.words_since(label);
        let unseen = !visible(&words);
        if unseen {
            self.say(&link.url);
        }
        let said =
            unseen || link.url.is_empty() || words == link.url || link.url.strip_prefix("mailto:") == Some(&words);
        if !(unseen || words.contains("://")) {
            return (!said).then_some(link);
        }
        let bare = Rc::new(Link { url: link.url.clone(), address: link.address.clone(), bare: true });
        if let Some(Token::Open(Mark::Link(open))) = self.tokens.get_mut(label.token)
            && Rc::ptr_eq(open, &link)
        {
            *open = Rc::clone(&bare);
        }
        (!said).then_some(bare)
    }

    fn now(&self) -> Since {
        let byte = match &self.aligned {
            Some(aligned) => aligned.length(),
            None => self.tokens.last().and_then(Token::words).map_or(0, str::len),
        };
        Since { token: self.tokens.len(), byte }
    }

    fn words_since(&self, since: Since) -> String {
        if let Some(aligned) = &self.aligned {
            return aligned.since(since.byte).to_owned();
        }
        let (before, after) = self.tokens.split_at(since.token);
        let continued = before.last().and_then(Token::words).and_then(|words| words.get(since.byte..));
        continued.into_iter().chain(after.iter().filter_map(Token::words)).collect()
    }

    /// Words, on as many lines as they are.
    fn say(&mut self, text: &str) {
        self.last = Last::Words;
        for (number, line) in text.split('\n').enumerate() {
            let line: String = line.chars().filter(|c| *c == '\t' || !(c.is_control() || *c == JOINT)).collect();
            if let Some(aligned) = &mut self.aligned {
                aligned.say(if number == 0 { "" } else { " " });
                aligned.say(&line);
                continue;
            }
            if number > 0 {
                if self.in_cell { self.add(" ") } else { self.gap(Gap::Line) }
            }
            self.add(&line);
        }
    }

    fn add(&mut self, words: &str) {
        if words.is_empty() {
            return;
        }
        match self.tokens.last_mut() {
            Some(Token::Text(text)) => text.push_str(words),
            _ => self.tokens.push(Token::Text(words.to_owned())),
        }
    }

    fn gap(&mut self, gap: Gap) {
        self.tokens.push(Token::Gap(gap));
    }

    /// A tag inside a line: a line break, a style, or just words.
    fn tag(&mut self, text: &str) {
        if is_break(text) {
            return self.say("\n");
        }
        let name = text.trim_matches(['<', '>', '/']);
        let known = STYLES.iter().find(|(style, _)| style.eq_ignore_ascii_case(name));
        match (known, text.starts_with("</")) {
            (Some((name, mark)), false) => self.open(mark.clone(), Kind::Html(name)),
            (Some((name, _)), true) if matches!(self.frames.last(), Some(Frame { kind: Kind::Html(top), .. }) if top == name) =>
            {
                self.pop();
            }
            _ => self.say(text),
        }
    }
}

/// A place in the tokens, or in a cell.
#[derive(Debug, Clone, Copy)]
struct Since {
    token: usize,
    byte: usize,
}

impl Kind {
    /// True for what holds words only: there the grammar swallows nothing.
    fn is_leaf(&self) -> bool {
        !matches!(self, Self::Container | Self::List)
    }
}

/// The tags of letter styles.
const STYLES: [(&str, Mark); 8] = [
    ("b", Mark::Strong),
    ("strong", Mark::Strong),
    ("i", Mark::Emphasis),
    ("em", Mark::Emphasis),
    ("s", Mark::Strike),
    ("del", Mark::Strike),
    ("u", Mark::Underline),
    ("ins", Mark::Underline),
];

fn is_break(tag: &str) -> bool {
    ["<br>", "<br/>", "<br />"].iter().any(|known| known.eq_ignore_ascii_case(tag.trim()))
}

fn depth(level: HeadingLevel) -> u8 {
    match level {
        HeadingLevel::H1 => 1,
        HeadingLevel::H2 => 2,
        HeadingLevel::H3 => 3,
        HeadingLevel::H4 => 4,
        HeadingLevel::H5 => 5,
        HeadingLevel::H6 => 6,
    }
}

/// The name of a language from the words after a fence, if it is one.
fn language(words: &str) -> &str {
    let name = words.split([' ', ',', '{']).next().unwrap_or_default();
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '#' | '.' | '_');
    if name.len() <= LANGUAGE && name.chars().all(fits) { name } else { "" }
}
