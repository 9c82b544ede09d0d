//! Markdown as models write it, in the form that a network shows, cut into pieces that fit.

/// How a network writes text, and how much fits into one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The markup.
    pub markup: Markup,
    /// The most that fits into one message.
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
    /// The same without any, for networks that want both and for those that do not take the markup.
    pub plain: String,
}

pub fn pieces(markdown: &str, form: &Form) -> Vec<Piece> {
    let _ = form;
    vec![Piece { marked: markdown.to_owned(), plain: markdown.to_owned() }]
}
pub fn first_piece(markdown: &str, form: &Form) -> Piece {
    pieces(markdown, form).remove(0)
}
pub fn media(t: &str) -> (String, Vec<quell_protocol::Attachment>) {
    (t.to_owned(), vec![])
}
