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
mod tokens;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quell_bus::ClusterSecret;
use quell_kernel::StopRequester;
use quell_kernel::api_key::{ApiKey, RestrictionProblem};
use quell_kernel::secret_lifetime::LifetimeError;
use quell_protocol::api::{AccessLevel, Grants};
use quell_protocol::{Principal, Surface};
use quell_scope::clock::Clock;
use quell_store::{Store, StoreError};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use browser_logins::BrowserLogins;
pub use browser_logins::{BrowserSecrets, LinkIssuer};
pub use origin::{ForwardedHeaders, RequestOrigin};
use secret::SecretDigest;
pub use sign_in::BrowserSignIn;
pub(crate) use sign_in::LoginCodeDigest;
use tokens::TokenEntry;
pub use tokens::{CredentialRefusal, RotationSpec, TokenSpec};

/// The principal of the admin token in the data directory.
pub(crate) const ADMIN_PRINCIPAL: &str = "admin";
/// The principal of actions of the daemon itself.
pub(crate) const DAEMON_PRINCIPAL: &str = "quell";

/// An authenticated caller and the origin of its request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Caller {
    pub principal: Principal,
    pub scope: AccessLevel,
    /// Permissions in addition to those of `scope`.
    pub grants: Grants,
    /// What its token may use.
    #[serde(default)]
    pub key: ApiKey,
    /// Something that no process of an agent has shows that a person, or a program of that person, makes the request:
    /// the Unix socket, or a browser sign-in that began there or at the daemon's terminal. A token alone shows nothing.
    pub verified_person: bool,
    pub surface: Surface,
    pub origin: RequestOrigin,
}

impl Caller {
    /// The caller whose credential was refused, without any rights; `None` if nobody knows who it was.
    #[must_use]
    pub fn refused(refusal: &CredentialRefusal, surface: Surface, origin: RequestOrigin) -> Option<Self> {
        let principal = refusal.principal()?.clone();
        let (scope, grants) = (AccessLevel::Read, Grants::NONE);
        Some(Self { principal, scope, grants, key: ApiKey::default(), verified_person: false, surface, origin })
    }

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential(CredentialKind, SecretDigest);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The token cannot have these restrictions.
    #[error("a token cannot have these restrictions: {0}")]
    Restrictions(#[from] RestrictionProblem),
    /// A lifetime or an overlap is not possible.
    #[error(transparent)]
    Lifetime(#[from] LifetimeError),
    /// Somebody else rotated or revoked the token at the same time.
    #[error("the token {0:?} was changed at the same time; nothing was done for this request")]
    ChangedMeanwhile(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the system gives no random numbers: {0}")]
    NoRandomness(String),
}

/// What a named token has besides its access level.
#[derive(Debug, Clone)]
struct TokenRights {
    grants: Grants,
    key: ApiKey,
}

/// Tokens, sign-in links and cookies of one daemon.
pub struct AccessControl {
    clock: Clock,
    store: Store,
    admin_digest: SecretDigest,
    admin_principal: Principal,
    cookie_name: String,
    tokens: Mutex<HashMap<SecretDigest, TokenEntry>>,
    rights: Mutex<HashMap<Principal, TokenRights>>,
    browser_logins: Mutex<BrowserLogins>,
    /// Changes whenever a token or a cookie becomes invalid by an action. Expiry does not change it.
    revocations: watch::Sender<()>,
}

impl AccessControl {
    /// Reads the admin token from `token_file` and the named tokens from the store. Creates the file with a new token
    /// if it does not exist; the nodes of a cluster create the same one. The store's lock on the data directory keeps
    /// two daemons from creating the file at once.
    ///
    /// # Cancel safety
    /// Safe: at most, the token file already exists at the next call.
    pub async fn open(
        token_file: &Path,
        store: Store,
        clock: Clock,
        cluster_secret: Option<&ClusterSecret>,
    ) -> Result<Self, AccessError> {
        let new_token = || cluster_secret.map_or_else(secret::new_token, secret::cluster_token);
        let admin_digest = SecretDigest::of(token_file::load_or_create(token_file, new_token)?.expose_secret());
        let admin_principal = parse_principal(ADMIN_PRINCIPAL)?;
        let access = Self {
            clock,
            store,
            admin_digest,
            admin_principal,
            cookie_name: format!("quell_session_{}", admin_digest.short_hex()),
            tokens: Mutex::default(),
            rights: Mutex::default(),
            browser_logins: Mutex::new(BrowserLogins::default()),
            revocations: watch::Sender::new(()),
        };
        access.load_tokens().await?;
        access.delete_expired_cookies().await;
        access.restore_cookies().await?;
        Ok(access)
    }

    /// Principal and access level of a token; `None` if it is invalid.
    #[must_use]
    pub fn authenticate(&self, presented: &str) -> Option<(Principal, AccessLevel)> {
        self.check_token(&SecretDigest::of(presented)).ok()
    }

    /// Principal and access level of a credential; `None` if it is invalid, also if it was valid before.
    #[must_use]
    pub fn resolve_credential(&self, credential: &Credential) -> Option<(Principal, AccessLevel)> {
        self.check_credential(credential).ok()
    }

    /// Principal and access level of a credential.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn check_credential(&self, credential: &Credential) -> Result<(Principal, AccessLevel), CredentialRefusal> {
        let Credential(kind, digest) = credential;
        match kind {
            CredentialKind::Token => self.check_token(digest),
            CredentialKind::Cookie => self.check_browser(digest),
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
        let own_grants = || self.lock_rights().get(principal).map(|rights| rights.grants).unwrap_or_default();
        if scope == AccessLevel::Admin { Grants::ALL } else { own_grants() }
    }

    /// What the token of a principal may use; `None` if there is no such token.
    pub fn key_of(&self, principal: &Principal) -> Option<ApiKey> {
        if *principal == self.admin_principal {
            return Some(ApiKey::default());
        }
        self.lock_rights().get(principal).map(|rights| rights.key.clone())
    }

    fn lock_tokens(&self) -> MutexGuard<'_, HashMap<SecretDigest, TokenEntry>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_rights(&self) -> MutexGuard<'_, HashMap<Principal, TokenRights>> {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner)
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

/// True for the principal of a token, also of the admin's: one whose use is counted.
pub(crate) fn is_token(principal: &Principal) -> bool {
    principal.as_str() == ADMIN_PRINCIPAL || is_named_token(principal)
}

/// True for the principal of a token other than the admin's. Principals of chats have a colon, which no name of a token
/// has.
pub(crate) fn is_named_token(principal: &Principal) -> bool {
    principal.as_str() != ADMIN_PRINCIPAL && !principal.as_str().contains(':')
}

fn parse_principal(name: &str) -> Result<Principal, AccessError> {
    Principal::parse(name).map_err(|bad| AccessError::BadName { name: name.into(), problem: bad.problem })
}
