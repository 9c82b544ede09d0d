//! Room in use, and copies with the tools of PostgreSQL.

use super::*;
use crate::conformance::{accept_run, delete_session, run_to_end, session_key};
use crate::{RunRow, StoreError};

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn the_room_of_a_deleted_session_is_not_in_use_any_more() {
    let Some(database) = PostgresDatabase::is_available().then(PostgresDatabase::create) else { return };
    let store = database.open();
    let used = async || store.maintenance().used_bytes().await.unwrap();
    let before = used().await;
    // The server compresses it to about a tenth.
    let long: String = (0..40_000).map(|number| number.to_string()).collect();
    let row = RunRow { view: long, ..crate::conformance::accepted_row("r", "s") };
    store.runs().accept(row).await.unwrap();
    assert!(used().await > before + 10_000, "{} after {before}", used().await);
    delete_session(&store, "s", &["r"]).await;
    assert!(used().await < before + 1_000, "{} after {before}", used().await);
    assert_eq!(store.maintenance().count_free_pages().await, Ok(0));
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_dump_is_restored_with_everything_and_goes_on() {
    let Some(database) = PostgresDatabase::is_available().then(PostgresDatabase::create) else { return };
    let store = database.open();
    run_to_end(&store, "a", "s").await;
    accept_run(&store, "b", "s").await;
    let refused = store.maintenance().snapshot().await.unwrap_err();
    assert!(matches!(&refused, StoreError::Settings(text) if text.contains("pg_dump")), "{refused}");
    let port = database.server.port();
    let run = |command: &str| {
        let login = format!("--host=127.0.0.1 --port={port} --username=postgres");
        database.server.sql(&format!("COPY (SELECT '') TO PROGRAM '{} {login}'", command))
    };
    run("pg_dump --format=custom --file=quell.dump --dbname=postgres");
    run("createdb --template=template0 quell2");
    run("pg_restore --no-owner --dbname=quell2 quell.dump");
    let url = format!("postgres://postgres@127.0.0.1:{port}/quell2");
    let settings = PostgresSettings { url, ..settings(&database.server) };
    let restored = Store::new(PostgresStore::open(&settings, database.other_home.path()).unwrap());
    assert_eq!(restored.runs().list_open().await, store.runs().list_open().await);
    assert_eq!(restored.history().turns(session_key("s")).await, store.history().turns(session_key("s")).await);
    run_to_end(&restored, "c", "s").await;
    assert_eq!(restored.history().turns(session_key("s")).await.unwrap(), ["turn a", "turn c"]);
    assert_eq!(store.maintenance().probe().await, Ok(()), "the restored database is another one");
}
