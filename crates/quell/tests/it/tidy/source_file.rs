//! A file as the rules see it: its lines, and its code as tokens without comments and literals.

/// A word or a sign of the code, with its line from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceToken {
    pub(super) text: String,
    pub(super) line: usize,
}

impl SourceToken {
    pub(super) fn is_word(&self) -> bool {
        self.text.starts_with(|first: char| first.is_alphabetic() || first == '_')
    }
}

pub(super) struct SourceFile {
    /// From the root, with `/`.
    pub(super) path: String,
    /// As they are.
    pub(super) lines: Vec<String>,
    /// The code alone.
    pub(super) tokens: Vec<SourceToken>,
}

impl SourceFile {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let lines = text.lines().map(str::to_owned).collect();
        Self { path: path.to_owned(), lines, tokens: tokenize(&blank_literals(text)) }
    }

    pub(super) fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// Places where the tokens read like this, by index of the first.
    pub(super) fn find_tokens<'a>(&'a self, wanted: &'a [&str]) -> impl Iterator<Item = usize> + 'a {
        let fits = move |window: &[SourceToken]| window.iter().zip(wanted).all(|(token, text)| token.text == *text);
        self.tokens.windows(wanted.len()).enumerate().filter(move |(_, window)| fits(window)).map(|(at, _)| at)
    }

    /// Every path that the code names, groups in `use` taken apart: `use a::{b, c}` names `a::b` and `a::c`.
    pub(super) fn paths(&self) -> Vec<(usize, Vec<String>)> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let follows = at > 0 && self.tokens[at - 1].text == "::";
            if self.tokens[at].is_word() && !follows {
                at = self.path_at(at, &[], &mut found);
            } else {
                at += 1;
            }
        }
        found
    }

    /// Reads the path that begins here; answers where it is over.
    fn path_at(&self, mut at: usize, before: &[String], found: &mut Vec<(usize, Vec<String>)>) -> usize {
        let mut path = before.to_vec();
        let line = self.tokens.get(at).map_or(0, |token| token.line);
        let text = |at: usize| self.tokens.get(at).map_or("", |token| token.text.as_str());
        loop {
            if text(at) == "{" {
                return self.group_at(at + 1, &path, found);
            }
            if self.tokens.get(at).is_some_and(SourceToken::is_word) || text(at) == "*" {
                path.push(text(at).to_owned());
                at += 1;
            }
            if text(at) != "::" {
                break;
            }
            at += 1;
        }
        found.push((line, path));
        at
    }

    fn group_at(&self, mut at: usize, before: &[String], found: &mut Vec<(usize, Vec<String>)>) -> usize {
        while let Some(token) = self.tokens.get(at) {
            at = match token.text.as_str() {
                "}" => return at + 1,
                "{" => self.group_at(at + 1, before, found),
                _ if token.is_word() => self.path_at(at, before, found),
                _ => at + 1,
            };
        }
        at
    }
}

/// The text with every comment and literal turned into blanks, line for line.
fn blank_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// Where the comment or literal that begins here is over; here, if none begins.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = |ahead: usize| chars.get(at + ahead).copied().unwrap_or(' ');
    let in_word =
        at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_') && !matches!(chars[at - 1], 'b' | 'c');
    match (chars[at], next(1)) {
        ('/', '/') => find_text(chars, at, "\n"),
        ('/', '*') => comment_end(chars, at),
        ('"', _) => string_end(chars, at + 1, '"'),
        ('r', '"' | '#') if !in_word => raw_end(chars, at),
        ('\'', '\\') => string_end(chars, at + 1, '\''),
        ('\'', _) if next(2) == '\'' => at + 3,
        _ => at,
    }
}

fn find_text(chars: &[char], from: usize, wanted: &str) -> usize {
    let wanted: Vec<char> = wanted.chars().collect();
    (from..chars.len()).find(|at| chars[*at..].starts_with(&wanted)).unwrap_or(chars.len())
}

fn comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut at) = (0_usize, at);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_end(chars: &[char], mut at: usize, quote: char) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn raw_end(chars: &[char], at: usize) -> usize {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    if chars.get(at + 1 + hashes) != Some(&'"') {
        return at;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    (find_text(chars, at + hashes + 2, &close) + close.len()).min(chars.len())
}

fn tokenize(code: &str) -> Vec<SourceToken> {
    let mut found = Vec::new();
    for (number, text) in code.lines().enumerate() {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let length = match (word, rest.starts_with("::")) {
                (0, true) => 2,
                (0, false) => first.len_utf8(),
                (word, _) => word,
            };
            found.push(SourceToken { text: rest[..length].to_owned(), line: number + 1 });
            rest = rest[length..].trim_start();
        }
    }
    found
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = r##"let a = "unsafe \" {"; // unsafe
/* unsafe /* nested */ unsafe */ let b = '{'; let c: &'a str = r#"unsafe " }"#; let d = b"unsafe"; let e = '\''; r#type"##;
    let words: Vec<String> = SourceFile::new("x.rs", text).tokens.into_iter().map(|token| token.text).collect();
    let wanted = "let a = ; let b = ; let c : & ' a str = ; let d = b ; let e = ; r # type";
    assert_eq!(words.join(" "), wanted);
}

#[test]
fn groups_of_a_use_are_taken_apart() {
    let source = SourceFile::new("x.rs", "use a::{b, c::{self, d}, e as f};\nfn g() { h::i::<j::K>(); }");
    let paths: Vec<String> =
        source.paths().into_iter().map(|(line, path)| format!("{line} {}", path.join("::"))).collect();
    for wanted in ["1 a::b", "1 a::c::self", "1 a::c::d", "1 a::e", "2 h::i", "2 j::K"] {
        assert!(paths.iter().any(|path| path == wanted), "{wanted} is missing in {paths:?}");
    }
}
