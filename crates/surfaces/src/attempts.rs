//! Requests with a bad token, counted by the address they come from: told in the log, a line a minute for each address, and
//! answered shortly when they are many. A good token gets in whatever else comes from the same address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Bad tokens of one address in a [`WINDOW`] before it is told to wait.
const MOST: u64 = 100;
/// How long bad tokens count.
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are remembered.
const PEERS: usize = 4096;

/// The bad tokens of late.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<HashMap<Option<IpAddr>, Peer>>);

#[derive(Debug)]
struct Peer {
    since: Instant,
    bad: u64,
}

impl Attempts {
    /// A bad token came from this address, or from one that is not known. Answers the seconds to wait when there were too many.
    pub(crate) fn failed(&self, peer: Option<IpAddr>) -> Option<u64> {
        let network = peer.map(network);
        let mut peers = self.peers();
        let now = Instant::now();
        if !peers.contains_key(&network) && peers.len() >= PEERS {
            peers.retain(|_, peer| now.duration_since(peer.since) < WINDOW);
        }
        // Too many addresses at once share what is counted of those that are not known.
        let key = if peers.contains_key(&network) || peers.len() < PEERS { network } else { None };
        let counted = peers.entry(key).or_insert(Peer { since: now, bad: 0 });
        let passed = now.duration_since(counted.since);
        if passed >= WINDOW {
            if counted.bad > 1 {
                tracing::warn!(
                    peer = told(peer),
                    count = counted.bad,
                    "requests with a bad token were refused in the last minutes"
                );
            }
            *counted = Peer { since: now, bad: 0 };
        }
        counted.bad += 1;
        let (bad, waits) = (counted.bad, WINDOW.saturating_sub(now.duration_since(counted.since)).as_secs().max(1));
        drop(peers);
        match bad {
            1 => tracing::warn!(peer = told(peer), "a request with a bad token was refused"),
            bad if bad == MOST + 1 => {
                tracing::warn!(peer = told(peer), count = bad, "many bad tokens come from one address")
            }
            _ => {}
        }
        (bad > MOST).then_some(waits)
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<Option<IpAddr>, Peer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn told(peer: Option<IpAddr>) -> String {
    peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
}

/// Who has one address of version 6 has all that share its first half.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(attempts: &Attempts, peer: &str) -> Option<u64> {
        attempts.failed(Some(peer.parse().unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn many_bad_tokens_of_one_address_are_told_to_wait() {
        let attempts = Attempts::default();
        assert!((0..MOST).all(|_| from(&attempts, "192.0.2.1").is_none()));
        assert_eq!(from(&attempts, "192.0.2.1"), Some(WINDOW.as_secs()));
        assert_eq!(from(&attempts, "::ffff:192.0.2.1"), Some(WINDOW.as_secs()));
        assert_eq!(from(&attempts, "192.0.2.2"), None);
        tokio::time::advance(WINDOW).await;
        assert_eq!(from(&attempts, "192.0.2.1"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_network_counts_together_and_memory_is_bounded() {
        let attempts = Attempts::default();
        let waits = (0..=MOST).filter(|n| from(&attempts, &format!("2001:db8::{n:x}")).is_some()).count();
        assert_eq!(waits, 1);
        for n in 0..2 * u32::try_from(PEERS).unwrap() {
            attempts.failed(Some(IpAddr::from(n.to_be_bytes())));
        }
        assert!(attempts.peers().len() <= PEERS + 1);
        tokio::time::advance(WINDOW).await;
        from(&attempts, "192.0.2.1");
        assert!(attempts.peers().len() < 10);
    }
}
