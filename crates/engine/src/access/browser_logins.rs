//! One-time codes and cookies that sign browsers in, in memory and as hashes only.

use std::collections::HashMap;
use std::time::Duration;

use quell_kernel::Moment;

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
    login_codes: ExpiringMap<()>,
    /// Each with the token of its sign-in.
    cookies: ExpiringMap<SecretDigest>,
}

impl BrowserLogins {
    pub(super) fn add_login_code(&mut self, code: SecretDigest, now: Moment) {
        self.login_codes.insert(code, (), now, now.plus(LOGIN_CODE_LIFETIME));
    }

    /// Uses up a code. Returns true if it was valid.
    pub(super) fn redeem_login_code(&mut self, code: &SecretDigest, now: Moment) -> bool {
        self.login_codes.0.remove(code).is_some_and(|((), until)| until >= now)
    }

    pub(super) fn add_cookie(&mut self, value: SecretDigest, token: SecretDigest, now: Moment, until: Moment) {
        self.cookies.insert(value, token, now, until);
        let of_token = self.cookies.0.iter().filter(|(_, (of, _))| *of == token);
        let mut of_token: Vec<(Moment, SecretDigest)> = of_token.map(|(value, (_, until))| (*until, *value)).collect();
        of_token.sort_unstable_by(|one, other| other.cmp(one));
        for (_, old) in of_token.iter().skip(MAX_COOKIES_PER_TOKEN).filter(|(_, old)| *old != value) {
            self.cookies.0.remove(old);
        }
    }

    /// The token of a cookie's sign-in, if the cookie is valid.
    pub(super) fn cookie_token(&self, value: &SecretDigest, now: Moment) -> Option<SecretDigest> {
        let (token, until) = self.cookies.0.get(value)?;
        (*until >= now).then_some(*token)
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
