//! Named API tokens, stored as hashes.

use quell_protocol::api::{AccessLevel, Grants, TokenRow, TokenScope};
use rusqlite::{OptionalExtension, Row, params};

use super::runs::invalid_column;
use super::{Store, StoreError, StoredToken};

impl Store {
    /// Stores a new token. `sha256` is the hash of its secret, hexadecimal.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`] when a token of that name exists.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn create_token(&self, row: TokenRow, sha256: String) -> Result<(), StoreError> {
        let name = row.name.clone();
        let inserted = self.write(move |db| {
            let sql = "INSERT INTO tokens (name, scope, created_at, sha256, approve, endpoints)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (name) DO NOTHING";
            let has = |scope| row.scopes.contains(&scope);
            let (approve, endpoints) = (has(TokenScope::Approve), has(TokenScope::Endpoints));
            let (scope, at) = (TokenScope::from(row.scope).as_str(), &row.created_at);
            db.prepare_cached(sql)?.execute(params![row.name, scope, at, sha256, approve, endpoints])
        });
        if inserted.await? > 0 { Ok(()) } else { Err(StoreError::NameTaken(name)) }
    }

    /// Lists all tokens, ordered by name.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn list_tokens(&self) -> Result<Vec<StoredToken>, StoreError> {
        self.read(|db| {
            let sql = "SELECT name, scope, created_at, sha256, approve, endpoints FROM tokens ORDER BY name";
            db.prepare_cached(sql)?.query_map([], token_from_row)?.collect()
        })
        .await
    }

    /// Finds the token whose secret has this hash (SHA-256, hexadecimal).
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn find_token(&self, sha256: String) -> Result<Option<TokenRow>, StoreError> {
        self.read(move |db| {
            let sql = "SELECT name, scope, created_at, sha256, approve, endpoints FROM tokens WHERE sha256 = ?1";
            db.prepare_cached(sql)?.query_row([sha256], |row| token_from_row(row).map(|token| token.row)).optional()
        })
        .await
    }

    /// Deletes a token and the cookies that it signed in. False when there is none of that name.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then the token is still valid.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn revoke_token(&self, name: String) -> Result<bool, StoreError> {
        self.write(move |db| {
            let cookies = "DELETE FROM page_cookies WHERE token = (SELECT sha256 FROM tokens WHERE name = ?1)";
            db.prepare_cached(cookies)?.execute([&name])?;
            Ok(db.prepare_cached("DELETE FROM tokens WHERE name = ?1")?.execute([&name])? > 0)
        })
        .await
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
    let grants = Grants { approve: row.get(4)?, endpoints: row.get(5)? };
    let token = TokenRow { name: row.get(0)?, scope, scopes: grants.to_token_scopes(scope), created_at: row.get(2)? };
    Ok(StoredToken { row: token, sha256: row.get(3)? })
}
