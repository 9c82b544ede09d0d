//! The HTML subsets of Telegram (Bot API, formatting options, HTML style) and of Matrix (Client-Server API,
//! `m.room.message`: `org.matrix.custom.html`).

use super::document::{BlockSeparator, DocumentElement, DocumentLink, TableRow};
use super::markup::{Delimiters, MarkupSyntax, OpenLevel, TextPosition, is_in_quote, list_bullet};

/// It has few tags and no paragraphs, lists or tables. Quotes cannot be nested, and code can neither contain nor be
/// inside other tags.
pub(super) struct TelegramMarkup;

impl MarkupSyntax for TelegramMarkup {
    fn delimiters(&self, element: &DocumentElement, outer: &[OpenLevel]) -> Option<Delimiters> {
        match element {
            DocumentElement::Heading(_) | DocumentElement::Strong => Some(tag("b")),
            DocumentElement::Quote if is_in_quote(outer) => None,
            DocumentElement::Quote => Some(tag("blockquote")),
            DocumentElement::Item(number) => Some(Delimiters::list_item(list_bullet(*number))),
            DocumentElement::CodeBlock { language, .. } if language.is_empty() => Some(tag("pre")),
            DocumentElement::CodeBlock { language, .. } => Some(code_block(language)),
            DocumentElement::Emphasis => Some(tag("i")),
            DocumentElement::Strike => Some(tag("s")),
            DocumentElement::Underline => Some(tag("u")),
            DocumentElement::Link(link) if !link.url.starts_with("mailto:") => Some(link_tag(link)),
            DocumentElement::Code(_) => Some(Delimiters { is_exclusive: true, ..tag("code") }),
            DocumentElement::List(_) => Some(Delimiters::default()),
            _ => None,
        }
    }

    fn write_text(&self, text: &str, _: TextPosition, out: &mut String) {
        escape_html(text, out);
    }
}

pub(super) struct MatrixMarkup;

impl MarkupSyntax for MatrixMarkup {
    fn delimiters(&self, element: &DocumentElement, _: &[OpenLevel]) -> Option<Delimiters> {
        Some(match element {
            DocumentElement::Paragraph => tag("p"),
            DocumentElement::Heading(level) => tag(&format!("h{level}")),
            DocumentElement::Quote => tag("blockquote"),
            DocumentElement::List(None) => tag("ul"),
            DocumentElement::List(Some(1)) => tag("ol"),
            DocumentElement::List(Some(number)) => Delimiters::new(format!(r#"<ol start="{number}">"#), "</ol>"),
            DocumentElement::Item(_) => tag("li"),
            DocumentElement::CodeBlock { language, .. } if language.is_empty() => {
                Delimiters::new("<pre><code>", "</code></pre>")
            }
            DocumentElement::CodeBlock { language, .. } => code_block(language),
            DocumentElement::Table { .. } => tag("table"),
            DocumentElement::Row(_) => tag("tr"),
            DocumentElement::Cell { row: TableRow::Head { .. }, .. } => tag("th"),
            DocumentElement::Cell { row: TableRow::Body, .. } => tag("td"),
            DocumentElement::Strong => tag("strong"),
            DocumentElement::Emphasis => tag("em"),
            DocumentElement::Strike => tag("del"),
            DocumentElement::Underline => tag("u"),
            DocumentElement::Link(link) => link_tag(link),
            DocumentElement::Code(_) => tag("code"),
        })
    }

    fn write_text(&self, text: &str, _: TextPosition, out: &mut String) {
        escape_html(text, out);
    }

    fn separator_text(&self, separator: BlockSeparator, position: TextPosition) -> &'static str {
        match separator {
            BlockSeparator::Block | BlockSeparator::Heading | BlockSeparator::Item => "",
            BlockSeparator::Line if position == TextPosition::Code => "\n",
            BlockSeparator::Line => "<br>",
        }
    }

    fn horizontal_rule(&self) -> &'static str {
        "<hr>"
    }

    fn continuation_mark(&self) -> &'static str {
        "<p>…</p>"
    }
}

fn tag(name: &str) -> Delimiters {
    Delimiters::new(format!("<{name}>"), format!("</{name}>"))
}

fn code_block(language: &str) -> Delimiters {
    Delimiters::new(format!(r#"<pre><code class="language-{language}">"#), "</code></pre>")
}

fn link_tag(link: &DocumentLink) -> Delimiters {
    let mut open = r#"<a href=""#.to_owned();
    escape_html(&link.url, &mut open);
    Delimiters::new(open + r#"">"#, "</a>")
}

/// Escapes text, or the value of an attribute.
fn escape_html(text: &str, out: &mut String) {
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
