//! The HTML subset of the Telegram Bot API (Formatting options, HTML style).
//!
//! It has few tags and no paragraphs, lists or tables. Quotes cannot be nested, and code can neither contain nor be
//! inside other tags.

use super::document::DocumentElement;
use super::markup::{Delimiters, MarkupSyntax, OpenLevel, TextPosition, list_bullet};

pub(super) struct TelegramMarkup;

impl MarkupSyntax for TelegramMarkup {
    fn delimiters(&self, element: &DocumentElement, outer: &[OpenLevel]) -> Option<Delimiters> {
        let is_inside = |found: fn(&DocumentElement) -> bool| outer.iter().any(|level| found(&level.element));
        match element {
            DocumentElement::Heading(_) | DocumentElement::Strong => Some(Delimiters::new("<b>", "</b>")),
            DocumentElement::Quote if is_inside(|element| *element == DocumentElement::Quote) => None,
            DocumentElement::Quote => Some(Delimiters::new("<blockquote>", "</blockquote>")),
            DocumentElement::Item(number) => Some(Delimiters::list_item(list_bullet(*number))),
            DocumentElement::CodeBlock { language, .. } if language.is_empty() => {
                Some(Delimiters::new("<pre>", "</pre>"))
            }
            DocumentElement::CodeBlock { language, .. } => {
                Some(Delimiters::new(format!(r#"<pre><code class="language-{language}">"#), "</code></pre>"))
            }
            DocumentElement::Emphasis => Some(Delimiters::new("<i>", "</i>")),
            DocumentElement::Strike => Some(Delimiters::new("<s>", "</s>")),
            DocumentElement::Underline => Some(Delimiters::new("<u>", "</u>")),
            DocumentElement::Link(link) if !link.url.starts_with("mailto:") => {
                let mut open = r#"<a href=""#.to_owned();
                escape_html(&link.url, &mut open);
                Some(Delimiters::new(open + r#"">"#, "</a>"))
            }
            DocumentElement::Code(_) => Some(Delimiters::new("<code>", "</code>").exclusive()),
            DocumentElement::List(_) => Some(Delimiters::empty()),
            DocumentElement::Paragraph
            | DocumentElement::Link(_)
            | DocumentElement::Table { .. }
            | DocumentElement::Row(_)
            | DocumentElement::Cell { .. } => None,
        }
    }

    fn write_text(&self, text: &str, _: TextPosition, out: &mut String) {
        escape_html(text, out);
    }
}

/// Escapes text, or the value of an attribute, for HTML.
pub(super) fn escape_html(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(c),
        }
    }
}
