//! Reading, writing and editing files.

use std::os::unix::fs::PermissionsExt;

use rstest::rstest;

use super::*;

#[tokio::test]
async fn a_file_is_read_as_it_is() {
    let fixture = ToolFixture::new();
    fixture.write_file("f", "eins\r\n\tzwei\n\ndrei ü");
    assert_eq!(fixture.call_ok("read_file", json!({"path": "f"})).await, "eins\r\n\tzwei\n\ndrei ü");
    fixture.write_file("empty", "");
    assert_eq!(fixture.call_ok("read_file", json!({"path": "empty"})).await, "[the file is empty]");
}

#[rstest]
#[case(json!({"offset": 3}), "3\n4\n5\n")]
#[case(json!({"offset": 0, "limit": 2}), "1\n2\n[more lines follow; go on with offset 3]")]
#[case(json!({"offset": 4, "limit": 2}), "4\n5\n")]
#[case(json!({"limit": 0}), "1\n[more lines follow; go on with offset 2]")]
#[tokio::test]
async fn lines_are_counted_from_one(#[case] mut given: Value, #[case] wanted: &str) {
    let fixture = ToolFixture::new();
    fixture.write_file("f", "1\n2\n3\n4\n5\n");
    given["path"] = json!("f");
    assert_eq!(fixture.call_ok("read_file", given).await, wanted);
}

#[tokio::test]
async fn lines_that_are_not_there_are_an_error() {
    let fixture = ToolFixture::new();
    fixture.write_file("f", "1\n2\n");
    for offset in [3, 4, u64::MAX] {
        assert_eq!(
            fixture.call_error("read_file", json!({"path": "f", "offset": offset})).await,
            r#""f" has only 2 lines"#
        );
    }
}

#[tokio::test]
async fn following_the_notes_reads_everything() {
    let mut fixture = ToolFixture::new();
    fixture.limit = 700;
    let content: String = (1..=300).map(|n| format!("line {n} ü\n")).collect();
    fixture.write_file("f", &content);
    let (mut read, mut offset) = (String::new(), 1);
    loop {
        let text = fixture.call_ok("read_file", json!({"path": "f", "offset": offset})).await;
        let Some((lines, note)) = text.split_once("[cut: the output is full; go on with offset ") else {
            read.push_str(&text);
            break;
        };
        read.push_str(lines);
        offset = note.trim_end_matches(']').parse().unwrap();
    }
    assert_eq!(read, content);
}

#[tokio::test]
async fn a_huge_line_is_cut_between_characters_and_can_be_passed() {
    let mut fixture = ToolFixture::new();
    fixture.limit = 1000;
    fixture.write_file("f", format!("{}\nsecond\n", "ü".repeat(500_000)));
    let text = fixture.call_ok("read_file", json!({"path": "f"})).await;
    assert!(text.starts_with("üüü") && !text.contains('\u{fffd}'), "{text}");
    assert!(text.ends_with("[line 1 has 1000001 bytes, of which about 800 are shown; go on with offset 2]"), "{text}");
    assert_eq!(fixture.call_ok("read_file", json!({"path": "f", "offset": 2})).await, "second\n");
}

#[tokio::test]
async fn bytes_that_are_no_text_are_said_to_be() {
    let fixture = ToolFixture::new();
    fixture.write_file("latin", b"caf\xe9\n");
    let text = fixture.call_ok("read_file", json!({"path": "latin"})).await;
    assert_eq!(text, "caf\u{fffd}\n[not valid UTF-8: unreadable bytes are shown as \u{fffd}]");
    fixture.write_file("binary", [b"\x7fELF\0\0".as_slice(), &[0xff; 5000]].concat());
    let text = fixture.call_ok("read_file", json!({"path": "binary"})).await;
    assert!(text.starts_with("[binary file of 5006 bytes; its first 512 bytes, unreadable ones replaced]\n"), "{text}");
    assert!(text.contains("ELF\u{fffd}") && text.len() < 2000, "{text}");
}

#[tokio::test]
async fn a_tiny_output_limit_is_kept_too() {
    let mut fixture = ToolFixture::new();
    fixture.write_file("f", "üüüüüüüüüü\n".repeat(100));
    for limit in [0, 1, 7, 60, 150, 201, 230] {
        fixture.limit = limit;
        fixture.call_ok("read_file", json!({"path": "f"})).await;
        fixture.call_ok("list_files", json!({})).await;
        fixture.call_ok("search_files", json!({"pattern": "ü"})).await;
        fixture.call_error("read_file", json!({})).await;
    }
}

#[tokio::test]
async fn writing_makes_directories_and_keeps_the_mode() {
    let fixture = ToolFixture::new();
    assert_eq!(
        fixture.call_ok("write_file", json!({"path": "a/b/c", "content": "one"})).await,
        r#"Created "a/b/c" (3 bytes)"#
    );
    std::fs::set_permissions(fixture.path("a/b/c"), std::fs::Permissions::from_mode(0o750)).unwrap();
    assert_eq!(
        fixture.call_ok("write_file", json!({"path": "a/b/c", "content": ""})).await,
        r#"Replaced "a/b/c" (0 bytes)"#
    );
    assert_eq!(fixture.read_file("a/b/c"), "");
    assert_eq!(std::fs::metadata(fixture.path("a/b/c")).unwrap().permissions().mode() & 0o7777, 0o750);
    assert_eq!(std::fs::read_dir(fixture.path("a/b")).unwrap().count(), 1, "no draft is left");
}

#[tokio::test]
async fn a_refused_write_changes_nothing() {
    let fixture = ToolFixture::new();
    fixture.write_file("file", "old");
    std::os::unix::fs::symlink("nowhere", fixture.path("dangling")).unwrap();
    for (path, wanted) in [
        ("dangling", "is a symlink to something that does not exist"),
        ("file/below", "is not a directory"),
        ("new/", "names a directory"),
        (".", "is a directory"),
        ("a/..", "names no file"),
    ] {
        let text = fixture.call_error("write_file", json!({"path": path, "content": "x"})).await;
        assert!(text.contains(wanted), "{path}: {text}");
    }
    assert_eq!(fixture.file_names(), ["dangling", "file"]);
    assert_eq!(fixture.read_file("file"), "old");
}

/// Regression: a sparse file was read to its end, and every other write to the workdir waited for it.
#[tokio::test]
async fn a_huge_file_is_not_replaced() {
    let fixture = ToolFixture::new();
    std::fs::File::create(fixture.path("huge")).unwrap().set_len(1 << 43).unwrap();
    let text = fixture.call_error("write_file", json!({"path": "huge", "content": "x"})).await;
    assert!(text.contains("more than 268435456 bytes"), "{text}");
    assert_eq!(fixture.path("huge").metadata().unwrap().len(), 1 << 43);
}

#[tokio::test]
async fn a_write_creates_a_hundred_directories_and_no_more() {
    let fixture = ToolFixture::new();
    let path = |levels: usize| "d/".repeat(levels) + "file";
    fixture.call_ok("write_file", json!({"path": path(100), "content": "x"})).await;
    for levels in [201, 2000, 100_000] {
        let text = fixture.call_error("write_file", json!({"path": path(levels), "content": "x"})).await;
        assert!(text.contains("the path is too long"), "{levels}: {text}");
    }
}

#[tokio::test]
async fn an_edit_replaces_one_place_or_all() {
    let fixture = ToolFixture::new();
    fixture.write_file("f", "a\nb ü\nc\nb ü\n");
    let text = fixture.call_ok("edit_file", json!({"path": "f", "old": "c\n", "new": "d\n"})).await;
    assert_eq!(
        (text.as_str(), fixture.read_file("f").as_str()),
        (r#"Replaced 1 place in "f" (at line 3)"#, "a\nb ü\nd\nb ü\n")
    );
    let text = fixture.call_ok("edit_file", json!({"path": "f", "old": "ü", "new": "", "all": true})).await;
    assert_eq!(
        (text.as_str(), fixture.read_file("f").as_str()),
        (r#"Replaced 2 places in "f" (first at line 2)"#, "a\nb \nd\nb \n")
    );
}

#[rstest]
#[case::several("b\n", "x", "`old` stands 2 times in \"f\" (lines 2, 4)")]
#[case::overlapping("aa", "x", "`old` stands 2 times")]
#[case::empty("", "x", "`old` is empty")]
#[case::same("b", "b", "are the same")]
#[case::nothing_like_it("zzz qqq", "x", "No line of it comes near")]
#[case::other_indentation(
    "b\n  c\nB",
    "x",
    "with their numbers, are:\n2: b\n3: c\n4: b\nThe first line of `old` that differs there is: B"
)]
#[case::similar(
    "let value = 7;",
    "x",
    "are:\n6: let value = 8;\nThe first line of `old` that differs there is: let value = 7;"
)]
#[tokio::test]
async fn an_edit_that_cannot_be_made_says_why(#[case] old: &str, #[case] new: &str, #[case] wanted: &str) {
    let fixture = ToolFixture::new();
    let content = "a\nb\nc\nb\naaa\nlet value = 8;\n";
    fixture.write_file("f", content);
    let text = fixture.call_error("edit_file", json!({"path": "f", "old": old, "new": new})).await;
    assert!(text.contains(wanted), "{text}");
    assert_eq!(fixture.read_file("f"), content);
}

#[tokio::test]
async fn a_tolerant_match_is_said() {
    let fixture = ToolFixture::new();
    fixture.write_file("f", "a\r\nb\r\n");
    let text = fixture.call_ok("edit_file", json!({"path": "f", "old": "a\nb", "new": "x\ny"})).await;
    assert!(text.ends_with("(at line 1). `old` matched only after ignoring the kind of line ends"), "{text}");
    assert_eq!(fixture.read_file("f"), "x\r\ny\r\n");
    fixture.write_file("g", "  a \n  b\n\ta \n\tb\n");
    let text = fixture.call_error("edit_file", json!({"path": "g", "old": "a\nb", "new": "x"})).await;
    assert!(
        text.contains("`old` stands 2 times in \"g\" (lines 1, 3) if it is searched ignoring the indentation"),
        "{text}"
    );
}

#[tokio::test]
async fn binary_and_oversized_files_are_not_edited() {
    let fixture = ToolFixture::new();
    fixture.write_file("latin", b"caf\xe9");
    let text = fixture.call_error("edit_file", json!({"path": "latin", "old": "caf", "new": "x"})).await;
    assert!(text.contains("is not valid UTF-8"), "{text}");
    let huge = std::fs::File::create(fixture.path("huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let text = fixture.call_error("edit_file", json!({"path": "huge", "old": "a", "new": "x"})).await;
    assert!(text.contains("too large to edit"), "{text}");
    fixture.write_file("dense", "a".repeat(100_000));
    let given = json!({"path": "dense", "old": "a", "new": "b".repeat(1000), "all": true});
    let text = fixture.call_error("edit_file", given).await;
    assert!(text.contains("times or more: the file would become too large"), "{text}");
}
