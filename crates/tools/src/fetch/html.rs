//! Convert HTML to readable text in one linear pass.
//!
//! Tags, scripts and styles are dropped, blocks start on lines of their own, links keep their text, references become
//! characters. This is no parser: it never fails, never goes back, and adds little more than line breaks to its input.

use std::sync::atomic::{AtomicBool, Ordering};

/// Elements whose content is not shown.
const SKIPPED_ELEMENTS: [&str; 6] = ["script", "style", "noscript", "template", "svg", "iframe"];
/// Elements that start a new line.
const BLOCK_ELEMENTS: [&str; 34] = [
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
/// How far a quoted attribute is followed. In a longer tag quotes are ignored.
const MAX_ATTRIBUTE_CHARS: usize = 2048;
/// The longest character reference that is decoded; all known names are shorter.
const MAX_REFERENCE_BYTES: usize = 12;

/// Extracts the readable text of a page. It ends early at a stop; the caller discards the result then.
pub(super) fn html_to_text(html: &str, stop: &AtomicBool) -> String {
    let mut page = HtmlTextExtractor::default();
    let mut rest = html;
    while !rest.is_empty() && !stop.load(Ordering::Relaxed) {
        let Some(at) = rest.find('<') else {
            page.push_text(rest);
            break;
        };
        page.push_text(&rest[..at]);
        rest = &rest[at..];
        rest = if let Some(comment) = rest.strip_prefix("<!--") {
            comment.find("-->").map_or("", |end| &comment[end + 3..])
        } else {
            page.consume_tag(rest)
        };
    }
    page.into_text()
}

#[derive(Default)]
struct HtmlTextExtractor {
    out: String,
    /// A space comes before the next word.
    is_space_pending: bool,
    /// Greater than 0 inside `pre`, where white space is kept.
    pre_depth: usize,
    title: Option<String>,
}

impl HtmlTextExtractor {
    fn push_text(&mut self, piece: &str) {
        let mut rest = piece;
        while let Some(c) = rest.chars().next() {
            let (c, length) = if c == '&' { decode_reference(rest) } else { (c, c.len_utf8()) };
            rest = &rest[length..];
            self.push_char(c);
        }
    }

    fn push_char(&mut self, c: char) {
        if self.pre_depth > 0 {
            self.out.push(c);
            return;
        }
        if c.is_whitespace() {
            self.is_space_pending = true;
            return;
        }
        if self.is_space_pending && !self.out.is_empty() && !self.out.ends_with(char::is_whitespace) {
            self.out.push(' ');
        }
        self.is_space_pending = false;
        self.out.push(c);
    }

    /// Consumes the tag at the start of `rest` and returns the rest after it. A `<` that starts no tag is text.
    fn consume_tag<'h>(&mut self, rest: &'h str) -> &'h str {
        let inside = &rest[1..];
        let closing = inside.starts_with('/');
        let named = inside.trim_start_matches('/');
        let length = named.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(named.len());
        let name = named[..length].to_ascii_lowercase();
        if name.is_empty() && !inside.starts_with(['!', '?', '/']) {
            self.push_char('<');
            return inside;
        }
        let (attributes, after) = split_tag(&named[length..]);
        if !closing && name == "title" && self.title.is_none() {
            let (title, after) = split_at_closing_tag(after, "title");
            let mut words = Self::default();
            words.push_text(title);
            self.title = Some(words.out);
            return after;
        }
        if !closing && SKIPPED_ELEMENTS.contains(&name.as_str()) && !attributes.ends_with('/') {
            return split_at_closing_tag(after, &name).1;
        }
        self.apply_element(&name, closing);
        after
    }

    fn apply_element(&mut self, name: &str, closing: bool) {
        if name == "pre" {
            self.pre_depth = if closing { self.pre_depth.saturating_sub(1) } else { self.pre_depth + 1 };
        }
        if !BLOCK_ELEMENTS.contains(&name) {
            return;
        }
        self.is_space_pending = false;
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

    fn into_text(self) -> String {
        let text = self.out.trim();
        match self.title {
            Some(title) if !title.is_empty() => format!("{title}\n\n{text}"),
            _ => text.to_owned(),
        }
    }
}

/// Splits at the `>` that ends a tag. One inside quotes does not end it.
fn split_tag(rest: &str) -> (&str, &str) {
    let mut quote = None;
    for (at, c) in rest.char_indices().take(MAX_ATTRIBUTE_CHARS) {
        match (quote, c) {
            (None, '>') => return (&rest[..at], &rest[at + 1..]),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
    }
    // An unclosed quote must not swallow the rest of the page.
    rest.split_once('>').unwrap_or((rest, ""))
}

/// Splits before and after the closing tag of an element.
fn split_at_closing_tag<'h>(rest: &'h str, name: &str) -> (&'h str, &'h str) {
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

/// Decodes the character reference at the start of `rest`. Returns the character and the length of the reference.
fn decode_reference(rest: &str) -> (char, usize) {
    let window = &rest.as_bytes()[..rest.len().min(MAX_REFERENCE_BYTES)];
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
    use std::time::Duration;

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// What the clock of a thread may be behind.
    const TICKS: Duration = Duration::from_millis(20);

    fn to_text(html: &str) -> String {
        html_to_text(html, &AtomicBool::new(false))
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
        assert_eq!(to_text(html).trim_end(), wanted.trim_start_matches(' '), "{html}");
    }

    /// The time that this thread has run, up to the last tick of the kernel: what others run does not count.
    fn thread_run_time() -> Duration {
        let schedule = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(schedule.split(' ').next().unwrap().parse().unwrap())
    }

    #[test]
    fn a_hostile_page_takes_linear_time() {
        let time_of = |piece: &str, count: usize| {
            let page = piece.repeat(count);
            let started = thread_run_time();
            assert!(to_text(&page).len() <= 2 * page.len() + 100, "{piece}");
            thread_run_time() - started
        };
        for piece in ["<", "<a ", "<a \"", "<a '\">", "</", "<!--", "<script>", "<p title=\"'>", "&", "&#", "<pre>"] {
            // Linear time is 4 times as long for a page that is 4 times as long, quadratic time 16 times.
            let is_linear = |_| time_of(piece, 40_000) <= 8 * time_of(piece, 10_000) + TICKS;
            assert!((0..5).any(is_linear), "{piece}: {:?}", time_of(piece, 40_000));
        }
    }

    #[test]
    fn a_stop_ends_it() {
        assert_eq!(html_to_text("<p>text", &AtomicBool::new(true)), "");
    }

    proptest! {
        #[test]
        fn no_page_makes_it_fail(html in "(<[a-z/!'\" =>-]{0,8}|&[#a-z0-9]{0,5};?|[ -~ü漢\n]{0,6}|<script>|</script>|<pre>|<title>|-->){0,40}") {
            let text = to_text(&html);
            prop_assert!(text.len() <= 2 * html.len() + 100);
        }
    }
}
