//! Who began a session, who may change it, and what is left of its runs when it is gone.

use serde_json::{Value, json};

use super::super::{
    Archive, AuditEntry, Deleted, Imported, PrivateEndpoints, SessionSetup, SetUp, SetUpAccess, StoredSession,
};
use super::*;

fn principal(name: &str) -> Principal {
    Principal::parse(name).unwrap()
}

fn setup(session: &str, by: &str, agent: &str, access: SetUpAccess) -> SessionSetup {
    SessionSetup {
        key: key(session),
        agent: AgentId::parse(agent).unwrap(),
        at: "2026-11-20T10:00:00.000000Z".into(),
        config: json!({"of": by}).to_string(),
        secrets: None,
        private: PrivateEndpoints { base_url: true, mcp_url: false },
        by: principal(by),
        access,
    }
}

async fn session(store: &Store, name: &str) -> StoredSession {
    store.session(key(name)).await.unwrap().unwrap()
}

/// A run that is over, with a text and an answer.
async fn over(store: &Store, id: &str, session: &str, receipt: &str) {
    accept(store, id, session).await;
    store.start_run(run_id(id), "{}".to_owned()).await.unwrap();
    let view = json!({"text": "secret", "output": "secret", "receipt": receipt}).to_string();
    store.end_run(run_id(id), view, nothing()).await.unwrap();
}

async fn kept(store: &Store, id: &str) -> Option<Value> {
    let row = store.run(run_id(id)).await.unwrap()?;
    assert_eq!(row.state, StoredState::Ended);
    Some(serde_json::from_str(&row.view).unwrap())
}

#[tokio::test]
async fn who_begins_a_session_owns_it_and_chooses_its_agent() {
    let (store, _home) = fresh();
    let sent = |by: &str, id: &str, agent: &str| RunRow {
        principal: principal(by),
        agent: AgentId::parse(agent).unwrap(),
        ..row(id, "s")
    };
    store.accept_run(sent("ann", "a", "main")).await.unwrap();
    store.accept_run(sent("bob", "b", "other")).await.unwrap();
    let found = session(&store, "s").await;
    assert_eq!((found.owner, found.agent.as_str()), (Some(principal("ann")), "main"));
    store.accept_run(sent("ann", "c", "other")).await.unwrap();
    assert_eq!(session(&store, "s").await.agent.as_str(), "other");
}

#[tokio::test]
async fn a_session_is_configured_by_its_owner_or_freely_and_stays_its_owners() {
    let (store, _home) = fresh();
    assert_eq!(store.set_up_session(setup("s", "ann", "main", SetUpAccess::OwnerOnly)).await, Ok(SetUp::New));
    let before = session(&store, "s").await;
    assert_eq!(before.private, PrivateEndpoints { base_url: true, mcp_url: false });
    assert_eq!(store.set_up_session(setup("s", "bob", "other", SetUpAccess::OwnerOnly)).await, Ok(SetUp::NotYours));
    assert_eq!(session(&store, "s").await, before, "nothing has changed");
    assert_eq!(store.set_up_session(setup("s", "root", "other", SetUpAccess::Anyone)).await, Ok(SetUp::Known));
    let after = session(&store, "s").await;
    assert_eq!((after.owner, after.agent.as_str()), (before.owner, "other"));
    assert!(after.config.unwrap().contains("root"));
}

#[tokio::test]
async fn a_receipt_outlives_its_session_and_nothing_takes_its_place() {
    let (store, _home) = fresh();
    over(&store, "a", "s", "true").await;
    assert_eq!(store.delete_session(key("s"), Vec::new()).await, Ok(Deleted::Yes));
    let left = json!({"text": "", "receipt": "true"});
    assert_eq!(kept(&store, "a").await, Some(left.clone()));
    assert!(store.runs(all_runs()).await.unwrap().0.is_empty());
    // Its id stays taken, an import does not hide it, and the import's deletion does not replace it.
    let again = store.accept_run(row("a", "other")).await.unwrap();
    assert!(matches!(again, AcceptedRow::Existing(row) if row.state == StoredState::Ended));
    let forged = RunRow { state: StoredState::Ended, view: json!({"receipt": "forged"}).to_string(), ..row("a", "s") };
    let head = StoredSession {
        key: key("s"),
        agent: AgentId::parse("main").unwrap(),
        created_at: "2020-01-01T00:00:00.000000Z".into(),
        last_used_at: "2020-01-01T00:00:00.000000Z".into(),
        turns: 0,
        config: None,
        secrets: None,
        private: PrivateEndpoints::default(),
        owner: Some(principal("bob")),
        imported_at: None,
    };
    let archive = Archive { session: head, runs: vec![forged], past: Vec::new(), notes: Vec::new() };
    let came = store.import_session(archive, "2026-11-21T00:00:00.000000Z".into()).await.unwrap();
    assert!(matches!(came, Imported::Yes { .. }));
    assert_eq!(kept(&store, "a").await, Some(left.clone()));
    assert_eq!(store.delete_session(key("s"), Vec::new()).await, Ok(Deleted::Yes));
    assert_eq!(kept(&store, "a").await, Some(left));
}

#[tokio::test]
async fn retention_keeps_receipts_and_forgets_them_by_age_or_number() {
    let (store, _home) = fresh();
    for (id, name) in [("a", "one"), ("b", "two"), ("c", "three")] {
        over(&store, id, name, "true").await;
        let idle = store.idle_sessions(None, 10).await.unwrap().pop().unwrap();
        let entry = AuditEntry {
            at: "2026-11-20T10:00:00.000000Z".into(),
            principal: principal("quell"),
            surface: quell_protocol::Surface::Daemon,
            from: None,
            action: quell_protocol::audit::Action::DeleteSession,
            target: None,
            detail: None,
        };
        let used_before = super::super::Idle { used_at: "2000-01-01T00:00:00.000000Z".into(), ..idle.clone() };
        assert_eq!(store.retire_session(used_before, entry.clone()).await, Ok(Deleted::Unknown));
        assert!(session(&store, name).await.key == key(name), "it was used since");
        assert_eq!(store.retire_session(idle, entry).await, Ok(Deleted::Yes));
    }
    assert!(kept(&store, "a").await.is_some());
    assert_eq!(store.forget_oldest_receipts(1).await, Ok(1));
    let left = [kept(&store, "a").await, kept(&store, "b").await, kept(&store, "c").await];
    assert_eq!(left.iter().flatten().count(), 2);
    store.forget_receipts("2000-01-01T00:00:00.000Z".to_owned()).await.unwrap();
    assert!(kept(&store, "c").await.is_some(), "it is younger");
    store.forget_receipts("9999-01-01T00:00:00.000Z".to_owned()).await.unwrap();
    assert!(kept(&store, "c").await.is_none());
}
