//! Webhooks that wait for delivery, in order for each URL.

use rusqlite::{OptionalExtension, params};

use super::{Store, StoreError};

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

impl Store {
    /// Adds webhooks, except those that are stored already. Keeps at most `limit` in total and deletes the oldest
    /// beyond that. Returns the number of deleted ones.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be written; then none is.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn save_webhooks(&self, deliveries: Vec<QueuedWebhook>, limit: u32) -> Result<usize, StoreError> {
        self.write(move |db| {
            let sql = "INSERT INTO hook_outbox (url, id, event, body, queued_at) VALUES (?1, ?2, ?3, ?4, ?5)
                       ON CONFLICT (url, id) DO NOTHING";
            let mut insert = db.prepare_cached(sql)?;
            for QueuedWebhook { url, id, event, body, queued_at } in &deliveries {
                insert.execute(params![url, id, event, body, queued_at])?;
            }
            let sql = "DELETE FROM hook_outbox WHERE number IN (SELECT number FROM hook_outbox ORDER BY number LIMIT
                       max(0, (SELECT count(*) FROM hook_outbox) - ?1))";
            db.prepare_cached(sql)?.execute([limit])
        })
        .await
    }

    /// Returns the next webhook to deliver to this URL.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn next_webhook(&self, url: String) -> Result<Option<StoredWebhook>, StoreError> {
        self.read(move |db| {
            let sql = "SELECT number, attempts, url, id, event, body, queued_at FROM hook_outbox WHERE url = ?1
                       ORDER BY number LIMIT 1";
            let row = |row: &rusqlite::Row<'_>| {
                let delivery = QueuedWebhook {
                    url: row.get(2)?,
                    id: row.get(3)?,
                    event: row.get(4)?,
                    body: row.get(5)?,
                    queued_at: row.get(6)?,
                };
                Ok(StoredWebhook { number: row.get(0)?, attempts: row.get(1)?, webhook: delivery })
            };
            db.prepare_cached(sql)?.query_row([url], row).optional()
        })
        .await
    }

    /// Deletes a webhook that was delivered or given up.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then it is still stored.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn delete_webhook(&self, number: i64) -> Result<(), StoreError> {
        // A deletion that is lost in a crash means a second delivery, which is allowed. So no sync is needed.
        self.write_relaxed(move |db| {
            db.prepare_cached("DELETE FROM hook_outbox WHERE number = ?1")?.execute([number]).map(drop)
        })
        .await
    }

    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn count_failed_attempt(&self, number: i64) -> Result<(), StoreError> {
        self.write_relaxed(move |db| {
            let sql = "UPDATE hook_outbox SET attempts = attempts + 1 WHERE number = ?1";
            db.prepare_cached(sql)?.execute([number]).map(drop)
        })
        .await
    }

    /// Deletes the webhooks for all URLs except these. Returns their number.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then all are still stored.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn delete_webhooks_except(&self, urls: Vec<String>) -> Result<usize, StoreError> {
        let urls = serde_json::to_string(&urls).unwrap_or_else(|_| "[]".to_owned());
        self.write(move |db| {
            let sql = "DELETE FROM hook_outbox WHERE url NOT IN (SELECT value FROM json_each(?1))";
            db.prepare_cached(sql)?.execute([&urls])
        })
        .await
    }
}
