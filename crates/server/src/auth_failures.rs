//! Count requests with a bad token per peer network, log them, and answer 429 when there are too many.
//!
//! The log gets about one line a minute for each network. A valid token is accepted however many bad ones come from the
//! same network.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// Networks that are counted separately; the rest share one counter.
const MAX_PEERS: usize = 4096;

#[derive(Debug)]
pub(crate) struct AuthFailures {
    /// Bad tokens of one network in a [`FAILURE_WINDOW`] before it is told to wait.
    limit: u64,
    /// Recent bad tokens, by peer network; `None` counts those of unknown peers.
    peers: Mutex<HashMap<Option<IpAddr>, PeerFailures>>,
}

#[derive(Debug)]
struct PeerFailures {
    window_start: Instant,
    count: u64,
}

impl AuthFailures {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit: limit.into(), peers: Mutex::default() }
    }

    /// Counts a bad token of this peer. Returns the seconds to wait when there were too many.
    pub(crate) fn record(&self, peer: Option<IpAddr>) -> Option<u64> {
        let network = peer.map(peer_network);
        let mut peers = self.peers();
        let now = Instant::now();
        if !peers.contains_key(&network) && peers.len() >= MAX_PEERS {
            peers.retain(|_, peer| now.duration_since(peer.window_start) < FAILURE_WINDOW);
        }
        // When the table is full, further networks share the counter of unknown peers.
        let key = if peers.contains_key(&network) || peers.len() < MAX_PEERS { network } else { None };
        let failures = peers.entry(key).or_insert(PeerFailures { window_start: now, count: 0 });
        let passed = now.duration_since(failures.window_start);
        if passed >= FAILURE_WINDOW {
            if failures.count > 1 {
                tracing::warn!(
                    peer = peer_text(peer),
                    count = failures.count,
                    "requests with a bad token were refused in the last minutes"
                );
            }
            *failures = PeerFailures { window_start: now, count: 0 };
        }
        failures.count += 1;
        let (count, wait_s) =
            (failures.count, FAILURE_WINDOW.saturating_sub(now.duration_since(failures.window_start)).as_secs().max(1));
        drop(peers);
        match count {
            1 => tracing::warn!(peer = peer_text(peer), "a request with a bad token was refused"),
            count if count == self.limit + 1 => {
                tracing::warn!(peer = peer_text(peer), count, "many bad tokens come from one address")
            }
            _ => {}
        }
        (count > self.limit).then_some(wait_s)
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<Option<IpAddr>, PeerFailures>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn peer_text(peer: Option<IpAddr>) -> String {
    peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
}

/// The unit of counting: an IPv4 address, or the /64 network of an IPv6 address, because its owner may use any address
/// in it.
fn peer_network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u32 = 100;

    fn fail_from(failures: &AuthFailures, peer: &str) -> Option<u64> {
        failures.record(Some(peer.parse().unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn many_bad_tokens_of_one_address_are_told_to_wait() {
        let failures = AuthFailures::new(LIMIT);
        assert!((0..LIMIT).all(|_| fail_from(&failures, "192.0.2.1").is_none()));
        assert_eq!(fail_from(&failures, "192.0.2.1"), Some(FAILURE_WINDOW.as_secs()));
        assert_eq!(fail_from(&failures, "::ffff:192.0.2.1"), Some(FAILURE_WINDOW.as_secs()));
        assert_eq!(fail_from(&failures, "192.0.2.2"), None);
        tokio::time::advance(FAILURE_WINDOW).await;
        assert_eq!(fail_from(&failures, "192.0.2.1"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_network_counts_together_and_memory_is_bounded() {
        let failures = AuthFailures::new(LIMIT);
        let waits = (0..=LIMIT).filter(|n| fail_from(&failures, &format!("2001:db8::{n:x}")).is_some()).count();
        assert_eq!(waits, 1);
        for n in 0..2 * u32::try_from(MAX_PEERS).unwrap() {
            failures.record(Some(IpAddr::from(n.to_be_bytes())));
        }
        assert!(failures.peers().len() <= MAX_PEERS + 1);
        tokio::time::advance(FAILURE_WINDOW).await;
        fail_from(&failures, "192.0.2.1");
        assert!(failures.peers().len() < 10);
    }
}
