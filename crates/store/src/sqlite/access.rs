//! API tokens and browser cookies.

use quell_protocol::api::{AccessLevel, Grants, TokenRow, TokenScope};
use rusqlite::{Row, params};

use super::SqliteStore;
use super::columns::{invalid_column, to_limit};
use crate::access::{restrictions_from_json, restrictions_to_json};
use crate::{AccessStore, StoreError, StoreFuture, StoredCookie, StoredToken};

impl AccessStore for SqliteStore {
    fn create_token(&self, token: StoredToken) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let StoredToken { row, sha256, previous_sha256 } = token;
            let name = row.name.clone();
            let inserted = self.write(move |db| {
                let sql =
                    "INSERT INTO tokens (name, scope, created_at, sha256, approve, endpoints, read_all, write_all,
                                         stop_all, expires_at, rotated_at, previous_sha256, previous_until,
                                         restrictions)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
                     ON CONFLICT (name) DO NOTHING";
                let has = |scope| row.scopes.contains(&scope);
                db.prepare_cached(sql)?.execute(params![
                    row.name,
                    TokenScope::from(row.scope).as_str(),
                    row.created_at,
                    sha256,
                    has(TokenScope::Approve),
                    has(TokenScope::Endpoints),
                    has(TokenScope::ReadAll),
                    has(TokenScope::WriteAll),
                    has(TokenScope::StopAll),
                    row.expires_at,
                    row.rotated_at,
                    previous_sha256,
                    row.previous_until,
                    restrictions_to_json(&row.restrictions)
                ])
            });
            if inserted.await? > 0 { Ok(()) } else { Err(StoreError::NameTaken(name)) }
        })
    }

    fn list_tokens(&self) -> StoreFuture<'_, Vec<StoredToken>> {
        self.read(|db| {
            let sql = "SELECT name, scope, created_at, sha256, approve, endpoints, read_all, write_all, stop_all,
                              expires_at, rotated_at, previous_sha256, previous_until, restrictions
                       FROM tokens ORDER BY name";
            db.prepare_cached(sql)?.query_map([], token_from_row)?.collect()
        })
    }

    fn rotate_token(&self, token: StoredToken) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let StoredToken { row, sha256, previous_sha256 } = &token;
            let sql = "UPDATE tokens SET sha256 = ?1, expires_at = ?2, rotated_at = ?3, previous_sha256 = ?4,
                                         previous_until = ?5
                       WHERE name = ?6 AND sha256 = ?4";
            let new = params![sha256, row.expires_at, row.rotated_at, previous_sha256, row.previous_until, row.name];
            Ok(db.prepare_cached(sql)?.execute(new)? > 0)
        })
    }

    fn revoke_token(&self, name: String) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let cookies = "DELETE FROM page_cookies WHERE token IN (SELECT sha256 FROM tokens WHERE name = ?1
                           UNION SELECT previous_sha256 FROM tokens WHERE name = ?1)";
            db.prepare_cached(cookies)?.execute([&name])?;
            Ok(db.prepare_cached("DELETE FROM tokens WHERE name = ?1")?.execute([&name])? > 0)
        })
    }

    fn save_cookie(&self, cookie: StoredCookie, limit: usize) -> StoreFuture<'_, ()> {
        let StoredCookie { sha256, token, expires, verified_person } = cookie;
        self.write(move |db| {
            let sql = "INSERT OR REPLACE INTO page_cookies (sha256, token, expires, verified_person)
                       VALUES (?1, ?2, ?3, ?4)";
            db.prepare_cached(sql)?.execute((&sha256, &token, expires, verified_person))?;
            let sql = "DELETE FROM page_cookies WHERE token = ?1 AND sha256 NOT IN
                       (SELECT sha256 FROM page_cookies WHERE token = ?1 ORDER BY expires DESC LIMIT ?2)";
            db.prepare_cached(sql)?.execute((&token, to_limit(limit))).map(drop)
        })
    }

    fn delete_cookie(&self, sha256: String) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            db.prepare_cached("DELETE FROM page_cookies WHERE sha256 = ?1")?.execute([&sha256]).map(drop)
        })
    }

    fn list_valid_cookies(&self, now: i64, limit: usize) -> StoreFuture<'_, Vec<StoredCookie>> {
        self.read(move |db| {
            let sql = "SELECT sha256, token, expires, verified_person FROM page_cookies
                       WHERE expires >= ?1 ORDER BY expires DESC LIMIT ?2";
            let row = |row: &Row<'_>| {
                let (sha256, token) = (row.get(0)?, row.get(1)?);
                Ok(StoredCookie { sha256, token, expires: row.get(2)?, verified_person: row.get(3)? })
            };
            db.prepare_cached(sql)?.query_map([now, to_limit(limit)], row)?.collect()
        })
    }

    fn delete_expired_cookies(&self, now: i64) -> StoreFuture<'_, ()> {
        self.write(move |db| db.prepare_cached("DELETE FROM page_cookies WHERE expires < ?1")?.execute([now]).map(drop))
    }
}

fn token_from_row(row: &Row<'_>) -> rusqlite::Result<StoredToken> {
    let scope: String = row.get(1)?;
    let scope = match scope.as_str() {
        "read" => AccessLevel::Read,
        "write" => AccessLevel::Write,
        "admin" => AccessLevel::Admin,
        other => return Err(invalid_column(1, format!("{other} is not a scope"))),
    };
    let grants = Grants {
        approve: row.get(4)?,
        endpoints: row.get(5)?,
        read_all: row.get(6)?,
        write_all: row.get(7)?,
        stop_all: row.get(8)?,
    };
    let restrictions: Option<String> = row.get(13)?;
    let token = TokenRow {
        name: row.get(0)?,
        scope,
        scopes: grants.to_token_scopes(scope),
        created_at: row.get(2)?,
        expires_at: row.get(9)?,
        rotated_at: row.get(10)?,
        previous_until: row.get(12)?,
        restrictions: restrictions_from_json(restrictions.as_deref())
            .map_err(|bad| invalid_column(13, bad.to_string()))?,
        usage: None,
    };
    Ok(StoredToken { row: token, sha256: row.get(3)?, previous_sha256: row.get(11)? })
}
