//! Amendments of receipts: written after the end, and kept whatever is stored again.

use quell_protocol::{Amendment, AmendmentKind, Instant};
use serde_json::{Value, json};

use super::*;
use crate::store::StoreError;

fn amendment(at: &str, text: &str) -> Amendment {
    let at = Instant { at: at.to_owned(), ms: None };
    Amendment { at, resource: 3, kind: AmendmentKind::LateResult, text: text.to_owned(), leftovers: Vec::new() }
}

fn view(amendments: Value) -> String {
    let requested = json!({"at": "2026-03-01T12:00:00.000000Z", "ms": 0.0});
    json!({"receipt": {"requestedAt": requested, "amendments": amendments}}).to_string()
}

async fn texts(store: &Store) -> Vec<String> {
    let row = store.run(run_id("a")).await.unwrap().unwrap();
    let view: Value = serde_json::from_str(&row.view).unwrap();
    let amendments = view["receipt"]["amendments"].as_array().cloned().unwrap_or_default();
    amendments.iter().map(|amendment| amendment["text"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_amendment_is_kept_when_the_end_is_stored_again() {
    let (store, home) = fresh();
    store.accept_run(row("a", "s")).await.unwrap();
    let late = || amendment("2026-03-01T12:00:03.500000Z", "late");
    assert!(matches!(store.amend_run(run_id("a"), late()).await, Err(StoreError::NoSuchRun(_))), "it is not over");
    store.end_run(run_id("a"), view(json!([])), nothing()).await.unwrap();
    let (session, written) = store.amend_run(run_id("a"), late()).await.unwrap();
    assert_eq!((session, written.at.ms), (key("s"), Some(3500.0)));
    // Another one had come to the run in memory, whose end was stored behind this one.
    let other = serde_json::to_value(amendment("2026-03-01T12:00:03.400000Z", "other")).unwrap();
    store.end_run(run_id("a"), view(json!([other])), nothing()).await.unwrap();
    assert_eq!(texts(&store).await, ["other", "late"]);
    store.end_run(run_id("a"), view(json!([other])), nothing()).await.unwrap();
    store.close().await;
    assert_eq!(texts(&open(&home)).await, ["other", "late"]);
}

#[tokio::test]
async fn a_receipt_that_knew_no_amendments_takes_one() {
    let (store, _home) = fresh();
    store.accept_run(row("a", "s")).await.unwrap();
    store.end_run(run_id("a"), json!({"receipt": {}}).to_string(), nothing()).await.unwrap();
    store.amend_run(run_id("a"), amendment("2026-03-01T12:00:00.000000Z", "late")).await.unwrap();
    assert_eq!(texts(&store).await, ["late"]);
}
