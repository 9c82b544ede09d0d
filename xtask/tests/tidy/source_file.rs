//! A file as the rules see it: its lines, and its code as tokens without comments and literals.

use std::cell::OnceCell;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A word, a sign or a bracket of the code, with its line from 1.
#[derive(Debug)]
pub(super) struct SourceToken {
    pub(super) text: String,
    pub(super) line: usize,
    /// The index of the other bracket of a pair; of other tokens their own.
    pub(super) partner: usize,
}

impl SourceToken {
    pub(super) fn is_word(&self) -> bool {
        self.text.starts_with(|first: char| first.is_alphabetic() || first == '_')
    }
}

pub(super) struct SourceFile {
    /// From the root, with `/`.
    pub(super) path: String,
    pub(super) lines: Vec<String>,
    tokens: OnceCell<Vec<SourceToken>>,
}

impl SourceFile {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let lines = text.lines().map(str::to_owned).collect();
        Self { path: path.to_owned(), lines, tokens: OnceCell::new() }
    }

    /// The code of a Rust file; `::` is one token.
    pub(super) fn tokens(&self) -> &[SourceToken] {
        self.tokens.get_or_init(|| {
            let text = self.lines.join("\n");
            let mut tokens = Vec::new();
            flatten(text.parse().unwrap_or_else(|error| panic!("{}: {error}", self.path)), &mut tokens);
            tokens
        })
    }

    /// The token at this index; empty behind the last.
    pub(super) fn word(&self, at: usize) -> &str {
        self.tokens().get(at).map_or("", |token| token.text.as_str())
    }

    pub(super) fn matches_at(&self, at: usize, wanted: &[&str]) -> bool {
        wanted.iter().enumerate().all(|(ahead, wanted)| self.word(at + ahead) == *wanted)
    }

    /// Places where the tokens read like this, by index of the first.
    pub(super) fn find_tokens<'a>(&'a self, wanted: &'a [&str]) -> impl Iterator<Item = usize> + 'a {
        (0..self.tokens().len()).filter(move |at| self.matches_at(*at, wanted))
    }
}

fn flatten(stream: TokenStream, tokens: &mut Vec<SourceToken>) {
    for tree in stream {
        let (begin, span) = (tokens.len(), tree.span());
        let token = |text: &str, line, partner| SourceToken { text: text.to_owned(), line, partner };
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                tokens.push(token(open, group.span_open().start().line, begin));
                flatten(group.stream(), tokens);
                tokens[begin].partner = tokens.len();
                tokens.push(token(close, group.span_close().start().line, begin));
            }
            TokenTree::Punct(sign) if sign.as_char() == ':' && begin > 0 && tokens[begin - 1].text == ":" => {
                tokens[begin - 1].text = "::".to_owned();
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {
                tokens.push(token(&tree.to_string(), span.start().line, begin));
            }
            TokenTree::Literal(_) => {}
        }
    }
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = r##"let a = "unsafe \" {"; // unsafe
/* unsafe /* nested */ unsafe */ let b = '{'; let c: &'a str = r#"unsafe " }"#; let d = b"unsafe"; (e::f[g])"##;
    let source = SourceFile::new("x.rs", text);
    let words: Vec<&str> = source.tokens().iter().map(|token| token.text.as_str()).collect();
    assert_eq!(words.join(" "), "let a = ; let b = ; let c : & ' a str = ; let d = ; ( e :: f [ g ] )");
    let last = words.len() - 1;
    assert_eq!((source.tokens()[last].line, source.tokens()[last].partner), (2, last - 7));
}
