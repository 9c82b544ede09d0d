//! The HTML of Matrix (Client-Server API, `m.room.message`: `org.matrix.custom.html`).

use super::document::{Gap, Mark, Row};
use super::script::{Fence, Script, Spot};
use super::sheet::Level;
use super::telegram::escape;

/// Matrix.
pub(super) struct Matrix;

impl Script for Matrix {
    fn fence(&self, mark: &Mark, _: &[Level]) -> Option<Fence> {
        let tag = |name: &str| Some(Fence::new(format!("<{name}>"), format!("</{name}>")));
        match mark {
            Mark::Paragraph => tag("p"),
            Mark::Heading(level) => tag(&format!("h{level}")),
            Mark::Quote => tag("blockquote"),
            Mark::List(None) => tag("ul"),
            Mark::List(Some(1)) => tag("ol"),
            Mark::List(Some(number)) => Some(Fence::new(format!(r#"<ol start="{number}">"#), "</ol>")),
            Mark::Item(_) => tag("li"),
            Mark::CodeBlock { language, .. } if language.is_empty() => Some(Fence::new("<pre><code>", "</code></pre>")),
            Mark::CodeBlock { language, .. } => {
                Some(Fence::new(format!(r#"<pre><code class="language-{language}">"#), "</code></pre>"))
            }
            Mark::Table { .. } => tag("table"),
            Mark::Row(_) => tag("tr"),
            Mark::Cell { row: Row::Head { .. }, .. } => tag("th"),
            Mark::Cell { row: Row::Body, .. } => tag("td"),
            Mark::Strong => tag("strong"),
            Mark::Emphasis => tag("em"),
            Mark::Strike => tag("del"),
            Mark::Underline => tag("u"),
            Mark::Link(link) => {
                let mut open = r#"<a href=""#.to_owned();
                escape(&link.url, &mut open);
                Some(Fence::new(open + r#"">"#, "</a>"))
            }
            Mark::Code(_) => tag("code"),
        }
    }

    fn text(&self, text: &str, _: Spot, out: &mut String) {
        escape(text, out);
    }

    fn gap(&self, gap: Gap, spot: Spot) -> &'static str {
        match gap {
            Gap::Block | Gap::Heading | Gap::Item => "",
            Gap::Line if spot == Spot::Code => "\n",
            Gap::Line => "<br>",
        }
    }

    fn rule(&self) -> &'static str {
        "<hr>"
    }

    fn more(&self) -> &'static str {
        "<p>…</p>"
    }
}
