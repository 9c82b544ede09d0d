//! What is thrown away, in which order, and what becomes of the room.

use quell_protocol::Surface;
use quell_protocol::audit::Action;

use super::super::{Archive, AuditEntry, Deleted, Idle, Imported, PrivateEndpoints, StoredSession};
use super::*;

fn entry(target: &str) -> AuditEntry {
    AuditEntry {
        at: "2026-12-01T00:00:00.000000Z".into(),
        principal: Principal::parse("quell").unwrap(),
        surface: Surface::Daemon,
        from: None,
        action: Action::DeleteSession,
        target: Some(target.into()),
        detail: None,
    }
}

/// A session that was used at this hour, all its runs over.
async fn used_at(store: &Store, session: &str, hour: u8) {
    let id = format!("{session}-{hour}");
    let accepted_at = format!("2026-11-20T{hour:02}:00:00.000000Z");
    let row = RunRow { accepted_at, ..row(&id, session) };
    assert_eq!(store.accept_run(row).await, Ok(AcceptedRow::New));
    store.append_turn(key(session), run_id(&id), "turn".into(), String::new()).await.unwrap();
    store.end_run(run_id(&id), "over".into(), nothing()).await.unwrap();
}

fn keys(idle: &[Idle]) -> Vec<&str> {
    idle.iter().map(|idle| idle.key.as_str()).collect()
}

#[tokio::test]
async fn the_oldest_use_comes_first_and_what_has_open_runs_not_at_all() {
    let (store, _home) = fresh();
    for (session, hour) in [("b", 3), ("a", 1), ("c", 2), ("d", 2)] {
        used_at(&store, session, hour).await;
    }
    used_at(&store, "a", 9).await;
    accept(&store, "open", "busy").await;
    let old = StoredSession {
        key: key("imported"),
        agent: AgentId::parse("main").unwrap(),
        created_at: "2020-01-01T00:00:00Z".into(),
        last_used_at: "2020-01-01T00:00:00Z".into(),
        turns: 0,
        config: None,
        secrets: None,
        private: PrivateEndpoints::default(),
        owner: None,
        imported_at: None,
    };
    let archive = Archive { session: old, runs: Vec::new(), past: Vec::new(), notes: Vec::new() };
    let came = "2026-11-20T05:00:00.000000Z";
    assert_eq!(store.import_session(archive, came.into()).await, Ok(Imported::Yes { turns: 0 }));
    let all = store.idle_sessions(None, 100).await.unwrap();
    assert_eq!(keys(&all), ["c", "d", "b", "imported", "a"], "an import counts from the day it came");
    assert_eq!(store.count_sessions().await, Ok(6));
    // Pages go on where the one before ended, also between two of the same time.
    let first = store.idle_sessions(None, 1).await.unwrap();
    let second = store.idle_sessions(first.into_iter().next(), 2).await.unwrap();
    assert_eq!(keys(&second), ["d", "b"]);
}

#[tokio::test]
async fn a_session_goes_whole_with_its_entry_unless_it_was_used_meanwhile() {
    let (store, _home) = fresh();
    used_at(&store, "a", 1).await;
    used_at(&store, "b", 2).await;
    let idle = store.idle_sessions(None, 100).await.unwrap();
    used_at(&store, "b", 3).await;
    accept(&store, "c-1", "c").await;
    let busy = Idle { key: key("c"), used_at: "2026-11-20T10:00:00.000000Z".into() };
    assert_eq!(store.retire_session(idle[0].clone(), entry("a")).await, Ok(Deleted::Yes));
    assert_eq!(store.retire_session(idle[1].clone(), entry("b")).await, Ok(Deleted::Unknown));
    assert_eq!(store.retire_session(busy, entry("c")).await, Ok(Deleted::InUse(vec![run_id("c-1")])));
    assert_eq!(store.run(run_id("a-1")).await, Ok(None));
    assert!(store.turns(key("a")).await.unwrap().is_empty());
    assert_eq!(store.turns(key("b")).await.unwrap().len(), 2);
    let (rows, _) = store.audit(0, 10).await.unwrap();
    let told: Vec<_> = rows.iter().map(|row| row.target.as_deref().unwrap()).collect();
    assert_eq!(told, ["a"], "only what happened");
}

#[tokio::test]
async fn room_is_given_back_a_little_at_a_time() {
    let (store, home) = fresh();
    accept(&store, "r", "s").await;
    let long = "x".repeat(4 << 20);
    store.append_turn(key("s"), run_id("r"), long, String::new()).await.unwrap();
    store.end_run(run_id("r"), "over".into(), nothing()).await.unwrap();
    let used = store.used_bytes().await.unwrap();
    assert!(used > 4 << 20, "{used}");
    let idle = store.idle_sessions(None, 1).await.unwrap().remove(0);
    assert_eq!(store.retire_session(idle, entry("s")).await, Ok(Deleted::Yes));
    let after = store.used_bytes().await.unwrap();
    assert!(after < 1 << 20, "{after}: it is what is used that counts, not the file");
    let free = store.free_pages().await.unwrap();
    assert!(free > 1000, "{free}");
    assert_eq!(store.give_back(100).await, Ok(free - 100));
    assert_eq!(store.give_back(100_000).await, Ok(0));
    store.close().await;
    let file = std::fs::metadata(home.path().join(FILE)).unwrap().len();
    assert!(file < 1 << 20, "the file is {file} bytes");
}

#[tokio::test]
async fn a_database_of_the_first_versions_keeps_its_free_pages_and_no_harm_is_done() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(FILE);
    // As they were made: without the means to give pages back.
    let old = rusqlite::Connection::open(&file).unwrap();
    old.execute_batch(
        "PRAGMA auto_vacuum = NONE; PRAGMA application_id = 1366648172; CREATE TABLE t (x); DROP TABLE t",
    )
    .unwrap();
    drop(old);
    let store = open(&home);
    used_at(&store, "a", 1).await;
    store.delete_session(key("a"), Vec::new()).await.unwrap();
    let free = store.free_pages().await.unwrap();
    assert_eq!(store.give_back(10).await, Ok(free));
}
