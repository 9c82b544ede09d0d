//! What is allowed in one place only.

use super::Finding;
use super::source::Source;

/// Tests and scaffolds stand outside of the product.
pub(super) fn is_scaffold(path: &str) -> bool {
    let test = path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches"));
    test || path.starts_with("crates/testkit/") || path.starts_with("xtask/")
}

pub(super) fn unsafe_code(source: &Source) -> Vec<Finding> {
    let allowed =
        ["crates/engine/src/proc/", "crates/engine/src/proc.rs"].iter().any(|home| source.path.starts_with(home));
    if allowed {
        return Vec::new();
    }
    let remedy = "unsafe lives in engine/src/proc only: find a safe face, or a function there";
    source.find(&["unsafe"]).map(|at| Finding::new(source.tokens[at].line, remedy)).collect()
}

/// A warden is told what to do by its arguments, before there is a roof.
const WARDEN_ARGUMENTS: (&str, [&str; 3]) = ("crates/engine/src/proc.rs", ["std", "env", "args_os"]);

pub(super) fn environment(source: &Source) -> Vec<Finding> {
    if is_scaffold(&source.path) || source.path.starts_with("crates/quell/src/") {
        return Vec::new();
    }
    let remedy = "the environment is read in crates/quell/src only: take the value as an argument";
    let mut found = Vec::new();
    for (line, path) in source.paths() {
        let arguments = WARDEN_ARGUMENTS.0 == source.path && path == WARDEN_ARGUMENTS.1;
        if below(&path, &["std", "env"]) && !arguments {
            found.push(Finding::new(line, remedy));
        }
    }
    found
}

/// What protocol and kernel know nothing of.
const IMPURE: &[&[&str]] = &[
    &["std", "env"],
    &["std", "fs"],
    &["std", "io"],
    &["std", "net"],
    &["std", "process"],
    &["std", "thread"],
    &["std", "time", "Instant"],
    &["std", "time", "SystemTime"],
];

pub(super) fn pure_floors(source: &Source) -> Vec<Finding> {
    if !["crates/protocol/src/", "crates/kernel/src/"].iter().any(|floor| source.path.starts_with(floor)) {
        return Vec::new();
    }
    let remedy = "protocol and kernel have no clock, no IO, no async: take a value, or do it in engine";
    let mut lines = named(source, IMPURE);
    lines.extend(source.find(&["async"]).map(|at| source.tokens[at].line));
    lines.into_iter().map(|line| Finding::new(line, remedy)).collect()
}

/// Lines that name one of these paths or something below.
fn named(source: &Source, wanted: &[&[&str]]) -> Vec<usize> {
    let fits = |path: &[String]| wanted.iter().any(|top| below(path, top));
    source.paths().into_iter().filter(|(_, path)| fits(path)).map(|(line, _)| line).collect()
}

fn below(path: &[String], top: &[&str]) -> bool {
    path.len() >= top.len() && path.iter().zip(top).all(|(part, wanted)| part == wanted)
}

pub(super) fn unfinished(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for name in ["todo", "unimplemented"] {
        let remedy = format!("`{name}!` is no code: write it, or leave the seam out");
        found.extend(source.find(&[name, "!"]).map(|at| Finding::new(source.tokens[at].line, remedy.as_str())));
    }
    found
}
