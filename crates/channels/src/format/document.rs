//! Token stream of a parsed text, independent of Markdown and of networks.

use std::rc::Rc;

/// A token. Elements nest: each `Open` has its `Close`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DocumentToken {
    Open(DocumentElement),
    /// Closes the element that was opened last.
    Close,
    /// Text or a line of code, without line breaks.
    Text(String),
    /// The address of the link before, for markups that cannot show links.
    Address(Rc<DocumentLink>),
    Rule,
    Separator(BlockSeparator),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DocumentElement {
    Paragraph,
    Heading(u8),
    Quote,
    /// With the number of the current item, if the list is numbered.
    List(Option<u64>),
    Item(Option<u64>),
    CodeBlock {
        language: Rc<str>,
        /// Length of the longest run of backticks in it.
        longest_backticks: usize,
    },
    Table {
        columns: usize,
    },
    Row(TableRow),
    Cell {
        row: TableRow,
        first: bool,
    },
    Strong,
    Emphasis,
    Strike,
    Underline,
    Link(Rc<DocumentLink>),
    /// With the length of the longest run of backticks in it.
    Code(usize),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct DocumentLink {
    pub(super) url: String,
    /// The address as it is written after the label: ` (url)`.
    pub(super) address_text: String,
    /// True if the label is an address itself.
    pub(super) is_bare: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableRow {
    Head { columns: usize },
    Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockSeparator {
    /// Between blocks: paragraphs, lists, code.
    Block,
    /// Between a heading and the text below it.
    Heading,
    /// Between items or rows.
    Item,
    Line,
}

impl DocumentToken {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl DocumentElement {
    /// True for an element inside a line.
    pub(super) fn is_inline(&self) -> bool {
        self.is_character_style() || matches!(self, Self::Link(_) | Self::Code(_))
    }

    /// True for an element that some networks show as a letter style.
    pub(super) fn affects_letters(&self) -> bool {
        self.is_inline() || matches!(self, Self::Heading(_))
    }

    /// True for code, where spaces count and nothing is formatted.
    pub(super) fn is_code(&self) -> bool {
        matches!(self, Self::CodeBlock { .. } | Self::Code(_))
    }

    /// True for bold, italic, strikethrough and underline.
    pub(super) fn is_character_style(&self) -> bool {
        matches!(self, Self::Strong | Self::Emphasis | Self::Strike | Self::Underline)
    }
}

/// Length of the longest run of backticks in a text.
pub(super) fn longest_backtick_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}
