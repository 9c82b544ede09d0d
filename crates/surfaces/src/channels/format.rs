//! Markdown as models write it, in the form that a network shows, cut into pieces that fit.
//!
//! The text is read once into a flat row of [`document::Token`]s. Two [`script::Script`]s write the same tokens side by side, the
//! network's markup and the plain text, and a piece ends where either is full. What is open there is closed, and opened again in
//! the next piece. Nothing of an answer is left out because a network cannot show it.

mod chunk;
mod discord;
mod document;
mod draft;
mod east;
mod markdown;
mod matrix;
mod media;
mod pack;
mod parse;
mod plain;
mod script;
mod sheet;
mod slack;
mod table;
mod telegram;
#[cfg(test)]
mod tests;

pub use media::{media, sources};

use self::pack::Pack;
use self::parse::{Tables, document, literal};
use self::script::Script;

/// No message can be so short: less is taken for this much, so that there is always room for markup and a letter.
pub const LEAST: usize = 64;

/// How a network writes text, and how much fits into one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The markup.
    pub markup: Markup,
    /// The most that fits into one message, its markup included. At least [`LEAST`].
    pub longest: usize,
    /// What `longest` counts.
    pub measure: Measure,
}

/// A network's markup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markup {
    /// None: plain words, one line each (IRC).
    Plain,
    /// Markdown as it is.
    Markdown,
    /// The HTML that Telegram takes.
    TelegramHtml,
    /// Discord's Markdown.
    Discord,
    /// Slack's mrkdwn.
    Slack,
    /// The HTML of Matrix (`org.matrix.custom.html`).
    MatrixHtml,
}

/// What the length of a message counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Unicode scalar values.
    Chars,
    /// UTF-16 code units.
    Utf16,
    /// Bytes of UTF-8.
    Bytes,
}

/// One message's worth of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// In the network's markup.
    pub marked: String,
    /// The same without any, for networks that want both and for those that do not take the markup. With
    /// [`Markup::MatrixHtml`] it is Markdown that people can read.
    pub plain: String,
}

/// Writes a whole answer. There is no piece only where the text has nothing in it that can be seen; every piece fits, and so
/// does its plain text.
#[must_use]
pub fn pieces(markdown: &str, form: &Form) -> Vec<Piece> {
    if !visible(markdown) {
        return Vec::new();
    }
    let mut pieces = Pack::new(&document(markdown, form.markup.tables()), form).pieces();
    if pieces.is_empty() {
        // Nothing but markup, such as a lone fence: then that is what was said.
        pieces = Pack::new(&literal(markdown), form).pieces();
    }
    if let (Markup::Markdown, [piece]) = (form.markup, pieces.as_mut_slice()) {
        let verbatim: String =
            markdown.trim().chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
        if form.fits(&verbatim) {
            piece.marked = verbatim;
        }
    }
    pieces
}

/// Writes an answer that is still being written, as one piece. What is not closed yet is closed. Of more than fits it is the
/// last part, after a "…", so that the reader sees the text grow. It is empty only where nothing can be seen yet.
#[must_use]
pub fn first_piece(markdown: &str, form: &Form) -> Piece {
    let closed = draft::closed(markdown);
    if !visible(&closed) {
        return Piece { marked: String::new(), plain: String::new() };
    }
    let read = document(&closed, form.markup.tables());
    if let Some(piece) = Pack::new(&read, form).last() {
        return piece;
    }
    let read = literal(&closed);
    Pack::new(&read, form).last().unwrap_or_else(|| Piece { marked: String::new(), plain: String::new() })
}

impl Form {
    /// True when a text is not too long.
    #[must_use]
    pub fn fits(&self, text: &str) -> bool {
        self.measure.count(text) <= self.limit()
    }

    fn limit(&self) -> usize {
        self.longest.max(LEAST)
    }
}

impl Markup {
    fn scripts(self) -> (&'static dyn Script, &'static dyn Script) {
        match self {
            Self::Plain => (&plain::Plain, &plain::Plain),
            Self::Markdown => (&markdown::EXACT, &plain::Plain),
            Self::TelegramHtml => (&telegram::Telegram, &plain::Plain),
            Self::Discord => (&discord::Discord, &plain::Plain),
            Self::Slack => (&slack::Slack, &plain::Plain),
            Self::MatrixHtml => (&matrix::Matrix, &markdown::READABLE),
        }
    }

    fn tables(self) -> Tables {
        match self {
            Self::TelegramHtml | Self::Discord | Self::Slack => Tables::Aligned,
            Self::Plain | Self::Markdown | Self::MatrixHtml => Tables::Rows,
        }
    }
}

impl Measure {
    /// The length of a text.
    #[must_use]
    pub fn count(self, text: &str) -> usize {
        match self {
            Self::Chars => text.chars().count(),
            Self::Utf16 => text.chars().map(char::len_utf16).sum(),
            Self::Bytes => text.len(),
        }
    }
}

/// True when there is something to see. Networks refuse a message of spaces and of characters without a width.
fn visible(text: &str) -> bool {
    let unseen = |c: char| {
        c.is_whitespace()
            || c.is_control()
            || matches!(c, east::JOINT | '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
    };
    !text.chars().all(unseen)
}
