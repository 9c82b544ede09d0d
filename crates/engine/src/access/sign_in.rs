//! Sign-in of browsers: one-time links, and cookies that survive a restart. A cookie is valid only together with the
//! secret of its page, and only as long as the token of its sign-in.

use std::time::Duration;

use quell_protocol::Principal;
use quell_protocol::api::AccessLevel;
use quell_scope::clock::Clock;
use quell_store::StoredCookie;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::browser_logins::{
    BrowserSecrets, COOKIE_LIFETIME, LinkIssuer, MAX_COOKIES_PER_TOKEN, MAX_ENTRIES, SignInFacts,
};
use super::secret::{self, SecretDigest};
use super::{AccessControl, AccessError, CredentialRefusal};

/// A browser that has just been signed in.
#[derive(Debug)]
pub struct BrowserSignIn {
    pub principal: Principal,
    pub scope: AccessLevel,
    /// The value of its cookie, which is not stored.
    pub cookie: SecretString,
    /// The secret that the page keeps in the storage of its origin and sends with each request. It is not stored
    /// either, and the cookie is worth nothing without it.
    pub page_secret: SecretString,
}

impl BrowserSignIn {
    /// What the browser presents from now on.
    pub fn secrets(&self) -> BrowserSecrets<'_> {
        BrowserSecrets { cookie: self.cookie.expose_secret(), page_secret: self.page_secret.expose_secret() }
    }
}

/// A code of a sign-in link, as a hash: other nodes are not told the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LoginCodeDigest(SecretDigest);

impl LoginCodeDigest {
    pub(crate) fn of(code: &str) -> Self {
        Self(SecretDigest::of(code))
    }
}

impl AccessControl {
    /// Issues a code for a sign-in link of the page: for one sign-in as the admin, within ten minutes.
    pub fn issue_login_code(&self, issuer: LinkIssuer) -> Result<SecretString, AccessError> {
        let code = secret::new_secret()?;
        self.lock_browser_logins().add_login_code(SecretDigest::of(code.expose_secret()), issuer, self.clock.now());
        Ok(code)
    }

    /// Uses up a sign-in code of this node. Returns `None` if it is invalid.
    pub(crate) fn redeem_login_code(&self, code: &LoginCodeDigest) -> Option<LinkIssuer> {
        self.lock_browser_logins().redeem_login_code(&code.0, self.clock.now())
    }

    /// Uses up a sign-in code of this node. Returns `None` if it is invalid.
    ///
    /// # Cancel safety
    /// If dropped, the code may be used up without a sign-in; a new link is needed then.
    pub async fn sign_in_with_code(&self, code: &str) -> Result<Option<BrowserSignIn>, AccessError> {
        match self.redeem_login_code(&LoginCodeDigest::of(code)) {
            Some(issuer) => self.sign_in_by_link(issuer).await.map(Some),
            None => Ok(None),
        }
    }

    /// Signs a browser in as the admin, after its code was used up.
    ///
    /// # Cancel safety
    /// If dropped, there is no sign-in; a new link is needed then.
    pub(crate) async fn sign_in_by_link(&self, issuer: LinkIssuer) -> Result<BrowserSignIn, AccessError> {
        let facts = SignInFacts { token: self.admin_digest, verified_person: issuer == LinkIssuer::Person };
        self.issue_cookie(self.admin_principal.clone(), AccessLevel::Admin, facts).await
    }

    /// Signs a browser in with a token. Returns `None` if the token is invalid.
    ///
    /// # Cancel safety
    /// Safe: if dropped, it may leave a cookie that nobody has. The cookie expires by itself.
    pub async fn sign_in_with_token(&self, token: &str) -> Result<Option<BrowserSignIn>, AccessError> {
        let Some((principal, scope)) = self.authenticate(token) else { return Ok(None) };
        let facts = SignInFacts { token: SecretDigest::of(token), verified_person: false };
        self.issue_cookie(principal, scope, facts).await.map(Some)
    }

    /// The name of the cookie. Browsers share cookies between the ports of a host, so each daemon of a machine has its
    /// own name.
    pub fn cookie_name(&self) -> &str {
        &self.cookie_name
    }

    /// Principal and access level of a signed-in browser: those that its token has now. The key is a hash of both
    /// secrets, so the duration of the lookup reveals nothing about them.
    pub(super) fn check_browser(&self, value: &SecretDigest) -> Result<(Principal, AccessLevel), CredentialRefusal> {
        let facts = self.lock_browser_logins().sign_in_facts(value, self.clock.now());
        self.check_token(&facts.ok_or(CredentialRefusal::Unknown)?.token)
    }

    /// Invalidates the cookie of a browser, at once and for good.
    ///
    /// # Errors
    /// If the write fails, the cookie has stopped working, but works again after a restart.
    ///
    /// # Cancel safety
    /// The cookie has stopped working. If dropped, it may work again after a restart.
    pub async fn sign_out(&self, secrets: BrowserSecrets<'_>) -> Result<(), AccessError> {
        let digest = secrets.digest();
        self.lock_browser_logins().remove_cookie(&digest);
        self.revocations.send_replace(());
        Ok(self.store.access().delete_cookie(digest.hex()).await?)
    }

    /// Issues a cookie, which is valid for thirty days or until its token is revoked. A cookie that cannot be written
    /// works until the next restart: people must be able to sign in and stop a run even if the disk fails.
    async fn issue_cookie(
        &self,
        principal: Principal,
        scope: AccessLevel,
        facts: SignInFacts,
    ) -> Result<BrowserSignIn, AccessError> {
        let signed_in =
            BrowserSignIn { principal, scope, cookie: secret::new_secret()?, page_secret: secret::new_secret()? };
        let digest = signed_in.secrets().digest();
        let now = self.clock.now();
        self.lock_browser_logins().add_cookie(digest, facts, now, now.plus(COOKIE_LIFETIME));
        let lifetime_s = i64::try_from(COOKIE_LIFETIME.as_secs()).unwrap_or(i64::MAX);
        let expires = Clock::wall_seconds().saturating_add(lifetime_s);
        let stored = StoredCookie {
            sha256: digest.hex(),
            token: facts.token.hex(),
            expires,
            verified_person: facts.verified_person,
        };
        if let Err(error) = self.store.access().save_cookie(stored, MAX_COOKIES_PER_TOKEN).await {
            tracing::warn!(%error, principal = %signed_in.principal, "a browser is signed in until the next restart only");
        }
        Ok(signed_in)
    }

    /// Reads the cookies whose tokens are still valid. It writes nothing: in a cluster, each write is a change that the
    /// other nodes read.
    pub(super) async fn restore_cookies(&self) -> Result<(), AccessError> {
        let (now, wall) = (self.clock.now(), Clock::wall_seconds());
        let mut valid = Vec::new();
        for stored in self.store.access().list_valid_cookies(wall, MAX_ENTRIES).await? {
            let (Some(value), Some(token)) =
                (SecretDigest::from_hex(&stored.sha256), SecretDigest::from_hex(&stored.token))
            else {
                continue;
            };
            if self.check_token(&token).is_err() {
                continue;
            }
            let remaining_s = u64::try_from(stored.expires.saturating_sub(wall)).unwrap_or_default();
            let until = now.plus(Duration::from_secs(remaining_s));
            valid.push((value, SignInFacts { token, verified_person: stored.verified_person }, until));
        }
        let mut logins = self.lock_browser_logins();
        logins.remove_all_cookies();
        valid.into_iter().for_each(|(value, facts, until)| logins.add_cookie(value, facts, now, until));
        Ok(())
    }

    pub(super) async fn delete_expired_cookies(&self) {
        if let Err(error) = self.store.access().delete_expired_cookies(Clock::wall_seconds()).await {
            tracing::warn!(%error, "cookies that have expired stay in the database until the next start");
        }
    }
}
