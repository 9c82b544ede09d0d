//! Sessions out and in again: the same bytes, and nothing by halves.

use tempfile::TempDir;

use super::super::{Archive, Archived, Imported, PrivateEndpoints, Spool, StoreError, StoredSession};
use super::*;

async fn text(store: &Store, spool: Spool) -> String {
    let mut bytes = Vec::new();
    loop {
        let piece = store.piece(spool.clone(), bytes.len() as u64).await.unwrap();
        if piece.is_empty() {
            assert_eq!(bytes.len() as u64, spool.length());
            return String::from_utf8(bytes).unwrap();
        }
        bytes.extend(piece);
    }
}

async fn exported(store: &Store, session: &str) -> Option<String> {
    let spool = store.export_session(key(session)).await.unwrap()?;
    Some(text(store, spool).await)
}

fn names(home: &TempDir) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(home.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn archive(session: &str, runs: &[&str]) -> Archive {
    let over = |id: &&str| RunRow { state: StoredState::Ended, ..row(id, session) };
    let turn = |id: &&str| Archived::Turn { run: run_id(id), turn: format!("turn {id}") };
    Archive {
        session: StoredSession {
            key: key(session),
            agent: AgentId::parse("writer").unwrap(),
            created_at: "2020-01-01T00:00:00.000000Z".into(),
            last_used_at: "2020-01-02T00:00:00.000000Z".into(),
            turns: 0,
            config: None,
            secrets: None,
            private: PrivateEndpoints::default(),
            owner: None,
            imported_at: None,
        },
        runs: runs.iter().map(over).collect(),
        past: runs.iter().map(turn).collect(),
        notes: Vec::new(),
    }
}

const NOW: &str = "2026-11-21T00:00:00.000000Z";

#[tokio::test]
async fn what_is_over_is_exported_in_its_order_and_what_is_not_is_left_out() {
    let (store, home) = fresh();
    live(&store, "r1", "s").await;
    store.reset_session(key("s"), "2026-11-20T11:00:00.000000Z".into()).await.unwrap();
    live(&store, "r2", "s").await;
    accept(&store, "r3", "s").await;
    store.steered(run_id("r3"), run_id("r2")).await.unwrap();
    accept(&store, "r4", "s").await;
    store.start_run(run_id("r4"), "at work".into()).await.unwrap();
    // Its turn is sealed and its end is not stored: both wait for the next export.
    store.append_turn(key("s"), run_id("r4"), "turn r4".into(), "ending".into()).await.unwrap();
    live(&store, "other", "t").await;
    let before = names(&home);
    let lines = exported(&store, "s").await.unwrap();
    assert_eq!(names(&home), before, "an export leaves no file behind");
    let marks = ["session", "\"r1\"", "\"r2\"", "\"r3\"", "turn r1", "2026-11-20T11", "turn r2"];
    assert_eq!(lines.lines().count(), marks.len(), "{lines}");
    for (line, mark) in lines.lines().zip(marks) {
        assert!(line.contains(mark), "{mark} is not in {line}");
    }
    assert_eq!(exported(&store, "unknown").await, None);
}

#[tokio::test]
async fn an_import_is_listed_counts_its_turns_and_is_exported_as_it_was() {
    let (store, _home) = fresh();
    live(&store, "here", "older").await;
    let mut coming = archive("s", &["r1", "r2", "r3"]);
    coming.past.insert(1, Archived::Reset { at: NOW.into() });
    assert_eq!(store.import_session(coming, NOW.into()).await, Ok(Imported::Yes { turns: 2 }));
    let session = store.session(key("s")).await.unwrap().unwrap();
    assert_eq!((session.turns, session.last_used_at.as_str()), (2, "2020-01-02T00:00:00.000000Z"));
    assert_eq!(store.turns(key("s")).await.unwrap(), ["turn r2", "turn r3"]);
    let (rows, _) = store.sessions(all_sessions()).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["s", "older"]);
    let lines = exported(&store, "s").await.unwrap();
    assert_eq!(lines.lines().count(), 8, "{lines}");
    // It goes on like any other.
    live(&store, "r4", "s").await;
    assert_eq!(store.turns(key("s")).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_refused_import_leaves_nothing() {
    let (store, _home) = fresh();
    live(&store, "r1", "s").await;
    assert_eq!(store.import_session(archive("s", &["x"]), NOW.into()).await, Ok(Imported::SessionExists));
    let known = store.import_session(archive("t", &["x", "r1"]), NOW.into()).await;
    assert_eq!(known, Ok(Imported::RunExists(run_id("r1"))));
    assert_eq!(store.run(run_id("x")).await, Ok(None));
    assert_eq!(store.session(key("t")).await, Ok(None));
    // A turn whose run is not there breaks the rules of the database: all of it goes.
    let mut torn = archive("t", &["x"]);
    torn.past.push(Archived::Turn { run: run_id("nowhere"), turn: "turn".into() });
    let (torn, beside) = tokio::join!(store.import_session(torn, NOW.into()), store.accept_run(row("y", "u")));
    assert!(torn.is_err(), "{torn:?}");
    assert_eq!(beside, Ok(AcceptedRow::New), "the neighbour in its transaction is written");
    assert_eq!(store.run(run_id("x")).await, Ok(None));
}

#[tokio::test]
async fn a_session_without_runs_has_its_own_place_in_the_list() {
    let (store, _home) = fresh();
    for session in ["a", "b"] {
        assert_eq!(store.import_session(archive(session, &[]), NOW.into()).await, Ok(Imported::Yes { turns: 0 }));
    }
    live(&store, "r1", "c").await;
    let page = SessionFilter { limit: 1, ..all_sessions() };
    let (mut cursor, mut seen) = (None, Vec::new());
    loop {
        let (rows, next) = store.sessions(SessionFilter { cursor, ..page.clone() }).await.unwrap();
        seen.extend(rows.into_iter().map(|row| row.key.to_string()));
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["c", "b", "a"]);
}

#[tokio::test]
async fn a_long_session_is_handed_out_in_pieces_while_the_store_goes_on() {
    let (store, _home) = fresh();
    accept(&store, "r1", "s").await;
    let long = format!("turn {}", "x".repeat(900_000));
    store.append_turn(key("s"), run_id("r1"), long.clone(), String::new()).await.unwrap();
    store.end_run(run_id("r1"), "ended".into(), nothing()).await.unwrap();
    let spool = store.export_session(key("s")).await.unwrap().unwrap();
    let first = store.piece(spool.clone(), 0).await.unwrap();
    assert!((first.len() as u64) < spool.length());
    // What was read is of its own moment, whatever comes after.
    store.delete_session(key("s"), Vec::new()).await.unwrap();
    assert!(text(&store, spool).await.contains(&long));
}

#[tokio::test]
async fn a_spool_of_a_daemon_that_died_is_in_nobodys_way() {
    let (store, home) = fresh();
    live(&store, "r1", "s").await;
    std::fs::write(home.path().join("quell.spool"), "half a line").unwrap();
    let lines = exported(&store, "s").await.unwrap();
    assert!(!lines.contains("half a line"));
    assert!(!home.path().join("quell.spool").exists());
}

#[tokio::test]
async fn a_closed_store_says_so_to_who_wants_a_copy() {
    let (store, _home) = fresh();
    live(&store, "r1", "s").await;
    let other = store.clone();
    store.close().await;
    assert!(matches!(other.export_session(key("s")).await, Err(StoreError::Closed)));
}
