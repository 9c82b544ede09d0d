//! Webhooks that have not been delivered yet, in the order in which they are to be.

use rusqlite::{OptionalExtension, params};

use super::{Store, StoreError};

/// A webhook to keep until it is delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Where it goes.
    pub url: String,
    /// The event's id.
    pub id: String,
    /// The event.
    pub event: String,
    /// What is sent.
    pub body: String,
    /// When it was put here, in seconds since 1970.
    pub queued_at: i64,
}

/// A webhook that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDelivery {
    /// Its place in the order.
    pub number: i64,
    /// How often it was tried without success.
    pub attempts: u32,
    /// As it was put here.
    pub delivery: Delivery,
}

impl Store {
    /// Keeps webhooks, those that are here already left out, and of all at most `most`: the oldest go first. Answers how many
    /// went.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be written; then none was.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn keep_deliveries(&self, deliveries: Vec<Delivery>, most: u32) -> Result<usize, StoreError> {
        self.write(move |db| {
            let sql = "INSERT INTO hook_outbox (url, id, event, body, queued_at) VALUES (?1, ?2, ?3, ?4, ?5)
                       ON CONFLICT (url, id) DO NOTHING";
            let mut insert = db.prepare_cached(sql)?;
            for Delivery { url, id, event, body, queued_at } in &deliveries {
                insert.execute(params![url, id, event, body, queued_at])?;
            }
            let sql = "DELETE FROM hook_outbox WHERE number IN (SELECT number FROM hook_outbox ORDER BY number LIMIT
                       max(0, (SELECT count(*) FROM hook_outbox) - ?1))";
            db.prepare_cached(sql)?.execute([most])
        })
        .await
    }

    /// The webhook that is to be delivered next to this URL.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn next_delivery(&self, url: String) -> Result<Option<StoredDelivery>, StoreError> {
        self.read(move |db| {
            let sql = "SELECT number, attempts, url, id, event, body, queued_at FROM hook_outbox WHERE url = ?1
                       ORDER BY number LIMIT 1";
            let row = |row: &rusqlite::Row<'_>| {
                let delivery = Delivery {
                    url: row.get(2)?,
                    id: row.get(3)?,
                    event: row.get(4)?,
                    body: row.get(5)?,
                    queued_at: row.get(6)?,
                };
                Ok(StoredDelivery { number: row.get(0)?, attempts: row.get(1)?, delivery })
            };
            db.prepare_cached(sql)?.query_row([url], row).optional()
        })
        .await
    }

    /// Forgets a webhook: it is delivered, or given up.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then it is still here.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn forget_delivery(&self, number: i64) -> Result<(), StoreError> {
        // What is forgotten twice is delivered twice, so the disk need not have this at once.
        self.write_relaxed(move |db| {
            db.prepare_cached("DELETE FROM hook_outbox WHERE number = ?1")?.execute([number]).map(drop)
        })
        .await
    }

    /// Counts one more try without success.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn note_failed_delivery(&self, number: i64) -> Result<(), StoreError> {
        self.write_relaxed(move |db| {
            let sql = "UPDATE hook_outbox SET attempts = attempts + 1 WHERE number = ?1";
            db.prepare_cached(sql)?.execute([number]).map(drop)
        })
        .await
    }

    /// Forgets the webhooks to all URLs but these. Answers how many that were.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then all are still here.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn keep_deliveries_to(&self, urls: Vec<String>) -> Result<usize, StoreError> {
        let urls = serde_json::to_string(&urls).unwrap_or_else(|_| "[]".to_owned());
        self.write(move |db| {
            let sql = "DELETE FROM hook_outbox WHERE url NOT IN (SELECT value FROM json_each(?1))";
            db.prepare_cached(sql)?.execute([&urls])
        })
        .await
    }
}
