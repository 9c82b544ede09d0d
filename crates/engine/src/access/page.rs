//! What signs a browser in: one-time codes and cookies, as hashes only, looked up without touching a disk.

use std::collections::HashMap;
use std::time::Duration;

use quell_kernel::Moment;
use quell_protocol::Principal;
use quell_protocol::api::Scope;

use super::secret::Digest;

const LOGIN_LIFE: Duration = Duration::from_secs(10 * 60);
pub(super) const COOKIE_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Most of each that are kept, so that signing in cannot fill the memory. Beyond it the one that ends first goes.
pub(super) const MOST: usize = 1024;

/// The codes and cookies that are good.
#[derive(Default)]
pub(super) struct Page {
    logins: Shelf<()>,
    cookies: Shelf<Pass>,
}

/// Whom a cookie lets in.
pub(super) struct Pass {
    pub(super) principal: Principal,
    pub(super) scope: Scope,
    /// The token that signed it in.
    pub(super) token: Digest,
}

impl Page {
    pub(super) fn keep_login(&mut self, code: Digest, now: Moment) {
        self.logins.keep(code, (), now, now.plus(LOGIN_LIFE));
    }

    /// True when the code was good. It is not any more.
    pub(super) fn take_login(&mut self, code: &Digest, now: Moment) -> bool {
        self.logins.0.remove(code).is_some_and(|((), until)| until >= now)
    }

    pub(super) fn keep_cookie(&mut self, value: Digest, pass: Pass, now: Moment, until: Moment) {
        self.cookies.keep(value, pass, now, until);
    }

    pub(super) fn cookie(&self, value: &Digest, now: Moment) -> Option<(Principal, Scope)> {
        let (pass, until) = self.cookies.0.get(value)?;
        (*until >= now).then(|| (pass.principal.clone(), pass.scope))
    }

    pub(super) fn drop_cookie(&mut self, value: &Digest) {
        self.cookies.0.remove(value);
    }

    pub(super) fn drop_cookies_of(&mut self, name: &str) {
        self.cookies.0.retain(|_, (pass, _)| pass.principal.as_str() != name);
    }
}

/// Things that are good until a moment.
struct Shelf<T>(HashMap<Digest, (T, Moment)>);

impl<T> Shelf<T> {
    fn keep(&mut self, digest: Digest, thing: T, now: Moment, until: Moment) {
        self.0.retain(|_, (_, until)| *until >= now);
        if self.0.len() >= MOST
            && let Some(first) = self.0.iter().min_by_key(|(_, (_, until))| *until).map(|(digest, _)| *digest)
        {
            self.0.remove(&first);
        }
        self.0.insert(digest, (thing, until));
    }
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}
