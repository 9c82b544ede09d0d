//! Slack's mrkdwn ("Formatting text for app surfaces").
//!
//! Only `&`, `<` and `>` can be escaped. Delimiters work only at the edge of a word. Links hold plain text, quotes hold
//! neither quotes nor code, and code has no language.

use super::document::DocumentElement;
use super::markup::{
    Delimiters, MarkupSyntax, OpenLevel, TextPosition, ZERO_WIDTH_SPACE, is_in_quote, list_bullet, may_begin_with,
};

pub(super) struct SlackMarkup;

/// Words after an `@` that notify people.
const BROADCAST_MENTIONS: [&str; 3] = ["channel", "here", "everyone"];

impl MarkupSyntax for SlackMarkup {
    fn delimiters(&self, element: &DocumentElement, outer: &[OpenLevel]) -> Option<Delimiters> {
        if outer.iter().any(|level| matches!(level.element, DocumentElement::Link(_))) {
            return None;
        }
        match element {
            DocumentElement::Heading(_) | DocumentElement::Strong => Some(style_mark("*")),
            DocumentElement::Quote if is_in_quote(outer) => None,
            DocumentElement::Quote => {
                Some(Delimiters { code_line_prefix: String::new(), ..Delimiters::line_prefixed("> ") })
            }
            DocumentElement::Item(number) => Some(Delimiters::list_item(list_bullet(*number))),
            DocumentElement::CodeBlock { .. } => Some(Delimiters::new("```\n", "\n```")),
            DocumentElement::Emphasis => Some(style_mark("_")),
            DocumentElement::Strike => Some(style_mark("~")),
            DocumentElement::Link(link) => Some(Delimiters::new(format!("<{}|", escape_url(&link.url)), ">")),
            DocumentElement::Code(0) => Some(style_mark("`")),
            DocumentElement::List(_) => Some(Delimiters::default()),
            _ => None,
        }
    }

    fn write_text(&self, text: &str, position: TextPosition, out: &mut String) {
        for (at, c) in text.char_indices() {
            // Three backticks begin or end code everywhere.
            let extends_backticks = c == '`' && out.ends_with('`');
            let is_broadcast = position != TextPosition::Code
                && out.ends_with('@')
                && may_begin_with(&text[at..], &BROADCAST_MENTIONS);
            if extends_backticks || is_broadcast {
                out.push(ZERO_WIDTH_SPACE);
            }
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                _ => out.push(c),
            }
        }
    }
}

fn style_mark(mark: &str) -> Delimiters {
    Delimiters { needs_word_boundary: true, ..Delimiters::new(mark, mark) }
}

/// Escapes what would end the address of a link.
fn escape_url(url: &str) -> String {
    url.replace('&', "&amp;").replace('<', "%3C").replace('>', "%3E").replace('|', "%7C")
}
