//! Nothing in the work of a run waits where a stop does not reach it.
//!
//! An `.await` in these modules is one of four things, and each can be seen where it stands: it is **raced** (`scope.race`,
//! `scope.blocking`, at a named point); it **hands on** the scope, as an argument of what is awaited; it is a **step** into an
//! async fn of the same file, whose own waits are under this rule too; or a comment `// waits: why` stands on its line or
//! right above its statement. A `select!` needs an arm on the scope, or that comment.

use super::Finding;
use super::places::is_scaffold;
use super::source::{Source, Token};

/// Modules of the engine in which runs work.
const HOMES: &[&str] = &["agent", "tools", "llm", "mcp", "memory", "hooks"];

/// Compiled for tests only, by an attribute in the file above.
const TEST_FILES: &[&str] = &["crates/engine/src/llm/fake.rs"];

const REASON: &str = "// waits: ";

/// What makes a wait right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grounds {
    Raced,
    HandsOnTheScope,
    StepOfThisFile,
    Reason,
}

pub(super) fn awaits(source: &Source) -> Vec<Finding> {
    let remedy = "a stop has to end this wait: race it (`scope.race(Point::X, ..)`), hand on the scope, or say why not \
                  (`// waits: why`)";
    waits(source)
        .into_iter()
        .filter(|(_, grounds)| grounds.is_none())
        .map(|(line, _)| Finding::new(line, remedy))
        .collect()
}

/// Every wait of a file that is under the rule, with its line and what makes it right.
fn waits(source: &Source) -> Vec<(usize, Option<Grounds>)> {
    if !is_home(&source.path) {
        return Vec::new();
    }
    let tokens = without_tests(&source.tokens);
    let grounds = |at| {
        if reads(&tokens, at, &[".", "await"]) {
            Some(of_an_await(&tokens, at))
        } else {
            reads(&tokens, at, &["select", "!"]).then(|| of_a_select(&tokens, at))
        }
    };
    let reasoned = |at| is_reasoned(source, &tokens, at).then_some(Grounds::Reason);
    let all = (0..tokens.len()).filter_map(|at| Some((at, grounds(at)?)));
    all.map(|(at, grounds)| (tokens[at].line, grounds.or_else(|| reasoned(at)))).collect()
}

fn is_home(path: &str) -> bool {
    let Some(place) = path.strip_prefix("crates/engine/src/") else { return false };
    let module = place.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    HOMES.contains(&module) && !is_scaffold(path) && !TEST_FILES.contains(&path)
}

/// The code without what stands below `#[cfg(test)]`.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    const MARK: &[&str] = &["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if reads(tokens, at, MARK) {
            let item = (at + MARK.len()..tokens.len()).find(|at| matches!(text(tokens, *at), ";" | "{"));
            at = item.map_or(tokens.len(), |at| if text(tokens, at) == "{" { closing(tokens, at) } else { at }) + 1;
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// `at` is the dot of `.await`.
fn of_an_await(tokens: &[Token], at: usize) -> Option<Grounds> {
    let awaited = &tokens[awaited_from(tokens, at)..at];
    let call = awaited.iter().rposition(|token| token.text == "(").map(|_| opening(awaited, awaited.len() - 1));
    let name = call.and_then(|call| call.checked_sub(1)).map_or("", |name| text(awaited, name));
    let before = &awaited[..call.unwrap_or_default().saturating_sub(1)];
    let receiver: Vec<&str> = before.iter().map(|token| token.text.as_str()).collect();
    let at_a_point = call.is_some_and(|call| reads(awaited, call, &["(", "Point", "::"]));
    if matches!(name, "race" | "blocking") && receiver.ends_with(&["scope", "."]) && at_a_point {
        return Some(Grounds::Raced);
    }
    if hands_on_the_scope(awaited) {
        return Some(Grounds::HandsOnTheScope);
    }
    let own = matches!(receiver.as_slice(), [] | ["self", "."] | ["Self", "::"]);
    let is_here = (0..tokens.len()).any(|at| reads(tokens, at, &["async", "fn", name]));
    (own && is_here).then_some(Grounds::StepOfThisFile)
}

/// True when one of the arguments is the scope itself: `scope`, `&scope`, `self.scope`.
fn hands_on_the_scope(awaited: &[Token]) -> bool {
    let argument = |at: usize| text(awaited, at) == "scope" && matches!(text(awaited, at + 1), "," | ")");
    (0..awaited.len()).any(argument)
}

/// `at` is the word of `select!`.
fn of_a_select(tokens: &[Token], at: usize) -> Option<Grounds> {
    let arms = &tokens[at..closing(tokens, at + 2)];
    let ends = |at| ["cancelled", "forced"].iter().any(|end| reads(arms, at, &["scope", ".", end, "("]));
    (0..arms.len()).any(ends).then_some(Grounds::Raced)
}

/// True when the reason stands on a line of the statement up to here, or in the comment right above it.
fn is_reasoned(source: &Source, tokens: &[Token], at: usize) -> bool {
    let mut first = at;
    while first > 0
        && !matches!(text(tokens, first - 1), ";" | "{" | "}")
        && !reads(tokens, first.max(2) - 2, &["=", ">"])
    {
        first -= 1;
    }
    let (from, to) = (tokens[first].line - 1, tokens[at].line);
    let above = source.lines[..from].iter().rev().take_while(|line| line.trim_start().starts_with("//"));
    source.lines[from..to].iter().chain(above).any(|line| {
        let reason = line.split_once(REASON).map_or("", |(_, reason)| reason);
        reason.split_whitespace().count() >= 3
    })
}

/// Where the expression begins that is over before `at`: names, fields, calls, one after the other.
fn awaited_from(tokens: &[Token], at: usize) -> usize {
    let mut begin = at;
    while let Some(last) = begin.checked_sub(1) {
        let follows_a_word = begin < at && tokens[begin].is_word();
        begin = match text(tokens, last) {
            ")" | "]" => opening(tokens, last),
            ">" if is_turbofish(tokens, last) => opening(tokens, last),
            "." | "::" | "?" => last,
            _ if tokens[last].is_word() && !follows_a_word => last,
            _ => break,
        };
    }
    begin
}

/// `at` is a `>`.
fn is_turbofish(tokens: &[Token], at: usize) -> bool {
    let open = opening(tokens, at);
    open > 0 && text(tokens, open) == "<" && text(tokens, open - 1) == "::"
}

fn text(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| token.text.as_str())
}

fn reads(tokens: &[Token], at: usize, wanted: &[&str]) -> bool {
    wanted.iter().enumerate().all(|(ahead, wanted)| text(tokens, at + ahead) == *wanted)
}

/// The bracket that the one at `at` closes.
fn opening(tokens: &[Token], at: usize) -> usize {
    pair(tokens, (0..=at).rev(), [(")", "("), ("]", "["), ("}", "{"), (">", "<")]).unwrap_or_default()
}

/// The bracket that closes the one at `at`.
fn closing(tokens: &[Token], at: usize) -> usize {
    pair(tokens, at..tokens.len(), [("(", ")"), ("[", "]"), ("{", "}"), ("<", ">")]).unwrap_or(tokens.len())
}

/// The first place on the way at which as many brackets of the first one's kind have closed as have opened.
fn pair(tokens: &[Token], mut way: impl Iterator<Item = usize>, kinds: [(&str, &str); 4]) -> Option<usize> {
    let mut way = way.by_ref().peekable();
    let first = text(tokens, *way.peek()?);
    let (opens, closes) = kinds.into_iter().find(|(opens, _)| *opens == first)?;
    let mut depth = 0_usize;
    way.find(|at| {
        depth += usize::from(text(tokens, *at) == opens);
        depth -= usize::from(text(tokens, *at) == closes);
        depth == 0
    })
}

/// The rule has something to say: each of its four ways is in use, and it prints how often.
#[test]
fn every_way_of_waiting_is_in_use() {
    let engine = super::root().join("crates/engine/src");
    let sources: Vec<Source> = super::files(&engine, ".rs").iter().map(|path| super::read(path)).collect();
    let all: Vec<Grounds> = sources.iter().flat_map(waits).filter_map(|(_, grounds)| grounds).collect();
    for way in [Grounds::Raced, Grounds::HandsOnTheScope, Grounds::StepOfThisFile, Grounds::Reason] {
        let count = all.iter().filter(|grounds| **grounds == way).count();
        println!("{way:?}: {count}");
        assert!(count > 0, "no wait of a run is {way:?}: the files are elsewhere, or the rule is blind");
    }
}
