//! For every rule: files that break it, with the lines where, and files that keep it.

use super::source_file::SourceFile;
use super::{RULES, TEXT_RULES, WEB_RULES, web};

/// Texts of small files, each with the lines in which the rule finds something; none for one that is in order.
type RuleSamples = &'static [(&'static str, &'static [usize])];

const LIB: &str = "crates/engine/src/lib.rs";
const HOOKS: &str = "crates/engine/src/hooks/queue.rs";
const KERNEL: &str = "crates/kernel/src/run.rs";
const PAGE: &str = "web/js/x.js";
const RACES: &str = "docs/races.md";
const DOC: &str = "docs/http.md";

/// The rule, the path of the files, and their texts.
const SAMPLES: &[(&str, &str, RuleSamples)] = &[
    (
        "engine ranks",
        HOOKS,
        &[
            ("use crate::agent::AgentLoop;", &[1]),
            ("use crate::{\n    journal,\n};", &[1]),
            ("fn f() { crate::engine::go() }", &[1]),
            ("use super::super::agent::AgentLoop;", &[1]),
            ("use crate::magic::Wand;", &[1]),
            ("use crate::journal;\nuse super::list;\n// use crate::agent", &[]),
        ],
    ),
    ("engine ranks", "crates/engine/src/live_run.rs", &[("use crate::agent::AgentLoop;", &[1])]),
    ("engine ranks", "crates/engine/src/journal.rs", &[("use super::hooks;", &[1])]),
    ("engine ranks", "crates/engine/src/magic.rs", &[("", &[1])]),
    ("engine ranks", "crates/engine/src/access.rs", &[("use crate::journal::Journal;", &[])]),
    ("engine ranks", LIB, &[("pub use crate::engine::Engine;", &[])]),
    ("engine ranks", "crates/server/src/http.rs", &[("use crate::engine;", &[])]),
    (
        "environment",
        HOOKS,
        &[
            ("use std::env;\nlet a = std::env::var(\"A\");\nuse std::{env::args, fmt};", &[1, 2, 3]),
            ("let a = env!(\"A\"); use environment::b; use std::{fmt, io};", &[]),
        ],
    ),
    ("environment", "crates/quell/src/config.rs", &[("use std::env;", &[])]),
    ("environment", "crates/process/src/tests.rs", &[("use std::env;", &[])]),
    ("environment", "crates/server/build.rs", &[("use std::env;", &[])]),
    (
        "pure layers",
        KERNEL,
        &[
            ("async fn f() {}\nuse std::fs;\nuse std::time::Instant;\nuse std::{fmt, io};", &[2, 4, 3, 1]),
            ("use std::time::Duration;\nuse std::collections::HashMap;", &[]),
        ],
    ),
    ("pure layers", HOOKS, &[("use std::fs;", &[])]),
    ("unsafe code", HOOKS, &[("#[expect(\n    unsafe_code,\n)]", &[2]), ("// unsafe_code", &[])]),
    ("unsafe code", "crates/process/src/signals.rs", &[("#[expect(unsafe_code)]", &[])]),
    (
        "build profiles",
        "Cargo.toml",
        &[
            (
                "[profile.dev.package]\na.opt-level = 1\nb.opt-level = 1\n[profile.dist.package]\nb.opt-level = \"s\"",
                &[2],
            ),
            (
                "[profile.dev.package]\nproptest.opt-level = 1\nb.opt-level = 1\n[profile.dist.package]\nb.opt-level = 2",
                &[],
            ),
        ],
    ),
    (
        "crate dependencies",
        "crates/kernel/Cargo.toml",
        &[
            ("[dependencies]\nquell-protocol.workspace = true\nquell-scope.workspace = true", &[3]),
            ("[dependencies]\nserde.workspace = true\n\ntracing = \"1\"", &[4]),
            ("[target.'cfg(unix)'.dependencies]\nrand = \"1\"\n[dependencies.tokio]", &[2, 3]),
            ("[package]\nname = \"quell-kernel\"\n[dev-dependencies]\nproptest.workspace = true", &[]),
        ],
    ),
    ("crate dependencies", "crates/store/Cargo.toml", &[("[dependencies]\nrusqlite.workspace = true", &[])]),
    ("crate dependencies", "crates/magic/Cargo.toml", &[("", &[1])]),
    ("file head", LIB, &[("use std::fmt;", &[1]), ("", &[1]), ("//! x", &[1]), ("//! The work of Quell.", &[])]),
    ("file name", "crates/engine/src/llm/utils.rs", &[("", &[1])]),
    ("file name", "crates/engine/src/common/list.rs", &[("", &[1])]),
    ("file name", "crates/kernel/src/string_util.rs", &[("", &[1])]),
    ("file name", "crates/engine/src/uncommon.rs", &[("fn f(context: u8) {}", &[])]),
    (
        "awaits",
        HOOKS,
        &[
            ("async fn f() {\n    sleep(x).await;\n}", &[2]),
            ("async fn f() {\n    // It is short.\n    sleep(x).await;\n}", &[3]),
            ("async fn f() {\n    // waits: briefly\n    sleep(x).await;\n}", &[3]),
            ("async fn f() {\n    // waits: for this one only.\n    a().await;\n    b().await;\n}", &[4]),
            ("async fn f() {\n    let a = b\n        .c()\n        .await;\n}", &[4]),
            ("async fn f() {\n    scope.close().await;\n    arena.race(Point::A, b).await;\n}", &[2, 3]),
            ("async fn f() {\n    scope.race(point, a).await;\n    run(scope.id()).await;\n}", &[2, 3]),
            ("async fn f() {\n    other.step().await;\n}\nasync fn step() {}", &[2]),
            ("async fn f() {\n    select! { a = b => {}, c = d => {} }\n}", &[2]),
            ("#[cfg(test)]\nmod tests;\nasync fn f() {\n    a().await;\n}", &[4]),
            ("#[cfg(test)]\nfn f() { a().await }\nasync fn g() {\n    pending::<()>().await;\n}", &[4]),
            ("async fn f() { scope.race(Point::A, b()).await?; cx.scope.blocking(Point::B, \"c\", |d| e).await }", &[]),
            (
                "async fn f() {\n    let a = self\n        .scope\n        .race(Point::A, b(&c))\n        .await?;\n}",
                &[],
            ),
            ("async fn f() { a.b(c, &self.scope).await; d(scope, e).await; G::of(h, cx.scope).i().await }", &[]),
            ("async fn f() { match self.step().await { _ => step().await } }\nasync fn step() {}", &[]),
            (
                "async fn f() {\n    // waits: for its own end,\n    // and that is near.\n    let a = b\n        .c().await;\n}",
                &[],
            ),
            ("async fn f() {\n    a().await; // waits: for its own end.\n}", &[]),
            ("async fn f() { select! { () = self.scope.cancelled() => {}, a = b => {} } }", &[]),
            ("// a().await\n#[cfg(test)]\nmod tests { async fn f() { a().await } }", &[]),
        ],
    ),
    ("awaits", "crates/engine/src/memory/find.rs", &[("async fn f() { a().await }", &[1])]),
    ("awaits", "crates/tools/src/shell.rs", &[("async fn f() { a().await }", &[1])]),
    ("awaits", "crates/tools/src/tests/files.rs", &[("async fn f() { a().await }", &[])]),
    ("awaits", "crates/engine/src/session.rs", &[("async fn f() { a().await }", &[])]),
    (
        "ignored tests",
        HOOKS,
        &[
            ("#[ignore]\nfn f() {}\n    #[ignore = \"slow\"]", &[1, 3]),
            ("    #[ignore = \"full: PostgreSQL\"]\n// #[ignore]", &[]),
        ],
    ),
    (
        "conflict markers",
        DOC,
        &[
            ("a\n<<<<<<< HEAD\nb\n||||||| c\n=======\nd\n>>>>>>> e\n<<<<<<<\n", &[2, 4, 7, 8]),
            ("Title\n=======\n<<<<<<<<<< a\n// >>>>>>> b\n", &[]),
        ],
    ),
    (
        "races",
        RACES,
        &[
            ("| a | `stop::race::no_such_test` |\n| b | `quell-kernel: run::tests::table::rows` |", &[1, 2]),
            ("| a | `core::shell::start` |\n| b | `page::page::page_config_toml` |", &[1, 2]),
            ("| a | `tidy::tidy_texts`, `…_sources` |", &[1]),
            ("| a | `crates/engine/src/gone.rs` |\n| b | nothing |\n| c | `Engine::stop` |", &[1, 2, 3]),
            (
                "| what goes wrong | why not here |\n|---|---|\n| a | `tidy::tidy_texts`, `stop::sweep::a_stop_at_any_moment_ends_the_run_for_good`, \
                 `quell-scope: tests::blocking_work_that_panicked_is_failed_in_the_ledger_and_panics_its_caller` |\n\
                 | b | `quell-process/commands: stops::a_gentle_stop_ends_it_at_once` |\n\
                 | c | `Engine::stop` in `crates/engine/src/engine.rs` |",
                &[],
            ),
        ],
    ),
    ("races", DOC, &[("| a | `stop::race::no_such_test` |", &[])]),
    (
        "links",
        DOC,
        &[
            ("see [a](nowhere.md)\nand [b](#no-such-heading)\n[c](../README.md#nor-here)", &[1, 2, 3]),
            ("[a](running.md), [b](../README.md), [c](https://example.org)\n```\n[d](x)\n```", &[]),
        ],
    ),
    ("links", "docs/design/contract.md", &[("[a](../configuration.md#what-holds-a-command)", &[])]),
    ("page head", PAGE, &[("export const a = 1;", &[1]), ("// x", &[1])]),
    ("page head", "web/style/x.css", &[("/* The looks of the rail. */", &[])]),
    (
        "page words",
        PAGE,
        &[
            ("a.innerHTML = text;\neval(text)", &[1, 2]),
            ("fetch(\"https://example.org/x\")", &[1]),
            ("// a comment\nconst ns = \"http://www.w3.org/2000/svg\";", &[]),
        ],
    ),
];

#[test]
fn every_rule_finds_what_breaks_it_and_nothing_else() {
    let all: Vec<_> = [RULES, TEXT_RULES, WEB_RULES].concat();
    for (rule, path, samples) in SAMPLES {
        let (_, check) = all.iter().find(|(name, _)| name == rule).expect("a rule of that name");
        for (text, lines) in *samples {
            let found: Vec<usize> = check(&SourceFile::new(path, text)).iter().map(|finding| finding.line).collect();
            assert_eq!(found, *lines, "rule {rule:?} on {path}:\n{text}");
        }
    }
    // The length of files has a test of its own.
    for (rule, _) in all.iter().filter(|(rule, _)| *rule != "file length") {
        let of_rule = || SAMPLES.iter().filter(|(name, ..)| name == rule).flat_map(|(.., samples)| *samples);
        assert!(of_rule().any(|(_, lines)| !lines.is_empty()), "nothing breaks {rule:?}");
        assert!(of_rule().any(|(_, lines)| lines.is_empty()), "nothing keeps {rule:?}");
    }
}

#[test]
fn the_length_of_files_is_measured_to_the_line() {
    let (_, check) = RULES.iter().find(|(name, _)| *name == "file length").expect("a rule of that name");
    assert_eq!([800, 801].map(|lines| check(&SourceFile::new(LIB, &"x\n".repeat(lines))).len()), [0, 1]);
}

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
    let script = SourceFile::new(PAGE, "t(\"a\", {n}) + it.t(\"b\") + set(\"c\") + t(\"d.\" + x) + t(\"e\")");
    assert_eq!(web::requested_keys(&script), [(1, "a".to_owned()), (1, "e".to_owned())]);
}
