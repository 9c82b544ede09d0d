//! The links between the pages of the project: every file, and every heading, that one leads to is there.

use std::fs;
use std::path::Path;

use super::source_file::SourceFile;
use super::{TidyFinding, workspace_root};

/// Finds links that lead nowhere. Links to other sites are not looked at.
pub(super) fn check_links(source: &SourceFile) -> Vec<TidyFinding> {
    if !source.path.ends_with(".md") {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut is_code = false;
    for (at, line) in source.lines.iter().enumerate() {
        is_code ^= line.trim_start().starts_with("```");
        let dead = targets(line).filter(|target| !is_code && !leads_somewhere(&source.path, target));
        found.extend(dead.map(|target| TidyFinding::new(at + 1, format!("there is no file or heading {target}"))));
    }
    found
}

/// The targets of the inline links of a line, as they are written.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

fn leads_somewhere(page: &str, target: &str) -> bool {
    if target.contains("://") {
        return true;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let page = workspace_root().join(page);
    let file = if file.is_empty() { page } else { page.parent().unwrap_or(Path::new("/")).join(file) };
    match heading {
        "" => file.exists(),
        _ => fs::read_to_string(file).is_ok_and(|text| {
            headings(&text).any(|name| name == heading) || text.contains(&format!("<a id=\"{heading}\">"))
        }),
    }
}

/// The names of the headings of a page, made as GitHub makes them: lower case, hyphens for spaces, no other marks.
fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
    })
}
