//! Webhooks that wait for delivery.

use rusqlite::{OptionalExtension, params};

use super::SqliteStore;
use crate::{QueuedWebhook, StoreFuture, StoredWebhook, WebhookStore};

impl WebhookStore for SqliteStore {
    fn save(&self, deliveries: Vec<QueuedWebhook>, limit: u32) -> StoreFuture<'_, usize> {
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
    }

    fn next(&self, url: String) -> StoreFuture<'_, Option<StoredWebhook>> {
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
    }

    fn delete(&self, number: i64) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            db.prepare_cached("DELETE FROM hook_outbox WHERE number = ?1")?.execute([number]).map(drop)
        })
    }

    fn count_failed_attempt(&self, number: i64) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            let sql = "UPDATE hook_outbox SET attempts = attempts + 1 WHERE number = ?1";
            db.prepare_cached(sql)?.execute([number]).map(drop)
        })
    }

    fn delete_except(&self, urls: Vec<String>) -> StoreFuture<'_, usize> {
        let urls = serde_json::to_string(&urls).unwrap_or_else(|_| "[]".to_owned());
        self.write(move |db| {
            let sql = "DELETE FROM hook_outbox WHERE url NOT IN (SELECT value FROM json_each(?1))";
            db.prepare_cached(sql)?.execute([&urls])
        })
    }
}
