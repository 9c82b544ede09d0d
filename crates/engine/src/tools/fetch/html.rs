//! HTML as readable text: tags dropped, scripts and styles too, blocks on lines of their own, links and characters kept.
//!
//! Not a parser: a single pass that never fails, never looks back and never grows what it is given by more than line breaks.

use std::sync::atomic::{AtomicBool, Ordering};

/// Elements whose content nobody reads.
const SILENT: [&str; 6] = ["script", "style", "noscript", "template", "svg", "iframe"];
/// Elements that begin a line.
const BLOCKS: [&str; 34] = [
    "address",
    "article",
    "aside",
    "blockquote",
    "br",
    "dd",
    "div",
    "dl",
    "dt",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "form",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "header",
    "hr",
    "li",
    "main",
    "nav",
    "ol",
    "p",
    "pre",
    "section",
    "table",
    "td",
    "th",
    "tr",
    "ul",
];
/// A quoted attribute is followed so far; a tag with more is read as if nothing were quoted.
const ATTRIBUTES: usize = 2048;
/// The longest character reference that is read; all names that are known here are shorter.
const REFERENCE: usize = 12;

/// The readable text of a page. At a stop it ends early; its result is dropped then.
pub(super) fn readable(html: &str, stop: &AtomicBool) -> String {
    let mut page = Page::default();
    let mut rest = html;
    while !rest.is_empty() && !stop.load(Ordering::Relaxed) {
        let Some(at) = rest.find('<') else {
            page.text(rest);
            break;
        };
        page.text(&rest[..at]);
        rest = &rest[at..];
        rest = if let Some(comment) = rest.strip_prefix("<!--") {
            comment.find("-->").map_or("", |end| &comment[end + 3..])
        } else {
            page.tag(rest)
        };
    }
    page.finish()
}

#[derive(Default)]
struct Page {
    out: String,
    /// A space is owed before the next word.
    space: bool,
    /// Inside `pre`, where white space counts.
    verbatim: usize,
    title: Option<String>,
}

impl Page {
    fn text(&mut self, piece: &str) {
        let mut rest = piece;
        while let Some(c) = rest.chars().next() {
            let (c, length) = if c == '&' { reference(rest) } else { (c, c.len_utf8()) };
            rest = &rest[length..];
            self.put(c);
        }
    }

    fn put(&mut self, c: char) {
        if self.verbatim > 0 {
            self.out.push(c);
            return;
        }
        if c.is_whitespace() {
            self.space = true;
            return;
        }
        if self.space && !self.out.is_empty() && !self.out.ends_with(char::is_whitespace) {
            self.out.push(' ');
        }
        self.space = false;
        self.out.push(c);
    }

    /// Takes the tag at the start of `rest` and returns what follows; a `<` that starts no tag is text.
    fn tag<'h>(&mut self, rest: &'h str) -> &'h str {
        let inside = &rest[1..];
        let closing = inside.starts_with('/');
        let named = inside.trim_start_matches('/');
        let length = named.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(named.len());
        let name = named[..length].to_ascii_lowercase();
        if name.is_empty() && !inside.starts_with(['!', '?', '/']) {
            self.put('<');
            return inside;
        }
        let (attributes, after) = split_tag(&named[length..]);
        if !closing && name == "title" && self.title.is_none() {
            let (title, after) = until_close(after, "title");
            let mut words = Self::default();
            words.text(title);
            self.title = Some(words.out);
            return after;
        }
        if !closing && SILENT.contains(&name.as_str()) && !attributes.ends_with('/') {
            return until_close(after, &name).1;
        }
        self.structure(&name, closing);
        after
    }

    fn structure(&mut self, name: &str, closing: bool) {
        if name == "pre" {
            self.verbatim = if closing { self.verbatim.saturating_sub(1) } else { self.verbatim + 1 };
        }
        if !BLOCKS.contains(&name) {
            return;
        }
        self.space = false;
        let is_cell = matches!(name, "td" | "th");
        if is_cell && !self.out.is_empty() && !self.out.ends_with('\n') {
            self.out.push_str(if closing { "" } else { " | " });
            return;
        }
        if !self.out.is_empty() && !self.out.ends_with('\n') {
            self.out.push('\n');
        }
        let is_heading = name.len() == 2 && name.starts_with('h') && name != "hr";
        if (is_heading || name == "p") && !self.out.is_empty() && !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
        match name {
            _ if closing => {}
            "li" => self.out.push_str("- "),
            _ if is_heading => {
                let level = name.bytes().last().map_or(1, |b| usize::from(b.saturating_sub(b'0')));
                self.out.push_str(&"#".repeat(level));
                self.out.push(' ');
            }
            _ => {}
        }
    }

    fn finish(self) -> String {
        let text = self.out.trim();
        match self.title {
            Some(title) if !title.is_empty() => format!("{title}\n\n{text}"),
            _ => text.to_owned(),
        }
    }
}

/// Splits at the `>` that ends a tag, which may stand in quotes before.
fn split_tag(rest: &str) -> (&str, &str) {
    let mut quote = None;
    for (at, c) in rest.char_indices().take(ATTRIBUTES) {
        match (quote, c) {
            (None, '>') => return (&rest[..at], &rest[at + 1..]),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
    }
    // A quote that never ends must not swallow the page.
    rest.split_once('>').unwrap_or((rest, ""))
}

/// Splits before and after the closing tag of an element.
fn until_close<'h>(rest: &'h str, name: &str) -> (&'h str, &'h str) {
    let mut from = 0;
    while let Some(at) = rest[from..].find("</").map(|at| from + at) {
        let tail = &rest[at + 2..];
        let is_it = tail.get(..name.len()).is_some_and(|t| t.eq_ignore_ascii_case(name));
        if is_it && !tail[name.len()..].starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return (&rest[..at], split_tag(&tail[name.len()..]).1);
        }
        from = at + 2;
    }
    (rest, "")
}

/// The character that a reference at the start of `rest` stands for, and the length of the reference.
fn reference(rest: &str) -> (char, usize) {
    let window = &rest.as_bytes()[..rest.len().min(REFERENCE)];
    let Some(end) = window.iter().position(|b| *b == b';') else { return ('&', 1) };
    let name = &rest[1..end];
    let number = match name.strip_prefix('#') {
        Some(digits) => match digits.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        },
        None => None,
    };
    let named = match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        "nbsp" => Some(' '),
        "ndash" => Some('–'),
        "mdash" => Some('—'),
        "hellip" => Some('…'),
        "lsquo" => Some('‘'),
        "rsquo" => Some('’'),
        "ldquo" => Some('“'),
        "rdquo" => Some('”'),
        "copy" => Some('©'),
        "bull" => Some('•'),
        "middot" => Some('·'),
        "times" => Some('×'),
        "euro" => Some('€'),
        _ => number.and_then(char::from_u32),
    };
    named.map_or(('&', 1), |c| (c, end + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn read(html: &str) -> String {
        readable(html, &AtomicBool::new(false))
    }

    #[rstest]
    #[case("a<br>b<hr/>c", "a\nb\nc")]
    #[case("<p>one</p><p>two</p>", "one\n\ntwo")]
    #[case("<h2>T</h2>x", "## T\n\nx")]
    #[case("<table><tr><th>a<th>b<tr><td>1</td><td>2</td></table>", "a | b\n1 | 2")]
    #[case("<pre>  x\n   y</pre> z", "  x\n   y\nz")]
    #[case("1 < 2 && 3 > 2", "1 < 2 && 3 > 2")]
    #[case("&lt;b&gt; &#65;&#x42; &nosuch; &#xFFFFFFFF; &", "<b> AB &nosuch; &#xFFFFFFFF; &")]
    #[case("a<!-- <p>no</p> -->b", "ab")]
    #[case("<SCRIPT>x</scripty></Script >b", "b")]
    #[case("<a title='1 > 0' href=\"x>y\">link</a>", "link")]
    #[case("<a title='never closed>text", "text")]
    #[case("<title>\n A \n B </title><p>c", "A B\n\nc")]
    #[case("<svg/>after", "after")]
    #[case("cut <scri", "cut")]
    #[case("cut <script>lost", "cut")]
    #[case("cut <!-- lost", "cut")]
    #[case("<div><div><div>x</div></div></div>y", "x\ny")]
    fn pages_become_text(#[case] html: &str, #[case] wanted: &str) {
        assert_eq!(read(html).trim_end(), wanted.trim_start_matches(' '), "{html}");
    }

    #[test]
    fn a_hostile_page_takes_linear_time() {
        for piece in ["<", "<a ", "<a \"", "<a '\">", "</", "<!--", "<script>", "<p title=\"'>", "&", "&#", "<pre>"] {
            let page = piece.repeat(200_000);
            let started = std::time::Instant::now();
            assert!(read(&page).len() <= 2 * page.len() + 100, "{piece}");
            // Quadratic time would be minutes.
            assert!(started.elapsed() < std::time::Duration::from_secs(10), "{piece}: {:?}", started.elapsed());
        }
    }

    #[test]
    fn a_stop_ends_it() {
        assert_eq!(readable("<p>text", &AtomicBool::new(true)), "");
    }

    proptest! {
        #[test]
        fn no_page_makes_it_fail(html in "(<[a-z/!'\" =>-]{0,8}|&[#a-z0-9]{0,5};?|[ -~ü漢\n]{0,6}|<script>|</script>|<pre>|<title>|-->){0,40}") {
            let text = read(&html);
            prop_assert!(text.len() <= 2 * html.len() + 100);
        }
    }
}
