//! Convert Markdown into the markup of a network and split it into pieces that fit.
//!
//! The text is parsed once into a flat list of [`document::DocumentToken`]s. Two writers, one for the network's markup
//! and one for plain text, write the same tokens side by side; a piece ends where either is full. Open elements are
//! closed there and opened again in the next piece. Nothing of an answer is left out because a network cannot show it.

mod aligned_table;
mod break_points;
mod cjk;
mod discord;
mod document;
mod file_markers;
mod html;
mod markdown;
mod markdown_parser;
mod markup;
mod plain;
mod slack;
mod split;
#[cfg(test)]
mod tests;
mod unfinished_markup;
mod writer;

pub use file_markers::{attachment_sources, extract_attachments, marker_word};

use self::aligned_table::align_tables;
use self::document::DocumentToken;
use self::markdown_parser::{parse_literal, parse_markdown};
use self::markup::MarkupSyntax;
use self::split::MessageSplitter;

/// Smallest maximum length. A smaller one is raised to it, so that there is always room for markup and a letter.
pub const MIN_MESSAGE_LENGTH: usize = 64;

/// Markup and largest length of a message in a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageFormat {
    pub markup: Markup,
    /// Largest length of a message, its markup included. At least [`MIN_MESSAGE_LENGTH`].
    pub max_length: usize,
    /// The unit of `max_length`.
    pub length_unit: LengthUnit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markup {
    /// No markup, one line each (IRC).
    Plain,
    /// Markdown, unchanged where it fits.
    Markdown,
    /// The HTML subset of the Telegram Bot API.
    TelegramHtml,
    Discord,
    Slack,
    /// The HTML subset of Matrix (`org.matrix.custom.html`).
    MatrixHtml,
}

/// Unit in which the length of a message is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthUnit {
    /// Unicode scalar values.
    Chars,
    Utf16,
    /// Bytes of UTF-8.
    Bytes,
}

/// Text of one message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessagePiece {
    pub formatted: String,
    /// The same without markup, for networks that want both or rejected the markup. With [`Markup::MatrixHtml`] it is
    /// readable Markdown.
    pub plain: String,
}

/// Formats a whole answer. Returns no piece only if the text has nothing visible. Every piece fits, and so does its
/// plain text.
#[must_use]
pub fn split_message(markdown: &str, format: &MessageFormat) -> Vec<MessagePiece> {
    if !has_visible_text(markdown) {
        return Vec::new();
    }
    let mut pieces = MessageSplitter::new(&format.markup.parse(markdown), format).split();
    if pieces.is_empty() {
        // Only markup, such as a lone fence: show it literally.
        pieces = MessageSplitter::new(&parse_literal(markdown), format).split();
    }
    if let (Markup::Markdown, [piece]) = (format.markup, pieces.as_mut_slice()) {
        let verbatim: String =
            markdown.trim().chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
        if format.fits(&verbatim) {
            piece.formatted = verbatim;
        }
    }
    pieces
}

/// Formats an unfinished answer as one piece. Open markup is closed. If the text does not fit, the piece holds its last
/// part after a "…", so that the reader sees the text grow. It is empty only if nothing is visible yet.
#[must_use]
pub fn format_draft(markdown: &str, format: &MessageFormat) -> MessagePiece {
    let closed = unfinished_markup::close_open_markup(markdown);
    if !has_visible_text(&closed) {
        return MessagePiece::default();
    }
    let last_piece = |tokens: &[DocumentToken]| MessageSplitter::new(tokens, format).last_piece();
    last_piece(&format.markup.parse(&closed)).or_else(|| last_piece(&parse_literal(&closed))).unwrap_or_default()
}

impl MessageFormat {
    /// True if the text is not too long.
    #[must_use]
    pub fn fits(&self, text: &str) -> bool {
        self.length_unit.count(text) <= self.effective_max_length()
    }

    fn effective_max_length(&self) -> usize {
        self.max_length.max(MIN_MESSAGE_LENGTH)
    }
}

impl Markup {
    fn syntaxes(self) -> (&'static dyn MarkupSyntax, &'static dyn MarkupSyntax) {
        match self {
            Self::Plain => (&plain::PlainMarkup, &plain::PlainMarkup),
            Self::Markdown => (&markdown::MARKDOWN_ESCAPED, &plain::PlainMarkup),
            Self::TelegramHtml => (&html::TelegramMarkup, &plain::PlainMarkup),
            Self::Discord => (&discord::DiscordMarkup, &plain::PlainMarkup),
            Self::Slack => (&slack::SlackMarkup, &plain::PlainMarkup),
            Self::MatrixHtml => (&html::MatrixMarkup, &markdown::MARKDOWN_READABLE),
        }
    }

    /// Tables become aligned code where the network has no tables.
    fn parse(self, markdown: &str) -> Vec<DocumentToken> {
        let tokens = parse_markdown(markdown);
        match self {
            Self::TelegramHtml | Self::Discord | Self::Slack => align_tables(tokens),
            Self::Plain | Self::Markdown | Self::MatrixHtml => tokens,
        }
    }
}

impl LengthUnit {
    #[must_use]
    pub fn count(self, text: &str) -> usize {
        match self {
            Self::Chars => text.chars().count(),
            Self::Utf16 => text.chars().map(char::len_utf16).sum(),
            Self::Bytes => text.len(),
        }
    }
}

/// True if there is something to see. Networks refuse a message of spaces and characters without width.
fn has_visible_text(text: &str) -> bool {
    let is_invisible = |c: char| {
        c.is_whitespace()
            || c.is_control()
            || matches!(c, cjk::JOINER | '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
    };
    !text.chars().all(is_invisible)
}
