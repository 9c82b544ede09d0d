//! Texts with what PostgreSQL's own texts cannot contain.

use quell_protocol::AgentId;

use super::*;
use crate::conformance::{accept_run, accepted_row, all_sessions, find_run, run_id, session_key};
use crate::{Note, NoteScope, RunRow};

/// A zero byte, and the character with which it is encoded.
const ODD: &str = "zero \0 and \u{e000}0 and \u{e000}";

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn zero_bytes_come_back_from_every_area() {
    let Some(database) = PostgresDatabase::is_available().then(PostgresDatabase::create) else { return };
    let store = database.open();
    store.runs().accept(RunRow { view: ODD.into(), ..accepted_row("r", "s") }).await.unwrap();
    assert_eq!(find_run(&store, "r").await.view, ODD);
    store.channels().save_cursor(ODD.into(), ODD.into()).await.unwrap();
    assert_eq!(store.channels().cursor(ODD.into()).await, Ok(Some(ODD.into())));
    let scopes = [NoteScope::Session(session_key("s")), NoteScope::Sender(ODD.into()), agent_scope()];
    for scope in scopes {
        let note = Note { key: ODD.into(), category: "fact".into(), text: ODD.into(), at: "2026-11-24".into() };
        store.notes().save(scope.clone(), note.clone()).await.unwrap();
        assert_eq!(store.notes().list(scope.clone(), 10, None).await.unwrap().0, std::slice::from_ref(&note));
        let found = store.notes().search(vec![scope.clone()], "zero \0 and", 10).await.unwrap();
        assert_eq!(found.concat().into_iter().map(|found| found.note).collect::<Vec<_>>(), [note]);
        assert_eq!(store.notes().forget(scope, ODD.into()).await, Ok(true));
    }
    let mut search = all_sessions();
    search.search = Some("\0".into());
    assert!(store.sessions().list(search).await.unwrap().0.is_empty());
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn words_longer_than_the_index_permits_and_very_long_notes_are_saved_and_found() {
    let Some(database) = PostgresDatabase::is_available().then(PostgresDatabase::create) else { return };
    let store = database.open();
    accept_run(&store, "r", "s").await;
    let (long, many) = ("w\u{00e9}".repeat(5_000), "many words ".repeat(20_000));
    for (key, text) in [("long", long.clone()), ("many", many)] {
        let note = Note { key: key.into(), category: "fact".into(), text, at: "2026-11-24".into() };
        store.notes().save(agent_scope(), note).await.unwrap();
    }
    for (query, key) in [(long.as_str(), "long"), ("words", "many")] {
        let found = store.notes().search(vec![agent_scope()], query, 10).await.unwrap().concat();
        assert_eq!(found.iter().map(|found| found.note.key.as_str()).collect::<Vec<_>>(), [key]);
    }
    assert!(store.runs().find(run_id("r")).await.unwrap().is_some());
}

fn agent_scope() -> NoteScope {
    NoteScope::Agent(AgentId::parse("main").unwrap())
}
