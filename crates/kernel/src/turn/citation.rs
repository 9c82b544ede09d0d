//! Web pages on which an answer is based, as its provider names them. People see them as links below the text; models
//! do not read them.

use serde::{Deserialize, Serialize};
use url::Url;

/// The most links below one answer.
const MAX_CITATIONS: usize = 10;
const MAX_TITLE_CHARS: usize = 80;
const MAX_URL_BYTES: usize = 2000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Citation {
    /// `http` or `https`, without a user.
    url: String,
    /// One line without Markdown.
    title: String,
}

/// The pages of one message, in the order in which they were named, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Citations(Vec<Citation>);

impl Citations {
    /// Adds a page. Addresses that a person cannot open, repeated pages and those beyond the limit are left out.
    pub fn add(&mut self, url: &str, title: &str) {
        if self.0.len() < MAX_CITATIONS
            && let Some(citation) = Citation::new(url, title)
            && self.0.iter().all(|known| known.url != citation.url)
        {
            self.0.push(citation);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The links as Markdown, with the blank line that divides them from the text; empty if there are none.
    pub fn as_markdown(&self) -> String {
        let link = |citation: &Citation| format!("- [{}]({})", citation.title, citation.url);
        let links: Vec<String> = self.0.iter().map(link).collect();
        if links.is_empty() { String::new() } else { format!("\n\n{}", links.join("\n")) }
    }
}

impl Citation {
    /// The title comes from a page that anybody may have written, so it keeps no character with a meaning in Markdown.
    fn new(url: &str, title: &str) -> Option<Self> {
        let parsed = Url::parse(url.trim()).ok()?;
        let can_be_opened = matches!(parsed.scheme(), "http" | "https") && parsed.username().is_empty();
        let host = parsed.host_str()?;
        let plain: String = title.chars().map(|c| if is_plain(c) { c } else { ' ' }).collect();
        let words: Vec<&str> = plain.split_whitespace().collect();
        let title: String = words.join(" ").chars().take(MAX_TITLE_CHARS).collect();
        let title = if title.is_empty() { host.to_owned() } else { title.trim_end().to_owned() };
        // Brackets would end the link in Markdown.
        let url = parsed.as_str().replace('(', "%28").replace(')', "%29");
        (can_be_opened && parsed.password().is_none() && url.len() <= MAX_URL_BYTES).then_some(Self { url, title })
    }
}

fn is_plain(c: char) -> bool {
    let turns_text = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !(c.is_control() || turns_text || "[]()<>*_`~|\\#!".contains(c))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("https://a.example/x", "A page", "- [A page](https://a.example/x)")]
    #[case::no_title("https://a.example/x", " \n", "- [a.example](https://a.example/x)")]
    #[case::markup("http://a.example", "![x](y) <b>`z`</b>\n# Now", "- [x y b z /b Now](http://a.example/)")]
    #[case::brackets("https://a.example/a(b) c", "A", "- [A](https://a.example/a%28b%29%20c)")]
    #[case::turned("https://a.example/", "exe\u{202e}txt", "- [exe txt](https://a.example/)")]
    fn a_page_is_a_link_whatever_its_title_says(#[case] url: &str, #[case] title: &str, #[case] link: &str) {
        let mut citations = Citations::default();
        citations.add(url, title);
        citations.add(url, "the same again");
        assert_eq!(citations.as_markdown(), format!("\n\n{link}"));
    }

    #[rstest]
    #[case::script("javascript:alert(1)")]
    #[case::file("file:///etc/passwd")]
    #[case::user("https://bank.example@evil.example/")]
    #[case::password("https://:secret@evil.example/")]
    #[case::relative("/x")]
    #[case::no_host("https://")]
    fn an_address_that_nobody_should_open_is_left_out(#[case] url: &str) {
        let mut citations = Citations::default();
        citations.add(url, "title");
        assert!(citations.is_empty() && citations.as_markdown().is_empty(), "{citations:?}");
    }

    #[test]
    fn links_are_bounded_in_number_and_length() {
        let mut citations = Citations::default();
        citations.add(&format!("https://a.example/{}", "x".repeat(MAX_URL_BYTES)), "too long");
        (0..100).for_each(|n| citations.add(&format!("https://a.example/{n}"), &"long title ".repeat(100)));
        let shown = citations.as_markdown();
        assert_eq!(shown.matches("https://").count(), MAX_CITATIONS);
        assert!(shown.len() < MAX_CITATIONS * 150, "{shown}");
    }
}
