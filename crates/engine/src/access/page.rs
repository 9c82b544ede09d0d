//! What signs a browser in: one-time codes and cookies, in memory and as hashes only. A restart signs everybody out.

use std::collections::HashMap;
use std::time::Duration;

use quell_kernel::Moment;
use quell_protocol::Principal;
use quell_protocol::api::Scope;

use super::secret::Digest;

const LOGIN_LIFE: Duration = Duration::from_secs(10 * 60);
const COOKIE_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Most of each that are kept, so that signing in cannot fill the memory. Beyond it the one that ends first goes.
const MOST: usize = 1024;

/// The codes and cookies that are good.
#[derive(Default)]
pub(super) struct Page {
    logins: Shelf<()>,
    cookies: Shelf<(Principal, Scope)>,
}

impl Page {
    pub(super) fn keep_login(&mut self, code: Digest, now: Moment) {
        self.logins.keep(code, (), now, LOGIN_LIFE);
    }

    /// True when the code was good. It is not any more.
    pub(super) fn take_login(&mut self, code: &Digest, now: Moment) -> bool {
        self.logins.0.remove(code).is_some_and(|((), until)| until >= now)
    }

    pub(super) fn keep_cookie(&mut self, value: Digest, whose: (Principal, Scope), now: Moment) {
        self.cookies.keep(value, whose, now, COOKIE_LIFE);
    }

    pub(super) fn cookie(&self, value: &Digest, now: Moment) -> Option<(Principal, Scope)> {
        let (whose, until) = self.cookies.0.get(value)?;
        (*until >= now).then(|| whose.clone())
    }

    pub(super) fn drop_cookie(&mut self, value: &Digest) {
        self.cookies.0.remove(value);
    }

    pub(super) fn drop_cookies_of(&mut self, name: &str) {
        self.cookies.0.retain(|_, ((principal, _), _)| principal.as_str() != name);
    }
}

/// Things that are good until a moment.
struct Shelf<T>(HashMap<Digest, (T, Moment)>);

impl<T> Shelf<T> {
    fn keep(&mut self, digest: Digest, thing: T, now: Moment, life: Duration) {
        self.0.retain(|_, (_, until)| *until >= now);
        if self.0.len() >= MOST
            && let Some(first) = self.0.iter().min_by_key(|(_, (_, until))| *until).map(|(digest, _)| *digest)
        {
            self.0.remove(&first);
        }
        self.0.insert(digest, (thing, now.plus(life)));
    }
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}
