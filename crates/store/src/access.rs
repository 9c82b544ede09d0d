//! API tokens and browser cookies, both stored as hashes.

use quell_protocol::api::{TokenRestrictions, TokenRow};

use crate::{StoreError, StoreFuture};

/// A token with the hash of its secret.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredToken {
    /// The part that people may see.
    pub row: TokenRow,
    /// SHA-256 of the secret, hexadecimal.
    pub sha256: String,
    /// SHA-256 of the secret before the last rotation. Its end is `previous_until` of the row.
    pub previous_sha256: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCookie {
    /// SHA-256 of its value, hexadecimal.
    pub sha256: String,
    /// SHA-256 of the token that signed it in, hexadecimal.
    pub token: String,
    /// Seconds since 1970.
    pub expires: i64,
    /// True if the browser was signed in by a link that only a person had.
    pub verified_person: bool,
}

pub trait AccessStore: Send + Sync {
    /// Stores a new token. Fails with [`StoreError::NameTaken`] when a token of that
    /// name exists.
    fn create_token(&self, token: StoredToken) -> StoreFuture<'_, ()>;

    /// Lists all tokens, ordered by name.
    fn list_tokens(&self) -> StoreFuture<'_, Vec<StoredToken>>;

    /// Replaces the secret and the lifetime of the token with this name. False when there is no such token, or when its
    /// secret is not the previous one of `token` any more. The scopes stay as they are.
    fn rotate_token(&self, token: StoredToken) -> StoreFuture<'_, bool>;

    /// Deletes a token and the cookies that it signed in. False when there is none of that name.
    fn revoke_token(&self, name: String) -> StoreFuture<'_, bool>;

    /// Stores a cookie. Of the cookies of its token, only the `limit` with the latest expiry stay.
    fn save_cookie(&self, cookie: StoredCookie, limit: usize) -> StoreFuture<'_, ()>;

    fn delete_cookie(&self, sha256: String) -> StoreFuture<'_, ()>;

    /// Lists the cookies that are valid at `now` (seconds since 1970), latest expiry first.
    fn list_valid_cookies(&self, now: i64, limit: usize) -> StoreFuture<'_, Vec<StoredCookie>>;

    /// Deletes the cookies that are expired at `now` (seconds since 1970).
    fn delete_expired_cookies(&self, now: i64) -> StoreFuture<'_, ()>;
}

/// The restrictions of a token as a database stores them: JSON, or nothing.
pub(crate) fn restrictions_to_json(restrictions: &TokenRestrictions) -> Option<String> {
    (!restrictions.is_empty()).then(|| serde_json::to_string(restrictions).unwrap_or_default())
}

/// A text that cannot be read is an error: the token must not lose its restrictions.
pub(crate) fn restrictions_from_json(json: Option<&str>) -> Result<TokenRestrictions, StoreError> {
    let Some(json) = json else { return Ok(TokenRestrictions::default()) };
    serde_json::from_str(json)
        .map_err(|error| StoreError::Corrupt(format!("the restrictions of a token cannot be read: {error}")))
}
