//! Access control: the admin token of the data directory, named tokens, and the page's sign-in links and cookies.
//!
//! Checks are synchronous and read no disk, so that a stop works even if the database does not. Secrets are stored as
//! SHA-256 only; with 256 random bits they need no slow hash.

mod browser_logins;
mod origin;
mod secret;
mod sign_in;
#[cfg(test)]
mod tests;
mod token_file;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quell_kernel::StopRequester;
use quell_protocol::api::{AccessLevel, Grants, TokenRow, TokenScopes};
use quell_protocol::{Principal, Surface};
use quell_scope::clock::Clock;
use quell_store::{Store, StoreError, StoredToken};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;

use browser_logins::BrowserLogins;
pub use browser_logins::{BrowserSecrets, LinkIssuer};
pub use origin::{ForwardedHeaders, RequestOrigin};
use secret::SecretDigest;
pub use sign_in::BrowserSignIn;

/// The principal of the admin token in the data directory.
pub(crate) const ADMIN_PRINCIPAL: &str = "admin";
/// The principal of actions of the daemon itself.
pub(crate) const DAEMON_PRINCIPAL: &str = "quell";

/// An authenticated caller and the origin of its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub principal: Principal,
    pub scope: AccessLevel,
    /// Permissions in addition to those of `scope`.
    pub grants: Grants,
    /// Something that no process of an agent has shows that a person, or a program of that person, makes the request:
    /// the Unix socket, or a browser sign-in that began there or at the daemon's terminal. A token alone shows nothing.
    pub verified_person: bool,
    pub surface: Surface,
    pub origin: RequestOrigin,
}

impl Caller {
    /// True when it may send and stop its own runs.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.scope >= AccessLevel::Write
    }

    #[must_use]
    pub fn may_stop(&self) -> bool {
        self.may_write() || self.grants.stop_all
    }

    /// True when it may stop the runs of everybody, and everything at once.
    #[must_use]
    pub fn may_stop_all(&self) -> bool {
        self.is_admin() || self.grants.stop_all
    }

    #[must_use]
    pub fn may_approve(&self) -> bool {
        self.is_admin() || self.grants.approve
    }

    /// True when it may set a `baseUrl` or an `mcpUrl` for its sessions.
    #[must_use]
    pub fn may_set_endpoints(&self) -> bool {
        self.is_admin() || self.grants.endpoints
    }

    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.scope == AccessLevel::Admin
    }

    /// The caller as the requester of a stop.
    pub fn who(&self) -> StopRequester {
        StopRequester { principal: self.principal.clone(), admin: self.may_stop_all() }
    }
}

/// Identifies a presented token or cookie, to check later whether it is still valid. It contains no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credential(CredentialKind, SecretDigest);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CredentialKind {
    Token,
    Cookie,
}

impl Credential {
    pub fn token(presented: &str) -> Self {
        Self(CredentialKind::Token, SecretDigest::of(presented))
    }

    /// Both secrets of a signed-in browser. One alone is no credential.
    pub fn browser(secrets: BrowserSecrets<'_>) -> Self {
        Self(CredentialKind::Cookie, secrets.digest())
    }
}

/// Why access could not be set up or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The name is not a valid token name.
    #[error("a token cannot be named {name:?}: {problem}")]
    BadName { name: String, problem: &'static str },
    #[error("the token file {}: {problem}", .path.display())]
    TokenFile {
        path: PathBuf,
        /// What is wrong with it, and how to fix it.
        problem: String,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the system gives no random numbers: {0}")]
    NoRandomness(String),
}

/// Tokens, sign-in links and cookies of one daemon.
pub struct AccessControl {
    clock: Clock,
    store: Store,
    admin_digest: SecretDigest,
    admin_principal: Principal,
    cookie_name: String,
    tokens: Mutex<HashMap<SecretDigest, (Principal, AccessLevel)>>,
    grants: Mutex<HashMap<Principal, Grants>>,
    browser_logins: Mutex<BrowserLogins>,
    /// Changes whenever a token or a cookie becomes invalid.
    revocations: watch::Sender<()>,
}

impl AccessControl {
    /// Reads the admin token from `token_file` and the named tokens from the store. Creates the file with a new token
    /// if it does not exist. The store's lock on the data directory keeps two daemons from creating the file at once.
    ///
    /// # Cancel safety
    /// Safe: at most, the token file already exists at the next call.
    pub async fn open(token_file: &Path, store: Store, clock: Clock) -> Result<Self, AccessError> {
        let admin_digest = SecretDigest::of(token_file::load_or_create(token_file)?.expose_secret());
        let admin_principal = parse_principal(ADMIN_PRINCIPAL)?;
        let (mut tokens, mut grants) = (HashMap::new(), HashMap::new());
        for token in store.access().list_tokens().await? {
            let digest = SecretDigest::from_hex(&token.sha256)
                .ok_or_else(|| StoreError::Corrupt(format!("the hash of token {}", token.row.name)))?;
            let owner = parse_principal(&token.row.name)?;
            grants.insert(owner.clone(), TokenScopes::Several(token.row.scopes).level_and_grants().1);
            tokens.insert(digest, (owner, token.row.scope));
        }
        let access = Self {
            clock,
            store,
            admin_digest,
            admin_principal,
            cookie_name: format!("quell_session_{}", admin_digest.short_hex()),
            tokens: Mutex::new(tokens),
            grants: Mutex::new(grants),
            browser_logins: Mutex::new(BrowserLogins::default()),
            revocations: watch::Sender::new(()),
        };
        access.restore_cookies().await?;
        Ok(access)
    }

    /// Principal and access level of a token; `None` if it is invalid.
    #[must_use]
    pub fn authenticate(&self, presented: &str) -> Option<(Principal, AccessLevel)> {
        self.token_owner(&SecretDigest::of(presented))
    }

    /// Principal and access level of a credential; `None` if it is invalid, also if it was valid before.
    #[must_use]
    pub fn resolve_credential(&self, credential: &Credential) -> Option<(Principal, AccessLevel)> {
        let Credential(kind, digest) = credential;
        match kind {
            CredentialKind::Token => self.token_owner(digest),
            CredentialKind::Cookie => self.cookie_owner(digest),
        }
    }

    /// True for the cookie of a browser that was signed in by a link that only a person had.
    #[must_use]
    pub fn is_verified_person(&self, credential: &Credential) -> bool {
        let Credential(kind, digest) = credential;
        let facts = || self.lock_browser_logins().sign_in_facts(digest, self.clock.now());
        *kind == CredentialKind::Cookie && facts().is_some_and(|facts| facts.verified_person)
    }

    /// Identity of a local process of the same user without a token: an admin, because it could end the daemon anyway.
    #[must_use]
    pub fn local_admin(&self) -> (Principal, AccessLevel) {
        (self.admin_principal.clone(), AccessLevel::Admin)
    }

    /// Permissions of a principal in addition to those of its scope. The name of a token is its principal.
    pub fn grants_of(&self, principal: &Principal, scope: AccessLevel) -> Grants {
        let own_grants = || self.lock_grants().get(principal).copied().unwrap_or_default();
        if scope == AccessLevel::Admin { Grants::ALL } else { own_grants() }
    }

    /// Changes when a token is revoked or a browser signs out. Open connections then call
    /// [`AccessControl::resolve_credential`] again.
    #[must_use]
    pub fn subscribe_revocations(&self) -> watch::Receiver<()> {
        self.revocations.subscribe()
    }

    /// Principal and access level of the token with this hash.
    fn token_owner(&self, digest: &SecretDigest) -> Option<(Principal, AccessLevel)> {
        if digest.constant_time_eq(&self.admin_digest) {
            return Some((self.admin_principal.clone(), AccessLevel::Admin));
        }
        // The key is a hash of the secret, so the duration of the lookup reveals nothing about the secret.
        self.lock_tokens().get(digest).cloned()
    }

    /// Creates a token and returns its secret, which is not stored.
    ///
    /// # Errors
    /// An invalid name, [`StoreError::NameTaken`], or a failed write.
    ///
    /// # Cancel safety
    /// Safe: if dropped, it may leave a token whose secret nobody knows. The token is listed and can be revoked.
    pub async fn create_token(
        &self,
        name: &str,
        scopes: impl Into<TokenScopes> + Send,
    ) -> Result<SecretString, AccessError> {
        let (principal, (scope, grants)) = (parse_token_name(name)?, scopes.into().level_and_grants());
        let secret = secret::new_token()?;
        let digest = SecretDigest::of(secret.expose_secret());
        let created_at = self.clock.rfc3339(self.clock.now());
        let row = TokenRow { name: name.into(), scope, scopes: grants.to_token_scopes(scope), created_at };
        // Insert it before the write, so that a later revocation also finds it here. Nobody knows the secret yet.
        self.lock_tokens().insert(digest, (principal.clone(), scope));
        let stored = StoredToken { row, sha256: digest.hex() };
        if let Err(error) = self.store.access().create_token(stored).await {
            self.lock_tokens().remove(&digest);
            return Err(error.into());
        }
        // Not earlier: if the name was taken, these grants belong to another token.
        self.lock_grants().insert(principal, grants);
        Ok(secret)
    }

    /// The named tokens, ordered by name.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_tokens(&self) -> Result<Vec<TokenRow>, AccessError> {
        Ok(self.store.access().list_tokens().await?.into_iter().map(|token| token.row).collect())
    }

    /// Revokes a token and the cookies of its sign-ins. It stops working at once, before the database is written.
    /// Returns false if there is no token of that name.
    ///
    /// # Errors
    /// If the write fails, the token has stopped working, but works again after a restart.
    ///
    /// # Cancel safety
    /// Safe: the token has stopped working, and its deletion is completed as [`Store`] says.
    pub async fn revoke_token(&self, name: &str) -> Result<bool, AccessError> {
        self.forget_token(name);
        let revoked = self.store.access().revoke_token(name.into()).await;
        // Again, for a token that was created in between.
        self.forget_token(name);
        Ok(revoked?)
    }

    fn forget_token(&self, name: &str) {
        self.lock_tokens().retain(|_, (principal, _)| principal.as_str() != name);
        self.lock_grants().retain(|principal, _| principal.as_str() != name);
        // The cookies of its sign-ins are invalid without it.
        self.revocations.send_replace(());
    }

    fn lock_tokens(&self) -> MutexGuard<'_, HashMap<SecretDigest, (Principal, AccessLevel)>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_grants(&self) -> MutexGuard<'_, HashMap<Principal, Grants>> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_browser_logins(&self) -> MutexGuard<'_, BrowserLogins> {
        self.browser_logins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for AccessControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AccessControl({} tokens)", self.lock_tokens().len())
    }
}

/// Validates a token name. It becomes a principal, so it must not look like the admin or a chat's `channel:sender`.
fn parse_token_name(name: &str) -> Result<Principal, AccessError> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let problem = match name.len() {
        0 => "it is empty",
        65.. => "it is longer than 64 characters",
        _ if !name.bytes().all(legal) => "it may hold only letters, digits and . _ -",
        _ if name == ADMIN_PRINCIPAL => "that is the name of the token in the data directory",
        _ if name == DAEMON_PRINCIPAL => "that is the daemon's own name in the audit list",
        _ => return parse_principal(name),
    };
    Err(AccessError::BadName { name: name.into(), problem })
}

fn parse_principal(name: &str) -> Result<Principal, AccessError> {
    Principal::parse(name).map_err(|bad| AccessError::BadName { name: name.into(), problem: bad.problem })
}
