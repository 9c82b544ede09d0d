//! One-time codes, and the cookies and page secrets of signed-in browsers, in memory and as hashes only.

use std::collections::HashMap;
use std::time::Duration;

use quell_kernel::Moment;
use serde::{Deserialize, Serialize};

use super::secret::SecretDigest;

const LOGIN_CODE_LIFETIME: Duration = Duration::from_secs(10 * 60);
pub(super) const COOKIE_LIFETIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Maximum number of codes, and of cookies, so that sign-ins cannot fill the memory. The one that expires first is
/// evicted.
pub(super) const MAX_ENTRIES: usize = 1024;

/// Maximum number of cookies of one token. The one that expires first is evicted, so that no token signs out the
/// browsers of another.
pub(super) const MAX_COOKIES_PER_TOKEN: usize = 32;

#[derive(Default)]
pub(super) struct BrowserLogins {
    login_codes: ExpiringMap<LinkIssuer>,
    cookies: ExpiringMap<SignInFacts>,
}

/// How a browser was signed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SignInFacts {
    /// The token that it stands for.
    pub(super) token: SecretDigest,
    /// It used a link that only a person had.
    pub(super) verified_person: bool,
}

/// What a browser presents: its cookie, which it sends to every port of the host, and the secret that the page keeps
/// for its origin, which belongs to one port.
#[derive(Clone, Copy)]
pub struct BrowserSecrets<'a> {
    pub cookie: &'a str,
    pub page_secret: &'a str,
}

impl BrowserSecrets<'_> {
    /// The hash of both. Only this one is stored, so nothing can be looked up by the cookie alone.
    pub(super) fn digest(&self) -> SecretDigest {
        SecretDigest::of(&format!("{}.{}", self.cookie, self.page_secret))
    }
}

impl std::fmt::Debug for BrowserSecrets<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BrowserSecrets")
    }
}

/// Who gets a sign-in link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkIssuer {
    /// A person: at the daemon's terminal, or a caller that is a verified person.
    Person,
    /// A holder of an admin token, which may be a program that has read it.
    TokenHolder,
}

impl BrowserLogins {
    pub(super) fn add_login_code(&mut self, code: SecretDigest, issuer: LinkIssuer, now: Moment) {
        self.login_codes.insert(code, issuer, now, now.plus(LOGIN_CODE_LIFETIME));
    }

    /// Uses up a code. Returns who got it, if it was valid.
    pub(super) fn redeem_login_code(&mut self, code: &SecretDigest, now: Moment) -> Option<LinkIssuer> {
        self.login_codes.0.remove(code).filter(|(_, until)| *until >= now).map(|(issuer, _)| issuer)
    }

    pub(super) fn add_cookie(&mut self, value: SecretDigest, facts: SignInFacts, now: Moment, until: Moment) {
        self.cookies.insert(value, facts, now, until);
        let of_token = self.cookies.0.iter().filter(|(_, (of, _))| of.token == facts.token);
        let mut of_token: Vec<(Moment, SecretDigest)> = of_token.map(|(value, (_, until))| (*until, *value)).collect();
        of_token.sort_unstable_by(|one, other| other.cmp(one));
        for (_, old) in of_token.iter().skip(MAX_COOKIES_PER_TOKEN).filter(|(_, old)| *old != value) {
            self.cookies.0.remove(old);
        }
    }

    /// How a valid cookie was signed in.
    pub(super) fn sign_in_facts(&self, value: &SecretDigest, now: Moment) -> Option<SignInFacts> {
        let (facts, until) = self.cookies.0.get(value)?;
        (*until >= now).then_some(*facts)
    }

    pub(super) fn remove_cookie(&mut self, value: &SecretDigest) {
        self.cookies.0.remove(value);
    }
}

/// Entries that are valid until a moment.
struct ExpiringMap<T>(HashMap<SecretDigest, (T, Moment)>);

impl<T> ExpiringMap<T> {
    fn insert(&mut self, digest: SecretDigest, value: T, now: Moment, until: Moment) {
        self.0.retain(|_, (_, until)| *until >= now);
        if self.0.len() >= MAX_ENTRIES
            && let Some(first) = self.0.iter().min_by_key(|(_, (_, until))| *until).map(|(digest, _)| *digest)
        {
            self.0.remove(&first);
        }
        self.0.insert(digest, (value, until));
    }
}

impl<T> Default for ExpiringMap<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}
