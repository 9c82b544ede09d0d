//! Discord's Markdown ("Markdown Text 101"): headings of three levels, no tables, no longer fences, and no code inside lists.
//! What would call people is broken by a space without width; a backslash would not do it, because the server reads the raw text.

use super::document::{Gap, Mark};
use super::markdown::{begins_block, closed, code, url_start};
use super::script::{Fence, Script, Spot, ZERO_WIDTH};
use super::sheet::Level;

/// Discord.
pub(super) struct Discord;

impl Script for Discord {
    fn fence(&self, mark: &Mark, outer: &[Level]) -> Option<Fence> {
        let within = |found: fn(&Mark) -> bool| outer.iter().any(|level| found(&level.mark));
        match mark {
            Mark::Heading(level @ 1..=3) => Some(Fence::new("#".repeat((*level).into()) + " ", "")),
            Mark::Heading(_) => Some(Fence::new("**", "**")),
            Mark::Quote if within(|mark| *mark == Mark::Quote) => None,
            Mark::Quote => Some(Fence::every_line("> ")),
            Mark::Item(None) => Some(Fence::item("- ".to_owned())),
            Mark::Item(Some(number)) => Some(Fence::item(format!("{number}. "))),
            Mark::CodeBlock { language, .. } => Some(Fence::new(format!("```{language}\n"), "\n```")),
            Mark::Strong => Some(Fence::new("**", "**")),
            Mark::Emphasis => Some(Fence::new("*", "*")),
            Mark::Strike => Some(Fence::new("~~", "~~")),
            Mark::Underline => Some(Fence::new("__", "__")),
            // An address as the words of another one is not taken.
            Mark::Link(link) if !(link.bare || link.url.starts_with("mailto:")) => {
                Some(Fence::new("[", format!("]({})", closed(&link.url))))
            }
            Mark::Code(ticks @ 0..=1) => Some(code(*ticks)),
            Mark::List(_) => Some(Fence::unseen()),
            Mark::Paragraph | Mark::Link(_) | Mark::Code(_) | Mark::Table { .. } | Mark::Row(_) | Mark::Cell { .. } => {
                None
            }
        }
    }

    fn text(&self, text: &str, spot: Spot, out: &mut String) {
        if spot == Spot::Code {
            return code_text(text, out);
        }
        let url = url_start(text);
        let dot =
            if spot == Spot::LineStart && begins_block(text) { text.find(|c: char| !c.is_ascii_digit()) } else { None };
        for (at, c) in text.char_indices() {
            let rest = &text[at..];
            let everybody = out.ends_with('@') && (rest.starts_with("everyone") || rest.starts_with("here"));
            let somebody = out.ends_with('<') && matches!(c, '@' | '#');
            if everybody || somebody {
                out.push(ZERO_WIDTH);
            }
            let masked = c == '(' && out.ends_with(']');
            if masked || dot == Some(at) || at < url && matches!(c, '\\' | '*' | '_' | '`' | '~' | '|') {
                out.push('\\');
            }
            out.push(c);
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
}

/// Code in which nothing ends the code.
fn code_text(text: &str, out: &mut String) {
    for c in text.chars() {
        if c == '`' && out.ends_with('`') {
            out.push(ZERO_WIDTH);
        }
        out.push(c);
    }
}
