//! For every rule: files that break it, with the lines where, and files that keep it.

use super::source::Source;
use super::{MANIFEST_RULES, RULES, Rule, TEXT_RULES, WEB_RULES, web};

/// A small file and the lines in which the rule finds something; none for one that is in order.
struct Sample {
    rule: &'static str,
    path: &'static str,
    text: &'static str,
    lines: &'static [usize],
}

const fn sample(rule: &'static str, path: &'static str, text: &'static str, lines: &'static [usize]) -> Sample {
    Sample { rule, path, text, lines }
}

const LIB: &str = "crates/engine/src/lib.rs";
const TOOLS: &str = "crates/engine/src/tools/shell.rs";

const SOURCES: &[Sample] = &[
    sample("engine ranks", TOOLS, "use crate::agent::Job;", &[1]),
    sample("engine ranks", TOOLS, "use crate::{\n    llm,\n    runs::Runs,\n};", &[3]),
    sample("engine ranks", TOOLS, "fn f() { crate::dispatch::go() }", &[1]),
    sample("engine ranks", TOOLS, "use super::super::agent::Job;", &[1]),
    sample("engine ranks", "crates/engine/src/store.rs", "use crate::access::Door;", &[1]),
    sample("engine ranks", "crates/engine/src/store.rs", "use super::llm;", &[1]),
    sample("engine ranks", "crates/engine/src/magic.rs", "", &[1]),
    sample("engine ranks", TOOLS, "use crate::magic::Wand;", &[1]),
    sample("engine ranks", TOOLS, "use crate::{llm, proc::Proc};\nuse super::list;\n// use crate::agent", &[]),
    sample("engine ranks", "crates/engine/src/access.rs", "use crate::store::Store;", &[]),
    sample("engine ranks", LIB, "pub use crate::dispatch::Engine;", &[]),
    sample("engine ranks", "crates/surfaces/src/http.rs", "use crate::dispatch;", &[]),
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
    sample("cancel safety", LIB, "async fn private() {}\npub(super) async fn near() {}", &[]),
    sample("banned words", "crates/engine/src/task_manager.rs", "", &[1]),
    sample("banned words", "crates/engine/src/common/list.rs", "", &[1]),
    sample("banned words", LIB, "struct TaskManager;\nfn request_handler() {}\nconst MAX_UTILS: u8 = 1;", &[1, 2, 3]),
    sample("banned words", LIB, "fn f(context: u8) {\n    let helper = 1;\n}\nenum E {\n    Service,\n}", &[1, 2, 5]),
    sample(
        "banned words",
        LIB,
        "struct S {\n    pub ctx: u8,\n}\nuse a::B as Helpers;\nmacro_rules! util { () => {} }",
        &[2, 4, 5],
    ),
    sample(
        "banned words",
        LIB,
        "use axum::handler::Handler;\nuse anyhow::Context as _;\nimpl Service for Thing {}",
        &[],
    ),
    sample(
        "banned words",
        LIB,
        "fn f(cx: &mut Context<'_>) { x.with_context(|| y) }\nfn g(mut a: &'a mut Context) {}\nstruct Uncommon;",
        &[],
    ),
    sample("unsafe", TOOLS, "fn f() {\n    unsafe { g() }\n}", &[2]),
    sample("unsafe", TOOLS, "#[unsafe(no_mangle)]\nfn f() {}", &[1]),
    sample("unsafe", TOOLS, "#![forbid(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe\";", &[]),
    sample("unsafe", "crates/engine/src/proc/signals.rs", "unsafe { g() }", &[]),
    sample(
        "environment",
        TOOLS,
        "use std::env;\nlet a = std::env::var(\"A\");\nuse std::{env::args, fmt};",
        &[1, 2, 3],
    ),
    sample("environment", TOOLS, "let a = env!(\"A\"); use environment::b;", &[]),
    sample("environment", "crates/quell/src/config.rs", "use std::env;", &[]),
    sample("environment", "crates/engine/src/proc/tests.rs", "use std::env;", &[]),
    sample(
        "pure floors",
        "crates/kernel/src/run.rs",
        "use std::time::Instant;\nuse std::{fs, io};\nasync fn f() {}",
        &[1, 2, 2, 3],
    ),
    sample("pure floors", "crates/kernel/src/run.rs", "use std::time::Duration;\nuse std::collections::HashMap;", &[]),
    sample("pure floors", TOOLS, "use std::fs;", &[]),
    sample("unfinished", LIB, "fn f() {\n    todo!()\n}\nfn g() { unimplemented!(\"later\") }", &[2, 4]),
    sample("unfinished", LIB, "// todo!()\nlet todo = 1;", &[]),
];

/// The work of a run: what waits where a stop does not reach it, and what does not.
const WAITS: &[Sample] = &[
    sample("awaits", TOOLS, "async fn f() {\n    sleep(x).await;\n}", &[2]),
    sample("awaits", TOOLS, "async fn f() {\n    // It is short.\n    sleep(x).await;\n}", &[3]),
    sample("awaits", TOOLS, "async fn f() {\n    // waits: briefly\n    sleep(x).await;\n}", &[3]),
    sample(
        "awaits",
        TOOLS,
        "async fn f() {\n    // waits: for this one only.\n    a().await;\n    b().await;\n}",
        &[4],
    ),
    sample("awaits", TOOLS, "async fn f() {\n    let a = b\n        .c()\n        .await;\n}", &[4]),
    sample(
        "awaits",
        TOOLS,
        "async fn f(scope: &Scope) {\n    scope.close().await;\n    arena.race(Point::A, b).await;\n}",
        &[2, 3],
    ),
    sample(
        "awaits",
        TOOLS,
        "async fn f(scope: &Scope) {\n    scope.race(point, a).await;\n    run(scope.id()).await;\n}",
        &[2, 3],
    ),
    sample("awaits", TOOLS, "async fn f() {\n    other.step().await;\n}\nasync fn step() {}", &[2]),
    sample("awaits", TOOLS, "async fn f() {\n    select! { a = b => {}, c = d => {} }\n}", &[2]),
    sample("awaits", TOOLS, "#[cfg(test)]\nmod tests;\nasync fn f() {\n    a().await;\n}", &[4]),
    sample("awaits", TOOLS, "#[cfg(test)]\nfn f() { a().await }\nasync fn g() {\n    pending::<()>().await;\n}", &[4]),
    sample("awaits", "crates/engine/src/memory/find.rs", "async fn f() { a().await }", &[1]),
    sample(
        "awaits",
        TOOLS,
        "async fn f() { scope.race(Point::A, b()).await?; cx.scope.blocking(Point::B, \"c\", |d| e).await }",
        &[],
    ),
    sample(
        "awaits",
        TOOLS,
        "async fn f() {\n    let a = self\n        .scope\n        .race(Point::A, b(&c))\n        .await?;\n}",
        &[],
    ),
    sample(
        "awaits",
        TOOLS,
        "async fn f() { a.b(c, &self.scope).await; d(scope, e).await; G::of(h, cx.scope).i().await }",
        &[],
    ),
    sample("awaits", TOOLS, "async fn f() { match self.step().await { _ => step().await } }\nasync fn step() {}", &[]),
    sample(
        "awaits",
        TOOLS,
        "async fn f() {\n    // waits: for its own end only,\n    // and that is near.\n    let a = match b\n        .c().await {};\n}",
        &[],
    ),
    sample("awaits", TOOLS, "async fn f() {\n    a().await; // waits: for its own end.\n}", &[]),
    sample("awaits", TOOLS, "async fn f() { select! { () = self.scope.cancelled() => {}, a = b => {} } }", &[]),
    sample("awaits", TOOLS, "// a().await\n#[cfg(test)]\nmod tests { async fn f() { a().await } }", &[]),
    sample("awaits", "crates/engine/src/tools/tests/files.rs", "async fn f() { a().await }", &[]),
    sample("awaits", "crates/engine/src/session.rs", "async fn f() { a().await }", &[]),
];

const MERGES: &[Sample] = &[
    sample(
        "conflict markers",
        "CHANGELOG.md",
        "a\n<<<<<<< HEAD\nb\n||||||| c\n=======\nd\n>>>>>>> e\n<<<<<<<\n",
        &[2, 4, 7, 8],
    ),
    sample("conflict markers", LIB, "let a = \"<<<<<<< HEAD\";\n// >>>>>>> b\n", &[]),
    sample("conflict markers", "README.md", "Title\n=======\n<<<<<<<<<< a\n", &[]),
];

const RACES: &[Sample] = &[
    sample(
        "races",
        "docs/races.md",
        "| a | `it::race::no_such_test` |\n| b | `quell-kernel: run::tests::table::rows` |",
        &[1, 2],
    ),
    sample("races", "docs/races.md", "| a | `it::harness::alice` |\n| b | `it::sweep::crash::dies` |", &[1, 2]),
    sample(
        "races",
        "docs/races.md",
        "| a | `crates/engine/src/gone.rs` |\n| b | nothing |\n| c | `Engine::stop` |",
        &[1, 2, 3],
    ),
    sample(
        "races",
        "docs/races.md",
        "| what goes wrong | why not here |\n|---|---|\n| a | `it::tidy::tidy_texts`, `quell-engine: scope::tests::blocking_work_that_panicked_is_failed_in_the_ledger_and_panics_its_caller` |\n\
         | b | `quell-engine/proc: stops::a_gentle_stop_ends_it_at_once` |\n| c | `Engine::stop` in `crates/engine/src/dispatch.rs` |",
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

const MANIFESTS: &[Sample] = &[
    sample(
        "crate arrows",
        "Cargo.toml",
        "[package]\nname = \"quell-kernel\"\n[dependencies]\nquell-engine = \"1\"",
        &[4],
    ),
    sample(
        "crate arrows",
        "Cargo.toml",
        "[package]\nname = \"quell-client\"\n[dev-dependencies]\nquell-kernel = \"1\"",
        &[4],
    ),
    sample("crate arrows", "Cargo.toml", "[package]\nname = \"quell\"\n[dependencies]\nquell-testkit = \"1\"", &[4]),
    sample(
        "crate arrows",
        "Cargo.toml",
        "[package]\nname = \"quell-protocol\"\n[dependencies]\nx = { package = \"quell-kernel\" }",
        &[4],
    ),
    sample(
        "crate arrows",
        "Cargo.toml",
        "[package]\nname = \"quell-client\"\n[target.x.dependencies]\nquell-engine = \"1\"",
        &[4],
    ),
    sample("crate arrows", "Cargo.toml", "[package]\nname = \"quell-extra\"", &[1]),
    sample(
        "crate arrows",
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

fn judge(rules: &[Rule], samples: &[Sample]) {
    for Sample { rule, path, text, lines } in samples {
        let rule = rules.iter().find(|known| known.name == *rule).expect("a rule of that name");
        let found: Vec<usize> = (rule.check)(&Source::new(path, text)).iter().map(|finding| finding.line).collect();
        assert_eq!(found, *lines, "rule {:?} on {path}:\n{text}", rule.name);
    }
}

const PAGE: &str = "web/js/x.js";
const PAGES: &[Sample] = &[
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
        web::texts(&rows).map(|table| table.len())
    };
    assert_eq!(table("a", "b"), Ok(2));
    assert!(table("b", "a").is_err() && table("a", "a").is_err());
    let faults = |row: &str| web::faults("k", &serde_json::from_str(row).unwrap()).len();
    assert_eq!(faults(&row("{n} runs", "{n}", "{n}")), 0);
    assert_eq!(faults(&row("{n} runs", "x", "{n}")), 1);
    assert_eq!(faults(&row("Oops!", " ", "x")), 2);
    assert_eq!(faults("{\"en\": \"a\"}"), 1);
    let asked = web::asked(&Source::new(PAGE, "t(\"a\", {n}) + it.t(\"b\") + set(\"c\") + t(\"d.\" + x) + t(\"e\")"));
    assert_eq!(asked, [(1, "a".to_owned()), (1, "e".to_owned())]);
}

#[test]
fn every_rule_of_sources_finds_what_breaks_it_and_nothing_else() {
    judge(RULES, SOURCES);
    judge(RULES, WAITS);
}

#[test]
fn every_rule_of_manifests_finds_what_breaks_it_and_nothing_else() {
    judge(MANIFEST_RULES, MANIFESTS);
}

#[test]
fn every_rule_of_texts_finds_what_breaks_it_and_nothing_else() {
    judge(TEXT_RULES, MERGES);
    judge(TEXT_RULES, RACES);
    judge(WEB_RULES, PAGES);
}

/// Sizes are easier made than written down.
#[test]
fn sizes_are_measured_to_the_line() {
    let find = |name: &str, text: String| {
        let rule = RULES.iter().find(|rule| rule.name == name).expect("a rule of that name");
        (rule.check)(&Source::new(LIB, &text)).len()
    };
    let function =
        |lines: usize| format!("trait T {{ fn f(); }}\nfn g(a: [u8; 2]) {{\n{}}}\n", "    a;\n".repeat(lines - 2));
    assert_eq!((find("function length", function(70)), find("function length", function(71))), (0, 1));
    assert_eq!((find("file length", "x\n".repeat(500)), find("file length", "x\n".repeat(501))), (0, 1));
}

#[test]
fn every_rule_has_a_sample_that_breaks_it_and_one_that_keeps_it() {
    let measured = ["file length", "function length", "page file length"];
    let all = [SOURCES, WAITS, MERGES, RACES, MANIFESTS, PAGES];
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
