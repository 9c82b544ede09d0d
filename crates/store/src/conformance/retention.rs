//! Retention: the order of deletion.

use super::*;
use crate::{IdleSession, ImportOutcome};

const NOW: &str = "2026-12-01T00:00:00.000000Z";

/// Creates a session, or uses it, at this hour. All its runs have ended.
async fn use_session_at(store: &Store, session: &str, hour: u8) {
    let id = format!("{session}-{hour}");
    let accepted_at = format!("2026-11-20T{hour:02}:00:00.000000Z");
    let row = RunRow { accepted_at, ..accepted_row(&id, session) };
    assert_eq!(store.runs().accept(row).await, Ok(AcceptRunOutcome::New));
    append_turn(store, session, &id, "turn", "").await.unwrap();
    store.runs().record_end(run_id(&id), "over".into(), no_spend()).await.unwrap();
}

fn idle_keys(idle: &[IdleSession]) -> Vec<&str> {
    idle.iter().map(|idle| idle.key.as_str()).collect()
}

pub(crate) async fn the_oldest_use_comes_first_and_what_has_open_runs_not_at_all<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for (session, hour) in [("b", 3), ("a", 1), ("c", 2), ("d", 2)] {
        use_session_at(&store, session, hour).await;
    }
    use_session_at(&store, "a", 9).await;
    accept_run(&store, "open", "busy").await;
    let imported_at = "2026-11-20T05:00:00.000000Z";
    assert_eq!(
        store.archive().import(session_archive("imported", vec![], vec![]), imported_at.into()).await,
        Ok(ImportOutcome::Imported { turns: 0 })
    );
    let all = store.sessions().list_idle(None, 100).await.unwrap();
    assert_eq!(idle_keys(&all), ["c", "d", "b", "imported", "a"], "an import counts from the day of the import");
    assert_eq!(store.sessions().count().await, Ok(6));
    // A page continues where the previous one ended, also between two sessions with the same time.
    let first = store.sessions().list_idle(None, 1).await.unwrap();
    let second = store.sessions().list_idle(first.into_iter().next(), 2).await.unwrap();
    assert_eq!(idle_keys(&second), ["d", "b"]);
}

pub(crate) async fn old_runs_of_an_agent_go_and_their_session_stays<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for hour in [1, 2, 3] {
        use_session_at(&store, "calls", hour).await;
    }
    let agent = accepted_row("x", "calls").agent;
    let other = AgentId::parse("other").unwrap();
    store.runs().delete_runs_of_agent_before(other, NOW.to_owned()).await.unwrap();
    assert_eq!(turns(&store, "calls").await.len(), 3);
    store.runs().delete_runs_of_agent_before(agent, "2026-11-20T03:00:00.000000Z".to_owned()).await.unwrap();
    assert_eq!(turns(&store, "calls").await.len(), 1);
    assert_eq!(store.sessions().find(session_key("calls")).await.unwrap().map(|session| session.turns), Some(1));
    assert!(store.runs().find(run_id("calls-2")).await.unwrap().is_none());
    assert!(store.runs().find(run_id("calls-3")).await.unwrap().is_some());
}

pub(crate) async fn a_session_goes_whole_with_its_entry_unless_it_was_used_meanwhile<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    use_session_at(&store, "a", 1).await;
    use_session_at(&store, "b", 2).await;
    let idle = store.sessions().list_idle(None, 100).await.unwrap();
    use_session_at(&store, "b", 3).await;
    accept_run(&store, "c-1", "c").await;
    let busy = IdleSession { key: session_key("c"), used_at: "2026-11-20T10:00:00.000000Z".into() };
    assert_eq!(
        store.sessions().delete_idle(idle[0].clone(), deletion_entry(NOW, "a")).await,
        Ok(DeleteSessionOutcome::Deleted)
    );
    assert_eq!(
        store.sessions().delete_idle(idle[1].clone(), deletion_entry(NOW, "b")).await,
        Ok(DeleteSessionOutcome::Unknown)
    );
    assert_eq!(
        store.sessions().delete_idle(busy, deletion_entry(NOW, "c")).await,
        Ok(DeleteSessionOutcome::InUse(vec![run_id("c-1")]))
    );
    assert_eq!(store.runs().find(run_id("a-1")).await, Ok(None));
    assert!(turns(&store, "a").await.is_empty());
    assert_eq!(turns(&store, "b").await.len(), 2);
    let (rows, _) = store.audit().list(0, 10).await.unwrap();
    let targets: Vec<_> = rows.iter().map(|row| row.target.as_deref().unwrap()).collect();
    assert_eq!(targets, ["a"], "only what happened");
}
