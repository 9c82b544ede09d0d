//! Resolve names in the daemon, in a number of threads that no command can raise.

use std::future::Future;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::Semaphore;

/// Threads that look up names at once. A lookup cannot be ended, so those that nobody waits for any more count, too.
const MAX_LOOKUPS: usize = 32;

/// The addresses of a name, when they are known.
pub type ResolvedAddresses<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Resolves names to addresses. Asked once for each connection.
pub trait HostResolver: Send + Sync {
    /// `name` is ASCII, lower case, without a dot at the end. All addresses have to be given: one that is not allowed
    /// refuses the name.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time.
    fn resolve<'a>(&'a self, name: &'a str) -> ResolvedAddresses<'a>;
}

/// The resolver of the system. One is enough for all proxies of a daemon; clones share one limit of threads.
#[derive(Debug, Clone)]
pub struct SystemResolver(Arc<Semaphore>);

impl Default for SystemResolver {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_LOOKUPS)))
    }
}

impl HostResolver for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> ResolvedAddresses<'a> {
        Box::pin(async move {
            let permit = Arc::clone(&self.0).acquire_owned().await.map_err(io::Error::other)?;
            let name = name.to_owned();
            let look_up = move || {
                let found = (name.as_str(), 0).to_socket_addrs();
                // Held until the thread is free, also when nobody waits for the result.
                drop(permit);
                found.map(|found| found.map(|address| address.ip()).collect())
            };
            #[expect(clippy::disallowed_methods, reason = "a stop does not wait for a lookup, which cannot be ended")]
            let lookup = tokio::task::spawn_blocking(look_up);
            lookup.await.map_err(io::Error::other)?
        })
    }
}
