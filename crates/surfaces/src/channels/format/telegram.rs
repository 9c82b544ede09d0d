//! The HTML of Telegram (Bot API: Formatting options, HTML style): a few tags, no paragraphs, no lists, no tables. Quotes do not
//! stand in quotes, and nothing stands in code or around it.

use super::document::{Gap, Mark};
use super::script::{Fence, Script, Spot, bullet};
use super::sheet::Level;

/// Telegram.
pub(super) struct Telegram;

impl Script for Telegram {
    fn fence(&self, mark: &Mark, outer: &[Level]) -> Option<Fence> {
        let within = |found: fn(&Mark) -> bool| outer.iter().any(|level| found(&level.mark));
        match mark {
            Mark::Heading(_) | Mark::Strong => Some(Fence::new("<b>", "</b>")),
            Mark::Quote if within(|mark| *mark == Mark::Quote) => None,
            Mark::Quote => Some(Fence::new("<blockquote>", "</blockquote>")),
            Mark::Item(number) => Some(Fence::item(bullet(*number))),
            Mark::CodeBlock { language, .. } if language.is_empty() => Some(Fence::new("<pre>", "</pre>")),
            Mark::CodeBlock { language, .. } => {
                Some(Fence::new(format!(r#"<pre><code class="language-{language}">"#), "</code></pre>"))
            }
            Mark::Emphasis => Some(Fence::new("<i>", "</i>")),
            Mark::Strike => Some(Fence::new("<s>", "</s>")),
            Mark::Underline => Some(Fence::new("<u>", "</u>")),
            Mark::Link(link) if !link.url.starts_with("mailto:") => {
                let mut open = r#"<a href=""#.to_owned();
                escape(&link.url, &mut open);
                Some(Fence::new(open + r#"">"#, "</a>"))
            }
            Mark::Code(_) => Some(Fence::new("<code>", "</code>").alone()),
            Mark::List(_) => Some(Fence::unseen()),
            Mark::Paragraph | Mark::Link(_) | Mark::Table { .. } | Mark::Row(_) | Mark::Cell { .. } => None,
        }
    }

    fn text(&self, text: &str, _: Spot, out: &mut String) {
        escape(text, out);
    }

    fn gap(&self, gap: Gap, _: Spot) -> &'static str {
        match gap {
            Gap::Block => "\n\n",
            Gap::Heading | Gap::Item | Gap::Line => "\n",
        }
    }

    fn rule(&self) -> &'static str {
        "———"
    }
}

/// Text, or the value of an attribute, in HTML.
pub(super) fn escape(text: &str, out: &mut String) {
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
