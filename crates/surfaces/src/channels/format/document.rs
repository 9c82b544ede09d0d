//! A text that was read: a flat row of tokens. It knows neither Markdown nor any network.

use std::rc::Rc;

/// What a text consists of, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// Something begins.
    Open(Mark),
    /// What began last ends.
    Close,
    /// Words, or a line of code; never a line break.
    Text(String),
    /// Where the link before leads, for scripts that do not show links.
    Address(Rc<Link>),
    /// A line across.
    Rule,
    /// Something new follows.
    Gap(Gap),
}

/// What can be opened and closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mark {
    Paragraph,
    Heading(u8),
    Quote,
    /// With the number of the item that it is at, if it has numbers.
    List(Option<u64>),
    Item(Option<u64>),
    CodeBlock {
        language: Rc<str>,
        /// The longest row of backticks in it.
        ticks: usize,
    },
    Table {
        columns: usize,
    },
    Row(Row),
    Cell {
        row: Row,
        first: bool,
    },
    Strong,
    Emphasis,
    Strike,
    Underline,
    Link(Rc<Link>),
    /// With the longest row of backticks in it.
    Code(usize),
}

/// A link.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) url: String,
    /// Its address after its words: ` (url)`.
    pub(super) address: String,
    /// True when its words are an address themselves.
    pub(super) bare: bool,
}

/// A row of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    Head { columns: usize },
    Body,
}

/// What stands between two things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gap {
    /// Between blocks: paragraphs, lists, code.
    Block,
    /// Between a heading and what it is the heading of.
    Heading,
    /// Between items or rows.
    Item,
    /// Between two lines.
    Line,
}

impl Token {
    /// The words that it is.
    pub(super) fn words(&self) -> Option<&str> {
        match self {
            Self::Text(words) => Some(words),
            Self::Open(_) | Self::Close | Self::Address(_) | Self::Rule | Self::Gap(_) => None,
        }
    }
}

impl Mark {
    /// True for what stands inside a line.
    pub(super) fn is_inline(&self) -> bool {
        match self {
            Self::Strong | Self::Emphasis | Self::Strike | Self::Underline | Self::Link(_) | Self::Code(_) => true,
            Self::Paragraph
            | Self::Heading(_)
            | Self::Quote
            | Self::List(_)
            | Self::Item(_)
            | Self::CodeBlock { .. }
            | Self::Table { .. }
            | Self::Row(_)
            | Self::Cell { .. } => false,
        }
    }

    /// True for what is seen on letters in some networks.
    pub(super) fn is_of_letters(&self) -> bool {
        self.is_inline() || matches!(self, Self::Heading(_))
    }

    /// True for code, where spaces count and nothing is marked.
    pub(super) fn is_code(&self) -> bool {
        matches!(self, Self::CodeBlock { .. } | Self::Code(_))
    }

    /// True for how letters look.
    pub(super) fn is_style(&self) -> bool {
        matches!(self, Self::Strong | Self::Emphasis | Self::Strike | Self::Underline)
    }
}

/// The longest row of backticks in a text.
pub(super) fn longest_ticks(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}
