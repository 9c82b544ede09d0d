//! Words that say nothing, in names of our own. Names of others (axum's, anyhow's) are used, not given, and so never found.

use super::Finding;
use super::source::{Source, Token};

const BANNED: &[&str] = &[
    "manager",
    "managers",
    "handler",
    "handlers",
    "service",
    "services",
    "helper",
    "helpers",
    "util",
    "utils",
    "utility",
    "utilities",
    "common",
    "context",
    "contexts",
    "ctx",
];

/// Where one of them is the field's own word. Part of a path, the word, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("engine/src/tools/search", "context", "lines around a match, in the words of grep and of grep-searcher's `Sink`"),
    ("engine/src/llm/error", "context", "the context window of a model"),
    ("engine/src/scope/point", "context", "what a step sends to the model: row E2 calls it so"),
];

/// After these a name is given.
const GIVING: &[&str] =
    &["fn", "struct", "enum", "union", "trait", "type", "mod", "const", "static", "let", "mut", "as", "for"];

pub(super) fn banned_words(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    let place = source.path.split('/').filter_map(banned_in).next();
    found.extend(place.map(|word| Finding::new(1, remedy(&source.path, word))));
    let excepted =
        |banned: &str| EXCEPTIONS.iter().any(|(path, word, _)| source.path.contains(path) && *word == banned);
    for (at, token) in source.tokens.iter().enumerate().filter(|(at, _)| is_given(&source.tokens, *at)) {
        if let Some(word) = banned_in(&token.text).filter(|word| !excepted(word)) {
            let given_before =
                source.tokens[..at].iter().any(|before| before.text == token.text && before.line == token.line);
            if !given_before {
                found.push(Finding::new(token.line, remedy(&token.text, word)));
            }
        }
    }
    found
}

/// What a merge leaves where it could not decide.
const MARKERS: &[&str] = &["<<<<<<<", "|||||||", ">>>>>>>"];

pub(super) fn conflict_markers(source: &Source) -> Vec<Finding> {
    let is_marker = |line: &str| {
        MARKERS
            .iter()
            .any(|marker| line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
    };
    let marked = source.lines.iter().enumerate().filter(|(_, line)| is_marker(line));
    marked.map(|(at, _)| Finding::new(at + 1, "a merge was not finished here")).collect()
}

fn remedy(name: &str, word: &str) -> String {
    format!("`{name}`: {word:?} says nothing, say what it is or does")
}

/// True for a name that is given here: to an item, a binding, a parameter, a field, a variant.
fn is_given(tokens: &[Token], at: usize) -> bool {
    let text = |at: Option<usize>| at.and_then(|at| tokens.get(at)).map_or("", |token| token.text.as_str());
    if !tokens[at].is_word() {
        return false;
    }
    let before = text(at.checked_sub(1));
    let macro_name = before == "!" && text(at.checked_sub(2)) == "macro_rules";
    let annotated = matches!(before, "(" | "," | "{" | "|" | "pub" | ")" | "]") && text(Some(at + 1)) == ":";
    let variant = matches!(before, "{" | "," | "]")
        && matches!(text(Some(at + 1)), "{" | "(" | "," | "}")
        && is_type(&tokens[at]);
    let of_a_trait = before == "for" && !is_loop(tokens, at);
    // `let mut name`, but not the type in `&mut Name`.
    let of_a_reference = before == "mut" && !matches!(text(at.checked_sub(2)), "let" | "(" | "," | "|");
    (GIVING.contains(&before) && !of_a_trait && !of_a_reference)
        || macro_name
        || annotated
        || (variant && in_an_enum(tokens, at))
}

fn is_type(token: &Token) -> bool {
    token.text.starts_with(char::is_uppercase)
}

/// `for name in`, as opposed to `impl Trait for Name`.
fn is_loop(tokens: &[Token], at: usize) -> bool {
    tokens.get(at + 1).is_some_and(|token| token.text == "in")
}

/// True when the innermost open brace belongs to an enum.
fn in_an_enum(tokens: &[Token], at: usize) -> bool {
    let mut depth = 0_usize;
    for (back, token) in tokens[..at].iter().enumerate().rev() {
        match token.text.as_str() {
            "}" => depth += 1,
            "{" if depth == 0 => return opens_an_enum(&tokens[..back]),
            "{" => depth -= 1,
            _ => {}
        }
    }
    false
}

fn opens_an_enum(tokens: &[Token]) -> bool {
    let ends = |token: &&Token| matches!(token.text.as_str(), "{" | "}" | ";");
    let head: Vec<&Token> = tokens.iter().rev().take_while(|token| !ends(token)).collect();
    head.iter().any(|token| token.text == "enum")
}

/// The banned word in a name, whatever its case: `TaskManager`, `task_manager`, `task-manager.rs`.
fn banned_in(name: &str) -> Option<&'static str> {
    let mut parts = vec![String::new()];
    for c in name.chars() {
        if c.is_uppercase() || !c.is_alphanumeric() {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| c.is_alphanumeric()) {
            part.extend(c.to_lowercase());
        }
    }
    let loud = name.to_lowercase();
    let fits =
        |banned: &&&str| parts.iter().any(|part| part == **banned) || loud.split('_').any(|part| part == **banned);
    BANNED.iter().find(fits).copied()
}
