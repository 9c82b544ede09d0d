//! The house rules of CONTRIBUTING.md, checked: which crate and which module may know which, sizes, heads, names, and what is
//! allowed in one place only.
//!
//! The rules are data and small functions. Each has samples that break it and samples that keep it (`samples.rs`), so that none
//! can stop working unnoticed. Where a finding cannot be helped, change the rule's data here and say why in ARCHITECTURE.md.

mod arrows;
mod awaits;
mod links;
mod places;
mod races;
mod ranks;
mod samples;
mod shape;
mod source;
mod web;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use source::Source;

/// A line that breaks a rule, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    line: usize,
    remedy: String,
}

impl Finding {
    fn new(line: usize, remedy: impl Into<String>) -> Self {
        Self { line, remedy: remedy.into() }
    }
}

/// A rule that looks at one file.
struct Rule {
    name: &'static str,
    check: fn(&Source) -> Vec<Finding>,
}

/// Rules of Rust files.
const RULES: &[Rule] = &[
    Rule { name: "engine ranks", check: ranks::engine_ranks },
    Rule { name: "file length", check: shape::file_length },
    Rule { name: "function length", check: shape::function_length },
    Rule { name: "file head", check: shape::head },
    Rule { name: "cancel safety", check: shape::cancel_safety },
    Rule { name: "banned words", check: words::banned_words },
    Rule { name: "unsafe", check: places::unsafe_code },
    Rule { name: "environment", check: places::environment },
    Rule { name: "pure floors", check: places::pure_floors },
    Rule { name: "awaits", check: awaits::awaits },
    Rule { name: "unfinished", check: places::unfinished },
];

/// Rules of crate manifests.
const MANIFEST_RULES: &[Rule] = &[
    Rule { name: "crate arrows", check: arrows::crates },
    Rule { name: "pure manifests", check: arrows::pure_floors },
];

/// Rules of everything that is written by hand.
const TEXT_RULES: &[Rule] = &[
    Rule { name: "conflict markers", check: words::conflict_markers },
    Rule { name: "races", check: races::named_proofs },
    Rule { name: "links", check: links::dead_links },
];

/// Rules of the page's scripts and stylesheets.
const WEB_RULES: &[Rule] = &[
    Rule { name: "page file length", check: shape::file_length },
    Rule { name: "page file head", check: web::head },
    Rule { name: "page words", check: web::banned },
];

/// How the names of texts end.
const TEXTS: &[&str] = &[".rs", ".md", ".toml", ".sh", ".ci/run"];

fn root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).expect("this crate lies in crates/ of the workspace").to_owned()
}

/// Directories without anything that we write.
const NOT_OURS: &[&str] = &[".git", "target", "node_modules"];

/// Everything below `dir` that is called `*suffix`, sorted.
fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory of the workspace") {
        let path = entry.expect("an entry of a directory").path();
        if path.is_dir() {
            if NOT_OURS.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            found.extend(files(&path, suffix));
        } else if path.to_string_lossy().ends_with(suffix) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> Source {
    let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/");
    Source::new(&name, &fs::read_to_string(path).expect("a readable source file"))
}

fn check(rules: &[Rule], suffix: &str) {
    let found = ["crates", "xtask"].into_iter().flat_map(|dir| files(&root().join(dir), suffix));
    inspect(rules, &found.collect::<Vec<_>>());
}

fn inspect(rules: &[Rule], paths: &[PathBuf]) {
    let sources: Vec<Source> = paths.iter().map(|path| read(path)).collect();
    assert!(sources.len() > 5, "the files are elsewhere: only {paths:?} found");
    let mut report = String::new();
    for rule in rules {
        for source in &sources {
            for Finding { line, remedy } in (rule.check)(source) {
                report += &format!("{}:{line}: {} [{}]\n", source.path, remedy, rule.name);
            }
        }
    }
    assert!(report.is_empty(), "the house rules are broken:\n{report}");
}

#[test]
fn tidy_sources() {
    check(RULES, ".rs");
}

#[test]
fn tidy_manifests() {
    check(MANIFEST_RULES, "Cargo.toml");
}

#[test]
fn tidy_texts() {
    let found = TEXTS.iter().flat_map(|suffix| files(&root(), suffix));
    inspect(TEXT_RULES, &found.collect::<Vec<_>>());
}

fn page(suffix: &str) -> Vec<PathBuf> {
    files(&root().join("web"), suffix)
}

#[test]
fn tidy_page() {
    inspect(WEB_RULES, &[page(".js"), page(".css")].concat());
}

#[test]
fn tidy_page_texts() {
    let table = fs::read_to_string(root().join("web/texts.json")).expect("the table of texts");
    let table = web::texts(&table).unwrap_or_else(|fault| panic!("web/texts.json: {fault}"));
    let mut faults: Vec<String> = table.iter().flat_map(|(key, row)| web::faults(key, row)).collect();
    for path in page(".js") {
        let source = read(&path);
        for (line, key) in web::asked(&source) {
            if !table.contains_key(&key) {
                faults.push(format!("{}:{line}: web/texts.json has no {key:?}", source.path));
            }
        }
    }
    assert!(faults.is_empty(), "texts of the page:\n{}", faults.join("\n"));
}
