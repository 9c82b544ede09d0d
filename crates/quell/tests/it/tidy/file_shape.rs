//! Sizes, heads and the documentation of async functions.

use super::TidyFinding;
use super::source_file::{SourceFile, SourceToken};

const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 100;

pub(super) fn check_file_length(source: &SourceFile) -> Vec<TidyFinding> {
    let lines = source.lines.len();
    if lines <= FILE_LINES {
        return Vec::new();
    }
    vec![TidyFinding::new(FILE_LINES + 1, format!("{lines} lines, at most {FILE_LINES}: split it by ideas"))]
}

pub(super) fn check_head(source: &SourceFile) -> Vec<TidyFinding> {
    let first = source.lines.first().map_or("", String::as_str);
    if first.strip_prefix("//!").is_some_and(|text| text.trim().split(' ').count() > 1) {
        return Vec::new();
    }
    vec![TidyFinding::new(1, "say in a `//!` line at the top what this file is for")]
}

pub(super) fn check_function_length(source: &SourceFile) -> Vec<TidyFinding> {
    let mut found = Vec::new();
    for at in source.find_tokens(&["fn"]) {
        let Some((name, end)) = body_end(&source.tokens[at..]) else { continue };
        let begin = source.tokens[at].line;
        let lines = end - begin + 1;
        if lines > FUNCTION_LINES {
            let remedy = format!("`{name}` has {lines} lines, at most {FUNCTION_LINES}: give a part of it a name");
            found.push(TidyFinding::new(begin, remedy));
        }
    }
    found
}

/// Name and last line of the function that begins here, if it is one with a body.
fn body_end(tokens: &[SourceToken]) -> Option<(&str, usize)> {
    let name = tokens.get(1).filter(|token| token.is_word())?;
    let mut depth = 0_usize;
    for token in tokens {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth = depth.checked_sub(1)?,
            ";" if depth == 0 => return None,
            "}" => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some((&name.text, token.line));
                }
            }
            _ => {}
        }
    }
    None
}

pub(super) fn check_cancel_safety(source: &SourceFile) -> Vec<TidyFinding> {
    let mut found = Vec::new();
    // A wait of a test is dropped only when its test ends.
    if source.path.starts_with("crates/testkit/") {
        return found;
    }
    for at in source.find_tokens(&["pub", "async", "fn"]) {
        let line = source.tokens[at].line;
        if !lines_above_item(source, line).iter().any(|line| line.trim() == "/// # Cancel safety") {
            let name = source.tokens.get(at + 3).map_or("", |token| &token.text);
            let remedy = format!("say in a \"# Cancel safety\" section what happens when `{name}` is dropped half-way");
            found.push(TidyFinding::new(line, remedy));
        }
    }
    found
}

/// The documentation and the attributes of the item in this line.
pub(super) fn lines_above_item(source: &SourceFile, line: usize) -> Vec<&String> {
    source.lines[..line - 1].iter().rev().take_while(|line| belongs_to_the_item_below(line)).collect()
}

/// Documentation and attributes, also over several lines: everything up to a blank line or the end of the item before.
fn belongs_to_the_item_below(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("///") || !(line.is_empty() || line.ends_with(['{', '}', ';']))
}
