//! Webhooks that wait for delivery, in order for each URL.

use crate::StoreFuture;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedWebhook {
    pub url: String,
    pub id: String,
    pub event: String,
    pub body: String,
    /// Seconds since 1970.
    pub queued_at: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWebhook {
    /// Position in the order of delivery.
    pub number: i64,
    /// Failed attempts so far.
    pub attempts: u32,
    pub webhook: QueuedWebhook,
}

pub trait WebhookStore: Send + Sync {
    /// Adds webhooks, except those that are stored already. Keeps at most `limit` in total and deletes the oldest
    /// beyond that. Returns the number of deleted ones.
    fn save(&self, deliveries: Vec<QueuedWebhook>, limit: u32) -> StoreFuture<'_, usize>;

    /// Returns the next webhook to deliver to this URL.
    fn next(&self, url: String) -> StoreFuture<'_, Option<StoredWebhook>>;

    /// Deletes a webhook that was delivered or given up. Not synced: a deletion that is lost in a crash means a second
    /// delivery, which is allowed.
    fn delete(&self, number: i64) -> StoreFuture<'_, ()>;

    /// Not synced.
    fn count_failed_attempt(&self, number: i64) -> StoreFuture<'_, ()>;

    /// Deletes the webhooks for all URLs except these. Returns their number.
    fn delete_except(&self, urls: Vec<String>) -> StoreFuture<'_, usize>;
}
