//! Who may ask for what: the admin token of the data directory, named tokens, and the page's sign-in links and cookies.
//!
//! Asking is synchronous and touches no disk, so that a stop gets in whatever the database does. Secrets are kept as
//! SHA-256 only; being 256 bits of chance, they need no slow hash.

mod origin;
mod page;
mod secret;
mod sign_in;
#[cfg(test)]
mod tests;
mod token_file;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quell_kernel::Who;
use quell_protocol::api::{Grants, Scope, TokenRow, TokenScopes};
use quell_protocol::{Principal, Surface};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::store::{Store, StoreError};
pub use origin::{Forwarded, Origin};
use page::Page;
use secret::Digest;
pub use sign_in::SignedIn;

/// The principal of the admin token in the data directory.
const ADMIN: &str = "admin";
/// What the daemon does by itself is under this name.
pub(crate) const DAEMON: &str = "quell";

/// Somebody who showed a valid token or cookie, and the door they came through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Who it is.
    pub principal: Principal,
    /// What it may do.
    pub scope: Scope,
    /// What it may do besides.
    pub grants: Grants,
    /// Through which door.
    pub surface: Surface,
    /// From where.
    pub origin: Origin,
}

impl Caller {
    /// True when it may send and stop its own runs.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.scope >= Scope::Write
    }

    /// True when it may decide approvals.
    #[must_use]
    pub fn may_approve(&self) -> bool {
        self.is_admin() || self.grants.approve
    }

    /// True when its sessions may have a `baseUrl` or an `mcpUrl` of their own.
    #[must_use]
    pub fn may_bring_endpoints(&self) -> bool {
        self.is_admin() || self.grants.endpoints
    }

    /// True when it may do everything.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.scope == Scope::Admin
    }

    /// The caller as the rules of stopping see it.
    #[must_use]
    pub fn who(&self) -> Who {
        Who { principal: self.principal.clone(), admin: self.is_admin() }
    }
}

/// What a caller showed, to be asked again later whether it is still good. It holds no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credential(Kind, Digest);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Token,
    Cookie,
}

impl Credential {
    /// A token.
    #[must_use]
    pub fn token(presented: &str) -> Self {
        Self(Kind::Token, Digest::of(presented))
    }

    /// The value of a page's cookie.
    #[must_use]
    pub fn cookie(presented: &str) -> Self {
        Self(Kind::Cookie, Digest::of(presented))
    }
}

/// Why access could not be set up or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The name cannot be a token's.
    #[error("a token cannot be named {name:?}: {problem}")]
    BadName {
        /// The name asked for.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The admin token file is of no use.
    #[error("the token file {}: {problem}", .path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and so what to do.
        problem: String,
    },
    /// The database refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers: {0}")]
    NoChance(String),
}

/// Tokens, sign-in links and cookies of one daemon.
pub struct Access {
    clock: Clock,
    store: Store,
    admin: Digest,
    admin_principal: Principal,
    cookie_name: String,
    tokens: Mutex<HashMap<Digest, (Principal, Scope)>>,
    grants: Mutex<HashMap<Principal, Grants>>,
    page: Mutex<Page>,
    /// Turns whenever something that was good is not any more.
    withdrawn: watch::Sender<()>,
}

impl Access {
    /// Reads the admin token from `token_file`, which is made with a new one when it does not exist, and the named tokens
    /// from the store. The store's lock on the data directory keeps two daemons from making the file at once.
    ///
    /// # Errors
    /// [`AccessError`] when the file or the database is of no use.
    ///
    /// # Cancel safety
    /// Safe: at the most the token file exists already when it is called again.
    pub async fn open(token_file: &Path, store: Store, clock: Clock) -> Result<Self, AccessError> {
        let admin = Digest::of(token_file::load_or_create(token_file)?.expose_secret());
        let admin_principal = principal(ADMIN)?;
        let (mut tokens, mut grants) = (HashMap::new(), HashMap::new());
        for token in store.list_tokens().await? {
            let digest = Digest::from_hex(&token.sha256)
                .ok_or_else(|| StoreError::Corrupt(format!("the hash of token {}", token.row.name)))?;
            let owner = principal(&token.row.name)?;
            grants.insert(owner.clone(), TokenScopes::Several(token.row.scopes).rights().1);
            tokens.insert(digest, (owner, token.row.scope));
        }
        let (tokens, grants, page) = (Mutex::new(tokens), Mutex::new(grants), Mutex::new(Page::default()));
        let (cookie_name, withdrawn) = (format!("quell_session_{}", admin.short()), watch::Sender::new(()));
        let access = Self { clock, store, admin, admin_principal, cookie_name, tokens, grants, page, withdrawn };
        access.remember_cookies().await?;
        Ok(access)
    }

    /// Whose token this is and what it may do; `None` when it is nobody's.
    #[must_use]
    pub fn authenticate(&self, presented: &str) -> Option<(Principal, Scope)> {
        self.owner_of(&Digest::of(presented))
    }

    /// Whose credential this is and what it may do; `None` when it is not good, or not any more.
    #[must_use]
    pub fn owner(&self, credential: &Credential) -> Option<(Principal, Scope)> {
        let Credential(kind, digest) = credential;
        match kind {
            Kind::Token => self.owner_of(digest),
            Kind::Cookie => self.owner_of_cookie(digest),
        }
    }

    /// As whom a process of this user stops that shows no token: it could end the daemon itself.
    #[must_use]
    pub fn local_admin(&self) -> (Principal, Scope) {
        (self.admin_principal.clone(), Scope::Admin)
    }

    /// What somebody with a token may do besides what its scope says. A token's name is its principal.
    #[must_use]
    pub fn grants(&self, principal: &Principal, scope: Scope) -> Grants {
        let given = || self.granted().get(principal).copied().unwrap_or_default();
        if scope == Scope::Admin { Grants::ALL } else { given() }
    }

    /// Turns when a token was revoked or a browser signed out: what stays open asks [`Access::owner`] again.
    #[must_use]
    pub fn withdrawals(&self) -> watch::Receiver<()> {
        self.withdrawn.subscribe()
    }

    /// Whose token has this hash.
    fn owner_of(&self, digest: &Digest) -> Option<(Principal, Scope)> {
        if digest.same_as(&self.admin) {
            return Some((self.admin_principal.clone(), Scope::Admin));
        }
        // Found by the hash of the secret: how long that takes says nothing about the secret.
        self.tokens().get(digest).cloned()
    }

    /// Makes a token and answers its secret, which is shown this once.
    ///
    /// # Errors
    /// [`AccessError`] when the name cannot be used, [`StoreError::NameTaken`] in it when it is, others when the token could
    /// not be written.
    ///
    /// # Cancel safety
    /// Safe: dropped, it may leave a token whose secret nobody knows, which is listed and can be revoked.
    pub async fn create_token(
        &self,
        name: &str,
        scopes: impl Into<TokenScopes> + Send,
    ) -> Result<SecretString, AccessError> {
        let (principal, (scope, grants)) = (check_name(name)?, scopes.into().rights());
        let secret = secret::token()?;
        let digest = Digest::of(secret.expose_secret());
        let created_at = self.clock.rfc3339(self.clock.now());
        let row = TokenRow { name: name.into(), scope, scopes: grants.with(scope), created_at };
        // Before it is written, so that a revocation that is written later also finds it here. Nobody knows the secret yet.
        self.tokens().insert(digest, (principal.clone(), scope));
        if let Err(error) = self.store.create_token(row, digest.hex()).await {
            self.tokens().remove(&digest);
            return Err(error.into());
        }
        // Only now: where the name was taken, it is another token's.
        self.granted().insert(principal, grants);
        Ok(secret)
    }

    /// The named tokens, by name.
    ///
    /// # Errors
    /// [`AccessError`] when they could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_tokens(&self) -> Result<Vec<TokenRow>, AccessError> {
        Ok(self.store.list_tokens().await?.into_iter().map(|token| token.row).collect())
    }

    /// Revokes a token with the cookies that it signed in. It stops working at once, before the database knows. False when
    /// there is none of that name.
    ///
    /// # Errors
    /// [`AccessError`] when it could not be written: the token does not work now, and would again after a restart.
    ///
    /// # Cancel safety
    /// Safe: dropped, the token has stopped working, and is forgotten as [`Store`] says.
    pub async fn revoke_token(&self, name: &str) -> Result<bool, AccessError> {
        self.forget(name);
        let revoked = self.store.revoke_token(name.into()).await;
        // One that was made between the two lines above.
        self.forget(name);
        Ok(revoked?)
    }

    fn forget(&self, name: &str) {
        self.tokens().retain(|_, (principal, _)| principal.as_str() != name);
        self.granted().retain(|principal, _| principal.as_str() != name);
        // The cookies that it signed in are worth nothing without it.
        self.withdrawn.send_replace(());
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<Digest, (Principal, Scope)>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn granted(&self) -> MutexGuard<'_, HashMap<Principal, Grants>> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page(&self) -> MutexGuard<'_, Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Access({} tokens)", self.tokens().len())
    }
}

/// The rule of token names. They are principals, so they must not look like the admin or a chat's `channel:sender`.
fn check_name(name: &str) -> Result<Principal, AccessError> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let problem = match name.len() {
        0 => "it is empty",
        65.. => "it is longer than 64 characters",
        _ if !name.bytes().all(legal) => "it may hold only letters, digits and . _ -",
        _ if name == ADMIN => "that is the name of the token in the data directory",
        _ if name == DAEMON => "that is the daemon's own name in the audit list",
        _ => return principal(name),
    };
    Err(AccessError::BadName { name: name.into(), problem })
}

fn principal(name: &str) -> Result<Principal, AccessError> {
    Principal::parse(name).map_err(|bad| AccessError::BadName { name: name.into(), problem: bad.problem })
}
