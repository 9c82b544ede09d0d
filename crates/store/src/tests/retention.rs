//! Retention: the order of deletion, and the free pages afterwards.

use quell_protocol::Surface;
use quell_protocol::audit::Action;

use super::super::{
    AuditEntry, DeleteSessionOutcome, IdleSession, ImportOutcome, PrivateEndpoints, SessionArchive, StoredSession,
};
use super::*;

fn audit_entry(target: &str) -> AuditEntry {
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

/// Creates a session, or uses it, at this hour. All its runs have ended.
async fn use_session_at(store: &Store, session: &str, hour: u8) {
    let id = format!("{session}-{hour}");
    let accepted_at = format!("2026-11-20T{hour:02}:00:00.000000Z");
    let row = RunRow { accepted_at, ..accepted_row(&id, session) };
    assert_eq!(store.accept_run(row).await, Ok(AcceptRunOutcome::New));
    store.append_turn(session_key(session), run_id(&id), "turn".into(), String::new()).await.unwrap();
    store.record_run_end(run_id(&id), "over".into(), no_spend()).await.unwrap();
}

fn idle_keys(idle: &[IdleSession]) -> Vec<&str> {
    idle.iter().map(|idle| idle.key.as_str()).collect()
}

#[tokio::test]
async fn the_oldest_use_comes_first_and_what_has_open_runs_not_at_all() {
    let (store, _home) = new_store();
    for (session, hour) in [("b", 3), ("a", 1), ("c", 2), ("d", 2)] {
        use_session_at(&store, session, hour).await;
    }
    use_session_at(&store, "a", 9).await;
    accept_run(&store, "open", "busy").await;
    let old = StoredSession {
        key: session_key("imported"),
        agent: AgentId::parse("main").unwrap(),
        created_at: "2020-01-01T00:00:00Z".into(),
        last_used_at: "2020-01-01T00:00:00Z".into(),
        turns: 0,
        config: None,
        secrets: None,
        private_endpoints: PrivateEndpoints::default(),
        owner: None,
        imported_at: None,
    };
    let archive = SessionArchive { session: old, runs: Vec::new(), history: Vec::new(), notes: Vec::new() };
    let imported_at = "2026-11-20T05:00:00.000000Z";
    assert_eq!(store.import_session(archive, imported_at.into()).await, Ok(ImportOutcome::Imported { turns: 0 }));
    let all = store.idle_sessions(None, 100).await.unwrap();
    assert_eq!(idle_keys(&all), ["c", "d", "b", "imported", "a"], "an import counts from the day of the import");
    assert_eq!(store.count_sessions().await, Ok(6));
    // A page continues where the previous one ended, also between two sessions with the same time.
    let first = store.idle_sessions(None, 1).await.unwrap();
    let second = store.idle_sessions(first.into_iter().next(), 2).await.unwrap();
    assert_eq!(idle_keys(&second), ["d", "b"]);
}

#[tokio::test]
async fn a_session_goes_whole_with_its_entry_unless_it_was_used_meanwhile() {
    let (store, _home) = new_store();
    use_session_at(&store, "a", 1).await;
    use_session_at(&store, "b", 2).await;
    let idle = store.idle_sessions(None, 100).await.unwrap();
    use_session_at(&store, "b", 3).await;
    accept_run(&store, "c-1", "c").await;
    let busy = IdleSession { key: session_key("c"), used_at: "2026-11-20T10:00:00.000000Z".into() };
    assert_eq!(store.delete_idle_session(idle[0].clone(), audit_entry("a")).await, Ok(DeleteSessionOutcome::Deleted));
    assert_eq!(store.delete_idle_session(idle[1].clone(), audit_entry("b")).await, Ok(DeleteSessionOutcome::Unknown));
    assert_eq!(
        store.delete_idle_session(busy, audit_entry("c")).await,
        Ok(DeleteSessionOutcome::InUse(vec![run_id("c-1")]))
    );
    assert_eq!(store.find_run(run_id("a-1")).await, Ok(None));
    assert!(store.session_turns(session_key("a")).await.unwrap().is_empty());
    assert_eq!(store.session_turns(session_key("b")).await.unwrap().len(), 2);
    let (rows, _) = store.list_audit(0, 10).await.unwrap();
    let targets: Vec<_> = rows.iter().map(|row| row.target.as_deref().unwrap()).collect();
    assert_eq!(targets, ["a"], "only what happened");
}

#[tokio::test]
async fn room_is_given_back_a_little_at_a_time() {
    let (store, home) = new_store();
    accept_run(&store, "r", "s").await;
    let long = "x".repeat(4 << 20);
    store.append_turn(session_key("s"), run_id("r"), long, String::new()).await.unwrap();
    store.record_run_end(run_id("r"), "over".into(), no_spend()).await.unwrap();
    let used = store.used_bytes().await.unwrap();
    assert!(used > 4 << 20, "{used}");
    let idle = store.idle_sessions(None, 1).await.unwrap().remove(0);
    assert_eq!(store.delete_idle_session(idle, audit_entry("s")).await, Ok(DeleteSessionOutcome::Deleted));
    let after = store.used_bytes().await.unwrap();
    assert!(after < 1 << 20, "{after}: it is what is used that counts, not the file");
    let free = store.count_free_pages().await.unwrap();
    assert!(free > 1000, "{free}");
    assert_eq!(store.release_free_pages(100).await, Ok(free - 100));
    assert_eq!(store.release_free_pages(100_000).await, Ok(0));
    store.close().await;
    let file = std::fs::metadata(home.path().join(FILE)).unwrap().len();
    assert!(file < 1 << 20, "the file is {file} bytes");
}

#[tokio::test]
async fn a_database_of_the_first_versions_keeps_its_free_pages_and_no_harm_is_done() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(FILE);
    // Databases of the first versions cannot free pages.
    let old = rusqlite::Connection::open(&file).unwrap();
    old.execute_batch(
        "PRAGMA auto_vacuum = NONE; PRAGMA application_id = 1366648172; CREATE TABLE t (x); DROP TABLE t",
    )
    .unwrap();
    drop(old);
    let store = open_store(&home);
    use_session_at(&store, "a", 1).await;
    store.delete_session(session_key("a"), Vec::new()).await.unwrap();
    let free = store.count_free_pages().await.unwrap();
    assert_eq!(store.release_free_pages(10).await, Ok(free));
}
