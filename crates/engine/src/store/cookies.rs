//! The cookies of the page, as hashes: which token signed a browser in, and until when.

use super::{Store, StoreError};

/// A cookie as it is kept.
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
    /// Keeps a cookie, and of its token's those `most` that end last.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn keep_cookie(&self, cookie: StoredCookie, most: usize) -> Result<(), StoreError> {
        let StoredCookie { sha256, token, expires } = cookie;
        let written = self.write(move |db| {
            let sql = "INSERT OR REPLACE INTO page_cookies (sha256, token, expires) VALUES (?1, ?2, ?3)";
            db.prepare_cached(sql)?.execute((&sha256, &token, expires))?;
            let sql = "DELETE FROM page_cookies WHERE token = ?1 AND sha256 NOT IN
                       (SELECT sha256 FROM page_cookies WHERE token = ?1 ORDER BY expires DESC LIMIT ?2)";
            db.prepare_cached(sql)?.execute((&token, i64::try_from(most).unwrap_or(i64::MAX)))
        });
        written.await.map(drop)
    }

    /// Forgets a cookie.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then it is still there.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn drop_cookie(&self, sha256: String) -> Result<(), StoreError> {
        let dropped =
            self.write(move |db| db.prepare_cached("DELETE FROM page_cookies WHERE sha256 = ?1")?.execute([&sha256]));
        dropped.await.map(drop)
    }

    /// The cookies that are good at `now` (seconds since 1970), those that end last first.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn good_cookies(&self, now: i64, most: usize) -> Result<Vec<StoredCookie>, StoreError> {
        self.read(move |db| {
            let sql =
                "SELECT sha256, token, expires FROM page_cookies WHERE expires >= ?1 ORDER BY expires DESC LIMIT ?2";
            let row = |row: &rusqlite::Row<'_>| {
                Ok(StoredCookie { sha256: row.get(0)?, token: row.get(1)?, expires: row.get(2)? })
            };
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            db.prepare_cached(sql)?.query_map([now, most], row)?.collect()
        })
        .await
    }

    /// Forgets the cookies that are not good at `now` any more.
    ///
    /// # Errors
    /// [`StoreError`] when that could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn drop_old_cookies(&self, now: i64) -> Result<(), StoreError> {
        let dropped =
            self.write(move |db| db.prepare_cached("DELETE FROM page_cookies WHERE expires < ?1")?.execute([now]));
        dropped.await.map(drop)
    }
}
