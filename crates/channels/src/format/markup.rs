//! Trait that a markup implements: delimiters of elements, escaping, separators.

use super::document::{BlockSeparator, DocumentElement};

pub(super) trait MarkupSyntax: Sync {
    /// Delimiters of an element; none if this markup cannot show it here.
    fn delimiters(&self, element: &DocumentElement, open_levels: &[OpenLevel]) -> Option<Delimiters>;

    /// Writes text so that it is shown as it is.
    fn write_text(&self, text: &str, position: TextPosition, out: &mut String);

    /// Text of a separator. Each line break in it is followed by the line prefixes.
    fn separator_text(&self, separator: BlockSeparator, _: TextPosition) -> &'static str {
        match separator {
            BlockSeparator::Block => "\n\n",
            BlockSeparator::Heading | BlockSeparator::Item | BlockSeparator::Line => "\n",
        }
    }

    fn horizontal_rule(&self) -> &'static str {
        "———"
    }

    /// Written before the last part of a longer text.
    fn continuation_mark(&self) -> &'static str {
        "…\n"
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextPosition {
    LineStart,
    MidLine,
    Code,
}

/// Delimiters around an element. The default shows the content without any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Delimiters {
    pub(super) open: String,
    /// Used in place of `open` when the element continues in another piece.
    pub(super) reopen: String,
    pub(super) close: String,
    /// Before each further line.
    pub(super) line_prefix: String,
    /// Before each further line of code.
    pub(super) code_line_prefix: String,
    /// The delimiter must not touch a letter outside; a zero-width space separates them.
    pub(super) needs_word_boundary: bool,
    /// Styles and links are closed before the element and opened again after it.
    pub(super) is_exclusive: bool,
}

impl Delimiters {
    pub(super) fn new(open: impl Into<String>, close: impl Into<String>) -> Self {
        let open = open.into();
        Self { reopen: open.clone(), open, close: close.into(), ..Self::default() }
    }

    /// A list item: a bullet before its first line, as many spaces before the others.
    pub(super) fn list_item(sign: String) -> Self {
        let line_prefix = " ".repeat(sign.chars().count());
        Self { open: sign, reopen: line_prefix.clone(), line_prefix, ..Self::default() }
    }

    /// A prefix before each line, also in code.
    pub(super) fn line_prefixed(prefix: &str) -> Self {
        Self {
            open: prefix.to_owned(),
            reopen: prefix.to_owned(),
            line_prefix: prefix.to_owned(),
            code_line_prefix: prefix.to_owned(),
            ..Self::default()
        }
    }
}

/// An element that is open.
pub(super) struct OpenLevel {
    pub(super) element: DocumentElement,
    pub(super) delimiters: Option<Delimiters>,
    /// Largest length of its delimiters.
    pub(super) reserved_length: usize,
    pub(super) state: LevelState,
}

/// Whether the opening delimiter of an element was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LevelState {
    New,
    /// The element continues from the piece before; not written in this piece yet.
    Continued,
    /// Written; the closing delimiter will take `closing_length`.
    Written {
        closing_length: usize,
    },
}

impl OpenLevel {
    /// Length of the closing delimiter that is still to be written.
    pub(super) fn closing_length(&self) -> usize {
        match self.state {
            LevelState::New | LevelState::Continued => 0,
            LevelState::Written { closing_length } => closing_length,
        }
    }
}

pub(super) fn is_in_quote(levels: &[OpenLevel]) -> bool {
    levels.iter().any(|level| level.element == DocumentElement::Quote)
}

/// Whether text after an `@` begins with one of these words, or may do so together with the text that is written next.
pub(super) fn may_begin_with(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.starts_with(word) || word.starts_with(text))
}

/// `• ` or `3. `.
pub(super) fn list_bullet(number: Option<u64>) -> String {
    number.map_or_else(|| "• ".to_owned(), |number| format!("{number}. "))
}

/// Separates characters that would have a meaning together.
pub(super) const ZERO_WIDTH_SPACE: char = '\u{200b}';

/// A run of characters that is at least `least` long, and longer than the longest run (`inside`) in the content.
pub(super) fn delimiter_run(sign: char, least: usize, inside: usize) -> String {
    std::iter::repeat_n(sign, least.max(inside + 1)).collect()
}
