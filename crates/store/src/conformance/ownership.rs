//! Owners of sessions: creation, configuration, and the receipts that outlive a session.

use serde_json::{Value, json};

use super::*;
use crate::{IdleSession, ImportOutcome, SessionSetup, SessionSetupAccess, SessionSetupOutcome, StoredOwnership};

fn principal(name: &str) -> Principal {
    Principal::parse(name).unwrap()
}

fn setup(session: &str, by: &str, agent: &str, access: SessionSetupAccess) -> SessionSetup {
    SessionSetup {
        key: session_key(session),
        agent: AgentId::parse(agent).unwrap(),
        at: "2026-11-20T10:00:00.000000Z".into(),
        config: json!({"of": by}).to_string(),
        secrets: None,
        private_endpoints: PrivateEndpoints { base_url: true, mcp_url: false },
        requested_by: principal(by),
        access,
    }
}

/// An ended run with a text and an answer.
pub(crate) async fn end_run_with(store: &Store, id: &str, session: &str, receipt: &str) {
    accept_run(store, id, session).await;
    store.runs().record_start(run_id(id), "{}".to_owned()).await.unwrap();
    let view = json!({"text": "secret", "output": "secret", "receipt": receipt}).to_string();
    store.runs().record_end(run_id(id), view, no_spend()).await.unwrap();
}

async fn stored_view(store: &Store, id: &str) -> Option<Value> {
    let row = store.runs().find(run_id(id)).await.unwrap()?;
    assert_eq!(row.state, StoredRunState::Ended);
    Some(serde_json::from_str(&row.view).unwrap())
}

pub(crate) async fn the_first_sender_owns_a_session_and_chooses_its_agent<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let sent = |by: &str, id: &str, agent: &str| RunRow {
        principal: principal(by),
        agent: AgentId::parse(agent).unwrap(),
        ..accepted_row(id, "s")
    };
    store.runs().accept(sent("ann", "a", "main")).await.unwrap();
    store.runs().accept(sent("bob", "b", "other")).await.unwrap();
    let found = find_session(&store, "s").await;
    assert_eq!((found.owner, found.agent.as_str()), (Some(principal("ann")), "main"));
    store.runs().accept(sent("ann", "c", "other")).await.unwrap();
    assert_eq!(find_session(&store, "s").await.agent.as_str(), "other");
}

pub(crate) async fn a_session_is_configured_by_its_owner_or_freely_and_stays_its_owners<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    assert_eq!(
        store.sessions().set_up(setup("s", "ann", "main", SessionSetupAccess::OwnerOnly)).await,
        Ok(SessionSetupOutcome::New)
    );
    let before = find_session(&store, "s").await;
    assert_eq!(before.private_endpoints, PrivateEndpoints { base_url: true, mcp_url: false });
    assert_eq!(
        store.sessions().set_up(setup("s", "bob", "other", SessionSetupAccess::OwnerOnly)).await,
        Ok(SessionSetupOutcome::NotOwner)
    );
    assert_eq!(find_session(&store, "s").await, before, "nothing has changed");
    assert_eq!(
        store.sessions().set_up(setup("s", "root", "other", SessionSetupAccess::Anyone)).await,
        Ok(SessionSetupOutcome::Updated)
    );
    let after = find_session(&store, "s").await;
    assert_eq!((after.owner, after.agent.as_str()), (before.owner, "other"));
    assert!(after.config.unwrap().contains("root"));
}

pub(crate) async fn a_receipt_outlives_its_session_and_nothing_takes_its_place<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    end_run_with(&store, "a", "s", "true").await;
    assert_eq!(delete_session(&store, "s", &[]).await, DeleteSessionOutcome::Deleted);
    let left = json!({"text": "", "receipt": "true"});
    assert_eq!(stored_view(&store, "a").await, Some(left.clone()));
    assert!(store.runs().list(all_runs()).await.unwrap().0.is_empty());
    // The run's id stays in use. An import does not hide the receipt, and deleting the import does not replace it.
    let again = store.runs().accept(accepted_row("a", "other")).await.unwrap();
    assert!(matches!(again, AcceptRunOutcome::Existing(row) if row.state == StoredRunState::Ended));
    let forged = RunRow {
        state: StoredRunState::Ended,
        view: json!({"receipt": "forged"}).to_string(),
        ..accepted_row("a", "s")
    };
    let mut archive = session_archive("s", vec![forged], vec![]);
    archive.session.owner = Some(principal("bob"));
    let outcome = store.archive().import(archive, "2026-11-21T00:00:00.000000Z".into()).await.unwrap();
    assert!(matches!(outcome, ImportOutcome::Imported { .. }));
    assert_eq!(stored_view(&store, "a").await, Some(left.clone()));
    assert_eq!(delete_session(&store, "s", &[]).await, DeleteSessionOutcome::Deleted);
    assert_eq!(stored_view(&store, "a").await, Some(left));
}

pub(crate) async fn retention_keeps_receipts_and_forgets_them_by_age_or_number<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for (id, name) in [("a", "one"), ("b", "two"), ("c", "three")] {
        end_run_with(&store, id, name, "true").await;
        let idle = store.sessions().list_idle(None, 10).await.unwrap().pop().unwrap();
        let entry = deletion_entry("2026-11-20T10:00:00.000000Z", name);
        let used_before = IdleSession { used_at: "2000-01-01T00:00:00.000000Z".into(), ..idle.clone() };
        assert_eq!(store.sessions().delete_idle(used_before, entry.clone()).await, Ok(DeleteSessionOutcome::Unknown));
        assert!(find_session(&store, name).await.key == session_key(name), "it was used since");
        assert_eq!(store.sessions().delete_idle(idle, entry).await, Ok(DeleteSessionOutcome::Deleted));
    }
    assert!(stored_view(&store, "a").await.is_some());
    assert_eq!(store.runs().delete_oldest_receipts(1).await, Ok(1));
    let left = [stored_view(&store, "a").await, stored_view(&store, "b").await, stored_view(&store, "c").await];
    assert_eq!(left.iter().flatten().count(), 2);
    store.runs().delete_receipts_before("2000-01-01T00:00:00.000Z".to_owned()).await.unwrap();
    assert!(stored_view(&store, "c").await.is_some(), "it is younger");
    store.runs().delete_receipts_before("9999-01-01T00:00:00.000Z".to_owned()).await.unwrap();
    assert!(stored_view(&store, "c").await.is_none());
}

/// Regression: the store in memory took the last use of the session for the time of its deletion.
pub(crate) async fn a_receipt_is_as_old_as_the_deletion_of_its_session<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for (id, name) in [("a", "s1"), ("b", "s2"), ("c", "s3")] {
        end_run_with(&store, id, name, "true").await;
    }
    // All were used in November. The clock was set back before the last deletion.
    let idle = store.sessions().list_idle(None, 1).await.unwrap().remove(0);
    let entry = deletion_entry("2026-12-02T00:00:00.000000Z", "s1");
    assert_eq!(store.sessions().delete_idle(idle, entry).await, Ok(DeleteSessionOutcome::Deleted));
    for (name, at) in [("s2", "2026-12-03T00:00:00.000000Z"), ("s3", "2026-12-01T00:00:00.000000Z")] {
        let deleted = store.sessions().delete(session_key(name), Vec::new(), at.into()).await;
        assert_eq!(deleted, Ok(DeleteSessionOutcome::Deleted));
    }
    let receipts = async || {
        let views = [stored_view(&store, "a").await, stored_view(&store, "b").await, stored_view(&store, "c").await];
        views.map(|view| view.is_some())
    };
    store.runs().delete_receipts_before("2026-12-01T00:00:00.000000Z".to_owned()).await.unwrap();
    assert_eq!(receipts().await, [true, true, true], "none is from before December");
    assert_eq!(store.runs().delete_oldest_receipts(1).await, Ok(1));
    assert_eq!(receipts().await, [true, true, false]);
    store.runs().delete_receipts_before("2026-12-02T12:00:00.000000Z".to_owned()).await.unwrap();
    assert_eq!(receipts().await, [false, true, false]);
}

pub(crate) async fn lists_show_what_is_a_principals_or_shared<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for (by, id, session) in [("ann", "a", "of-ann"), ("bob", "b", "of-bob"), ("bob", "c", "of-ann")] {
        let row = RunRow { principal: principal(by), ..accepted_row(id, session) };
        store.runs().accept(row).await.unwrap();
    }
    let seen = async |store: &Store, viewer: &str| {
        let visible_to = Some(principal(viewer));
        let sessions = SessionListFilter { visible_to: visible_to.clone(), ..all_sessions() };
        let (sessions, _) = store.sessions().list(sessions).await.unwrap();
        let (runs, _) = store.runs().list(RunListFilter { visible_to, ..all_runs() }).await.unwrap();
        let mut sessions: Vec<String> = sessions.iter().map(|session| session.key.to_string()).collect();
        sessions.sort();
        let mut runs: Vec<String> = runs.iter().map(|run| run.id.to_string()).collect();
        runs.sort();
        (sessions.join(" "), runs.join(" "))
    };
    let of = |sessions: &str, runs: &str| (sessions.to_owned(), runs.to_owned());
    assert_eq!(seen(&store, "ann").await, of("of-ann", "a c"), "what others did in her session, too");
    assert_eq!(seen(&store, "bob").await, of("of-bob", "b c"), "and what he did in the session of another");
    assert_eq!(seen(&store, "cy").await, of("", ""));
    assert_eq!(store.sessions().set_shared(session_key("of-ann"), true).await, Ok(true));
    assert_eq!(store.sessions().set_shared(session_key("unknown"), true).await, Ok(false));
    store.close().await;
    let store = home.open();
    assert_eq!(seen(&store, "cy").await, of("of-ann", "a c"));
    let mut ownership = store.sessions().list_ownership().await.unwrap();
    ownership.sort_by_key(|row| row.key.to_string());
    let row = |key: &str, owner: &str, shared| StoredOwnership {
        key: session_key(key),
        owner: Some(principal(owner)),
        shared,
    };
    assert_eq!(ownership, [row("of-ann", "ann", true), row("of-bob", "bob", false)]);
    store.sessions().set_shared(session_key("of-ann"), false).await.unwrap();
    assert_eq!(seen(&store, "cy").await, of("", ""));
}
