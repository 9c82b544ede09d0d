//! Files as they were before a run's file tools changed them.

use super::*;
use quell_protocol::NodeName;

use crate::{FileBefore, FileChange, StoredFileChange};

pub(crate) fn file_change(lineage: &[&str], path: &str, before: Option<FileBefore>) -> FileChange {
    FileChange {
        lineage: lineage.iter().map(|id| run_id(id)).collect(),
        workdir: "/work/main".into(),
        path: path.into(),
        owner: None,
        node: None,
        at: "2026-11-20T10:00:00.000000Z".into(),
        before,
        after_sha256: Some("cd".into()),
    }
}

fn before(content: Option<&[u8]>) -> Option<FileBefore> {
    Some(FileBefore { sha256: "ab".into(), mode: 0o600, content: content.map(<[u8]>::to_vec) })
}

async fn list_tree(store: &Store, root: &str) -> Vec<StoredFileChange> {
    store.file_changes().list_tree(run_id(root)).await.unwrap()
}

pub(crate) async fn changes_of_a_tree_come_back_in_order_and_without_contents<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for run in ["root", "child", "other"] {
        accept_run(&store, run, run).await;
    }
    let node = Some(NodeName::parse("node-1").unwrap());
    let first = FileChange { owner: Some(1000), node, ..file_change(&["root"], "a.txt", before(Some(b"old\0\xff"))) };
    let new = FileChange { after_sha256: None, ..file_change(&["root", "child"], "/else/ü.txt", None) };
    let again = file_change(&["root"], "a.txt", before(None));
    store.file_changes().add(run_id("root"), vec![first.clone()]).await.unwrap();
    store.file_changes().add(run_id("other"), vec![file_change(&["other"], "b", None)]).await.unwrap();
    store.file_changes().add(run_id("child"), vec![new.clone()]).await.unwrap();
    store.file_changes().add(run_id("root"), vec![again.clone()]).await.unwrap();
    let unknown = store.file_changes().add(run_id("nobody"), vec![again.clone()]).await;
    assert_eq!(unknown, Err(StoreError::NoSuchRun(run_id("nobody"))));
    store.close().await;
    let store = home.open();
    let rows = list_tree(&store, "root").await;
    let bare = FileChange { before: before(None), ..first };
    assert_eq!(rows.iter().map(|row| row.change.clone()).collect::<Vec<_>>(), [bare, new, again]);
    assert_eq!(rows.iter().map(|row| row.has_content).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(store.file_changes().read_content(rows[0].number).await.unwrap(), Some(b"old\0\xff".to_vec()));
    assert_eq!(store.file_changes().read_content(rows[2].number).await.unwrap(), None);
}

pub(crate) async fn what_is_undone_is_marked_and_its_contents_are_gone<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    let changes = ["x", "y"].map(|path| file_change(&["a"], path, before(Some(b"old"))));
    store.file_changes().add(run_id("a"), changes.to_vec()).await.unwrap();
    let rows = list_tree(&store, "a").await;
    let at = "2026-11-21T10:00:00.000000Z".to_owned();
    store.file_changes().mark_undone(vec![rows[0].number], at.clone()).await.unwrap();
    let rows = list_tree(&store, "a").await;
    let marks: Vec<_> = rows.iter().map(|row| (row.has_content, row.undone_at.clone())).collect();
    assert_eq!(marks, [(false, Some(at)), (true, None)]);
    assert_eq!(store.file_changes().read_content(rows[0].number).await.unwrap(), None);
}

pub(crate) async fn changes_go_with_their_run<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    run_to_end(&store, "a", "s").await;
    store.file_changes().add(run_id("a"), vec![file_change(&["a"], "x", None)]).await.unwrap();
    let number = list_tree(&store, "a").await[0].number;
    assert_eq!(delete_session(&store, "s", &[]).await, DeleteSessionOutcome::Deleted);
    assert_eq!(list_tree(&store, "a").await, []);
    assert_eq!(store.file_changes().read_content(number).await.unwrap(), None);
}
