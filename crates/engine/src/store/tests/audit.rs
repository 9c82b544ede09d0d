//! The list of who did what: numbered, in order, and forgotten from its beginning.

use quell_protocol::Surface;
use quell_protocol::audit::Action;

use super::super::AuditEntry;
use super::*;

fn entry(at: &str, target: &str) -> AuditEntry {
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

async fn targets(store: &Store, after: u64, limit: usize) -> (Vec<String>, bool) {
    let (rows, more) = store.audit(after, limit).await.unwrap();
    (rows.into_iter().filter_map(|row| row.target).collect(), more)
}

#[tokio::test]
async fn entries_are_read_in_pages_from_the_oldest_on() {
    let (store, home) = fresh();
    store
        .append_audit(vec![entry("2026-01-01", "a"), entry("2026-01-02", "b"), entry("2026-01-03", "c")])
        .await
        .unwrap();
    assert_eq!(targets(&store, 0, 2).await, (vec!["a".into(), "b".into()], true));
    assert_eq!(targets(&store, 2, 2).await, (vec!["c".into()], false));
    assert_eq!(targets(&store, u64::MAX, 2).await, (vec![], false));
    let (rows, _) = store.audit(0, 1).await.unwrap();
    let row = rows.first().unwrap();
    assert_eq!((row.seq, row.action.as_str(), row.surface), (1, "stop", Surface::Cli));
    assert_eq!((row.from.as_deref(), row.detail.as_deref()), (Some("127.0.0.1"), None));
    store.close().await;
    assert_eq!(targets(&open(&home), 0, 9).await.0.len(), 3, "they outlive the daemon");
}

#[tokio::test]
async fn old_entries_are_forgotten_and_their_numbers_never_used_again() {
    let (store, _home) = fresh();
    let old = (0..2500).map(|number| entry("2025-01-01", &number.to_string()));
    store.append_audit(old.chain([entry("2026-01-01", "new")]).collect()).await.unwrap();
    assert_eq!(store.forget_audit("2024-01-01".into()).await, Ok(0));
    assert_eq!(store.forget_audit("2025-06-01".into()).await, Ok(2500));
    assert_eq!(targets(&store, 0, 9).await, (vec!["new".into()], false));
    assert_eq!(store.forget_audit("2027-01-01".into()).await, Ok(1));
    store.append_audit(vec![entry("2026-01-02", "next")]).await.unwrap();
    assert_eq!(store.audit(0, 9).await.unwrap().0[0].seq, 2502);
}
