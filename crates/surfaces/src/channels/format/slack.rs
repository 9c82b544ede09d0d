//! Slack's mrkdwn ("Formatting text for app surfaces"). There is no escape for its signs but for `&`, `<` and `>`; signs count
//! only at the edge of a word; links hold plain words, quotes hold neither quotes nor code, and code knows no language.

use super::document::{Gap, Mark};
use super::script::{Fence, Script, Spot, ZERO_WIDTH, bullet};
use super::sheet::Level;

/// Slack.
pub(super) struct Slack;

/// Words after an `@` that call people.
const CALLS: [&str; 3] = ["channel", "here", "everyone"];

impl Script for Slack {
    fn fence(&self, mark: &Mark, outer: &[Level]) -> Option<Fence> {
        let within = |found: fn(&Mark) -> bool| outer.iter().any(|level| found(&level.mark));
        if within(|mark| matches!(mark, Mark::Link(_))) {
            return None;
        }
        match mark {
            Mark::Heading(_) | Mark::Strong => Some(Fence::new("*", "*").apart()),
            Mark::Quote if within(|mark| *mark == Mark::Quote) => None,
            Mark::Quote => {
                let fence = Fence::every_line("> ");
                Some(Fence { code_margin: String::new(), ..fence })
            }
            Mark::Item(number) => Some(Fence::item(bullet(*number))),
            Mark::CodeBlock { .. } => Some(Fence::new("```\n", "\n```")),
            Mark::Emphasis => Some(Fence::new("_", "_").apart()),
            Mark::Strike => Some(Fence::new("~", "~").apart()),
            Mark::Link(link) => {
                let mut open = "<".to_owned();
                escape(&link.url, &mut open);
                // What ends the address.
                Some(Fence::new(open.replace('|', "%7C") + "|", ">"))
            }
            Mark::Code(0) => Some(Fence::new("`", "`").apart()),
            Mark::List(_) => Some(Fence::unseen()),
            Mark::Paragraph
            | Mark::Underline
            | Mark::Code(_)
            | Mark::Table { .. }
            | Mark::Row(_)
            | Mark::Cell { .. } => None,
        }
    }

    fn text(&self, text: &str, spot: Spot, out: &mut String) {
        for (at, c) in text.char_indices() {
            // A row of three begins or ends code, whatever it stands in.
            let ticks = c == '`' && out.ends_with('`');
            let calls =
                spot != Spot::Code && out.ends_with('@') && CALLS.iter().any(|call| text[at..].starts_with(call));
            if ticks || calls {
                out.push(ZERO_WIDTH);
            }
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
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
}

fn escape(url: &str, out: &mut String) {
    for c in url.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("%3C"),
            '>' => out.push_str("%3E"),
            _ => out.push(c),
        }
    }
}
