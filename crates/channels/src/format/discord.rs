//! Discord's Markdown dialect ("Markdown Text 101"): headings of three levels, no tables, no longer fences, no code
//! inside lists.
//!
//! Mentions are broken by a zero-width space. A backslash would not do, because the server reads the raw text.

use super::document::DocumentElement;
use super::markdown::{escape_url, inline_code_delimiters, starts_block, url_start};
use super::markup::{Delimiters, MarkupSyntax, OpenLevel, TextPosition, ZERO_WIDTH_SPACE};

pub(super) struct DiscordMarkup;

impl MarkupSyntax for DiscordMarkup {
    fn delimiters(&self, element: &DocumentElement, outer: &[OpenLevel]) -> Option<Delimiters> {
        let is_inside = |found: fn(&DocumentElement) -> bool| outer.iter().any(|level| found(&level.element));
        match element {
            DocumentElement::Heading(level @ 1..=3) => Some(Delimiters::new("#".repeat((*level).into()) + " ", "")),
            DocumentElement::Heading(_) => Some(Delimiters::new("**", "**")),
            DocumentElement::Quote if is_inside(|element| *element == DocumentElement::Quote) => None,
            DocumentElement::Quote => Some(Delimiters::line_prefixed("> ")),
            DocumentElement::Item(None) => Some(Delimiters::list_item("- ".to_owned())),
            DocumentElement::Item(Some(number)) => Some(Delimiters::list_item(format!("{number}. "))),
            DocumentElement::CodeBlock { language, .. } => Some(Delimiters::new(format!("```{language}\n"), "\n```")),
            DocumentElement::Strong => Some(Delimiters::new("**", "**")),
            DocumentElement::Emphasis => Some(Delimiters::new("*", "*")),
            DocumentElement::Strike => Some(Delimiters::new("~~", "~~")),
            DocumentElement::Underline => Some(Delimiters::new("__", "__")),
            // Discord does not accept a URL as the label of a link to another URL.
            DocumentElement::Link(link) if !(link.is_bare || link.url.starts_with("mailto:")) => {
                Some(Delimiters::new("[", format!("]({})", escape_url(&link.url))))
            }
            DocumentElement::Code(ticks @ 0..=1) => Some(inline_code_delimiters(*ticks)),
            DocumentElement::List(_) => Some(Delimiters::empty()),
            DocumentElement::Paragraph
            | DocumentElement::Link(_)
            | DocumentElement::Code(_)
            | DocumentElement::Table { .. }
            | DocumentElement::Row(_)
            | DocumentElement::Cell { .. } => None,
        }
    }

    fn write_text(&self, text: &str, position: TextPosition, out: &mut String) {
        if position == TextPosition::Code {
            return write_code(text, out);
        }
        let url = url_start(text);
        let dot = if position == TextPosition::LineStart && starts_block(text) {
            text.find(|c: char| !c.is_ascii_digit())
        } else {
            None
        };
        for (at, c) in text.char_indices() {
            let rest = &text[at..];
            let everybody = out.ends_with('@') && (rest.starts_with("everyone") || rest.starts_with("here"));
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
