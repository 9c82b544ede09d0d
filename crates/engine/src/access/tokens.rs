//! Create, list, rotate and revoke named tokens. The table of their secrets is in memory, as hashes.

use std::collections::HashMap;
use std::time::Duration;

use quell_kernel::api_key::{ApiKey, KeyRefusal, RestrictionProblem, restriction_problem};
use quell_kernel::secret_lifetime::{self, RotationRequest, SecretEnd, SecretLifetime};
use quell_protocol::Principal;
use quell_protocol::api::{AccessLevel, NewToken, TokenRestrictions, TokenRow, TokenScopes};
use quell_store::{StoreError, StoredToken};
use secrecy::ExposeSecret;

use super::secret::{self, SecretDigest};
use super::{AccessControl, AccessError, Credential, CredentialKind, TokenRights, parse_principal, parse_token_name};

/// Longest time until an end is looked at again, because timers do not run while the machine is suspended.
const MAX_END_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// What a secret in the table stands for. A token that was rotated has two entries: that of its secret, and that of the
/// secret before.
#[derive(Debug, Clone)]
pub(super) struct TokenEntry {
    pub(super) principal: Principal,
    pub(super) level: AccessLevel,
    pub(super) lifetime: SecretLifetime,
}

/// Why a credential is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialRefusal {
    /// It was never valid, or its token was revoked, or its browser has signed out.
    #[error("the credential is not known")]
    Unknown,
    #[error(
        "the token {principal} expired at {at}; an admin gives it a new secret with \
         `quell token rotate {principal} --expires 30d`"
    )]
    Expired { principal: Principal, at: String },
    #[error("the token {principal} got a new secret, and this one ended at {at}; use the new one")]
    Replaced { principal: Principal, at: String },
    /// It is valid, but not for this API.
    #[error("{refusal}")]
    OtherApi { principal: Principal, refusal: KeyRefusal },
}

impl CredentialRefusal {
    /// The token whose credential it was, if it is known.
    #[must_use]
    pub fn principal(&self) -> Option<&Principal> {
        match self {
            Self::Unknown => None,
            Self::Expired { principal, .. } | Self::Replaced { principal, .. } | Self::OtherApi { principal, .. } => {
                Some(principal)
            }
        }
    }
}

/// What a new token is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenSpec {
    pub name: String,
    pub scopes: TokenScopes,
    /// `None`: it never expires.
    pub lifetime: Option<Duration>,
    pub restrictions: TokenRestrictions,
}

impl TokenSpec {
    /// A token that never expires and is not restricted.
    pub fn new(name: impl Into<String>, scopes: impl Into<TokenScopes>) -> Self {
        let (name, scopes) = (name.into(), scopes.into());
        Self { name, scopes, lifetime: None, restrictions: TokenRestrictions::default() }
    }
}

/// How the secret of a token is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RotationSpec {
    /// Time for which the old secret stays valid.
    pub overlap: Duration,
    /// `None`: the new secret expires when the old one would have.
    pub lifetime: Option<Duration>,
}

impl AccessControl {
    /// Fills the table of secrets from the store. What is not there is forgotten.
    pub(super) async fn load_tokens(&self) -> Result<(), AccessError> {
        let (mut tokens, mut rights) = (HashMap::new(), HashMap::new());
        for token in self.store.access().list_tokens().await? {
            let StoredToken { row, sha256, previous_sha256 } = token;
            let parse = |hex: &str| {
                let corrupt = || StoreError::Corrupt(format!("the hash of token {}", row.name));
                SecretDigest::from_hex(hex).ok_or_else(corrupt)
            };
            let parse_time = |text: &Option<String>| {
                let corrupt = |_| StoreError::Corrupt(format!("the times of token {}", row.name));
                text.as_deref().map(|text| parse_ms(text).map_err(corrupt)).transpose()
            };
            let (principal, level) = (parse_principal(&row.name)?, row.scope);
            let lifetime = SecretLifetime { expires_at: parse_time(&row.expires_at)?, replaced_at: None };
            let previous = match &previous_sha256 {
                Some(hex) => Some((parse(hex)?, parse_time(&row.previous_until)?)),
                None => None,
            };
            let entry = TokenEntry { principal: principal.clone(), level, lifetime };
            if let Some((digest, replaced_at)) = previous {
                // The end of the old secret is the earlier one of both, which the rotation has stored.
                let lifetime = SecretLifetime { expires_at: None, replaced_at };
                tokens.insert(digest, TokenEntry { lifetime, ..entry.clone() });
            }
            tokens.insert(parse(&sha256)?, entry);
            let (_, grants) = TokenScopes::Several(row.scopes).level_and_grants();
            rights.insert(principal, TokenRights { grants, key: ApiKey::new(row.restrictions) });
        }
        // First, so that no new token is seen without its restrictions.
        *self.lock_rights() = rights;
        *self.lock_tokens() = tokens;
        Ok(())
    }

    /// Takes over the tokens and sign-ins that other nodes have changed.
    ///
    /// # Errors
    /// The store's error; nothing has changed then.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub(crate) async fn reload(&self) -> Result<(), AccessError> {
        self.load_tokens().await?;
        self.restore_cookies().await?;
        self.revocations.send_replace(());
        Ok(())
    }

    /// Creates a token. Its secret is only in the result; a hash of it is stored.
    ///
    /// # Errors
    /// An invalid name, lifetime or restriction, [`StoreError::NameTaken`], or a failed write.
    ///
    /// # Cancel safety
    /// Safe: if dropped, it may leave a token whose secret nobody knows. The token is listed and can be revoked.
    pub async fn create_token(&self, spec: TokenSpec) -> Result<NewToken, AccessError> {
        let TokenSpec { name, scopes, lifetime, restrictions } = spec;
        let (principal, (level, grants)) = (parse_token_name(&name)?, scopes.level_and_grants());
        check_restrictions(&restrictions, level)?;
        let now = self.wall_ms();
        let expires_at = lifetime.map(|time| secret_lifetime::lifetime_end(to_ms(time), now)).transpose()?;
        let secret = secret::new_token()?;
        let digest = SecretDigest::of(secret.expose_secret());
        let row = TokenRow {
            name,
            scope: level,
            scopes: grants.to_token_scopes(level),
            created_at: self.clock.rfc3339(self.clock.now()),
            expires_at: expires_at.map(format_ms),
            rotated_at: None,
            previous_until: None,
            restrictions: restrictions.clone(),
            usage: None,
        };
        // Insert it before the write, so that a later revocation also finds it here. Nobody knows the secret yet.
        let lifetime = SecretLifetime { expires_at, replaced_at: None };
        self.lock_tokens().insert(digest, TokenEntry { principal: principal.clone(), level, lifetime });
        let stored = StoredToken { row: row.clone(), sha256: digest.hex(), previous_sha256: None };
        if let Err(error) = self.store.access().create_token(stored).await {
            self.lock_tokens().remove(&digest);
            return Err(error.into());
        }
        // Not earlier: if the name was taken, these rights belong to another token.
        self.lock_rights().insert(principal, TokenRights { grants, key: ApiKey::new(restrictions) });
        Ok(new_token_body(row, secret.expose_secret()))
    }

    /// The named tokens, ordered by name.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_tokens(&self) -> Result<Vec<TokenRow>, AccessError> {
        Ok(self.store.access().list_tokens().await?.into_iter().map(|token| token.row).collect())
    }

    /// Gives a token a new secret. Name, scopes and what it owns stay; the old secret and the browsers that it signed
    /// in end at once, or after the overlap. Returns `None` if there is no token of that name.
    ///
    /// # Errors
    /// A time that is out of range, [`AccessError::ChangedMeanwhile`], or a failed write: the old secret stays valid.
    ///
    /// # Cancel safety
    /// If dropped, the token may have a new secret that nobody knows after a restart. Rotate it again.
    pub async fn rotate_token(&self, name: &str, spec: RotationSpec) -> Result<Option<NewToken>, AccessError> {
        let found = self.store.access().list_tokens().await?.into_iter().find(|token| token.row.name == name);
        let Some(old) = found else { return Ok(None) };
        let old_digest = SecretDigest::from_hex(&old.sha256);
        let old_entry = old_digest.and_then(|digest| Some((digest, self.lock_tokens().get(&digest).cloned()?)));
        let Some((old_digest, old_entry)) = old_entry else { return Err(AccessError::ChangedMeanwhile(name.into())) };
        let now = self.wall_ms();
        let request = RotationRequest { overlap_ms: to_ms(spec.overlap), lifetime_ms: spec.lifetime.map(to_ms) };
        let rotation = secret_lifetime::rotate(old_entry.lifetime, request, now)?;
        let secret = secret::new_token()?;
        let digest = SecretDigest::of(secret.expose_secret());
        let row = TokenRow {
            expires_at: rotation.new.expires_at.map(format_ms),
            rotated_at: Some(format_ms(now)),
            previous_until: rotation.old.next_end().map(|end| format_ms(end.at())),
            ..old.row
        };
        // As in `create_token`: a revocation finds both secrets at every time.
        self.lock_tokens().insert(digest, TokenEntry { lifetime: rotation.new, ..old_entry.clone() });
        let stored = StoredToken { row: row.clone(), sha256: digest.hex(), previous_sha256: Some(old.sha256) };
        let rotated = self.store.access().rotate_token(stored).await;
        if !matches!(rotated, Ok(true)) {
            self.lock_tokens().remove(&digest);
            rotated?;
            return Err(AccessError::ChangedMeanwhile(name.into()));
        }
        let is_current = |other: &SecretDigest| *other == digest || *other == old_digest;
        let mut tokens = self.lock_tokens();
        tokens.retain(|other, entry| entry.principal != old_entry.principal || is_current(other));
        if let Some(entry) = tokens.get_mut(&old_digest) {
            entry.lifetime = rotation.old;
        }
        drop(tokens);
        self.revocations.send_replace(());
        Ok(Some(new_token_body(row, secret.expose_secret())))
    }

    /// Revokes a token and the cookies of its sign-ins. It stops working at once, before the database is written.
    /// Returns false if there is no token of that name.
    ///
    /// # Errors
    /// If the write fails, the token has stopped working, but works again after a restart.
    ///
    /// # Cancel safety
    /// Safe: the token has stopped working, and its deletion is completed as [`Store`](quell_store::Store) says.
    pub async fn revoke_token(&self, name: &str) -> Result<bool, AccessError> {
        self.forget_token(name);
        let revoked = self.store.access().revoke_token(name.into()).await;
        // Again, for a token that was created in between.
        self.forget_token(name);
        Ok(revoked?)
    }

    fn forget_token(&self, name: &str) {
        self.lock_tokens().retain(|_, entry| entry.principal.as_str() != name);
        self.lock_rights().retain(|principal, _| principal.as_str() != name);
        // The cookies of its sign-ins are invalid without it.
        self.revocations.send_replace(());
    }

    /// Principal and access level of the token with this hash.
    pub(super) fn check_token(&self, digest: &SecretDigest) -> Result<(Principal, AccessLevel), CredentialRefusal> {
        if digest.constant_time_eq(&self.admin_digest) {
            return Ok((self.admin_principal.clone(), AccessLevel::Admin));
        }
        // The key is a hash of the secret, so the duration of the lookup reveals nothing about the secret.
        let found = self.lock_tokens().get(digest).cloned();
        let TokenEntry { principal, level, lifetime } = found.ok_or(CredentialRefusal::Unknown)?;
        match lifetime.check(self.wall_ms()) {
            Ok(()) => Ok((principal, level)),
            Err(SecretEnd::Expired { at }) => Err(CredentialRefusal::Expired { principal, at: format_ms(at) }),
            Err(SecretEnd::Replaced { at }) => Err(CredentialRefusal::Replaced { principal, at: format_ms(at) }),
        }
    }

    /// The rights of a principal by its tokens that are accepted now; `None` if there are none.
    pub(crate) fn level_of(&self, principal: &Principal) -> Option<AccessLevel> {
        if *principal == self.admin_principal {
            return Some(AccessLevel::Admin);
        }
        let (tokens, now) = (self.lock_tokens(), self.wall_ms());
        let of_principal = tokens.values().filter(|entry| entry.principal == *principal);
        of_principal.filter(|entry| entry.lifetime.check(now).is_ok()).map(|entry| entry.level).max()
    }

    /// True for the principal of a named token none of whose secrets is accepted any more, because they expired.
    pub(crate) fn has_token_ended(&self, principal: &Principal) -> bool {
        let (tokens, now) = (self.lock_tokens(), self.wall_ms());
        let mut secrets = tokens.values().filter(|entry| entry.principal == *principal).peekable();
        secrets.peek().is_some() && secrets.all(|entry| entry.lifetime.check(now).is_err())
    }

    /// Waits until a credential is not accepted any more, and says why. Returns at once if it is not accepted now.
    ///
    /// # Cancel safety
    /// Safe: it has no effect.
    pub async fn wait_credential_end(&self, credential: &Credential) -> CredentialRefusal {
        let mut revocations = self.revocations.subscribe();
        loop {
            if let Err(refusal) = self.check_credential(credential) {
                return refusal;
            }
            tokio::select! {
                // The sender lives as long as `self`.
                _ = revocations.changed() => {}
                () = tokio::time::sleep(self.next_end_check(credential)) => {}
            }
        }
    }

    /// Time until the known end of a credential, at most [`MAX_END_CHECK_INTERVAL`].
    fn next_end_check(&self, Credential(kind, digest): &Credential) -> Duration {
        let token = match kind {
            CredentialKind::Token => Some(*digest),
            CredentialKind::Cookie => {
                self.lock_browser_logins().sign_in_facts(digest, self.clock.now()).map(|facts| facts.token)
            }
        };
        let end = token.and_then(|token| self.lock_tokens().get(&token).and_then(|entry| entry.lifetime.next_end()));
        let remaining_ms = end.map(|end| end.at().saturating_sub(self.wall_ms()).max(1));
        let remaining_ms = remaining_ms.and_then(|ms| u64::try_from(ms).ok());
        remaining_ms.map_or(MAX_END_CHECK_INTERVAL, |ms| Duration::from_millis(ms).min(MAX_END_CHECK_INTERVAL))
    }

    /// The wall clock in milliseconds since 1970.
    fn wall_ms(&self) -> i64 {
        self.clock.timestamp(self.clock.now()).as_millisecond()
    }
}

fn new_token_body(row: TokenRow, secret: &str) -> NewToken {
    let TokenRow { name, scope, scopes, expires_at, restrictions, .. } = row;
    NewToken { name, scope, scopes, token: secret.to_owned(), expires_at, restrictions }
}

/// An admin could make a token without restrictions, so its own would restrict nothing.
fn check_restrictions(restrictions: &TokenRestrictions, level: AccessLevel) -> Result<(), RestrictionProblem> {
    if level == AccessLevel::Admin && !restrictions.is_empty() {
        let problem = "a token with the scope admin takes none; give it another scope".to_owned();
        return Err(RestrictionProblem { field: "scope", problem });
    }
    restriction_problem(restrictions).map_or(Ok(()), Err)
}

fn to_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn format_ms(ms: i64) -> String {
    let time = jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX);
    format!("{time:.3}")
}

fn parse_ms(text: &str) -> Result<i64, jiff::Error> {
    text.parse::<jiff::Timestamp>().map(|time| time.as_millisecond())
}
