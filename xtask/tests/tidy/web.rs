//! The files of the page: heads, nothing that makes markup or code of text, nothing from elsewhere, and every text in
//! the one table, in three languages.

use std::collections::BTreeMap;

use super::TidyFinding;
use super::source_file::SourceFile;

/// What would make markup or code of text, or ask another host.
const BANNED_IN_PAGE: &[(&str, &str)] = &[
    ("innerHTML", "build elements with dom.js: text is never markup"),
    ("outerHTML", "build elements with dom.js: text is never markup"),
    ("insertAdjacentHTML", "build elements with dom.js: text is never markup"),
    ("document.write", "build elements with dom.js: text is never markup"),
    ("setHTML", "build elements with dom.js: text is never markup"),
    ("DOMParser", "build elements with dom.js: text is never markup"),
    ("srcdoc", "the page has no frames"),
    ("eval(", "text is never code"),
    ("new Function", "text is never code"),
    ("debugger", "nobody is debugging"),
    ("TODO", "finish it, or say in the issue what is left"),
    ("@import", "name the stylesheet in index.html, so that it is loaded at once"),
];

pub(super) fn check_head(source: &SourceFile) -> Vec<TidyFinding> {
    let first = source.lines.first().map_or("", String::as_str);
    let comment = first.strip_prefix("//").or_else(|| first.strip_prefix("/*"));
    if comment.is_some_and(|text| text.trim().split(' ').count() > 3) {
        return Vec::new();
    }
    vec![TidyFinding::new(1, "say in a comment at the top what this file is for")]
}

pub(super) fn check_banned(source: &SourceFile) -> Vec<TidyFinding> {
    let mut found = Vec::new();
    for (at, line) in source.lines.iter().enumerate() {
        let hit = BANNED_IN_PAGE.iter().filter(|(word, _)| line.contains(word));
        found.extend(hit.map(|(word, remedy)| TidyFinding::new(at + 1, format!("`{word}`: {remedy}"))));
        let elsewhere = line
            .split("//")
            .skip(1)
            .zip(line.split("//"))
            .any(|(_, before)| before.ends_with("http:") || before.ends_with("https:"));
        if elsewhere && !line.contains("www.w3.org") {
            found.push(TidyFinding::new(at + 1, "the page talks to its own daemon alone"));
        }
    }
    found
}

/// Rows of the table of texts.
pub(super) fn parse_texts(table: &str) -> Result<BTreeMap<String, BTreeMap<String, String>>, String> {
    let keys: Vec<&str> = table.lines().filter_map(|line| line.trim().strip_prefix('"')?.split('"').next()).collect();
    if let Some(pair) = keys.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(format!("{:?} stands before {:?}: one key in each line, sorted, each once", pair[0], pair[1]));
    }
    serde_json::from_str(table).map_err(|error| error.to_string())
}

/// What is wrong with a text in its languages.
pub(super) fn text_violations(key: &str, row: &BTreeMap<String, String>) -> Vec<String> {
    let languages: Vec<&str> = row.keys().map(String::as_str).collect();
    if languages != ["en", "ko", "zh"] {
        return vec![format!("{key}: in {languages:?}, must be in en, ko and zh")];
    }
    let slots = |text: &str| {
        let mut slots: Vec<String> =
            text.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0.to_owned())).collect();
        slots.sort();
        slots
    };
    let mut found = Vec::new();
    for (language, text) in row {
        if text.trim().is_empty() {
            found.push(format!("{key}: is empty in {language}"));
        }
        if text.contains('!') {
            found.push(format!("{key}: shouts in {language}"));
        }
        if slots(text) != slots(&row["en"]) {
            found.push(format!("{key}: {language} has the slots {:?}, en {:?}", slots(text), slots(&row["en"])));
        }
    }
    found
}

/// Keys that a script asks for in so many words.
pub(super) fn requested_keys(source: &SourceFile) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, line) in source.lines.iter().enumerate() {
        for (begin, _) in line.match_indices("t(\"") {
            let before = line[..begin].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '$')) {
                continue;
            }
            if let Some((key, rest)) = line[begin + 3..].split_once('"')
                && matches!(rest.chars().next(), Some(',' | ')'))
            {
                found.push((at + 1, key.to_owned()));
            }
        }
    }
    found
}
