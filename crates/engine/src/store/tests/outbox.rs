//! Webhooks that wait: in order, once for each receiver, not without end.

use super::*;
use crate::store::Delivery;

const A: &str = "http://a/";
const B: &str = "http://b/";

fn delivery(url: &str, id: &str) -> Delivery {
    Delivery {
        url: url.to_owned(),
        id: id.to_owned(),
        event: "on_run_end".to_owned(),
        body: format!("body of {id}"),
        queued_at: 1_700_000_000,
    }
}

async fn keep(store: &Store, url: &str, id: &str) -> usize {
    store.keep_deliveries(vec![delivery(url, id)], 100).await.unwrap()
}

/// The ids to a URL in their order. Empties it.
async fn ids(store: &Store, url: &str) -> Vec<String> {
    let mut ids = Vec::new();
    while let Some(stored) = store.next_delivery(url.to_owned()).await.unwrap() {
        store.forget_delivery(stored.number).await.unwrap();
        ids.push(stored.delivery.id);
    }
    ids
}

#[tokio::test]
async fn webhooks_keep_their_order_for_each_url_and_survive_a_restart() {
    let (store, home) = fresh();
    store.keep_deliveries(vec![delivery(A, "1"), delivery(B, "1")], 100).await.unwrap();
    keep(&store, A, "2").await;
    store.close().await;
    let store = open(&home);
    keep(&store, A, "3").await;
    let first = store.next_delivery(A.to_owned()).await.unwrap().unwrap();
    assert_eq!((first.attempts, first.delivery), (0, delivery(A, "1")));
    assert_eq!(ids(&store, A).await, ["1", "2", "3"]);
    assert_eq!(ids(&store, B).await, ["1"]);
}

#[tokio::test]
async fn an_event_waits_for_one_receiver_once() {
    let (store, _home) = fresh();
    for _ in 0..2 {
        keep(&store, A, "1").await;
    }
    keep(&store, B, "1").await;
    assert_eq!((ids(&store, A).await.len(), ids(&store, B).await.len()), (1, 1));
}

#[tokio::test]
async fn a_try_without_success_is_counted_and_changes_no_order() {
    let (store, _home) = fresh();
    keep(&store, A, "1").await;
    keep(&store, A, "2").await;
    let first = store.next_delivery(A.to_owned()).await.unwrap().unwrap();
    store.note_failed_delivery(first.number).await.unwrap();
    let again = store.next_delivery(A.to_owned()).await.unwrap().unwrap();
    assert_eq!((again.delivery.id.as_str(), again.attempts), ("1", 1));
}

#[tokio::test]
async fn of_too_many_the_oldest_go_and_are_counted() {
    let (store, _home) = fresh();
    for number in 0..5 {
        assert_eq!(store.keep_deliveries(vec![delivery(A, &number.to_string())], 5).await.unwrap(), 0);
    }
    let more = (5..8).map(|number| delivery(B, &number.to_string())).collect();
    assert_eq!(store.keep_deliveries(more, 5).await.unwrap(), 3);
    assert_eq!(ids(&store, A).await, ["3", "4"]);
    assert_eq!(ids(&store, B).await, ["5", "6", "7"]);
}

#[tokio::test]
async fn what_waits_for_other_urls_goes() {
    let (store, _home) = fresh();
    keep(&store, A, "1").await;
    keep(&store, B, "1").await;
    assert_eq!(store.keep_deliveries_to(vec![B.to_owned(), "http://c/\"x".to_owned()]).await.unwrap(), 1);
    assert_eq!((ids(&store, A).await.len(), ids(&store, B).await.len()), (0, 1));
    keep(&store, B, "2").await;
    assert_eq!(store.keep_deliveries_to(Vec::new()).await.unwrap(), 1);
}
