//! API tokens and browser cookies.

use quell_protocol::api::{AccessLevel, Grants, TokenRow, TokenScope};
use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::{Text, get, invalid_column, text, to_limit};
use crate::access::{restrictions_from_json, restrictions_to_json};
use crate::{AccessStore, StoreError, StoreFuture, StoredCookie, StoredToken};

impl AccessStore for PostgresStore {
    fn create_token(&self, token: StoredToken) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let StoredToken { row, sha256, previous_sha256 } = token;
            let name = row.name.clone();
            let inserted = self.write(move |db| {
                let sql =
                    "INSERT INTO tokens (name, scope, created_at, sha256, approve, endpoints, read_all, write_all,
                                         stop_all, expires_at, rotated_at, previous_sha256, previous_until,
                                         restrictions)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
                     ON CONFLICT (name) DO NOTHING";
                let has = |scope| row.scopes.contains(&scope);
                db.execute(
                    sql,
                    &[
                        &Text(&row.name),
                        &TokenScope::from(row.scope).as_str(),
                        &row.created_at,
                        &sha256,
                        &has(TokenScope::Approve),
                        &has(TokenScope::Endpoints),
                        &has(TokenScope::ReadAll),
                        &has(TokenScope::WriteAll),
                        &has(TokenScope::StopAll),
                        &row.expires_at,
                        &row.rotated_at,
                        &previous_sha256,
                        &row.previous_until,
                        &restrictions_to_json(&row.restrictions),
                    ],
                )
            });
            if inserted.await? > 0 { Ok(()) } else { Err(StoreError::NameTaken(name)) }
        })
    }

    fn list_tokens(&self) -> StoreFuture<'_, Vec<StoredToken>> {
        self.read(|db| {
            let sql = "SELECT name, scope, created_at, sha256, approve, endpoints, read_all, write_all, stop_all,
                              expires_at, rotated_at, previous_sha256, previous_until, restrictions
                       FROM tokens ORDER BY name";
            db.query(sql, &[])?.iter().map(token_from_row).collect()
        })
    }

    fn rotate_token(&self, token: StoredToken) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let StoredToken { row, sha256, previous_sha256 } = &token;
            let sql = "UPDATE tokens SET sha256 = $1, expires_at = $2, rotated_at = $3, previous_sha256 = $4,
                                         previous_until = $5
                       WHERE name = $6 AND sha256 = $4";
            let changed = db.execute(
                sql,
                &[sha256, &row.expires_at, &row.rotated_at, previous_sha256, &row.previous_until, &Text(&row.name)],
            );
            Ok(changed? > 0)
        })
    }

    fn revoke_token(&self, name: String) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let cookies = "DELETE FROM page_cookies WHERE token IN (SELECT sha256 FROM tokens WHERE name = $1
                           UNION SELECT previous_sha256 FROM tokens WHERE name = $1)";
            db.execute(cookies, &[&Text(&name)])?;
            Ok(db.execute("DELETE FROM tokens WHERE name = $1", &[&Text(&name)])? > 0)
        })
    }

    fn save_cookie(&self, cookie: StoredCookie, limit: usize) -> StoreFuture<'_, ()> {
        let StoredCookie { sha256, token, expires, verified_person } = cookie;
        self.write(move |db| {
            let sql = "INSERT INTO page_cookies (sha256, token, expires, verified_person) VALUES ($1, $2, $3, $4)
                       ON CONFLICT (sha256) DO UPDATE SET
                           token = excluded.token, expires = excluded.expires,
                           verified_person = excluded.verified_person";
            db.execute(sql, &[&sha256, &token, &expires, &verified_person])?;
            let sql = "DELETE FROM page_cookies WHERE token = $1 AND sha256 NOT IN
                       (SELECT sha256 FROM page_cookies WHERE token = $1 ORDER BY expires DESC LIMIT $2)";
            db.execute(sql, &[&token, &to_limit(limit)]).map(drop)
        })
    }

    fn delete_cookie(&self, sha256: String) -> StoreFuture<'_, ()> {
        self.write(move |db| db.execute("DELETE FROM page_cookies WHERE sha256 = $1", &[&sha256]).map(drop))
    }

    fn list_valid_cookies(&self, now: i64, limit: usize) -> StoreFuture<'_, Vec<StoredCookie>> {
        self.read(move |db| {
            let sql = "SELECT sha256, token, expires, verified_person FROM page_cookies
                       WHERE expires >= $1 ORDER BY expires DESC LIMIT $2";
            let cookie = |row: &Row| {
                let (sha256, token) = (get(row, 0)?, get(row, 1)?);
                Ok(StoredCookie { sha256, token, expires: get(row, 2)?, verified_person: get(row, 3)? })
            };
            db.query(sql, &[&now, &to_limit(limit)])?.iter().map(cookie).collect()
        })
    }

    fn delete_expired_cookies(&self, now: i64) -> StoreFuture<'_, ()> {
        self.write(move |db| db.execute("DELETE FROM page_cookies WHERE expires < $1", &[&now]).map(drop))
    }
}

fn token_from_row(row: &Row) -> Result<StoredToken, StoreError> {
    let scope = match get::<&str>(row, 1)? {
        "read" => AccessLevel::Read,
        "write" => AccessLevel::Write,
        "admin" => AccessLevel::Admin,
        other => return Err(invalid_column(format!("{other} is not a scope"))),
    };
    let grants = Grants {
        approve: get(row, 4)?,
        endpoints: get(row, 5)?,
        read_all: get(row, 6)?,
        write_all: get(row, 7)?,
        stop_all: get(row, 8)?,
    };
    let token = TokenRow {
        name: text(row, 0)?,
        scope,
        scopes: grants.to_token_scopes(scope),
        created_at: get(row, 2)?,
        expires_at: get(row, 9)?,
        rotated_at: get(row, 10)?,
        previous_until: get(row, 12)?,
        restrictions: restrictions_from_json(get(row, 13)?)?,
        usage: None,
    };
    Ok(StoredToken { row: token, sha256: get(row, 3)?, previous_sha256: get(row, 11)? })
}
