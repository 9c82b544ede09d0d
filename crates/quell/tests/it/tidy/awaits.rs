//! Nothing in the work of a run waits where a stop does not reach it.
//!
//! An `.await` in these modules is one of four things, and each can be seen where it stands: it is **raced** (`scope.race`,
//! `scope.blocking`, at a named point); it **hands on** the scope, as an argument of what is awaited; it is a **step** into an
//! async fn of the same file, whose own waits are under this rule too; or a comment `// waits: why` stands on its line or
//! right above its statement. A `select!` needs an arm on the scope, or that comment.

use super::TidyFinding;
use super::restricted_apis::is_test_support;
use super::source_file::{SourceFile, SourceToken};

const RUN_CRATES: &[&str] = &["llm", "mcp", "tools"];

/// Modules of the engine in which runs work.
const RUN_MODULES: &[&str] = &["agent", "memory", "hooks"];

/// Compiled for tests only, by an attribute in the file above.
const TEST_FILES: &[&str] = &["crates/llm/src/fake_server.rs"];

const REASON_MARK: &str = "// waits: ";

/// What makes a wait right.
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
    find_awaits(source)
        .into_iter()
        .filter(|(_, grounds)| grounds.is_none())
        .map(|(line, _)| TidyFinding::new(line, remedy))
        .collect()
}

/// Every wait of a file that is under the rule, with its line and what makes it right.
fn find_awaits(source: &SourceFile) -> Vec<(usize, Option<AwaitReason>)> {
    if !is_run_module(&source.path) {
        return Vec::new();
    }
    let tokens = without_tests(&source.tokens);
    let grounds = |at| {
        if matches_at(&tokens, at, &[".", "await"]) {
            Some(await_reason(&tokens, at))
        } else {
            matches_at(&tokens, at, &["select", "!"]).then(|| select_reason(&tokens, at))
        }
    };
    let reasoned = |at| has_reason_comment(source, &tokens, at).then_some(AwaitReason::Comment);
    let all = (0..tokens.len()).filter_map(|at| Some((at, grounds(at)?)));
    all.map(|(at, grounds)| (tokens[at].line, grounds.or_else(|| reasoned(at)))).collect()
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

/// The code without what stands below `#[cfg(test)]`.
fn without_tests(tokens: &[SourceToken]) -> Vec<SourceToken> {
    const MARK: &[&str] = &["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if matches_at(tokens, at, MARK) {
            let item = (at + MARK.len()..tokens.len()).find(|at| matches!(token_text(tokens, *at), ";" | "{"));
            at =
                item.map_or(
                    tokens.len(),
                    |at| if token_text(tokens, at) == "{" { closing_bracket(tokens, at) } else { at },
                ) + 1;
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// `at` is the dot of `.await`.
fn await_reason(tokens: &[SourceToken], at: usize) -> Option<AwaitReason> {
    let awaited = &tokens[expression_start(tokens, at)..at];
    let call = awaited.iter().rposition(|token| token.text == "(").map(|_| opening_bracket(awaited, awaited.len() - 1));
    let name = call.and_then(|call| call.checked_sub(1)).map_or("", |name| token_text(awaited, name));
    let before = &awaited[..call.unwrap_or_default().saturating_sub(1)];
    let receiver: Vec<&str> = before.iter().map(|token| token.text.as_str()).collect();
    let at_a_point = call.is_some_and(|call| matches_at(awaited, call, &["(", "Point", "::"]));
    if matches!(name, "race" | "blocking") && receiver.ends_with(&["scope", "."]) && at_a_point {
        return Some(AwaitReason::Raced);
    }
    if passes_scope(awaited) {
        return Some(AwaitReason::PassesScope);
    }
    let own = matches!(receiver.as_slice(), [] | ["self", "."] | ["Self", "::"]);
    let is_here = (0..tokens.len()).any(|at| matches_at(tokens, at, &["async", "fn", name]));
    (own && is_here).then_some(AwaitReason::LocalAsyncFn)
}

/// True when one of the arguments is the scope itself: `scope`, `&scope`, `self.scope`.
fn passes_scope(awaited: &[SourceToken]) -> bool {
    let argument = |at: usize| token_text(awaited, at) == "scope" && matches!(token_text(awaited, at + 1), "," | ")");
    (0..awaited.len()).any(argument)
}

/// `at` is the word of `select!`.
fn select_reason(tokens: &[SourceToken], at: usize) -> Option<AwaitReason> {
    let arms = &tokens[at..closing_bracket(tokens, at + 2)];
    let ends = |at| ["cancelled", "forced"].iter().any(|end| matches_at(arms, at, &["scope", ".", end, "("]));
    (0..arms.len()).any(ends).then_some(AwaitReason::Raced)
}

/// True when the reason stands on a line of the statement up to here, or in the comment right above it.
fn has_reason_comment(source: &SourceFile, tokens: &[SourceToken], at: usize) -> bool {
    let mut first = at;
    while first > 0
        && !matches!(token_text(tokens, first - 1), ";" | "{" | "}")
        && !matches_at(tokens, first.max(2) - 2, &["=", ">"])
    {
        first -= 1;
    }
    let (from, to) = (tokens[first].line - 1, tokens[at].line);
    let above = source.lines[..from].iter().rev().take_while(|line| line.trim_start().starts_with("//"));
    source.lines[from..to].iter().chain(above).any(|line| {
        let reason = line.split_once(REASON_MARK).map_or("", |(_, reason)| reason);
        reason.split_whitespace().count() >= 3
    })
}

/// Where the expression begins that is over before `at`: names, fields, calls, one after the other.
fn expression_start(tokens: &[SourceToken], at: usize) -> usize {
    let mut begin = at;
    while let Some(last) = begin.checked_sub(1) {
        let follows_a_word = begin < at && tokens[begin].is_word();
        begin = match token_text(tokens, last) {
            ")" | "]" => opening_bracket(tokens, last),
            ">" if is_turbofish(tokens, last) => opening_bracket(tokens, last),
            "." | "::" | "?" => last,
            _ if tokens[last].is_word() && !follows_a_word => last,
            _ => break,
        };
    }
    begin
}

/// `at` is a `>`.
fn is_turbofish(tokens: &[SourceToken], at: usize) -> bool {
    let open = opening_bracket(tokens, at);
    open > 0 && token_text(tokens, open) == "<" && token_text(tokens, open - 1) == "::"
}

fn token_text(tokens: &[SourceToken], at: usize) -> &str {
    tokens.get(at).map_or("", |token| token.text.as_str())
}

fn matches_at(tokens: &[SourceToken], at: usize, wanted: &[&str]) -> bool {
    wanted.iter().enumerate().all(|(ahead, wanted)| token_text(tokens, at + ahead) == *wanted)
}

/// The bracket that the one at `at` closes.
fn opening_bracket(tokens: &[SourceToken], at: usize) -> usize {
    matching_bracket(tokens, (0..=at).rev(), [(")", "("), ("]", "["), ("}", "{"), (">", "<")]).unwrap_or_default()
}

/// The bracket that closes the one at `at`.
fn closing_bracket(tokens: &[SourceToken], at: usize) -> usize {
    matching_bracket(tokens, at..tokens.len(), [("(", ")"), ("[", "]"), ("{", "}"), ("<", ">")]).unwrap_or(tokens.len())
}

/// The first place on the way at which as many brackets of the first one's kind have closed as have opened.
fn matching_bracket(
    tokens: &[SourceToken],
    mut way: impl Iterator<Item = usize>,
    kinds: [(&str, &str); 4],
) -> Option<usize> {
    let mut way = way.by_ref().peekable();
    let first = token_text(tokens, *way.peek()?);
    let (opens, closes) = kinds.into_iter().find(|(opens, _)| *opens == first)?;
    let mut depth = 0_usize;
    way.find(|at| {
        depth += usize::from(token_text(tokens, *at) == opens);
        depth -= usize::from(token_text(tokens, *at) == closes);
        depth == 0
    })
}

/// The rule has something to say: each of its four ways is in use, and it prints how often.
#[test]
fn every_way_of_waiting_is_in_use() {
    let engine = super::workspace_root().join("crates/engine/src");
    let sources: Vec<SourceFile> =
        super::find_files(&engine, ".rs").iter().map(|path| super::read_source(path)).collect();
    let all: Vec<AwaitReason> = sources.iter().flat_map(find_awaits).filter_map(|(_, grounds)| grounds).collect();
    for way in [AwaitReason::Raced, AwaitReason::PassesScope, AwaitReason::LocalAsyncFn, AwaitReason::Comment] {
        let count = all.iter().filter(|grounds| **grounds == way).count();
        println!("{way:?}: {count}");
        assert!(count > 0, "no wait of a run is {way:?}: the files are elsewhere, or the rule is blind");
    }
}
