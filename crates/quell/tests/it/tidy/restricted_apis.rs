//! What is allowed in one place only.

use super::TidyFinding;
use super::source_file::SourceFile;

/// Tests and scaffolds stand outside of the product.
pub(super) fn is_test_support(path: &str) -> bool {
    let test = path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches"));
    test || path.starts_with("crates/testkit/") || path.starts_with("xtask/")
}

pub(super) fn check_unsafe(source: &SourceFile) -> Vec<TidyFinding> {
    if source.path.starts_with("crates/process/src/") {
        return Vec::new();
    }
    let remedy = "unsafe is allowed in crates/process only: find a safe API, or add a function there";
    source.find_tokens(&["unsafe"]).map(|at| TidyFinding::new(source.tokens[at].line, remedy)).collect()
}

/// A warden is told what to do by its arguments, before there is a roof.
const WARDEN_ARGUMENTS: (&str, [&str; 3]) = ("crates/process/src/lib.rs", ["std", "env", "args_os"]);

pub(super) fn check_environment(source: &SourceFile) -> Vec<TidyFinding> {
    if is_test_support(&source.path) || source.path.starts_with("crates/quell/src/") {
        return Vec::new();
    }
    let remedy = "the environment is read in crates/quell/src only: take the value as an argument";
    let mut found = Vec::new();
    for (line, path) in source.paths() {
        let arguments = WARDEN_ARGUMENTS.0 == source.path && path == WARDEN_ARGUMENTS.1;
        if path_starts_with(&path, &["std", "env"]) && !arguments {
            found.push(TidyFinding::new(line, remedy));
        }
    }
    found
}

/// What protocol and kernel know nothing of.
const IMPURE_PATHS: &[&[&str]] = &[
    &["std", "env"],
    &["std", "fs"],
    &["std", "io"],
    &["std", "net"],
    &["std", "process"],
    &["std", "thread"],
    &["std", "time", "Instant"],
    &["std", "time", "SystemTime"],
];

pub(super) fn check_pure_layers(source: &SourceFile) -> Vec<TidyFinding> {
    if !["crates/protocol/src/", "crates/kernel/src/"].iter().any(|floor| source.path.starts_with(floor)) {
        return Vec::new();
    }
    let remedy = "protocol and kernel have no clock, no IO, no async: take a value, or do it in a higher crate";
    let mut lines = lines_naming(source, IMPURE_PATHS);
    lines.extend(source.find_tokens(&["async"]).map(|at| source.tokens[at].line));
    lines.into_iter().map(|line| TidyFinding::new(line, remedy)).collect()
}

/// Lines that name one of these paths or something below.
fn lines_naming(source: &SourceFile, wanted: &[&[&str]]) -> Vec<usize> {
    let fits = |path: &[String]| wanted.iter().any(|top| path_starts_with(path, top));
    source.paths().into_iter().filter(|(_, path)| fits(path)).map(|(line, _)| line).collect()
}

fn path_starts_with(path: &[String], top: &[&str]) -> bool {
    path.len() >= top.len() && path.iter().zip(top).all(|(part, wanted)| part == wanted)
}

pub(super) fn check_unfinished(source: &SourceFile) -> Vec<TidyFinding> {
    let mut found = Vec::new();
    for name in ["todo", "unimplemented"] {
        let remedy = format!("`{name}!` is no code: write it, or leave the seam out");
        found.extend(
            source.find_tokens(&[name, "!"]).map(|at| TidyFinding::new(source.tokens[at].line, remedy.as_str())),
        );
    }
    found
}
