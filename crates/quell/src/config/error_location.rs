//! Format a configuration error with file, line, column and a suggestion, without secrets.

use std::path::Path;

use toml::de::{DeTable, DeValue};

/// Formats an error of the parser, or a wrong type of a value.
pub(super) fn toml_error(path: &Path, text: &str, error: &toml::de::Error) -> anyhow::Error {
    let message = error.message();
    let hint = error_hint(message).unwrap_or_default();
    anyhow::anyhow!("{}", format_at(path, text, error.span().map_or(0, |span| span.start), &format!("{message}{hint}")))
}

/// Suggests the key that was probably meant, or explains how to configure a secret.
fn error_hint(message: &str) -> Option<String> {
    let unknown = |what: &str, name: &str| message.starts_with(&format!("unknown {what} `{name}`"));
    if let Some((_, by)) = SECRET_KEYS.iter().find(|(secret, _)| unknown("field", secret)) {
        return Some(format!("; secrets do not belong in the file: name the variable that holds it with `{by}`"));
    }
    suggest_key(message).map(|key| format!("; did you mean `{key}`?"))
}

/// Keys that people write for secrets, and the keys to use instead.
const SECRET_KEYS: [(&str, &str); 4] =
    [("api_key", "api_key_env"), ("token", "token_env"), ("app_token", "app_token_env"), ("password", "token_env")];

/// Formats a problem with the value of a dotted key.
pub(super) fn key_error(path: &Path, text: &str, key: &str, problem: &str) -> String {
    let start = DeTable::parse(text).ok().and_then(|table| key_offset(table.get_ref(), key)).unwrap_or(0);
    format_at(path, text, start, &format!("{key}: {problem}"))
}

fn format_at(path: &Path, text: &str, offset: usize, message: &str) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(start..).unwrap_or_default().chars().count() + 1;
    let source = text.lines().nth(line - 1).unwrap_or_default();
    if !may_hold_secret(before, source) {
        return format!("{}:{line}:{column}: {message}\n  {line} | {source}", path.display());
    }
    let key = source.split_once('=').map_or("", |(key, _)| key).trim_end();
    format!("{}:{line}:{column}: {}\n  {line} | {key} = ***", path.display(), without_values(message))
}

/// Error messages are often shared, so a line that may contain a key or a header is not shown.
fn may_hold_secret(before: &str, line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let of_tokens = line.contains("token") && !line.contains("tokens");
    let section = before.lines().rev().find(|line| line.trim_start().starts_with('['));
    ["key", "secret", "password", "authorization", "bearer", "headers"].iter().any(|word| line.contains(word))
        || of_tokens
        || line.trim_start().starts_with("env")
        || line.split_once("://").is_some_and(|(_, rest)| rest.contains('@'))
        || section.is_some_and(|section| section.contains("headers") || section.contains(".env"))
}

/// Replaces the values that a parser's message quotes.
fn without_values(message: &str) -> String {
    let parts = message.split('"').enumerate();
    parts.map(|(n, part)| if n % 2 == 0 { part } else { "***" }).collect::<Vec<_>>().join("\"")
}

/// Finds the offset of a dotted key: of its value, or of the deepest table on its path. A number selects an entry of
/// a list.
fn key_offset(table: &DeTable<'_>, key: &str) -> Option<usize> {
    let (head, rest) = split_key(key);
    let (name, value) = table.iter().find(|(name, _)| name.get_ref().as_ref() == head)?;
    let Some(rest) = rest else { return Some(value.span().start) };
    Some(value_offset(value.get_ref(), rest).unwrap_or(name.span().start))
}

fn value_offset(value: &DeValue<'_>, key: &str) -> Option<usize> {
    match value {
        DeValue::Table(table) => key_offset(table, key),
        DeValue::Array(entries) => {
            let (number, rest) = split_key(key);
            let entry = entries.get(number.parse::<usize>().ok()?)?;
            rest.and_then(|rest| value_offset(entry.get_ref(), rest)).or(Some(entry.span().start))
        }
        _ => None,
    }
}

fn split_key(key: &str) -> (&str, Option<&str>) {
    key.split_once('.').map_or((key, None), |(head, rest)| (head, Some(rest)))
}

/// Returns the expected key that is most similar to the unknown key of a serde message.
fn suggest_key(message: &str) -> Option<String> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let unknown = quoted.next()?;
    let near = quoted.map(|known| (strsim::levenshtein(unknown, known), known)).min()?;
    (near.0 <= unknown.len().div_ceil(3).max(1)).then(|| near.1.to_owned())
}
