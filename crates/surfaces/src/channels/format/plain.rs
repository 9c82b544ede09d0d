//! Words without markup: what stands in IRC, in notifications, and where a network did not take the markup.

use super::document::{Gap, Mark};
use super::script::{Fence, Script, Spot, bullet};
use super::sheet::Level;

/// Words, each link followed by its address.
pub(super) struct Plain;

impl Script for Plain {
    fn fence(&self, mark: &Mark, _: &[Level]) -> Option<Fence> {
        match mark {
            Mark::Quote => Some(Fence::every_line("> ")),
            Mark::Item(number) => Some(Fence::item(bullet(*number))),
            Mark::Cell { first: false, .. } => Some(Fence::new(" | ", "")),
            Mark::List(_) | Mark::Table { .. } | Mark::Row(_) | Mark::Cell { first: true, .. } => Some(Fence::unseen()),
            Mark::Paragraph
            | Mark::Heading(_)
            | Mark::CodeBlock { .. }
            | Mark::Strong
            | Mark::Emphasis
            | Mark::Strike
            | Mark::Underline
            | Mark::Link(_)
            | Mark::Code(_) => None,
        }
    }

    fn text(&self, text: &str, _: Spot, out: &mut String) {
        for c in text.chars() {
            match c {
                '\t' => out.push_str("    "),
                _ => out.push(c),
            }
        }
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

    fn more(&self) -> &'static str {
        "… "
    }
}
