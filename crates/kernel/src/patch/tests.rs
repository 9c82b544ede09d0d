//! Patches as models write them.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn update(text: &str, chunks: &str) -> Result<String, PatchError> {
    let patch = format!("*** Begin Patch\n*** Update File: a\n{chunks}\n*** End Patch");
    let operations = parse_patch(&patch)?;
    let [PatchOperation::Update { chunks, .. }] = &operations[..] else { panic!("{operations:?}") };
    apply_chunks(text, chunks)
}

#[test]
fn a_patch_of_several_files_is_read() {
    let patch = "```\n*** Begin Patch\n*** Add File: src/new.rs\n+fn a() {}\n+\n*** Delete File: old.rs\n\
                 *** Update File: b.rs\n*** Move to: c.rs\n@@ fn b()\n x\n-y\n+z\n*** End of File\n*** End Patch\n```\n";
    let operations = parse_patch(patch).unwrap();
    let chunk = PatchChunk {
        anchor: Some("fn b()".into()),
        lines: vec![PatchLine::Context("x".into()), PatchLine::Remove("y".into()), PatchLine::Add("z".into())],
        is_at_end: true,
    };
    assert_eq!(
        operations,
        [
            PatchOperation::Add { path: "src/new.rs".into(), content: "fn a() {}\n\n".into() },
            PatchOperation::Delete { path: "old.rs".into() },
            PatchOperation::Update { path: "b.rs".into(), move_to: Some("c.rs".into()), chunks: vec![chunk] },
        ]
    );
}

#[rstest]
#[case::no_begin("*** Add File: a\n+x\n*** End Patch", "does not begin with a line `*** Begin Patch`")]
#[case::no_end("*** Begin Patch\n*** Add File: a\n+x", "does not end with a line `*** End Patch`")]
#[case::empty("*** Begin Patch\n*** End Patch", "changes no file")]
#[case::no_operation("*** Begin Patch\nhello\n*** End Patch", "line 2 of it, \"hello\", is no `*** Add File: PATH`")]
#[case::no_path("*** Begin Patch\n*** Delete File:  \n*** End Patch", "line 2 of it names no path")]
#[case::no_plus("*** Begin Patch\n*** Add File: a\nx\n*** End Patch", "line 3 of it, \"x\", does not begin with `+`")]
#[case::odd_line(
    "*** Begin Patch\n*** Update File: a\nx\n*** End Patch",
    "does not begin with a space, `-`, `+` or `@@`"
)]
#[case::no_chunks("*** Begin Patch\n*** Update File: a\n*** End Patch", "the update of \"a\" changes nothing")]
fn a_wrong_patch_is_refused_by_line(#[case] patch: &str, #[case] wanted: &str) {
    let error = parse_patch(patch).unwrap_err().to_string();
    assert!(error.contains(wanted), "{error}");
}

#[rstest]
#[case::replaced("a\nb\nc\n", " a\n-b\n+x\n c", "a\nx\nc\n")]
#[case::several_chunks("a\nb\nc\nd\n", "@@\n-a\n+1\n@@\n-d\n+4", "1\nb\nc\n4\n")]
#[case::anchor("fn a:\n  x\nfn b:\n  x\n", "@@ fn b:\n-  x\n+  y", "fn a:\n  x\nfn b:\n  y\n")]
#[case::first_below("x\ny\nx\n", "-x\n+1", "1\ny\nx\n")]
#[case::at_the_end("x\ny\nx\n", "@@\n-x\n+1\n*** End of File", "x\ny\n1\n")]
#[case::only_added("a\n", "@@\n+b", "a\nb\n")]
#[case::added_below_anchor("fn a:\n  x\n", "@@ fn a:\n+  y", "fn a:\n  y\n  x\n")]
#[case::to_an_empty_file("", "+a", "a\n")]
#[case::trailing_space("a  \nb\n", " a\n-b\n+c", "a  \nc\n")]
#[case::look_alikes("it\u{2019}s\nb\n", " it's\n-b\n+c", "it\u{2019}s\nc\n")]
#[case::crlf("a\r\nb\r\n", " a\n-b\n+c\n+d", "a\r\nc\r\nd\r\n")]
#[case::no_final_line_end("a\nb", "-b\n+c", "a\nc")]
#[case::appended_without_line_end("a\nb", " b\n+c", "a\nb\nc")]
#[case::empty_context("a\n\nb\n", " a\n\n-b\n+c", "a\n\nc\n")]
#[case::diff_numbers("a\nb\n", "@@ -1,2 +1,2 @@\n-b\n+c", "a\nc\n")]
#[case::all_removed("a\n", "-a", "")]
fn a_chunk_is_applied(#[case] text: &str, #[case] chunks: &str, #[case] wanted: &str) {
    assert_eq!(update(text, chunks).unwrap(), wanted);
}

#[test]
fn what_does_not_match_is_named() {
    let error = update("a\nb\n", " a\n-c\n+d").unwrap_err();
    assert_eq!(error, PatchError::ChunkNotFound { wanted: "a\nc".into(), from: 1 });
    let error = update("a\nb\n", "@@\n-b\n+c\n@@\n-a\n+d").unwrap_err();
    assert_eq!(error, PatchError::ChunkNotFound { wanted: "a".into(), from: 3 }, "chunks are in order");
    assert_eq!(update("a\n", "@@ fn b\n-a\n+c"), Err(PatchError::AnchorNotFound("fn b".into())));
    let error = update("a \nb\na  \n", "-a\n+c").unwrap_err();
    assert_eq!(error, PatchError::ChunkAmbiguous { wanted: "a".into(), lines: vec![1, 3] });
}

proptest! {
    #[test]
    fn no_text_makes_a_patch_panic(text in "([a-c ]{0,3}\r?\n){0,6}[a-c]{0,2}", chunks in "(@@ ?[a-c]{0,2}\n|[ +-][a-c ]{0,3}\n|\\*\\*\\* End of File\n){0,8}") {
        let _ = update(&text, &chunks);
    }
}
