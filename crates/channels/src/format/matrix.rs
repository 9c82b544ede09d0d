//! The HTML subset of Matrix (Client-Server API, `m.room.message`: `org.matrix.custom.html`).

use super::document::{BlockSeparator, DocumentElement, TableRow};
use super::markup::{Delimiters, MarkupSyntax, OpenLevel, TextPosition};
use super::telegram::escape_html;

pub(super) struct MatrixMarkup;

impl MarkupSyntax for MatrixMarkup {
    fn delimiters(&self, element: &DocumentElement, _: &[OpenLevel]) -> Option<Delimiters> {
        let tag = |name: &str| Some(Delimiters::new(format!("<{name}>"), format!("</{name}>")));
        match element {
            DocumentElement::Paragraph => tag("p"),
            DocumentElement::Heading(level) => tag(&format!("h{level}")),
            DocumentElement::Quote => tag("blockquote"),
            DocumentElement::List(None) => tag("ul"),
            DocumentElement::List(Some(1)) => tag("ol"),
            DocumentElement::List(Some(number)) => Some(Delimiters::new(format!(r#"<ol start="{number}">"#), "</ol>")),
            DocumentElement::Item(_) => tag("li"),
            DocumentElement::CodeBlock { language, .. } if language.is_empty() => {
                Some(Delimiters::new("<pre><code>", "</code></pre>"))
            }
            DocumentElement::CodeBlock { language, .. } => {
                Some(Delimiters::new(format!(r#"<pre><code class="language-{language}">"#), "</code></pre>"))
            }
            DocumentElement::Table { .. } => tag("table"),
            DocumentElement::Row(_) => tag("tr"),
            DocumentElement::Cell { row: TableRow::Head { .. }, .. } => tag("th"),
            DocumentElement::Cell { row: TableRow::Body, .. } => tag("td"),
            DocumentElement::Strong => tag("strong"),
            DocumentElement::Emphasis => tag("em"),
            DocumentElement::Strike => tag("del"),
            DocumentElement::Underline => tag("u"),
            DocumentElement::Link(link) => {
                let mut open = r#"<a href=""#.to_owned();
                escape_html(&link.url, &mut open);
                Some(Delimiters::new(open + r#"">"#, "</a>"))
            }
            DocumentElement::Code(_) => tag("code"),
        }
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
