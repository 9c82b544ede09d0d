//! Signing browsers in: one-time links, and cookies that a restart keeps. A cookie stands for the token that signed it in and is
//! worth nothing without it.

use std::time::Duration;

use quell_protocol::Principal;
use quell_protocol::api::Scope;
use secrecy::{ExposeSecret, SecretString};

use super::page::{COOKIE_LIFE, MOST, MOST_OF_TOKEN};
use super::secret::{self, Digest};
use super::{Access, AccessError};
use crate::clock::Clock;
use crate::store::StoredCookie;

/// A browser that has just been signed in.
#[derive(Debug)]
pub struct SignedIn {
    /// As whom.
    pub principal: Principal,
    /// What it may do.
    pub scope: Scope,
    /// The value of its cookie, which is shown this once.
    pub cookie: SecretString,
}

impl Access {
    /// A code for a sign-in link of the page: good for one use within ten minutes, as the admin.
    ///
    /// # Errors
    /// [`AccessError`] when there is no chance in the system.
    pub fn issue_link(&self) -> Result<SecretString, AccessError> {
        let code = secret::random()?;
        self.page().keep_login(Digest::of(code.expose_secret()), self.clock.now());
        Ok(code)
    }

    /// Uses up a sign-in code; `None` when it was not good.
    ///
    /// # Errors
    /// [`AccessError`] when there is no chance in the system.
    ///
    /// # Cancel safety
    /// Dropped, the code may be used up; a new link signs in.
    pub async fn sign_in_by_link(&self, code: &str) -> Result<Option<SignedIn>, AccessError> {
        if !self.page().take_login(&Digest::of(code), self.clock.now()) {
            return Ok(None);
        }
        self.issue_cookie(self.admin_principal.clone(), Scope::Admin, self.admin).await.map(Some)
    }

    /// Signs a browser in that shows a token; `None` when it is nobody's.
    ///
    /// # Errors
    /// [`AccessError`] when there is no chance in the system.
    ///
    /// # Cancel safety
    /// Dropped, it may leave a cookie that nobody has; it ends by itself.
    pub async fn sign_in(&self, token: &str) -> Result<Option<SignedIn>, AccessError> {
        let Some((principal, scope)) = self.authenticate(token) else { return Ok(None) };
        self.issue_cookie(principal, scope, Digest::of(token)).await.map(Some)
    }

    /// The name of the cookie. Browsers do not tell the ports of a host apart: two daemons on one machine have each its own.
    #[must_use]
    pub fn cookie_name(&self) -> &str {
        &self.cookie_name
    }

    /// A cookie is worth what its token is worth now.
    pub(super) fn owner_of_cookie(&self, value: &Digest) -> Option<(Principal, Scope)> {
        let token = self.page().token_of(value, self.clock.now())?;
        self.owner_of(&token)
    }

    /// Makes a cookie worthless, at once and for good.
    ///
    /// # Errors
    /// [`AccessError`] when it could not be written: the cookie does not work now, and would again after a restart.
    ///
    /// # Cancel safety
    /// The cookie has stopped working; dropped, it may work again after a restart.
    pub async fn sign_out(&self, value: &str) -> Result<(), AccessError> {
        let digest = Digest::of(value);
        self.page().drop_cookie(&digest);
        self.withdrawn.send_replace(());
        Ok(self.store.drop_cookie(digest.hex()).await?)
    }

    /// A cookie for a browser. It is good for thirty days or until its token is revoked. One that cannot be written works all
    /// the same, until a restart: whoever wants to stop something has to get in whatever the disk does.
    async fn issue_cookie(&self, principal: Principal, scope: Scope, token: Digest) -> Result<SignedIn, AccessError> {
        let cookie = secret::random()?;
        let digest = Digest::of(cookie.expose_secret());
        let now = self.clock.now();
        self.page().keep_cookie(digest, token, now, now.plus(COOKIE_LIFE));
        let life = i64::try_from(COOKIE_LIFE.as_secs()).unwrap_or(i64::MAX);
        let expires = Clock::wall_seconds().saturating_add(life);
        let stored = StoredCookie { sha256: digest.hex(), token: token.hex(), expires };
        if let Err(error) = self.store.keep_cookie(stored, MOST_OF_TOKEN).await {
            tracing::warn!(%error, %principal, "a browser is signed in until the next restart only");
        }
        Ok(SignedIn { principal, scope, cookie })
    }

    /// Lets the browsers in again that were signed in before a restart, each with its token, if that is still good.
    pub(super) async fn remember_cookies(&self) -> Result<(), AccessError> {
        let (now, wall) = (self.clock.now(), Clock::wall_seconds());
        if let Err(error) = self.store.drop_old_cookies(wall).await {
            tracing::warn!(%error, "cookies that have expired stay in the database until the next start");
        }
        for stored in self.store.good_cookies(wall, MOST).await? {
            let (Some(value), Some(token)) = (Digest::from_hex(&stored.sha256), Digest::from_hex(&stored.token)) else {
                continue;
            };
            if self.owner_of(&token).is_none() {
                continue;
            }
            let left = u64::try_from(stored.expires.saturating_sub(wall)).unwrap_or_default();
            let until = now.plus(Duration::from_secs(left));
            self.page().keep_cookie(value, token, now, until);
        }
        Ok(())
    }
}
