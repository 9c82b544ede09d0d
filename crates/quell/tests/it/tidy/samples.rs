//! For every rule: files that break it, with the lines where, and files that keep it.

use super::source_file::SourceFile;
use super::{MANIFEST_RULES, RULES, TEXT_RULES, TidyRule, WEB_RULES, web};

/// A small file and the lines in which the rule finds something; none for one that is in order.
struct RuleSample {
    rule: &'static str,
    path: &'static str,
    text: &'static str,
    lines: &'static [usize],
}

const fn sample(rule: &'static str, path: &'static str, text: &'static str, lines: &'static [usize]) -> RuleSample {
    RuleSample { rule, path, text, lines }
}

const LIB: &str = "crates/engine/src/lib.rs";
const HOOKS: &str = "crates/engine/src/hooks/queue.rs";

const SOURCE_SAMPLES: &[RuleSample] = &[
    sample("engine ranks", HOOKS, "use crate::agent::AgentLoop;", &[1]),
    sample("engine ranks", HOOKS, "use crate::{\n    journal,\n    runs::RunTable,\n};", &[3]),
    sample("engine ranks", HOOKS, "fn f() { crate::engine::go() }", &[1]),
    sample("engine ranks", HOOKS, "use super::super::agent::AgentLoop;", &[1]),
    sample("engine ranks", "crates/engine/src/live_run.rs", "use crate::agent::AgentLoop;", &[1]),
    sample("engine ranks", "crates/engine/src/journal.rs", "use super::hooks;", &[1]),
    sample("engine ranks", "crates/engine/src/magic.rs", "", &[1]),
    sample("engine ranks", HOOKS, "use crate::magic::Wand;", &[1]),
    sample(
        "engine ranks",
        HOOKS,
        "use crate::{journal, channel_origin::ChannelOrigin};\nuse super::list;\n// use crate::agent",
        &[],
    ),
    sample("engine ranks", "crates/engine/src/access.rs", "use crate::journal::Journal;", &[]),
    sample("engine ranks", LIB, "pub use crate::engine::Engine;", &[]),
    sample("engine ranks", "crates/server/src/http.rs", "use crate::engine;", &[]),
    sample("file head", LIB, "use std::fmt;", &[1]),
    sample("file head", LIB, "", &[1]),
    sample("file head", LIB, "//! x", &[1]),
    sample("file head", LIB, "//! The work of Quell.", &[]),
    sample("cancel safety", LIB, "/// Waits.\npub async fn wait() {}", &[2]),
    sample(
        "cancel safety",
        LIB,
        "/// # Cancel safety\n/// Safe.\npub fn a() {}\n/// Waits.\npub async fn wait() {}",
        &[5],
    ),
    sample(
        "cancel safety",
        LIB,
        "/// # Cancel safety\n/// Safe.\n#[expect(\n    x,\n    reason = \"y\",\n)]\npub async fn wait() {}",
        &[],
    ),
    sample("cancel safety", "crates/testkit/src/pty.rs", "pub async fn wait() {}", &[]),
    sample("cancel safety", LIB, "async fn private() {}\npub(super) async fn near() {}", &[]),
    sample("banned words", "crates/engine/src/llm/utils.rs", "", &[1]),
    sample("banned words", "crates/engine/src/common/list.rs", "", &[1]),
    sample("banned words", "crates/kernel/src/string_util.rs", "", &[1]),
    sample("banned words", "crates/engine/src/common_prefix.rs", "", &[1]),
    sample("banned words", "crates/engine/src/uncommon.rs", "fn f(context: u8) {}", &[]),
    sample("unsafe", HOOKS, "fn f() {\n    unsafe { g() }\n}", &[2]),
    sample("unsafe", HOOKS, "#[unsafe(no_mangle)]\nfn f() {}", &[1]),
    sample("unsafe", HOOKS, "#![forbid(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe\";", &[]),
    sample("unsafe", "crates/process/src/signals.rs", "unsafe { g() }", &[]),
    sample(
        "environment",
        HOOKS,
        "use std::env;\nlet a = std::env::var(\"A\");\nuse std::{env::args, fmt};",
        &[1, 2, 3],
    ),
    sample("environment", HOOKS, "let a = env!(\"A\"); use environment::b;", &[]),
    sample("environment", "crates/quell/src/config.rs", "use std::env;", &[]),
    sample("environment", "crates/process/src/tests.rs", "use std::env;", &[]),
    sample(
        "pure layers",
        "crates/kernel/src/run.rs",
        "use std::time::Instant;\nuse std::{fs, io};\nasync fn f() {}",
        &[1, 2, 2, 3],
    ),
    sample("pure layers", "crates/kernel/src/run.rs", "use std::time::Duration;\nuse std::collections::HashMap;", &[]),
    sample("pure layers", HOOKS, "use std::fs;", &[]),
    sample("unfinished", LIB, "fn f() {\n    todo!()\n}\nfn g() { unimplemented!(\"later\") }", &[2, 4]),
    sample("unfinished", LIB, "// todo!()\nlet todo = 1;", &[]),
];

/// The work of a run: what waits where a stop does not reach it, and what does not.
const AWAIT_SAMPLES: &[RuleSample] = &[
    sample("awaits", HOOKS, "async fn f() {\n    sleep(x).await;\n}", &[2]),
    sample("awaits", HOOKS, "async fn f() {\n    // It is short.\n    sleep(x).await;\n}", &[3]),
    sample("awaits", HOOKS, "async fn f() {\n    // waits: briefly\n    sleep(x).await;\n}", &[3]),
    sample(
        "awaits",
        HOOKS,
        "async fn f() {\n    // waits: for this one only.\n    a().await;\n    b().await;\n}",
        &[4],
    ),
    sample("awaits", HOOKS, "async fn f() {\n    let a = b\n        .c()\n        .await;\n}", &[4]),
    sample(
        "awaits",
        HOOKS,
        "async fn f(scope: &Scope) {\n    scope.close().await;\n    arena.race(Point::A, b).await;\n}",
        &[2, 3],
    ),
    sample(
        "awaits",
        HOOKS,
        "async fn f(scope: &Scope) {\n    scope.race(point, a).await;\n    run(scope.id()).await;\n}",
        &[2, 3],
    ),
    sample("awaits", HOOKS, "async fn f() {\n    other.step().await;\n}\nasync fn step() {}", &[2]),
    sample("awaits", HOOKS, "async fn f() {\n    select! { a = b => {}, c = d => {} }\n}", &[2]),
    sample("awaits", HOOKS, "#[cfg(test)]\nmod tests;\nasync fn f() {\n    a().await;\n}", &[4]),
    sample("awaits", HOOKS, "#[cfg(test)]\nfn f() { a().await }\nasync fn g() {\n    pending::<()>().await;\n}", &[4]),
    sample("awaits", "crates/engine/src/memory/find.rs", "async fn f() { a().await }", &[1]),
    sample(
        "awaits",
        HOOKS,
        "async fn f() { scope.race(Point::A, b()).await?; cx.scope.blocking(Point::B, \"c\", |d| e).await }",
        &[],
    ),
    sample(
        "awaits",
        HOOKS,
        "async fn f() {\n    let a = self\n        .scope\n        .race(Point::A, b(&c))\n        .await?;\n}",
        &[],
    ),
    sample(
        "awaits",
        HOOKS,
        "async fn f() { a.b(c, &self.scope).await; d(scope, e).await; G::of(h, cx.scope).i().await }",
        &[],
    ),
    sample("awaits", HOOKS, "async fn f() { match self.step().await { _ => step().await } }\nasync fn step() {}", &[]),
    sample(
        "awaits",
        HOOKS,
        "async fn f() {\n    // waits: for its own end only,\n    // and that is near.\n    let a = match b\n        .c().await {};\n}",
        &[],
    ),
    sample("awaits", HOOKS, "async fn f() {\n    a().await; // waits: for its own end.\n}", &[]),
    sample("awaits", HOOKS, "async fn f() { select! { () = self.scope.cancelled() => {}, a = b => {} } }", &[]),
    sample("awaits", HOOKS, "// a().await\n#[cfg(test)]\nmod tests { async fn f() { a().await } }", &[]),
    sample("awaits", "crates/tools/src/tests/files.rs", "async fn f() { a().await }", &[]),
    sample("awaits", "crates/tools/src/shell.rs", "async fn f() { a().await }", &[1]),
    sample("awaits", "crates/engine/src/session.rs", "async fn f() { a().await }", &[]),
];

const CONFLICT_MARKER_SAMPLES: &[RuleSample] = &[
    sample(
        "conflict markers",
        "CHANGELOG.md",
        "a\n<<<<<<< HEAD\nb\n||||||| c\n=======\nd\n>>>>>>> e\n<<<<<<<\n",
        &[2, 4, 7, 8],
    ),
    sample("conflict markers", LIB, "let a = \"<<<<<<< HEAD\";\n// >>>>>>> b\n", &[]),
    sample("conflict markers", "README.md", "Title\n=======\n<<<<<<<<<< a\n", &[]),
];

const RACE_TABLE_SAMPLES: &[RuleSample] = &[
    sample(
        "races",
        "docs/races.md",
        "| a | `it::race::no_such_test` |\n| b | `quell-kernel: run::tests::table::rows` |",
        &[1, 2],
    ),
    sample("races", "docs/races.md", "| a | `it::test_engine::alice` |\n| b | `it::sweep::crash::dies` |", &[1, 2]),
    sample(
        "races",
        "docs/races.md",
        "| a | `crates/engine/src/gone.rs` |\n| b | nothing |\n| c | `Engine::stop` |",
        &[1, 2, 3],
    ),
    sample(
        "races",
        "docs/races.md",
        "| what goes wrong | why not here |\n|---|---|\n| a | `it::tidy::tidy_texts`, `quell-scope: tests::blocking_work_that_panicked_is_failed_in_the_ledger_and_panics_its_caller` |\n\
         | b | `quell-process/commands: stops::a_gentle_stop_ends_it_at_once` |\n| c | `Engine::stop` in `crates/engine/src/engine.rs` |",
        &[],
    ),
    sample(
        "links",
        "docs/http.md",
        "see [a](nowhere.md)\nand [b](#no-such-heading)\n[c](../README.md#nor-here)",
        &[1, 2, 3],
    ),
    sample(
        "links",
        "docs/http.md",
        "[a](running.md), [b](../README.md), [c](https://example.org)\n```\n[d](x)\n```",
        &[],
    ),
    sample("links", "docs/design/contract.md", "[a](../configuration.md#what-holds-a-command)", &[]),
    sample("races", "docs/http.md", "| a | `it::race::no_such_test` |", &[]),
];

const MANIFEST_SAMPLES: &[RuleSample] = &[
    sample(
        "crate dependencies",
        "Cargo.toml",
        "[package]\nname = \"quell-kernel\"\n[dependencies]\nquell-engine = \"1\"",
        &[4],
    ),
    sample(
        "crate dependencies",
        "Cargo.toml",
        "[package]\nname = \"quell-client\"\n[dev-dependencies]\nquell-kernel = \"1\"",
        &[4],
    ),
    sample(
        "crate dependencies",
        "Cargo.toml",
        "[package]\nname = \"quell\"\n[dependencies]\nquell-testkit = \"1\"",
        &[4],
    ),
    sample(
        "crate dependencies",
        "Cargo.toml",
        "[package]\nname = \"quell-protocol\"\n[dependencies]\nx = { package = \"quell-kernel\" }",
        &[4],
    ),
    sample(
        "crate dependencies",
        "Cargo.toml",
        "[package]\nname = \"quell-client\"\n[target.x.dependencies]\nquell-engine = \"1\"",
        &[4],
    ),
    sample("crate dependencies", "Cargo.toml", "[package]\nname = \"quell-extra\"", &[1]),
    sample(
        "crate dependencies",
        "Cargo.toml",
        "[package]\nname = \"quell-engine\"\n[dependencies]\nquell-kernel = \"1\"\ntokio = \"1\"\n[dev-dependencies]\nquell-testkit = \"1\"",
        &[],
    ),
    sample("pure manifests", "Cargo.toml", "[package]\nname = \"quell-kernel\"\n[dependencies]\ntokio = \"1\"", &[4]),
    sample(
        "pure manifests",
        "Cargo.toml",
        "[package]\nname = \"quell-kernel\"\n[dependencies]\nserde = \"1\"\n[dev-dependencies]\nproptest = \"1\"",
        &[],
    ),
    sample("pure manifests", "Cargo.toml", "[package]\nname = \"quell-engine\"\n[dependencies]\ntokio = \"1\"", &[]),
];

fn check_samples(rules: &[TidyRule], samples: &[RuleSample]) {
    for RuleSample { rule, path, text, lines } in samples {
        let rule = rules.iter().find(|known| known.name == *rule).expect("a rule of that name");
        let found: Vec<usize> = (rule.check)(&SourceFile::new(path, text)).iter().map(|finding| finding.line).collect();
        assert_eq!(found, *lines, "rule {:?} on {path}:\n{text}", rule.name);
    }
}

const PAGE: &str = "web/js/x.js";
const PAGE_SAMPLES: &[RuleSample] = &[
    sample("page file head", PAGE, "export const a = 1;", &[1]),
    sample("page file head", PAGE, "// x", &[1]),
    sample("page file head", "web/style/x.css", "/* The looks of the rail. */", &[]),
    sample("page words", PAGE, "a.innerHTML = text;\neval(text)", &[1, 2]),
    sample("page words", PAGE, "fetch(\"https://example.org/x\")", &[1]),
    sample("page words", PAGE, "// a comment\nconst ns = \"http://www.w3.org/2000/svg\";", &[]),
];

#[test]
fn the_table_of_texts_is_held_to_its_form() {
    let row = |en: &str, ko: &str, zh: &str| format!("{{\"en\": \"{en}\", \"ko\": \"{ko}\", \"zh\": \"{zh}\"}}");
    let table = |first: &str, second: &str| {
        let rows = format!("{{\n  \"{first}\": {},\n  \"{second}\": {}\n}}", row("a", "b", "c"), row("a", "b", "c"));
        web::parse_texts(&rows).map(|table| table.len())
    };
    assert_eq!(table("a", "b"), Ok(2));
    assert!(table("b", "a").is_err() && table("a", "a").is_err());
    let faults = |row: &str| web::text_violations("k", &serde_json::from_str(row).unwrap()).len();
    assert_eq!(faults(&row("{n} runs", "{n}", "{n}")), 0);
    assert_eq!(faults(&row("{n} runs", "x", "{n}")), 1);
    assert_eq!(faults(&row("Oops!", " ", "x")), 2);
    assert_eq!(faults("{\"en\": \"a\"}"), 1);
    let asked = web::requested_keys(&SourceFile::new(
        PAGE,
        "t(\"a\", {n}) + it.t(\"b\") + set(\"c\") + t(\"d.\" + x) + t(\"e\")",
    ));
    assert_eq!(asked, [(1, "a".to_owned()), (1, "e".to_owned())]);
}

#[test]
fn every_rule_of_sources_finds_what_breaks_it_and_nothing_else() {
    check_samples(RULES, SOURCE_SAMPLES);
    check_samples(RULES, AWAIT_SAMPLES);
}

#[test]
fn every_rule_of_manifests_finds_what_breaks_it_and_nothing_else() {
    check_samples(MANIFEST_RULES, MANIFEST_SAMPLES);
}

#[test]
fn every_rule_of_texts_finds_what_breaks_it_and_nothing_else() {
    check_samples(TEXT_RULES, CONFLICT_MARKER_SAMPLES);
    check_samples(TEXT_RULES, RACE_TABLE_SAMPLES);
    check_samples(WEB_RULES, PAGE_SAMPLES);
}

/// Sizes are easier made than written down.
#[test]
fn sizes_are_measured_to_the_line() {
    let find = |name: &str, text: String| {
        let rule = RULES.iter().find(|rule| rule.name == name).expect("a rule of that name");
        (rule.check)(&SourceFile::new(LIB, &text)).len()
    };
    let function =
        |lines: usize| format!("trait T {{ fn f(); }}\nfn g(a: [u8; 2]) {{\n{}}}\n", "    a;\n".repeat(lines - 2));
    assert_eq!((find("function length", function(100)), find("function length", function(101))), (0, 1));
    assert_eq!((find("file length", "x\n".repeat(800)), find("file length", "x\n".repeat(801))), (0, 1));
}

#[test]
fn every_rule_has_a_sample_that_breaks_it_and_one_that_keeps_it() {
    let measured = ["file length", "function length", "page file length"];
    let all =
        [SOURCE_SAMPLES, AWAIT_SAMPLES, CONFLICT_MARKER_SAMPLES, RACE_TABLE_SAMPLES, MANIFEST_SAMPLES, PAGE_SAMPLES];
    for rule in [RULES, MANIFEST_RULES, TEXT_RULES, WEB_RULES]
        .into_iter()
        .flatten()
        .filter(|rule| !measured.contains(&rule.name))
    {
        let of_rule = || all.into_iter().flatten().filter(|sample| sample.rule == rule.name);
        assert!(of_rule().any(|sample| !sample.lines.is_empty()), "nothing breaks {:?}", rule.name);
        assert!(of_rule().any(|sample| sample.lines.is_empty()), "nothing keeps {:?}", rule.name);
    }
}
