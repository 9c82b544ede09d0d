//! Markdown output, escaped for programs or readable for people.

use super::document::{BlockSeparator, DocumentElement, TableRow};
use super::markup::{Delimiters, MarkupSyntax, OpenLevel, TextPosition, delimiter_run};

/// For programs: text that looks like markup is escaped.
pub(super) const MARKDOWN_ESCAPED: MarkdownMarkup = MarkdownMarkup { escapes: true };
/// For people: nothing is escaped.
pub(super) const MARKDOWN_READABLE: MarkdownMarkup = MarkdownMarkup { escapes: false };

/// CommonMark with tables and strikethrough.
pub(super) struct MarkdownMarkup {
    escapes: bool,
}

impl MarkupSyntax for MarkdownMarkup {
    fn delimiters(&self, element: &DocumentElement, _: &[OpenLevel]) -> Option<Delimiters> {
        match element {
            DocumentElement::Paragraph => None,
            DocumentElement::Heading(level) => Some(Delimiters::new("#".repeat((*level).into()) + " ", "")),
            DocumentElement::Quote => Some(Delimiters::line_prefixed("> ")),
            DocumentElement::Item(number) => {
                let item = Delimiters::list_item(number.map_or("- ".to_owned(), |number| format!("{number}. ")));
                // Code in an item is indented, too.
                Some(Delimiters { code_line_prefix: item.line_prefix.clone(), ..item })
            }
            DocumentElement::CodeBlock { language, longest_backticks: ticks } => {
                let fence = delimiter_run('`', 3, *ticks);
                Some(Delimiters::new(format!("{fence}{language}\n"), format!("\n{fence}")))
            }
            DocumentElement::Row(TableRow::Head { columns }) => {
                let underline = "---|".repeat(*columns);
                Some(Delimiters::new("|", format!("\n|{underline}")))
            }
            DocumentElement::Row(TableRow::Body) => Some(Delimiters::new("|", "")),
            DocumentElement::Cell { .. } => Some(Delimiters::new(" ", " |")),
            DocumentElement::Strong => Some(Delimiters::new("**", "**")),
            DocumentElement::Emphasis => Some(Delimiters::new("*", "*")),
            DocumentElement::Strike => Some(Delimiters::new("~~", "~~")),
            DocumentElement::Underline => Some(Delimiters::new("<u>", "</u>")),
            DocumentElement::Link(link) => Some(Delimiters::new("[", format!("]({})", escape_url(&link.url)))),
            DocumentElement::Code(ticks) => Some(inline_code_delimiters(*ticks)),
            DocumentElement::List(_) | DocumentElement::Table { .. } => Some(Delimiters::default()),
        }
    }

    fn write_text(&self, text: &str, position: TextPosition, out: &mut String) {
        if !self.escapes || position == TextPosition::Code {
            return out.push_str(text);
        }
        let url = url_start(text);
        let (words, url) = text.split_at(url);
        if position == TextPosition::LineStart && starts_block(words) {
            // Only punctuation can be escaped: for a number that is its dot.
            let digits = words.len() - words.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            out.push_str(&words[..digits]);
            out.push('\\');
            escape_chars(&words[digits..digits + 1], out, |_| false);
            escape_chars(&words[digits + 1..], out, is_markup_char);
        } else {
            escape_chars(words, out, is_markup_char);
        }
        out.push_str(url);
    }

    fn separator_text(&self, separator: BlockSeparator, _: TextPosition) -> &'static str {
        match separator {
            BlockSeparator::Block | BlockSeparator::Heading => "\n\n",
            BlockSeparator::Item | BlockSeparator::Line => "\n",
        }
    }

    fn horizontal_rule(&self) -> &'static str {
        "---"
    }
}

/// Delimiters of inline code whose longest run of backticks is `ticks`.
fn inline_code_delimiters(ticks: usize) -> Delimiters {
    let fence = delimiter_run('`', 1, ticks);
    let space = if ticks == 0 { "" } else { " " };
    Delimiters::new(format!("{fence}{space}"), format!("{space}{fence}"))
}

/// Escapes what would end the address of a link.
fn escape_url(url: &str) -> String {
    url.replace(' ', "%20").replace('(', "%28").replace(')', "%29").replace('<', "%3C").replace('>', "%3E")
}

/// Where an address begins in a word. It is not escaped: programs that link addresses would take the backslash as a
/// part of it.
pub(super) fn url_start(word: &str) -> usize {
    word.find("http://").or_else(|| word.find("https://")).unwrap_or(word.len())
}

fn escape_chars(text: &str, out: &mut String, needs_escape: impl Fn(char) -> bool) {
    for c in text.chars() {
        if needs_escape(c) {
            out.push('\\');
        }
        out.push(c);
    }
}

fn is_markup_char(c: char) -> bool {
    matches!(c, '\\' | '*' | '_' | '`' | '~' | '[' | ']' | '<' | '&' | '|')
}

/// True for text that begins a block at the beginning of a line.
pub(super) fn starts_block(words: &str) -> bool {
    let number = words.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = number.len() < words.len() && number.starts_with(['.', ')']);
    numbered || words.starts_with(['#', '>', '-', '+', '='])
}
