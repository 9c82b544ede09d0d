//! Browser cookies, as hashes: the token that signed a browser in, and the expiry.

use super::{Store, StoreError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCookie {
    /// SHA-256 of its value, hexadecimal.
    pub sha256: String,
    /// SHA-256 of the token that signed it in, hexadecimal.
    pub token: String,
    /// Seconds since 1970.
    pub expires: i64,
}

impl Store {
    /// Stores a cookie. Of the cookies of its token, only the `limit` with the latest expiry stay.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn save_cookie(&self, cookie: StoredCookie, limit: usize) -> Result<(), StoreError> {
        let StoredCookie { sha256, token, expires } = cookie;
        let written = self.write(move |db| {
            let sql = "INSERT OR REPLACE INTO page_cookies (sha256, token, expires) VALUES (?1, ?2, ?3)";
            db.prepare_cached(sql)?.execute((&sha256, &token, expires))?;
            let sql = "DELETE FROM page_cookies WHERE token = ?1 AND sha256 NOT IN
                       (SELECT sha256 FROM page_cookies WHERE token = ?1 ORDER BY expires DESC LIMIT ?2)";
            db.prepare_cached(sql)?.execute((&token, i64::try_from(limit).unwrap_or(i64::MAX)))
        });
        written.await.map(drop)
    }

    /// # Errors
    /// [`StoreError`] when it could not be written; then the cookie is still stored.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn delete_cookie(&self, sha256: String) -> Result<(), StoreError> {
        let deleted =
            self.write(move |db| db.prepare_cached("DELETE FROM page_cookies WHERE sha256 = ?1")?.execute([&sha256]));
        deleted.await.map(drop)
    }

    /// Lists the cookies that are valid at `now` (seconds since 1970), latest expiry first.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn list_valid_cookies(&self, now: i64, limit: usize) -> Result<Vec<StoredCookie>, StoreError> {
        self.read(move |db| {
            let sql =
                "SELECT sha256, token, expires FROM page_cookies WHERE expires >= ?1 ORDER BY expires DESC LIMIT ?2";
            let row = |row: &rusqlite::Row<'_>| {
                Ok(StoredCookie { sha256: row.get(0)?, token: row.get(1)?, expires: row.get(2)? })
            };
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            db.prepare_cached(sql)?.query_map([now, limit], row)?.collect()
        })
        .await
    }

    /// Deletes the cookies that are expired at `now` (seconds since 1970).
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn delete_expired_cookies(&self, now: i64) -> Result<(), StoreError> {
        let deleted =
            self.write(move |db| db.prepare_cached("DELETE FROM page_cookies WHERE expires < ?1")?.execute([now]));
        deleted.await.map(drop)
    }
}
