//! Listing and searching files.

use std::os::unix::fs::symlink;

use rstest::rstest;

use super::*;

fn sample_tree() -> ToolFixture {
    let fixture = ToolFixture::new();
    fixture.write_file("README.md", "Hello\nworld\n");
    fixture.write_file("src/main.rs", "fn main() {\n    hello();\n}\n");
    fixture.write_file("src/deep/er/lib.rs", "pub fn hello() {}\n");
    fixture.write_file("src-gen/a.rs", "fn hello_gen() {}\n");
    fixture.write_file(".github/ci.yml", "run: hello\n");
    fixture.write_file(".git/config", "hello\n");
    fixture.write_file(".gitignore", "target/\n*.log\n/src/secret.txt\n");
    fixture.write_file("target/out.txt", "hello\n");
    fixture.write_file("src/x.log", "hello\n");
    fixture.write_file("src/secret.txt", "hello\n");
    fixture.write_file("src/keep/.gitignore", "!x.log\n");
    fixture.write_file("src/keep/x.log", "hello\n");
    symlink("..", fixture.path("src/out")).unwrap();
    symlink("src", fixture.path("link")).unwrap();
    fixture
}

#[rstest]
#[case::default(
    json!({}),
    ".github/\n.github/ci.yml\n.gitignore\nREADME.md\nlink (symlink)\nsrc/\nsrc/deep/\nsrc/keep/\nsrc/main.rs\n\
     src/out (symlink)\nsrc-gen/\nsrc-gen/a.rs\n[2 levels deep]\n"
)]
#[case::one_level(json!({"path": "src", "depth": 1}), "src/deep/\nsrc/keep/\nsrc/main.rs\nsrc/out (symlink)\n")]
#[case::name(json!({"pattern": "*.rs"}), "src/deep/er/lib.rs\nsrc/main.rs\nsrc-gen/a.rs\n")]
#[case::path(json!({"pattern": "src/**/*.rs"}), "src/deep/er/lib.rs\nsrc/main.rs\n")]
#[case::path_from_start(json!({"path": "src", "pattern": "deep/**/*.rs"}), "src/deep/er/lib.rs\n")]
#[case::one_star(json!({"pattern": "./src/*.rs"}), "src/main.rs\n")]
#[case::ignored_when_asked_for(json!({"path": "target"}), "target/out.txt\n[2 levels deep]\n")]
#[case::through_a_link(json!({"path": "link", "depth": 1, "pattern": "*.rs"}), "link/main.rs\n")]
#[case::nothing(json!({"pattern": "*.zig"}), "[nothing to list in \".\"]\n")]
#[tokio::test]
async fn lists_are_sorted_and_leave_out_what_git_ignores(#[case] given: Value, #[case] wanted: &str) {
    assert_eq!(sample_tree().call_ok("list_files", given).await, wanted);
}

#[tokio::test]
async fn ignore_rules_above_the_start_hold_below_it() {
    let fixture = sample_tree();
    let text = fixture.call_ok("list_files", json!({"path": "src/keep"})).await;
    assert_eq!(text, "src/keep/.gitignore\nsrc/keep/x.log\n[2 levels deep]\n");
    fixture.write_file("src/deep/y.log", "hello");
    let text = fixture.call_ok("list_files", json!({"path": "src/deep", "depth": 9})).await;
    assert_eq!(text, "src/deep/er/\nsrc/deep/er/lib.rs\n");
}

#[tokio::test]
async fn ignore_files_that_are_no_files_hold_nothing_up() {
    let fixture = ToolFixture::new();
    fixture.write_file("a/f", "hello\n");
    make_fifo(&fixture.path("a/.gitignore"));
    symlink("/dev/zero", fixture.path(".gitignore")).unwrap();
    std::fs::create_dir_all(fixture.path(".ignore")).unwrap();
    let text = fixture.call_ok("list_files", json!({})).await;
    assert_eq!(text, ".gitignore (symlink)\n.ignore/\na/\na/.gitignore (special file)\na/f\n[2 levels deep]\n");
    assert_eq!(fixture.call_ok("search_files", json!({"pattern": "hello"})).await, "a/f:1:hello\n");
}

#[tokio::test]
async fn a_list_that_does_not_fit_says_how_much_is_missing() {
    let mut fixture = ToolFixture::new();
    fixture.limit = 500;
    for n in 0..200 {
        fixture.write_file(&format!("file-{n:03}"), "");
    }
    let text = fixture.call_ok("list_files", json!({})).await;
    let shown = text.lines().filter(|line| line.starts_with("file-")).count();
    assert!(text.starts_with("file-000\nfile-001\n"), "{text}");
    assert!(text.contains(&format!("[{} more do not fit;", 200 - shown)), "{text}");
}

#[tokio::test]
async fn names_cannot_pretend_to_be_lines() {
    let fixture = ToolFixture::new();
    fixture.write_file("a\nb:1:c", "hello\n");
    assert_eq!(fixture.call_ok("list_files", json!({"depth": 1})).await, "a\u{fffd}b:1:c\n");
    assert_eq!(fixture.call_ok("search_files", json!({"pattern": "hello"})).await, "a\u{fffd}b:1:c:1:hello\n");
}

#[rstest]
#[case::regex(json!({"pattern": "fn hello\\w*\\("}), "src/deep/er/lib.rs:1:pub fn hello() {}\nsrc-gen/a.rs:1:fn hello_gen() {}\n")]
#[case::glob(json!({"pattern": "(?i)hello", "glob": "*.md"}), "README.md:1:Hello\n")]
#[case::path(json!({"pattern": "hello", "path": "src"}), "src/deep/er/lib.rs:1:pub fn hello() {}\nsrc/keep/x.log:1:hello\nsrc/main.rs:2:    hello();\n")]
#[case::file(json!({"pattern": "}", "path": "src/main.rs"}), "src/main.rs:3:}\n")]
#[case::literal(json!({"pattern": "hello()", "literal": true, "path": "src/main.rs"}), "src/main.rs:2:    hello();\n")]
#[case::none(json!({"pattern": "absent", "path": "src-gen"}), "[no match in 1 files]\n")]
#[case::context(
    json!({"pattern": "hello", "context": 1, "path": "src", "glob": "*.rs"}),
    "src/deep/er/lib.rs:1:pub fn hello() {}\n--\nsrc/main.rs-1-fn main() {\nsrc/main.rs:2:    hello();\nsrc/main.rs-3-}\n"
)]
#[case::most(
    json!({"pattern": "hello", "max": 1, "glob": "*.rs"}),
    "src/deep/er/lib.rs:1:pub fn hello() {}\n[that is as many matches as were asked for; there may be more]\n"
)]
#[tokio::test]
async fn searches_are_sorted_by_path(#[case] given: Value, #[case] wanted: &str) {
    assert_eq!(sample_tree().call_ok("search_files", given).await, wanted);
}

#[tokio::test]
async fn line_ends_of_both_kinds_end_a_line() {
    let fixture = ToolFixture::new();
    fixture.write_file("f", "one\r\ntwo\nthree");
    assert_eq!(fixture.call_ok("search_files", json!({"pattern": "e$|two$"})).await, "f:1:one\nf:2:two\nf:3:three\n");
}

#[tokio::test]
async fn patterns_and_globs_that_are_none_are_errors() {
    let fixture = sample_tree();
    let text = fixture.call_error("search_files", json!({"pattern": "a(b"})).await;
    assert!(text.contains("unclosed group"), "{text}");
    let text = fixture.call_error("search_files", json!({"pattern": "a\nb"})).await;
    assert!(text.contains("cannot be used"), "{text}");
    let text = fixture.call_error("search_files", json!({"pattern": "(\\w{200}){200}"})).await;
    assert!(text.contains("cannot be used") && text.contains("instead of large counts"), "{text}");
    let text = fixture.call_error("list_files", json!({"pattern": "a[b"})).await;
    assert!(text.contains("is not a glob"), "{text}");
    fixture.call_error("search_files", json!({"pattern": "x", "path": "nowhere"})).await;
    fixture.call_error("list_files", json!({"path": "README.md"})).await;
}

#[tokio::test]
async fn long_and_binary_and_damaged_content_is_bounded() {
    let fixture = ToolFixture::new();
    fixture.write_file("binary", b"needle\n\0needle\n");
    fixture.write_file("damaged", b"needle \xff\n");
    fixture.write_file("long", format!("{}needle{}\n", "ü".repeat(5000), "ü".repeat(5000)));
    fixture.write_file("one-line", "x".repeat(3 * 1024 * 1024) + "needle");
    let text = fixture.call_ok("search_files", json!({"pattern": "needle"})).await;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "damaged:1:needle \u{fffd}");
    assert!(lines[1].starts_with("long:1:…ü") && lines[1].contains("üneedleü") && lines[1].ends_with("ü…"), "{text}");
    assert!(lines[1].len() < 500 && !lines[1].contains('\u{fffd}'), "{text}");
    assert_eq!(lines[2], "[1 binary files were passed over]");
    assert_eq!(lines[3], "[1 files could not be read to their end, or have a line that is too long]");
    assert_eq!(lines.len(), 4);
}

#[tokio::test]
async fn output_that_is_full_ends_the_search() {
    let mut fixture = ToolFixture::new();
    fixture.limit = 1000;
    fixture.write_file("a", "needle\n".repeat(100_000));
    fixture.write_file("b", "needle\n");
    let text = fixture.call_ok("search_files", json!({"pattern": "needle", "max": 1_000_000})).await;
    assert!(text.starts_with("a:1:needle\na:2:needle\n"), "{text}");
    assert!(text.ends_with("[cut: the output is full; narrow the search with path, glob or max]\n"), "{text}");
}

#[tokio::test]
async fn very_deep_trees_are_walked_as_far_as_descriptors_go() {
    let fixture = ToolFixture::new();
    fixture.write_file(&format!("{}f", "d/".repeat(300)), "needle\n");
    let text = fixture.call_ok("search_files", json!({"pattern": "needle"})).await;
    assert_eq!(text, "[no match in 0 files]\n[1 directories could not be read or lie too deep]\n");
}

/// Regression: the stack overflowed, which ends the daemon.
#[tokio::test]
async fn deep_braces_in_an_ignore_file_are_no_rule() {
    let fixture = ToolFixture::new();
    let deep = "{a,".repeat(10_000) + &"}".repeat(10_000);
    fixture.write_file(".gitignore", format!("{deep}\n*.log\n{}\n", "{".repeat(5000)));
    fixture.write_file("kept.rs", "");
    fixture.write_file("x.log", "");
    let text = fixture.call_ok("list_files", json!({})).await;
    assert_eq!(text, ".gitignore\nkept.rs\n[2 levels deep]\n");
}
