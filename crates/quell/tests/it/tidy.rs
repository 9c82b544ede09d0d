//! The house rules of CONTRIBUTING.md, checked: which crate and which module may know which, sizes, heads, names, and what is
//! allowed in one place only.
//!
//! The rules are data and small functions. Each has samples that break it and samples that keep it (`samples.rs`), so that none
//! can stop working unnoticed. Where a finding cannot be helped, change the rule's data here and say why in ARCHITECTURE.md.

mod awaits;
mod banned_words;
mod crate_dependencies;
mod file_shape;
mod links;
mod module_ranks;
mod race_table;
mod restricted_apis;
mod samples;
mod source_file;
mod web;

use std::fs;
use std::path::{Path, PathBuf};

use source_file::SourceFile;

/// A line that breaks a rule, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
struct TidyFinding {
    line: usize,
    remedy: String,
}

impl TidyFinding {
    fn new(line: usize, remedy: impl Into<String>) -> Self {
        Self { line, remedy: remedy.into() }
    }
}

/// A rule that looks at one file.
struct TidyRule {
    name: &'static str,
    check: fn(&SourceFile) -> Vec<TidyFinding>,
}

const RULES: &[TidyRule] = &[
    TidyRule { name: "engine ranks", check: module_ranks::check_engine_ranks },
    TidyRule { name: "file length", check: file_shape::check_file_length },
    TidyRule { name: "function length", check: file_shape::check_function_length },
    TidyRule { name: "file head", check: file_shape::check_head },
    TidyRule { name: "cancel safety", check: file_shape::check_cancel_safety },
    TidyRule { name: "banned words", check: banned_words::check_banned_words },
    TidyRule { name: "unsafe", check: restricted_apis::check_unsafe },
    TidyRule { name: "environment", check: restricted_apis::check_environment },
    TidyRule { name: "pure layers", check: restricted_apis::check_pure_layers },
    TidyRule { name: "awaits", check: awaits::check_awaits },
    TidyRule { name: "unfinished", check: restricted_apis::check_unfinished },
];

const MANIFEST_RULES: &[TidyRule] = &[
    TidyRule { name: "crate dependencies", check: crate_dependencies::check_crate_dependencies },
    TidyRule { name: "pure manifests", check: crate_dependencies::check_pure_crates },
];

/// Rules of everything that is written by hand.
const TEXT_RULES: &[TidyRule] = &[
    TidyRule { name: "conflict markers", check: banned_words::check_conflict_markers },
    TidyRule { name: "races", check: race_table::check_race_table },
    TidyRule { name: "links", check: links::check_links },
];

/// Rules of the page's scripts and stylesheets.
const WEB_RULES: &[TidyRule] = &[
    TidyRule { name: "page file length", check: file_shape::check_file_length },
    TidyRule { name: "page file head", check: web::check_head },
    TidyRule { name: "page words", check: web::check_banned },
];

/// How the names of texts end.
const TEXT_SUFFIXES: &[&str] = &[".rs", ".md", ".toml", ".sh", ".ci/run"];

fn workspace_root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).expect("this crate lies in crates/ of the workspace").to_owned()
}

/// Directories without anything that we write.
const SKIPPED_DIRS: &[&str] = &[".git", "target", "node_modules"];

/// Everything below `dir` that is called `*suffix`, sorted.
fn find_files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory of the workspace") {
        let path = entry.expect("an entry of a directory").path();
        if path.is_dir() {
            if SKIPPED_DIRS.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            found.extend(find_files(&path, suffix));
        } else if path.to_string_lossy().ends_with(suffix) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read_source(path: &Path) -> SourceFile {
    let name = path.strip_prefix(workspace_root()).expect("below the root").to_string_lossy().replace('\\', "/");
    SourceFile::new(&name, &fs::read_to_string(path).expect("a readable source file"))
}

fn check_crates(rules: &[TidyRule], suffix: &str) {
    let found = ["crates", "xtask"].into_iter().flat_map(|dir| find_files(&workspace_root().join(dir), suffix));
    check_files(rules, &found.collect::<Vec<_>>());
}

fn check_files(rules: &[TidyRule], paths: &[PathBuf]) {
    let sources: Vec<SourceFile> = paths.iter().map(|path| read_source(path)).collect();
    assert!(sources.len() > 5, "the files are elsewhere: only {paths:?} found");
    let mut report = String::new();
    for rule in rules {
        for source in &sources {
            for TidyFinding { line, remedy } in (rule.check)(source) {
                report += &format!("{}:{line}: {} [{}]\n", source.path, remedy, rule.name);
            }
        }
    }
    assert!(report.is_empty(), "the house rules are broken:\n{report}");
}

#[test]
fn tidy_sources() {
    check_crates(RULES, ".rs");
}

#[test]
fn tidy_manifests() {
    check_crates(MANIFEST_RULES, "Cargo.toml");
}

#[test]
fn tidy_texts() {
    let found = TEXT_SUFFIXES.iter().flat_map(|suffix| find_files(&workspace_root(), suffix));
    check_files(TEXT_RULES, &found.collect::<Vec<_>>());
}

fn web_files(suffix: &str) -> Vec<PathBuf> {
    find_files(&workspace_root().join("web"), suffix)
}

#[test]
fn tidy_page() {
    check_files(WEB_RULES, &[web_files(".js"), web_files(".css")].concat());
}

#[test]
fn tidy_page_texts() {
    let table = fs::read_to_string(workspace_root().join("web/texts.json")).expect("the table of texts");
    let table = web::parse_texts(&table).unwrap_or_else(|fault| panic!("web/texts.json: {fault}"));
    let mut faults: Vec<String> = table.iter().flat_map(|(key, row)| web::text_violations(key, row)).collect();
    for path in web_files(".js") {
        let source = read_source(&path);
        for (line, key) in web::requested_keys(&source) {
            if !table.contains_key(&key) {
                faults.push(format!("{}:{line}: web/texts.json has no {key:?}", source.path));
            }
        }
    }
    assert!(faults.is_empty(), "texts of the page:\n{}", faults.join("\n"));
}
