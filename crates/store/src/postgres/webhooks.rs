//! Webhooks that wait for delivery.

use super::PostgresStore;
use super::columns::{Text, get, text};
use super::runs::to_count;
use crate::{QueuedWebhook, StoreFuture, StoredWebhook, WebhookStore};

impl WebhookStore for PostgresStore {
    fn save(&self, deliveries: Vec<QueuedWebhook>, limit: u32) -> StoreFuture<'_, usize> {
        self.write(move |db| {
            let sql = "INSERT INTO hook_outbox (url, id, event, body, queued_at) VALUES ($1, $2, $3, $4, $5)
                       ON CONFLICT (url, id) DO NOTHING";
            for QueuedWebhook { url, id, event, body, queued_at } in &deliveries {
                db.execute(sql, &[&Text(url), &Text(id), event, &Text(body), queued_at])?;
            }
            let sql = "DELETE FROM hook_outbox WHERE number <=
                       (SELECT number FROM hook_outbox ORDER BY number DESC OFFSET $1 LIMIT 1)";
            db.execute(sql, &[&i64::from(limit)]).map(to_count)
        })
    }

    fn next(&self, url: String) -> StoreFuture<'_, Option<StoredWebhook>> {
        self.read(move |db| {
            let sql = "SELECT number, attempts, url, id, event, body, queued_at FROM hook_outbox WHERE url = $1
                       ORDER BY number LIMIT 1";
            let Some(row) = db.query_optional(sql, &[&Text(&url)])? else { return Ok(None) };
            let webhook = QueuedWebhook {
                url: text(&row, 2)?,
                id: text(&row, 3)?,
                event: get(&row, 4)?,
                body: text(&row, 5)?,
                queued_at: get(&row, 6)?,
            };
            let attempts = u32::try_from(get::<i64>(&row, 1)?).unwrap_or(u32::MAX);
            Ok(Some(StoredWebhook { number: get(&row, 0)?, attempts, webhook }))
        })
    }

    fn delete(&self, number: i64) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| db.execute("DELETE FROM hook_outbox WHERE number = $1", &[&number]).map(drop))
    }

    fn count_failed_attempt(&self, number: i64) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            db.execute("UPDATE hook_outbox SET attempts = attempts + 1 WHERE number = $1", &[&number]).map(drop)
        })
    }

    fn delete_except(&self, urls: Vec<String>) -> StoreFuture<'_, usize> {
        self.write(move |db| {
            let urls: Vec<Text<'_>> = urls.iter().map(|url| Text(url)).collect();
            db.execute("DELETE FROM hook_outbox WHERE url <> ALL ($1)", &[&urls]).map(to_count)
        })
    }
}
