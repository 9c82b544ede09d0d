//! The audit log: numbered, in order, deleted from the oldest entry on.

use quell_protocol::Surface;
use quell_protocol::audit::Action;

use super::*;
use crate::AuditEntry;

fn audit_entry(at: &str, target: &str) -> AuditEntry {
    AuditEntry {
        at: at.into(),
        principal: Principal::parse("anna").unwrap(),
        surface: Surface::Cli,
        from: Some("127.0.0.1".into()),
        action: Action::Stop,
        target: Some(target.into()),
        detail: None,
    }
}

async fn audit_targets(store: &Store, after: u64, limit: usize) -> (Vec<String>, bool) {
    let (rows, more) = store.audit().list(after, limit).await.unwrap();
    (rows.into_iter().filter_map(|row| row.target).collect(), more)
}

pub(crate) async fn entries_are_read_in_pages_from_the_oldest_on<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    store
        .audit()
        .append(vec![audit_entry("2026-01-01", "a"), audit_entry("2026-01-02", "b"), audit_entry("2026-01-03", "c")])
        .await
        .unwrap();
    assert_eq!(audit_targets(&store, 0, 2).await, (vec!["a".into(), "b".into()], true));
    assert_eq!(audit_targets(&store, 2, 2).await, (vec!["c".into()], false));
    assert_eq!(audit_targets(&store, u64::MAX, 2).await, (vec![], false));
    let (rows, _) = store.audit().list(0, 1).await.unwrap();
    let row = rows.first().unwrap();
    assert_eq!((row.seq, row.action.as_str(), row.surface), (1, "stop", Surface::Cli));
    assert_eq!((row.from.as_deref(), row.detail.as_deref()), (Some("127.0.0.1"), None));
    store.close().await;
    assert_eq!(audit_targets(&home.open(), 0, 9).await.0.len(), 3, "they outlive the daemon");
}

pub(crate) async fn origins_of_an_action_are_listed_once<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let from = |origin: Option<&str>, action| AuditEntry {
        from: origin.map(str::to_owned),
        action,
        ..audit_entry("2026-01-01", "token anna")
    };
    let entries = [
        from(Some("b"), Action::NewAddress),
        from(Some("a"), Action::NewAddress),
        from(Some("a"), Action::NewAddress),
        from(None, Action::NewAddress),
        from(Some("c"), Action::Stop),
    ];
    store.audit().append(entries.to_vec()).await.unwrap();
    let anna = Principal::parse("anna").unwrap();
    let expected = vec![(anna.clone(), "a".to_owned()), (anna, "b".to_owned())];
    assert_eq!(store.audit().list_origins(Action::NewAddress).await, Ok(expected));
}

pub(crate) async fn old_entries_are_forgotten_and_their_numbers_never_used_again<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let old = (0..2500).map(|number| audit_entry("2025-01-01", &number.to_string()));
    store.audit().append(old.chain([audit_entry("2026-01-01", "new")]).collect()).await.unwrap();
    assert_eq!(store.audit().delete_before("2024-01-01".into()).await, Ok(0));
    assert_eq!(store.audit().delete_before("2025-06-01".into()).await, Ok(2500));
    assert_eq!(audit_targets(&store, 0, 9).await, (vec!["new".into()], false));
    assert_eq!(store.audit().delete_before("2027-01-01".into()).await, Ok(1));
    store.audit().append(vec![audit_entry("2026-01-02", "next")]).await.unwrap();
    assert_eq!(store.audit().list(0, 9).await.unwrap().0[0].seq, 2502);
}
