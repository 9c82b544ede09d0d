//! Nothing in the work of a run waits where a stop does not reach it.
//!
//! An `.await` in these modules is one of four things, and each can be seen where it stands: it is **raced** (`scope.race`,
//! `scope.blocking`, at a named point); it **hands on** the scope, as an argument of what is awaited; it is a **step** into an
//! async fn of the same file, whose own waits are under this rule too; or a comment `// waits: why` stands on its line or
//! right above its statement. A `select!` needs an arm on the scope, or that comment.

use std::ops::Range;

use super::TidyFinding;
use super::code_paths::is_test_support;
use super::source_file::SourceFile;

const RUN_CRATES: &[&str] = &["llm", "mcp", "tools"];

/// Modules of the engine in which runs work.
const RUN_MODULES: &[&str] = &["agent", "memory", "hooks"];

/// Compiled for tests only, by an attribute in the file above.
const TEST_FILES: &[&str] = &["crates/llm/src/fake_server.rs"];

const REASON_MARK: &str = "// waits: ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AwaitReason {
    Raced,
    PassesScope,
    LocalAsyncFn,
    Comment,
}

pub(super) fn check_awaits(source: &SourceFile) -> Vec<TidyFinding> {
    let remedy = "a stop has to end this wait: race it (`scope.race(Point::X, ..)`), hand on the scope, or say why not \
                  (`// waits: why`)";
    let unreasoned = find_awaits(source).into_iter().filter(|(_, reason)| reason.is_none());
    unreasoned.map(|(line, _)| TidyFinding::new(line, remedy)).collect()
}

/// Every wait of a file that is under the rule, with its line and what makes it right.
fn find_awaits(source: &SourceFile) -> Vec<(usize, Option<AwaitReason>)> {
    if !is_run_module(&source.path) {
        return Vec::new();
    }
    let tests = test_items(source);
    let awaits = source.find_tokens(&[".", "await"]).map(|at| (at, await_reason(source, at)));
    let selects = source.find_tokens(&["select", "!"]).map(|at| (at, select_reason(source, at)));
    let product = awaits.chain(selects).filter(|(at, _)| !tests.iter().any(|test| test.contains(at)));
    let reasoned = |at| has_reason_comment(source, at).then_some(AwaitReason::Comment);
    product.map(|(at, reason)| (source.tokens()[at].line, reason.or_else(|| reasoned(at)))).collect()
}

fn is_run_module(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let is_run_code = match parts.as_slice() {
        ["crates", "engine", "src", module, ..] => RUN_MODULES.contains(&module.trim_end_matches(".rs")),
        ["crates", name, "src", ..] => RUN_CRATES.contains(name),
        _ => false,
    };
    is_run_code && !is_test_support(path) && !TEST_FILES.contains(&path)
}

/// The tokens of items below `#[cfg(test)]`.
fn test_items(source: &SourceFile) -> Vec<Range<usize>> {
    const MARK: &[&str] = &["#", "[", "cfg", "(", "test", ")", "]"];
    let item = |begin: usize| {
        let end = (begin + MARK.len()..source.tokens().len()).find(|at| matches!(source.word(*at), ";" | "{"));
        begin..end.map_or(source.tokens().len(), |end| source.tokens()[end].partner + 1)
    };
    source.find_tokens(MARK).map(item).collect()
}

/// `at` is the dot of `.await`.
fn await_reason(source: &SourceFile, at: usize) -> Option<AwaitReason> {
    let begin = expression_start(source, at);
    let call = (begin..at).rev().find(|at| source.word(*at) == ")").map(|close| source.tokens()[close].partner);
    let name_at = call.and_then(|call| call.checked_sub(1)).filter(|name| *name >= begin);
    let name = name_at.map_or("", |at| source.word(at));
    let receiver: Vec<&str> = (begin..name_at.unwrap_or(begin)).map(|at| source.word(at)).collect();
    let at_a_point = call.is_some_and(|call| source.matches_at(call, &["(", "Point", "::"]));
    if matches!(name, "race" | "blocking") && receiver.ends_with(&["scope", "."]) && at_a_point {
        return Some(AwaitReason::Raced);
    }
    // One of the arguments is the scope itself: `scope`, `&scope`, `self.scope`.
    if (begin..at).any(|at| source.word(at) == "scope" && matches!(source.word(at + 1), "," | ")")) {
        return Some(AwaitReason::PassesScope);
    }
    let own = matches!(receiver.as_slice(), [] | ["self", "."] | ["Self", "::"]);
    (own && source.find_tokens(&["async", "fn", name]).next().is_some()).then_some(AwaitReason::LocalAsyncFn)
}

/// `at` is the word of `select!`.
fn select_reason(source: &SourceFile, at: usize) -> Option<AwaitReason> {
    let end = source.tokens().get(at + 2)?.partner;
    let ends = |at| ["cancelled", "forced"].iter().any(|end| source.matches_at(at, &["scope", ".", end, "("]));
    (at..end).any(ends).then_some(AwaitReason::Raced)
}

/// True when the reason stands on a line of the statement up to here, or in the comment right above it.
fn has_reason_comment(source: &SourceFile, at: usize) -> bool {
    let mut first = at;
    while first > 0
        && !matches!(source.word(first - 1), ";" | "{" | "}")
        && !source.matches_at(first.max(2) - 2, &["=", ">"])
    {
        first -= 1;
    }
    let (from, to) = (source.tokens()[first].line - 1, source.tokens()[at].line);
    let above = source.lines[..from].iter().rev().take_while(|line| line.trim_start().starts_with("//"));
    source.lines[from..to].iter().chain(above).any(|line| {
        let reason = line.split_once(REASON_MARK).map_or("", |(_, reason)| reason);
        reason.split_whitespace().count() >= 3
    })
}

/// Where the expression begins that is over before `at`: names, fields, calls, one after the other.
fn expression_start(source: &SourceFile, at: usize) -> usize {
    let mut begin = at;
    while let Some(last) = begin.checked_sub(1) {
        let follows_a_word = begin < at && source.tokens()[begin].is_word();
        begin = match source.word(last) {
            ")" | "]" => source.tokens()[last].partner,
            "." | "::" | "?" => last,
            ">" => match turbofish_start(source, last) {
                Some(open) => open,
                None => break,
            },
            _ if source.tokens()[last].is_word() && !follows_a_word => last,
            _ => break,
        };
    }
    begin
}

/// The `<` of `::<..>` that ends with the `>` at `at`.
fn turbofish_start(source: &SourceFile, at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let open = (0..=at).rev().find(|at| {
        depth += usize::from(source.word(*at) == ">");
        depth -= usize::from(source.word(*at) == "<");
        depth == 0
    })?;
    (open > 0 && source.word(open - 1) == "::").then_some(open)
}

/// The rule has something to say: each of its four ways is in use, and it prints how often.
#[test]
fn every_way_of_waiting_is_in_use() {
    let sources = super::read_sources(&["crates/engine/src"], &[".rs"]);
    let all: Vec<AwaitReason> = sources.iter().flat_map(find_awaits).filter_map(|(_, reason)| reason).collect();
    for way in [AwaitReason::Raced, AwaitReason::PassesScope, AwaitReason::LocalAsyncFn, AwaitReason::Comment] {
        let count = all.iter().filter(|reason| **reason == way).count();
        println!("{way:?}: {count}");
        assert!(count > 0, "no wait of a run is {way:?}: the files are elsewhere, or the rule is blind");
    }
}
