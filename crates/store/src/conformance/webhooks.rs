//! Stored webhooks: ordered, once for each receiver, limited in number.

use super::*;
use crate::QueuedWebhook;

const A: &str = "http://a/";
const B: &str = "http://b/";

fn webhook(url: &str, id: &str) -> QueuedWebhook {
    QueuedWebhook {
        url: url.to_owned(),
        id: id.to_owned(),
        event: "on_run_end".to_owned(),
        body: format!("body of {id}"),
        queued_at: 1_700_000_000,
    }
}

async fn save_webhook(store: &Store, url: &str, id: &str) -> usize {
    store.webhooks().save(vec![webhook(url, id)], 100).await.unwrap()
}

/// Deletes the webhooks of a URL one after the other. Returns their ids, in order.
async fn drain_ids(store: &Store, url: &str) -> Vec<String> {
    let mut ids = Vec::new();
    while let Some(stored) = store.webhooks().next(url.to_owned()).await.unwrap() {
        store.webhooks().delete(stored.number).await.unwrap();
        ids.push(stored.webhook.id);
    }
    ids
}

pub(crate) async fn webhooks_keep_their_order_for_each_url_and_survive_a_restart<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    store.webhooks().save(vec![webhook(A, "1"), webhook(B, "1")], 100).await.unwrap();
    save_webhook(&store, A, "2").await;
    store.close().await;
    let store = home.open();
    save_webhook(&store, A, "3").await;
    let first = store.webhooks().next(A.to_owned()).await.unwrap().unwrap();
    assert_eq!((first.attempts, first.webhook), (0, webhook(A, "1")));
    assert_eq!(drain_ids(&store, A).await, ["1", "2", "3"]);
    assert_eq!(drain_ids(&store, B).await, ["1"]);
}

pub(crate) async fn an_event_waits_for_one_receiver_once<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for _ in 0..2 {
        save_webhook(&store, A, "1").await;
    }
    save_webhook(&store, B, "1").await;
    assert_eq!((drain_ids(&store, A).await.len(), drain_ids(&store, B).await.len()), (1, 1));
}

pub(crate) async fn a_try_without_success_is_counted_and_changes_no_order<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    save_webhook(&store, A, "1").await;
    save_webhook(&store, A, "2").await;
    let first = store.webhooks().next(A.to_owned()).await.unwrap().unwrap();
    store.webhooks().count_failed_attempt(first.number).await.unwrap();
    let again = store.webhooks().next(A.to_owned()).await.unwrap().unwrap();
    assert_eq!((again.webhook.id.as_str(), again.attempts), ("1", 1));
}

pub(crate) async fn of_too_many_the_oldest_go_and_are_counted<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for number in 0..5 {
        assert_eq!(store.webhooks().save(vec![webhook(A, &number.to_string())], 5).await.unwrap(), 0);
    }
    let more = (5..8).map(|number| webhook(B, &number.to_string())).collect();
    assert_eq!(store.webhooks().save(more, 5).await.unwrap(), 3);
    assert_eq!(drain_ids(&store, A).await, ["3", "4"]);
    assert_eq!(drain_ids(&store, B).await, ["5", "6", "7"]);
}

pub(crate) async fn webhooks_for_other_urls_are_deleted<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    save_webhook(&store, A, "1").await;
    save_webhook(&store, B, "1").await;
    assert_eq!(store.webhooks().delete_except(vec![B.to_owned(), "http://c/\"x".to_owned()]).await.unwrap(), 1);
    assert_eq!((drain_ids(&store, A).await.len(), drain_ids(&store, B).await.len()), (0, 1));
    save_webhook(&store, B, "2").await;
    assert_eq!(store.webhooks().delete_except(Vec::new()).await.unwrap(), 1);
}
