//! Which code may name which modules: layers without IO, and the ranks inside of the engine (ARCHITECTURE.md).

use super::TidyFinding;
use super::source_file::SourceFile;

/// Tests and test support are no part of the product.
pub(super) fn is_test_support(path: &str) -> bool {
    let test = path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches"));
    test || path.starts_with("crates/testkit/")
        || path.starts_with("crates/test-support/")
        || path.starts_with("xtask/")
}

/// What is read elsewhere: the arguments of a warden, before the binary knows that it is one; the working directory of the
/// process that applies a sandbox; the architecture, which is a constant.
const READ_ELSEWHERE: &[(&str, &[&str])] = &[
    ("crates/process/src/lib.rs", &["std", "::", "env", "::", "args_os"]),
    ("crates/process/src/sandbox/mounts.rs", &["std", "::", "env", "::", "current_dir"]),
    ("crates/process/src/sandbox/mounts.rs", &["std", "::", "env", "::", "set_current_dir"]),
    ("crates/process/src/sandbox/syscall_filter.rs", &["std", "::", "env", "::", "consts"]),
];

pub(super) fn check_environment(source: &SourceFile) -> Vec<TidyFinding> {
    // Cargo tells a build script what to build by the environment.
    let is_build_script = source.path.ends_with("/build.rs");
    let is_exempt = is_build_script || is_test_support(&source.path) || source.path.starts_with("crates/quell/src/");
    if is_exempt {
        return Vec::new();
    }
    let remedy = "the environment is read in crates/quell/src only: take the value as an argument";
    let is_listed = |at| READ_ELSEWHERE.iter().any(|(path, call)| *path == source.path && source.matches_at(at, call));
    let named = source.find_tokens(&["std", "::", "env"]).filter(|at| !is_listed(*at));
    let group_names_it = |at: &usize| (at + 3..source.tokens()[at + 2].partner).any(|at| source.word(at) == "env");
    let in_groups = source.find_tokens(&["std", "::", "{"]).filter(group_names_it);
    named.chain(in_groups).map(|at| TidyFinding::new(source.tokens()[at].line, remedy)).collect()
}

/// What protocol and kernel may not name. A group would hide names from this rule.
const IMPURE: &[&[&str]] = &[
    &["std", "::", "env"],
    &["std", "::", "fs"],
    &["std", "::", "io"],
    &["std", "::", "net"],
    &["std", "::", "process"],
    &["std", "::", "thread"],
    &["std", "::", "{"],
    &["std", "::", "time", "::", "Instant"],
    &["std", "::", "time", "::", "SystemTime"],
    &["std", "::", "time", "::", "{"],
    &["async"],
];

pub(super) fn check_pure_layers(source: &SourceFile) -> Vec<TidyFinding> {
    if !["crates/protocol/src/", "crates/kernel/src/"].iter().any(|layer| source.path.starts_with(layer)) {
        return Vec::new();
    }
    let remedy = "protocol and kernel have no clock, no IO, no async: take a value, or do it in a higher crate";
    let found = IMPURE.iter().flat_map(|impure| source.find_tokens(impure));
    found.map(|at| TidyFinding::new(source.tokens()[at].line, remedy)).collect()
}

/// `unsafe` code needs an exception by this name.
pub(super) fn check_unsafe(source: &SourceFile) -> Vec<TidyFinding> {
    if source.path.starts_with("crates/process/") {
        return Vec::new();
    }
    let remedy = "unsafe code is in crates/process only";
    source.find_tokens(&["unsafe_code"]).map(|at| TidyFinding::new(source.tokens()[at].line, remedy)).collect()
}

/// The modules of the engine by rank. Each may use those of lower ranks only.
const ENGINE_RANKS: &[&[&str]] = &[
    &["journal", "channel_origin", "cluster", "sealing", "webhook_delivery"],
    &["live_run", "approvals", "access", "hooks", "memory", "push", "schedules"],
    &["agent"],
    &["runs"],
    &["session"],
    &["engine"],
];

pub(super) fn check_engine_ranks(source: &SourceFile) -> Vec<TidyFinding> {
    let inside = source.path.strip_prefix("crates/engine/src/").and_then(|path| path.strip_suffix(".rs"));
    let Some(inside) = inside.filter(|inside| *inside != "lib") else { return Vec::new() };
    let rank_of = |module: &str| ENGINE_RANKS.iter().position(|modules| modules.contains(&module));
    let own = inside.split('/').next().unwrap_or_default();
    let Some(rank) = rank_of(own) else {
        return vec![TidyFinding::new(
            1,
            format!("the module `{own}` has no rank: add it to ARCHITECTURE.md and here"),
        )];
    };
    let depth = inside.split('/').count();
    let is_violation = |other: &&str| *other != own && rank_of(other).is_none_or(|other| other >= rank);
    let named =
        (0..source.tokens().len()).filter_map(|at| Some((at, engine_module(source, at, depth).filter(is_violation)?)));
    named
        .map(|(at, other)| {
            let remedy = format!("`{own}` may not use `{other}`, which has no lower rank: hand a value or a trait up");
            TidyFinding::new(source.tokens()[at].line, remedy)
        })
        .collect()
}

/// The module of the engine that the path which begins here names, from the root or by climbing there. A group at the
/// root counts as a module, because it would hide names from this rule.
fn engine_module(source: &SourceFile, at: usize, depth: usize) -> Option<&str> {
    if at > 0 && source.word(at - 1) == "::" {
        return None;
    }
    let climbs = (0..).take_while(|climb| source.matches_at(at + 2 * climb, &["super", "::"])).count();
    let name = match source.matches_at(at, &["crate", "::"]) {
        true => source.word(at + 2),
        false if climbs >= depth => source.word(at + 2 * climbs),
        false => return None,
    };
    (name == "{" || name.starts_with(char::is_lowercase)).then_some(name)
}
