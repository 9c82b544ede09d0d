//! Write one piece in one markup, with lazy delimiters and separators and an exact length.
//!
//! Delimiters are written with the first text inside, so that none surrounds nothing. Separators are written with the
//! next text, so that no piece begins or ends with one.

use std::rc::Rc;

use super::LengthUnit;
use super::document::{BlockSeparator, DocumentElement, DocumentLink, TableRow};
use super::markup::{Delimiters, LevelState, MarkupSyntax, OpenLevel, TextPosition, ZERO_WIDTH_SPACE};

/// Further line separators in a row are dropped.
const MAX_EMPTY_LINES: usize = 8;

pub(super) struct PieceWriter<'s> {
    syntax: &'s dyn MarkupSyntax,
    length_unit: LengthUnit,
    max_length: usize,
    output: String,
    length: usize,
    open_levels: Vec<OpenLevel>,
    /// The separator to write before the next text, and how often.
    pending_separator: Option<(BlockSeparator, usize)>,
    /// True if a space is to be written before the next text.
    pending_space: bool,
    is_line_start: bool,
    /// Byte offset at which a delimiter ended that must not touch a letter.
    word_boundary_at: usize,
    has_text: bool,
}

impl<'s> PieceWriter<'s> {
    pub(super) fn new(syntax: &'s dyn MarkupSyntax, length_unit: LengthUnit, max_length: usize) -> Self {
        Self {
            syntax,
            length_unit,
            max_length,
            output: String::new(),
            length: 0,
            open_levels: Vec::new(),
            pending_separator: None,
            pending_space: false,
            is_line_start: true,
            word_boundary_at: usize::MAX,
            has_text: false,
        }
    }

    pub(super) fn has_text(&self) -> bool {
        self.has_text
    }

    /// Length of the piece, including the closing delimiters of all open elements.
    pub(super) fn length(&self) -> usize {
        let closing_length: usize = self.open_levels.iter().map(OpenLevel::closing_length).sum();
        self.length + closing_length
    }

    pub(super) fn fits(&self) -> bool {
        self.length() <= self.max_length
    }

    /// Writes the mark for omitted earlier text.
    pub(super) fn write_continuation_mark(&mut self) {
        self.append(self.syntax.continuation_mark());
    }

    /// Opens an element that begins here or continues from the piece before.
    pub(super) fn open_element(&mut self, element: &DocumentElement, level_start: LevelStart) {
        let (delimiters, length) = match self.delimiters_for(element) {
            Some((delimiters, length)) => (Some(delimiters), length),
            None => (None, 0),
        };
        if delimiters.is_none() && matches!(element, DocumentElement::Cell { .. }) {
            self.pending_space = true;
        }
        if delimiters.as_ref().is_some_and(|delimiters| delimiters.is_exclusive) {
            self.suspend_styles();
        }
        let state = if level_start == LevelStart::Begins { LevelState::New } else { LevelState::Continued };
        self.open_levels.push(OpenLevel { element: element.clone(), delimiters, reserved_length: length, state });
        if level_start == LevelStart::Begins && matches!(element, DocumentElement::Cell { .. }) {
            // Show an empty cell, too.
            self.flush_pending();
        }
    }

    /// Closes the element that was opened last.
    pub(super) fn close_element(&mut self) {
        let Some(level) = self.open_levels.last() else { return };
        if let (LevelState::Written { .. }, Some(delimiters)) = (level.state, &level.delimiters) {
            let (close, needs_boundary) = (delimiters.close.clone(), delimiters.needs_word_boundary);
            self.append_lines(&close, self.is_in_code_block());
            if needs_boundary {
                self.word_boundary_at = self.output.len();
            }
        }
        self.open_levels.pop();
    }

    /// Requests a separator before the next text.
    pub(super) fn add_separator(&mut self, separator: BlockSeparator) {
        self.pending_space = false;
        self.pending_separator = match self.pending_separator {
            Some((BlockSeparator::Line, lines)) if separator == BlockSeparator::Line => Some((separator, lines + 1)),
            Some((BlockSeparator::Block | BlockSeparator::Heading | BlockSeparator::Item, _))
                if separator == BlockSeparator::Line =>
            {
                self.pending_separator
            }
            _ => Some((separator, 1)),
        };
    }

    /// Writes text or the address of a link.
    pub(super) fn write_text(&mut self, text: &str) {
        if self.open_levels.iter().any(|level| level.element.is_code()) {
            self.flush_pending();
            let shown = self.open_levels.iter().any(|level| level.element.is_code() && level.delimiters.is_some());
            let position = if shown { TextPosition::Code } else { self.text_position() };
            return self.append_text(text, position);
        }
        let word = text.trim_start_matches([' ', '\t']);
        self.pending_space |= word.len() < text.len();
        let Some(first) = word.chars().next() else { return };
        self.flush_pending();
        if self.word_boundary_at == self.output.len() && first.is_alphanumeric() {
            self.append_char(ZERO_WIDTH_SPACE);
        }
        self.append_text(word, self.text_position());
    }

    fn text_position(&self) -> TextPosition {
        if self.is_line_start { TextPosition::LineStart } else { TextPosition::MidLine }
    }

    /// Writes the address of a link, unless the markup shows links.
    pub(super) fn write_link_address(&mut self, part: &str, link: &Rc<DocumentLink>) {
        if self.delimiters_for(&DocumentElement::Link(Rc::clone(link))).is_none() {
            self.write_text(part);
        }
    }

    pub(super) fn write_rule(&mut self) {
        self.flush_pending();
        self.append(self.syntax.horizontal_rule());
        (self.has_text, self.is_line_start) = (true, false);
    }

    /// Closes all open elements and returns the text.
    pub(super) fn finish(mut self) -> String {
        while !self.open_levels.is_empty() {
            self.close_element();
        }
        self.output
    }

    fn append_text(&mut self, text: &str, position: TextPosition) {
        let before = self.output.len();
        self.syntax.write_text(text, position, &mut self.output);
        self.length += self.length_unit.count(&self.output[before..]);
        (self.has_text, self.is_line_start) = (true, false);
    }

    /// The delimiters of an element here, and their length; none if it is not shown. All delimiters together get at
    /// most half of the length, so that any nesting leaves room for text.
    fn delimiters_for(&self, element: &DocumentElement) -> Option<(Delimiters, usize)> {
        let parent = self.open_levels.last();
        let needs_parent =
            matches!(element, DocumentElement::Item(_) | DocumentElement::Row(_) | DocumentElement::Cell { .. });
        if needs_parent && parent.is_none_or(|parent| parent.delimiters.is_none()) {
            return None;
        }
        let delimiters = self.syntax.delimiters(element, &self.open_levels)?;
        let same = |level: &OpenLevel| level.delimiters.as_ref().is_some_and(|outer| outer.open == delimiters.open);
        if element.is_character_style() && self.open_levels.iter().any(same) {
            return None;
        }
        let length = self.delimiters_length(&delimiters);
        let children: usize = required_children(element).iter().map(|child| self.reserved_length_of(child)).sum();
        let reserved: usize = self.open_levels.iter().map(|level| level.reserved_length).sum();
        // Required children were already counted with their parent.
        let fits = reserved + length + children <= self.max_length / 2;
        fits.then_some((delimiters, length))
    }

    fn reserved_length_of(&self, element: &DocumentElement) -> usize {
        self.syntax.delimiters(element, &self.open_levels).map_or(0, |delimiters| self.delimiters_length(&delimiters))
    }

    fn delimiters_length(&self, delimiters: &Delimiters) -> usize {
        let count = |text: &str| self.length_unit.count(text);
        let breaks = delimiters.open.matches('\n').count() + delimiters.close.matches('\n').count();
        let boundary_length =
            if delimiters.needs_word_boundary || delimiters.open.starts_with('`') { 2 * count("\u{200b}") } else { 0 };
        count(&delimiters.open).max(count(&delimiters.reopen))
            + count(&delimiters.close)
            + count(&delimiters.line_prefix)
            + boundary_length
            + breaks * self.line_prefix_length()
    }

    fn line_prefix_length(&self) -> usize {
        let prefixes = self.open_levels.iter().filter_map(|level| level.delimiters.as_ref());
        prefixes.map(|delimiters| self.length_unit.count(&delimiters.line_prefix)).sum()
    }

    /// Closes styles and links for now; they are opened again with the next text.
    fn suspend_styles(&mut self) {
        for at in (0..self.open_levels.len()).rev() {
            let level = &mut self.open_levels[at];
            if !level.element.affects_letters() {
                break;
            }
            if let (LevelState::Written { .. }, Some(delimiters)) = (level.state, &level.delimiters) {
                level.state = LevelState::Continued;
                let close = delimiters.close.clone();
                self.append(&close);
            }
        }
    }

    /// Writes the pending separator and space, then the pending opening delimiters.
    fn flush_pending(&mut self) {
        let in_code = self.is_in_code_block();
        if let Some((separator, lines)) = self.pending_separator.take()
            && self.has_text
        {
            let text =
                self.syntax.separator_text(separator, if in_code { TextPosition::Code } else { TextPosition::MidLine });
            for _ in 0..lines.min(MAX_EMPTY_LINES) {
                self.append_lines(text, in_code);
            }
        }
        if std::mem::take(&mut self.pending_space) && !self.is_line_start {
            self.append_char(' ');
        }
        let is_exclusive = self
            .open_levels
            .last()
            .and_then(|top| top.delimiters.as_ref())
            .is_some_and(|delimiters| delimiters.is_exclusive);
        for at in 0..self.open_levels.len() {
            let is_innermost = at + 1 == self.open_levels.len();
            if !(is_exclusive && self.open_levels[at].element.affects_letters() && !is_innermost) {
                self.write_opening(at);
            }
        }
    }

    fn write_opening(&mut self, at: usize) {
        let level = &mut self.open_levels[at];
        let Some(delimiters) = &level.delimiters else { return };
        let open = match level.state {
            LevelState::Written { .. } => return,
            LevelState::New => delimiters.open.clone(),
            LevelState::Continued => delimiters.reopen.clone(),
        };
        let (is_inline, needs_boundary) = (level.element.is_inline(), delimiters.needs_word_boundary);
        let (close, closing_length) =
            (delimiters.close.matches('\n').count(), self.length_unit.count(&delimiters.close));
        let code = matches!(level.element, DocumentElement::CodeBlock { .. });
        level.state = LevelState::Written { closing_length: 0 };
        let touches = needs_boundary && self.output.chars().next_back().is_some_and(char::is_alphanumeric);
        // Two adjacent runs of backticks would become one longer run.
        if touches || open.starts_with('`') && self.output.ends_with('`') {
            self.append_char(ZERO_WIDTH_SPACE);
        }
        self.append_lines(&open, code);
        self.is_line_start &= open.is_empty() || !is_inline;
        let closing_length = closing_length + close * self.line_prefix_length();
        self.open_levels[at].state = LevelState::Written { closing_length };
    }

    fn is_in_code_block(&self) -> bool {
        self.open_levels.iter().any(|level| matches!(level.element, DocumentElement::CodeBlock { .. }))
    }

    /// Writes a text, with the line prefixes after each line break.
    fn append_lines(&mut self, text: &str, code: bool) {
        let mut lines = text.split('\n').peekable();
        while let Some(line) = lines.next() {
            self.append(line);
            if let Some(next) = lines.peek() {
                self.append_char('\n');
                let prefix = self.line_prefix(code);
                let empty = next.is_empty() && lines.clone().nth(1).is_some();
                let prefix = if empty { prefix.trim_end() } else { &prefix };
                self.append(prefix);
                self.is_line_start = true;
            }
        }
    }

    fn line_prefix(&self, code: bool) -> String {
        let written = self.open_levels.iter().filter(|level| matches!(level.state, LevelState::Written { .. }));
        let open_delimiters = written.filter_map(|level| level.delimiters.as_ref());
        open_delimiters
            .map(|delimiters| if code { delimiters.code_line_prefix.as_str() } else { &delimiters.line_prefix })
            .collect()
    }

    fn append(&mut self, text: &str) {
        self.output.push_str(text);
        self.length += self.length_unit.count(text);
    }

    fn append_char(&mut self, character: char) {
        let mut bytes = [0; 4];
        self.append(character.encode_utf8(&mut bytes));
    }
}

/// Whether an element begins in this piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LevelStart {
    Begins,
    Continues,
}

/// Elements without which an element cannot be shown.
fn required_children(element: &DocumentElement) -> Vec<DocumentElement> {
    match element {
        DocumentElement::List(_) => vec![DocumentElement::Item(Some(999_999_999))],
        DocumentElement::Table { columns } => {
            let row = TableRow::Head { columns: *columns };
            vec![DocumentElement::Row(row), DocumentElement::Cell { row, first: false }]
        }
        _ => Vec::new(),
    }
}
