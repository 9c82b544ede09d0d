//! Amendments of receipts: written after the end of a run, and kept when the end is stored again.

use quell_protocol::{Amendment, AmendmentKind, Instant};
use serde_json::{Value, json};

use super::*;
use crate::StoreError;

fn amendment(at: &str, text: &str) -> Amendment {
    let at = Instant { at: at.to_owned(), ms: None };
    Amendment { at, resource: 3, kind: AmendmentKind::LateResult, text: text.to_owned(), leftovers: Vec::new() }
}

fn ended_view(amendments: Value) -> String {
    let requested = json!({"at": "2026-03-01T12:00:00.000000Z", "ms": 0.0});
    json!({"receipt": {"requestedAt": requested, "amendments": amendments}}).to_string()
}

async fn amendment_texts(store: &Store) -> Vec<String> {
    let row = find_run(store, "a").await;
    let view: Value = serde_json::from_str(&row.view).unwrap();
    let amendments = view["receipt"]["amendments"].as_array().cloned().unwrap_or_default();
    amendments.iter().map(|amendment| amendment["text"].as_str().unwrap().to_owned()).collect()
}

pub(crate) async fn an_amendment_is_kept_when_the_end_is_stored_again<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    store.runs().accept(accepted_row("a", "s")).await.unwrap();
    let late = || amendment("2026-03-01T12:00:03.500000Z", "late");
    assert!(matches!(store.runs().amend(run_id("a"), late()).await, Err(StoreError::NoSuchRun(_))), "it is not over");
    store.runs().record_end(run_id("a"), ended_view(json!([])), no_spend()).await.unwrap();
    let (session, written) = store.runs().amend(run_id("a"), late()).await.unwrap();
    assert_eq!((session, written.at.ms), (session_key("s"), Some(3500.0)));
    // The run in memory got another amendment, and its end is stored after the first amendment.
    let other = serde_json::to_value(amendment("2026-03-01T12:00:03.400000Z", "other")).unwrap();
    store.runs().record_end(run_id("a"), ended_view(json!([other])), no_spend()).await.unwrap();
    assert_eq!(amendment_texts(&store).await, ["other", "late"]);
    store.runs().record_end(run_id("a"), ended_view(json!([other])), no_spend()).await.unwrap();
    store.close().await;
    assert_eq!(amendment_texts(&home.open()).await, ["other", "late"]);
}

pub(crate) async fn a_receipt_that_knew_no_amendments_takes_one<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    store.runs().accept(accepted_row("a", "s")).await.unwrap();
    store.runs().record_end(run_id("a"), json!({"receipt": {}}).to_string(), no_spend()).await.unwrap();
    store.runs().amend(run_id("a"), amendment("2026-03-01T12:00:00.000000Z", "late")).await.unwrap();
    assert_eq!(amendment_texts(&store).await, ["late"]);
}
