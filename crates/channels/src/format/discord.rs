//! Discord's Markdown dialect ("Markdown Text 101"): headings of three levels, no tables, no longer fences, no code
//! inside lists.
//!
//! Mentions are broken by a zero-width space. A backslash would not do, because the server reads the raw text.

use super::document::DocumentElement;
use super::markdown::{MARKDOWN_READABLE, starts_block, url_start};
use super::markup::{Delimiters, MarkupSyntax, OpenLevel, TextPosition, ZERO_WIDTH_SPACE, is_in_quote, may_begin_with};

pub(super) struct DiscordMarkup;

impl MarkupSyntax for DiscordMarkup {
    fn delimiters(&self, element: &DocumentElement, outer: &[OpenLevel]) -> Option<Delimiters> {
        match element {
            DocumentElement::Heading(4..) => Some(Delimiters::new("**", "**")),
            DocumentElement::Item(None) => Some(Delimiters::list_item("- ".to_owned())),
            DocumentElement::Item(Some(number)) => Some(Delimiters::list_item(format!("{number}. "))),
            DocumentElement::CodeBlock { language, .. } => Some(Delimiters::new(format!("```{language}\n"), "\n```")),
            DocumentElement::Underline => Some(Delimiters::new("__", "__")),
            DocumentElement::Quote if is_in_quote(outer) => None,
            // Discord does not accept a URL as the label of a link to another URL.
            DocumentElement::Link(link) if link.is_bare || link.url.starts_with("mailto:") => None,
            DocumentElement::Code(2..)
            | DocumentElement::Table { .. }
            | DocumentElement::Row(_)
            | DocumentElement::Cell { .. } => None,
            _ => MARKDOWN_READABLE.delimiters(element, outer),
        }
    }

    fn write_text(&self, text: &str, position: TextPosition, out: &mut String) {
        if position == TextPosition::Code {
            return write_code(text, out);
        }
        let url = url_start(text);
        let starts_block = position == TextPosition::LineStart && starts_block(text);
        let dot = text.find(|c: char| !c.is_ascii_digit()).filter(|_| starts_block);
        for (at, c) in text.char_indices() {
            let everybody = out.ends_with('@') && may_begin_with(&text[at..], &["everyone", "here"]);
            let somebody = out.ends_with('<') && matches!(c, '@' | '#');
            if everybody || somebody {
                out.push(ZERO_WIDTH_SPACE);
            }
            let masked = c == '(' && out.ends_with(']');
            if masked || dot == Some(at) || at < url && matches!(c, '\\' | '*' | '_' | '`' | '~' | '|') {
                out.push('\\');
            }
            out.push(c);
        }
    }
}

/// Writes code so that no backticks in it end the code.
fn write_code(text: &str, out: &mut String) {
    for c in text.chars() {
        if c == '`' && out.ends_with('`') {
            out.push(ZERO_WIDTH_SPACE);
        }
        out.push(c);
    }
}
