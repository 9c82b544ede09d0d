//! Markdown again: for networks that take it as it is, and, without escapes, for people who read it unrendered.

use super::document::{Gap, Mark, Row};
use super::script::{Fence, Script, Spot, row};
use super::sheet::Level;

/// Markdown for programs: what is only words is escaped.
pub(super) const EXACT: Markdown = Markdown { escapes: true };
/// Markdown for people.
pub(super) const READABLE: Markdown = Markdown { escapes: false };

/// CommonMark with tables and strikethrough.
pub(super) struct Markdown {
    escapes: bool,
}

impl Script for Markdown {
    fn fence(&self, mark: &Mark, _: &[Level]) -> Option<Fence> {
        match mark {
            Mark::Paragraph => None,
            Mark::Heading(level) => Some(Fence::new("#".repeat((*level).into()) + " ", "")),
            Mark::Quote => Some(Fence::every_line("> ")),
            Mark::Item(None) => Some(Fence::item("- ".to_owned()).in_code()),
            Mark::Item(Some(number)) => Some(Fence::item(format!("{number}. ")).in_code()),
            Mark::CodeBlock { language, ticks } => {
                let fence = row('`', 3, *ticks);
                Some(Fence::new(format!("{fence}{language}\n"), format!("\n{fence}")))
            }
            Mark::Row(Row::Head { columns }) => {
                let under = "---|".repeat(*columns);
                Some(Fence::new("|", format!("\n|{under}")))
            }
            Mark::Row(Row::Body) => Some(Fence::new("|", "")),
            Mark::Cell { .. } => Some(Fence::new(" ", " |")),
            Mark::Strong => Some(Fence::new("**", "**")),
            Mark::Emphasis => Some(Fence::new("*", "*")),
            Mark::Strike => Some(Fence::new("~~", "~~")),
            Mark::Underline => Some(Fence::new("<u>", "</u>")),
            Mark::Link(link) => Some(Fence::new("[", format!("]({})", closed(&link.url)))),
            Mark::Code(ticks) => Some(code(*ticks)),
            Mark::List(_) | Mark::Table { .. } => Some(Fence::unseen()),
        }
    }

    fn text(&self, text: &str, spot: Spot, out: &mut String) {
        if !self.escapes || spot == Spot::Code {
            return out.push_str(text);
        }
        let url = url_start(text);
        let (words, url) = text.split_at(url);
        if spot == Spot::LineStart && begins_block(words) {
            // Only a sign can be escaped: a number's is its dot.
            let digits = words.len() - words.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            out.push_str(&words[..digits]);
            out.push('\\');
            escape(&words[digits..digits + 1], out, |_| false);
            escape(&words[digits + 1..], out, has_meaning);
        } else {
            escape(words, out, has_meaning);
        }
        out.push_str(url);
    }

    fn gap(&self, gap: Gap, _: Spot) -> &'static str {
        match gap {
            Gap::Block | Gap::Heading => "\n\n",
            Gap::Item | Gap::Line => "\n",
        }
    }

    fn rule(&self) -> &'static str {
        "---"
    }
}

/// Code in a line, in which there is a row of so many backticks.
pub(super) fn code(ticks: usize) -> Fence {
    let fence = row('`', 1, ticks);
    let space = if ticks == 0 { "" } else { " " };
    Fence::new(format!("{fence}{space}"), format!("{space}{fence}"))
}

/// An address that no parenthesis and no space ends.
pub(super) fn closed(url: &str) -> String {
    url.replace(' ', "%20").replace('(', "%28").replace(')', "%29").replace('<', "%3C").replace('>', "%3E")
}

/// Where an address begins in a word. What stands in it is not escaped: programs that make links of addresses would take the
/// backslash for a part of it.
pub(super) fn url_start(word: &str) -> usize {
    word.find("http://").or_else(|| word.find("https://")).unwrap_or(word.len())
}

/// Puts a backslash before signs.
pub(super) fn escape(text: &str, out: &mut String, meaning: impl Fn(char) -> bool) {
    for c in text.chars() {
        if meaning(c) {
            out.push('\\');
        }
        out.push(c);
    }
}

fn has_meaning(c: char) -> bool {
    matches!(c, '\\' | '*' | '_' | '`' | '~' | '[' | ']' | '<' | '&' | '|')
}

/// True for words that begin a block at the beginning of a line.
pub(super) fn begins_block(words: &str) -> bool {
    let number = words.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = number.len() < words.len() && number.starts_with(['.', ')']);
    numbered || words.starts_with(['#', '>', '-', '+', '='])
}
