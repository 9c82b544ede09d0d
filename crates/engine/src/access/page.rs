//! What signs a browser in: one-time codes and cookies, as hashes only, looked up without touching a disk.

use std::collections::HashMap;
use std::time::Duration;

use quell_kernel::Moment;

use super::secret::Digest;

const LOGIN_LIFE: Duration = Duration::from_secs(10 * 60);
pub(super) const COOKIE_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Most of each that are kept, so that signing in cannot fill the memory. Beyond it the one that ends first goes.
pub(super) const MOST: usize = 1024;

/// Browsers that one token keeps signed in. Beyond it the one that ends first goes: no token signs another's browsers out.
pub(super) const MOST_OF_TOKEN: usize = 32;

/// The codes and cookies that are good.
#[derive(Default)]
pub(super) struct Page {
    logins: Shelf<()>,
    /// Each with the token that signed it in.
    cookies: Shelf<Digest>,
}

impl Page {
    pub(super) fn keep_login(&mut self, code: Digest, now: Moment) {
        self.logins.keep(code, (), now, now.plus(LOGIN_LIFE));
    }

    /// True when the code was good. It is not any more.
    pub(super) fn take_login(&mut self, code: &Digest, now: Moment) -> bool {
        self.logins.0.remove(code).is_some_and(|((), until)| until >= now)
    }

    pub(super) fn keep_cookie(&mut self, value: Digest, token: Digest, now: Moment, until: Moment) {
        self.cookies.keep(value, token, now, until);
        let of_token = self.cookies.0.iter().filter(|(_, (of, _))| *of == token);
        let mut of_token: Vec<(Moment, Digest)> = of_token.map(|(value, (_, until))| (*until, *value)).collect();
        of_token.sort_unstable_by(|one, other| other.cmp(one));
        for (_, old) in of_token.iter().skip(MOST_OF_TOKEN).filter(|(_, old)| *old != value) {
            self.cookies.0.remove(old);
        }
    }

    /// The token that signed a cookie in, while the cookie is good.
    pub(super) fn token_of(&self, value: &Digest, now: Moment) -> Option<Digest> {
        let (token, until) = self.cookies.0.get(value)?;
        (*until >= now).then_some(*token)
    }

    pub(super) fn drop_cookie(&mut self, value: &Digest) {
        self.cookies.0.remove(value);
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
