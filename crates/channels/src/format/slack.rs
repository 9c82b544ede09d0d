//! Slack's mrkdwn ("Formatting text for app surfaces").
//!
//! Only `&`, `<` and `>` can be escaped. Delimiters work only at the edge of a word. Links hold plain text, quotes hold
//! neither quotes nor code, and code has no language.

use super::document::DocumentElement;
use super::markup::{Delimiters, MarkupSyntax, OpenLevel, TextPosition, ZERO_WIDTH_SPACE, list_bullet};

pub(super) struct SlackMarkup;

/// Words after an `@` that notify people.
const BROADCAST_MENTIONS: [&str; 3] = ["channel", "here", "everyone"];

impl MarkupSyntax for SlackMarkup {
    fn delimiters(&self, element: &DocumentElement, outer: &[OpenLevel]) -> Option<Delimiters> {
        let is_inside = |found: fn(&DocumentElement) -> bool| outer.iter().any(|level| found(&level.element));
        if is_inside(|element| matches!(element, DocumentElement::Link(_))) {
            return None;
        }
        match element {
            DocumentElement::Heading(_) | DocumentElement::Strong => {
                Some(Delimiters::new("*", "*").with_word_boundary())
            }
            DocumentElement::Quote if is_inside(|element| *element == DocumentElement::Quote) => None,
            DocumentElement::Quote => {
                let delimiters = Delimiters::line_prefixed("> ");
                Some(Delimiters { code_line_prefix: String::new(), ..delimiters })
            }
            DocumentElement::Item(number) => Some(Delimiters::list_item(list_bullet(*number))),
            DocumentElement::CodeBlock { .. } => Some(Delimiters::new("```\n", "\n```")),
            DocumentElement::Emphasis => Some(Delimiters::new("_", "_").with_word_boundary()),
            DocumentElement::Strike => Some(Delimiters::new("~", "~").with_word_boundary()),
            DocumentElement::Link(link) => {
                let mut open = "<".to_owned();
                escape_url(&link.url, &mut open);
                // A `|` would end the address.
                Some(Delimiters::new(open.replace('|', "%7C") + "|", ">"))
            }
            DocumentElement::Code(0) => Some(Delimiters::new("`", "`").with_word_boundary()),
            DocumentElement::List(_) => Some(Delimiters::empty()),
            DocumentElement::Paragraph
            | DocumentElement::Underline
            | DocumentElement::Code(_)
            | DocumentElement::Table { .. }
            | DocumentElement::Row(_)
            | DocumentElement::Cell { .. } => None,
        }
    }

    fn write_text(&self, text: &str, position: TextPosition, out: &mut String) {
        for (at, c) in text.char_indices() {
            // Three backticks begin or end code everywhere.
            let extends_backticks = c == '`' && out.ends_with('`');
            let is_broadcast = position != TextPosition::Code
                && out.ends_with('@')
                && BROADCAST_MENTIONS.iter().any(|call| text[at..].starts_with(call));
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

fn escape_url(url: &str, out: &mut String) {
    for c in url.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("%3C"),
            '>' => out.push_str("%3E"),
            _ => out.push(c),
        }
    }
}
