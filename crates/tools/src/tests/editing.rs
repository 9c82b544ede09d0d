//! Changes of files: diffs, what is kept for an undo, patches of several files.

use std::os::unix::fs::PermissionsExt as _;

use quell_kernel::file_undo::CurrentFile;
use rstest::rstest;

use super::*;
use crate::file_edit::sha256_hex;

fn patch(body: &str) -> Value {
    json!({"input": format!("*** Begin Patch\n{body}\n*** End Patch")})
}

impl ToolFixture {
    async fn call_with_diff(&self, tool: &str, given: Value) -> (String, String) {
        let output = self.try_call(tool, given).await.unwrap();
        assert_eq!(output.end, CallEnd::Ok, "{}", output.text);
        (output.text, output.diff.unwrap_or_default())
    }

    fn take_kept(&self) -> Vec<ChangedFile> {
        std::mem::take(&mut self.backup.files.lock().unwrap())
    }
}

#[tokio::test]
async fn a_change_has_a_diff_and_keeps_what_it_replaces() {
    let fixture = ToolFixture::new();
    let path = fixture.write_file("src/a", "one\ntwo\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
    let (_, diff) = fixture.call_with_diff("edit_file", json!({"path": "src/a", "old": "two", "new": "2"})).await;
    assert_eq!(diff, "--- a/src/a\n+++ b/src/a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n");
    let (_, diff) = fixture.call_with_diff("write_file", json!({"path": "b/new", "content": "x\n"})).await;
    assert_eq!(diff, "--- /dev/null\n+++ b/b/new\n@@ -0,0 +1 @@\n+x\n");
    let [edited, created] = &fixture.take_kept()[..] else { panic!() };
    let before = ReplacedFile { sha256: sha256_hex(b"one\ntwo\n"), mode: 0o750, content: Some(b"one\ntwo\n".to_vec()) };
    assert_eq!((edited.path.to_str().unwrap(), edited.before.as_ref()), ("src/a", Some(&before)));
    assert_eq!(edited.after_sha256, Some(sha256_hex(b"one\n2\n")));
    assert_eq!((created.path.to_str().unwrap(), created.before.as_ref()), ("b/new", None));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o750);
}

#[tokio::test]
async fn a_file_is_kept_under_its_real_name_and_a_large_one_without_its_content() {
    let fixture = ToolFixture::new();
    let large = "x".repeat(usize::try_from(crate::file_edit::MAX_KEPT_FILE_BYTES).unwrap() + 1);
    fixture.write_file("real/large", &large);
    std::os::unix::fs::symlink("real", fixture.path("link")).unwrap();
    fixture.call_with_diff("write_file", json!({"path": "link/large", "content": "y"})).await;
    fixture.call_with_diff("write_file", json!({"path": "link/deep/new", "content": "y"})).await;
    let [replaced, created] = &fixture.take_kept()[..] else { panic!() };
    let before = replaced.before.as_ref().unwrap();
    assert_eq!((replaced.path.to_str().unwrap(), before.content.as_ref()), ("real/large", None));
    assert_eq!(before.sha256, sha256_hex(large.as_bytes()));
    assert_eq!(created.path.to_str().unwrap(), "real/deep/new");
}

#[tokio::test]
async fn what_cannot_be_kept_is_not_changed() {
    let mut fixture = ToolFixture::new();
    fixture.backup.problem = Some("the disk is full".into());
    fixture.write_file("a", "old\n");
    for (tool, given) in [
        ("write_file", json!({"path": "a", "content": "new"})),
        ("write_file", json!({"path": "new/b", "content": "new"})),
        ("edit_file", json!({"path": "a", "old": "old", "new": "new"})),
        ("apply_patch", patch("*** Delete File: a")),
    ] {
        let text = fixture.call_error(tool, given).await;
        assert!(text.contains("nothing was written") && text.contains("the disk is full"), "{text}");
    }
    assert_eq!((fixture.file_names(), fixture.read_file("a").as_str()), (vec!["a".to_owned()], "old\n"));
}

#[tokio::test]
async fn a_patch_changes_all_its_files() {
    let fixture = ToolFixture::new();
    fixture.write_file("a", "1\n2\n");
    fixture.write_file("gone", "x\n");
    let moved = fixture.write_file("from", "m\nn\n");
    std::fs::set_permissions(&moved, std::fs::Permissions::from_mode(0o755)).unwrap();
    let body = "*** Update File: a\n 1\n-2\n+3\n*** Add File: d/new\n+n\n*** Delete File: gone\n\
                *** Update File: from\n*** Move to: d/to\n-n\n+o";
    let (text, diff) = fixture.call_with_diff("apply_patch", patch(body)).await;
    assert_eq!(text, "The patch was applied:\nM \"a\"\nA \"d/new\"\nD \"gone\"\nA \"d/to\"\nD \"from\"");
    assert_eq!(fixture.file_names(), ["a", "d"]);
    assert_eq!((fixture.read_file("a").as_str(), fixture.read_file("d/to").as_str()), ("1\n3\n", "m\no\n"));
    assert_eq!(fixture.path("d/to").metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(diff.matches("\n+++ ").count() + 1, 6, "{diff}");
    assert_eq!(fixture.take_kept().len(), 5);
}

#[rstest]
#[case::no_patch("", "the patch cannot be read: it changes no file")]
#[case::missing_lines(
    "*** Update File: a\n-3\n+4",
    "does not fit \"a\": these lines are not in the file from line 1 on:\n3"
)]
#[case::existing("*** Add File: a\n+x", "\"a\" exists already")]
#[case::missing("*** Delete File: b", "\"b\" does not exist")]
#[case::missing_update("*** Update File: b\n-x\n+y", "\"b\" does not exist")]
#[case::outside("*** Add File: ../b\n+x", "leads outside the working directory")]
#[case::twice("*** Update File: a\n-1\n+x\n*** Delete File: ./a", "names \"a\" twice")]
#[case::directory("*** Delete File: dir", "is a directory")]
#[tokio::test]
async fn a_patch_that_does_not_fit_changes_nothing(#[case] last: &str, #[case] wanted: &str) {
    let fixture = ToolFixture::new();
    fixture.write_file("a", "1\n2\n");
    fixture.write_file("other", "x\n");
    fixture.write_file("dir/file", "");
    let before = if last.is_empty() { "" } else { "*** Update File: other\n-x\n+y\n*** Add File: new/b\n+x\n" };
    let text = fixture.call_error("apply_patch", patch(&format!("{before}{last}"))).await;
    assert!(text.contains(wanted), "{text}");
    assert_eq!(fixture.file_names(), ["a", "dir", "other"]);
    assert_eq!((fixture.read_file("a").as_str(), fixture.read_file("other").as_str()), ("1\n2\n", "x\n"));
    assert_eq!(fixture.take_kept(), []);
}

#[tokio::test]
async fn a_change_waits_until_nothing_else_changes_the_workdir() {
    let fixture = ToolFixture::new();
    let guard = fixture.toolbox.workdir_locks().lock(&fixture.path("")).await;
    let mut call = Box::pin(fixture.call_ok("write_file", json!({"path": "a", "content": "x"})));
    assert!(futures_util::poll!(&mut call).is_pending());
    assert_eq!(fixture.file_names(), [""; 0]);
    drop(guard);
    call.await;
    assert_eq!(fixture.read_file("a"), "x");
}

#[tokio::test]
async fn a_plan_is_checked_and_shown() {
    let fixture = ToolFixture::new();
    let items = json!([{"text": "Find\nit", "status": "completed"}, {"text": "Correct it", "status": "in_progress"},
                       {"text": "Test", "status": "pending"}]);
    let text = fixture.call_ok("todo", json!({"items": items})).await;
    assert_eq!(text, "1 of 3 done\n[x] Find it\n[>] Correct it\n[ ] Test");
    let two = json!([{"text": "a", "status": "in_progress"}, {"text": "b", "status": "in_progress"}]);
    assert!(fixture.call_error("todo", json!({"items": two})).await.contains("one at a time"));
    let odd = json!([{"text": "a", "status": "done"}]);
    assert!(fixture.call_error("todo", json!({"items": odd})).await.contains("unknown variant `done`"));
    assert!(fixture.call_error("todo", json!({"items": "a"})).await.contains("expected a list"));
}

fn place(fixture: &ToolFixture, path: &str) -> UndoPlace {
    UndoPlace { workdir: fixture.path(""), path: path.into(), owner: None }
}

#[test]
fn a_file_is_put_back_unless_it_has_changed() {
    let (fixture, protected) = (ToolFixture::new(), ProtectedPaths::default());
    let path = fixture.write_file("a", "new");
    let a = place(&fixture, "a");
    let current = a.current_file(&protected);
    assert_eq!(current, CurrentFile::Present { sha256: sha256_hex(b"new") });
    let old = RestoredFile::Present { content: b"old".to_vec(), mode: 0o600 };
    assert_eq!(a.restore(&CurrentFile::Absent, &old, &protected), Err("it changed meanwhile".to_owned()));
    assert_eq!(a.restore(&current, &old, &protected), Ok(()));
    assert_eq!(
        (fixture.read_file("a").as_str(), path.metadata().unwrap().permissions().mode() & 0o777),
        ("old", 0o600)
    );
    assert_eq!(a.restore(&a.current_file(&protected), &RestoredFile::Absent, &protected), Ok(()));
    assert_eq!(fixture.file_names(), [""; 0]);
    let deep = place(&fixture, "gone/dir/file");
    assert_eq!(deep.current_file(&protected), CurrentFile::Absent);
    assert_eq!(deep.restore(&CurrentFile::Absent, &old, &protected), Ok(()));
    assert_eq!(fixture.read_file("gone/dir/file"), "old");
}

#[test]
fn an_undo_follows_no_link_and_leaves_the_workdir_never() {
    let (fixture, protected) = (ToolFixture::new(), ProtectedPaths::default());
    fixture.write_file("dir/a", "inside");
    std::os::unix::fs::symlink("dir", fixture.path("link")).unwrap();
    std::os::unix::fs::symlink("../secret", fixture.path("out")).unwrap();
    std::fs::create_dir(fixture.path("folder")).unwrap();
    let old = RestoredFile::Present { content: b"old".to_vec(), mode: 0o600 };
    for path in ["link/a", "out", "../secret", "folder"] {
        let place = place(&fixture, path);
        let current = place.current_file(&protected);
        assert!(matches!(current, CurrentFile::Unreadable(_)), "{path}: {current:?}");
        assert!(place.restore(&CurrentFile::Absent, &old, &protected).is_err(), "{path}");
    }
    assert_eq!(fixture.read_file("dir/a"), "inside");
    assert_eq!(std::fs::read_to_string(fixture.dir.path().join("secret")).unwrap(), "outside");
    let hidden = ProtectedPaths { directories: vec![fixture.path("dir")], files: Vec::new() };
    assert!(matches!(place(&fixture, "dir/a").current_file(&hidden), CurrentFile::Unreadable(_)));
}

/// Changes the file when it is kept, as another program could at that moment.
struct ChangingBackup(PathBuf);

impl FileBackup for ChangingBackup {
    fn keep_files(&self, _: Vec<ChangedFile>) -> BackupFuture<'_> {
        Box::pin(async move {
            std::fs::write(&self.0, "by another program").unwrap();
            Ok(())
        })
    }
}

#[tokio::test]
async fn a_file_that_changes_meanwhile_is_not_overwritten() {
    let mut fixture = ToolFixture::new();
    let path = fixture.write_file("a", "old");
    fixture.backup.other = Some(Box::new(ChangingBackup(path)));
    let text = fixture.call_error("edit_file", json!({"path": "a", "old": "old", "new": "new"})).await;
    assert!(text.contains("\"a\" changed meanwhile; read it and try again"), "{text}");
    assert_eq!((fixture.file_names().len(), fixture.read_file("a").as_str()), (1, "by another program"));
}
