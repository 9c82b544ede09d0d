//! The rules of CONTRIBUTING.md that neither the compiler nor clippy can check: waits that a stop ends, which module may
//! name which, heads and sizes of files, the table of races, links, and the texts of the page.
//!
//! Each rule has samples that break it and samples that keep it (`samples.rs`), so that none can stop working unnoticed.
//! To permit a finding, change the rule's data and say why in ARCHITECTURE.md.

#![expect(clippy::expect_used, reason = "a failing test panics")]

mod awaits;
mod build_profiles;
mod code_paths;
mod crate_dependencies;
mod file_shape;
mod links;
mod race_table;
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

/// The name of a rule, and its check of one file.
type TidyRule = (&'static str, fn(&SourceFile) -> Vec<TidyFinding>);

const RULES: &[TidyRule] = &[
    ("engine ranks", code_paths::check_engine_ranks),
    ("environment", code_paths::check_environment),
    ("pure layers", code_paths::check_pure_layers),
    ("unsafe code", code_paths::check_unsafe),
    ("file length", file_shape::check_file_length),
    ("file head", file_shape::check_head),
    ("file name", file_shape::check_file_name),
    ("awaits", awaits::check_awaits),
    ("ignored tests", file_shape::check_ignored_tests),
];

/// Rules of everything that is written by hand.
const TEXT_RULES: &[TidyRule] = &[
    ("build profiles", build_profiles::check_build_profiles),
    ("crate dependencies", crate_dependencies::check_crate_dependencies),
    ("conflict markers", file_shape::check_conflict_markers),
    ("races", race_table::check_race_table),
    ("links", links::check_links),
];

/// Rules of the page's scripts and stylesheets.
const WEB_RULES: &[TidyRule] = &[
    ("file length", file_shape::check_file_length),
    ("page head", web::check_head),
    ("page words", web::check_banned),
];

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in the workspace").to_owned()
}

/// Directories without anything that we write.
const SKIPPED_DIRS: &[&str] = &[".git", "target", "node_modules"];

/// Everything below `dir` whose name ends with one of these.
fn find_files(dir: &Path, suffixes: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory of the workspace");
    let paths = entries.map(|entry| entry.expect("an entry of a directory").path());
    let (dirs, files): (Vec<PathBuf>, Vec<PathBuf>) = paths.partition(|path| path.is_dir());
    let wanted = |path: &PathBuf| suffixes.iter().any(|suffix| path.to_string_lossy().ends_with(suffix));
    let below = dirs.into_iter().filter(|path| !SKIPPED_DIRS.iter().any(|name| path.ends_with(name)));
    files.into_iter().filter(wanted).chain(below.flat_map(|path| find_files(&path, suffixes))).collect()
}

/// Reads every file below these directories of the workspace whose name ends with one of these.
fn read_sources(dirs: &[&str], suffixes: &[&str]) -> Vec<SourceFile> {
    let root = workspace_root();
    let mut paths: Vec<PathBuf> = dirs.iter().flat_map(|dir| find_files(&root.join(dir), suffixes)).collect();
    paths.sort();
    assert!(paths.len() > 5, "the files are elsewhere: only {paths:?} found");
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&root).expect("below the root").to_string_lossy();
        SourceFile::new(&name, &fs::read_to_string(path).expect("a readable source file"))
    };
    paths.iter().map(read).collect()
}

fn check_files(rules: &[TidyRule], sources: &[SourceFile]) {
    let mut report = String::new();
    for (name, check) in rules {
        for source in sources {
            for TidyFinding { line, remedy } in check(source) {
                report += &format!("{}:{line}: {remedy} [{name}]\n", source.path);
            }
        }
    }
    assert!(report.is_empty(), "the house rules are broken:\n{report}");
}

#[test]
fn tidy_sources() {
    check_files(RULES, &read_sources(&["crates", "xtask"], &[".rs"]));
}

#[test]
fn tidy_texts() {
    check_files(TEXT_RULES, &read_sources(&[""], &[".rs", ".md", ".toml", ".sh", ".ci/run"]));
}

#[test]
fn tidy_page() {
    check_files(WEB_RULES, &read_sources(&["web"], &[".js", ".css"]));
}

#[test]
fn tidy_page_texts() {
    let table = fs::read_to_string(workspace_root().join("web/texts.json")).expect("the table of texts");
    let table = web::parse_texts(&table).unwrap_or_else(|fault| panic!("web/texts.json: {fault}"));
    let mut faults: Vec<String> = table.iter().flat_map(|(key, row)| web::text_violations(key, row)).collect();
    for source in read_sources(&["web"], &[".js"]) {
        for (line, key) in web::requested_keys(&source) {
            if !table.contains_key(&key) {
                faults.push(format!("{}:{line}: web/texts.json has no {key:?}", source.path));
            }
        }
    }
    assert!(faults.is_empty(), "texts of the page:\n{}", faults.join("\n"));
}
