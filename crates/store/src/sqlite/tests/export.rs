//! The temporary file of an export.

use super::backup::file_names;
use super::*;

#[tokio::test]
async fn a_spool_of_a_daemon_that_died_is_in_nobodys_way() {
    let (store, home) = new_store();
    run_to_end(&store, "r1", "s").await;
    let before = file_names(&home);
    std::fs::write(home.path().join("quell.spool"), "half a line").unwrap();
    let file = store.archive().export(session_key("s")).await.unwrap().unwrap();
    let lines = String::from_utf8(store.maintenance().read_chunk(file, 0).await.unwrap()).unwrap();
    assert!(!lines.contains("half a line"));
    assert_eq!(file_names(&home), before, "an export leaves no file behind");
}
