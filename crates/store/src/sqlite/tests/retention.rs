//! Free pages after a deletion.

use super::*;
use crate::DeleteSessionOutcome;

#[tokio::test]
async fn room_is_given_back_a_little_at_a_time() {
    let (store, home) = new_store();
    accept_run(&store, "r", "s").await;
    let long = "x".repeat(4 << 20);
    append_turn(&store, "s", "r", &long, "").await.unwrap();
    store.runs().record_end(run_id("r"), "over".into(), no_spend()).await.unwrap();
    let used = store.maintenance().used_bytes().await.unwrap();
    assert!(used > 4 << 20, "{used}");
    assert_eq!(delete_session(&store, "s", &[]).await, DeleteSessionOutcome::Deleted);
    let after = store.maintenance().used_bytes().await.unwrap();
    assert!(after < 1 << 20, "{after}: it is what is used that counts, not the file");
    let free = store.maintenance().count_free_pages().await.unwrap();
    assert!(free > 1000, "{free}");
    assert_eq!(store.maintenance().release_free_pages(100).await, Ok(free - 100));
    assert_eq!(store.maintenance().release_free_pages(100_000).await, Ok(0));
    store.close().await;
    let file = std::fs::metadata(home.path().join(FILE)).unwrap().len();
    assert!(file < 1 << 20, "the file is {file} bytes");
}

#[tokio::test]
async fn a_database_of_the_first_versions_keeps_its_free_pages_and_no_harm_is_done() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(FILE);
    // Databases of the first versions cannot free pages.
    let old = Connection::open(&file).unwrap();
    old.execute_batch(
        "PRAGMA auto_vacuum = NONE; PRAGMA application_id = 1366648172; CREATE TABLE t (x); DROP TABLE t",
    )
    .unwrap();
    drop(old);
    let store = open_store(&home);
    run_to_end(&store, "a-1", "a").await;
    delete_session(&store, "a", &[]).await;
    let free = store.maintenance().count_free_pages().await.unwrap();
    assert_eq!(store.maintenance().release_free_pages(10).await, Ok(free));
}
