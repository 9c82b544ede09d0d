//! Limit connections without a valid token per peer and in total; evict the oldest.
//!
//! The newest connection always gets in, and the oldest is closed. A flood closes its own connections, and a caller
//! that comes to stop sends its request at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Connections without a token get this fraction (one fourth) of the descriptors in total.
const DESCRIPTOR_SHARE: u64 = 4;
/// Lower bound of the total, however few descriptors there are.
const MIN_TOTAL: usize = 16;

/// The peer to which a connection is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PeerKey {
    /// This machine: a process may use any address of the loopback network.
    Loopback,
    V4(Ipv4Addr),
    /// The /64 network: one machine may use any address in it.
    V6([u16; 4]),
    UnixSocket,
    /// The Unix socket, for processes that may not use it.
    RefusedUnixSocket,
}

impl PeerKey {
    pub(super) fn from_ip(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Self::Loopback,
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

/// All connections without a valid token. Clones share their state.
#[derive(Debug, Clone)]
pub(super) struct UnauthenticatedConnections(Arc<UnauthenticatedShared>);

#[derive(Debug)]
struct UnauthenticatedShared {
    max_per_peer: usize,
    max_total: usize,
    table: Mutex<UnauthenticatedTable>,
}

#[derive(Debug, Default)]
struct UnauthenticatedTable {
    next_number: u64,
    /// Ordered by number: the first is the oldest.
    by_number: BTreeMap<u64, (PeerKey, CancellationToken)>,
    by_peer: HashMap<PeerKey, BTreeSet<u64>>,
}

impl UnauthenticatedTable {
    /// Removes a connection. The caller cancels the returned token to close the connection, or drops it.
    fn remove(&mut self, number: u64) -> Option<CancellationToken> {
        let (peer, evicted) = self.by_number.remove(&number)?;
        if let Some(numbers) = self.by_peer.get_mut(&peer) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_peer.remove(&peer);
            }
        }
        Some(evicted)
    }
}

impl UnauthenticatedConnections {
    /// At most `per_peer` connections of each peer; in total a fraction of `descriptors`.
    pub(super) fn new(per_peer: usize, descriptors: u64) -> Self {
        let max_total = usize::try_from(descriptors / DESCRIPTOR_SHARE).unwrap_or(usize::MAX).max(MIN_TOTAL);
        Self(Arc::new(UnauthenticatedShared {
            max_per_peer: per_peer.clamp(1, max_total),
            max_total,
            table: Mutex::default(),
        }))
    }

    /// Admits a connection, and evicts the oldest of its peer or the oldest of all if there are too many.
    pub(super) fn admit(&self, peer: PeerKey) -> ConnectionHandle {
        let evicted = CancellationToken::new();
        let mut table = self.0.table();
        let number = table.next_number;
        table.next_number += 1;
        table.by_number.insert(number, (peer, evicted.clone()));
        let of_peer = table.by_peer.entry(peer).or_default();
        of_peer.insert(number);
        let oldest = of_peer.first().copied().filter(|_| of_peer.len() > self.0.max_per_peer);
        let oldest = oldest.or_else(|| {
            let first = table.by_number.first_key_value().map(|(number, _)| *number);
            first.filter(|_| table.by_number.len() > self.0.max_total)
        });
        let to_close = oldest.and_then(|oldest| table.remove(oldest));
        drop(table);
        if let Some(token) = to_close {
            token.cancel();
        }
        ConnectionHandle(Arc::new(ConnectionHandleInner { number, evicted, shared: Arc::clone(&self.0) }))
    }

    /// Closes up to `max_count` of the oldest connections and returns their number.
    pub(super) fn evict_oldest(&self, max_count: usize) -> usize {
        let mut table = self.0.table();
        let oldest: Vec<u64> = table.by_number.keys().copied().take(max_count).collect();
        let closed: Vec<CancellationToken> = oldest.into_iter().filter_map(|number| table.remove(number)).collect();
        drop(table);
        closed.iter().for_each(CancellationToken::cancel);
        closed.len()
    }
}

impl UnauthenticatedShared {
    fn table(&self) -> MutexGuard<'_, UnauthenticatedTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection. Clones share it; it is no longer counted when the last one is dropped.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionHandle(Arc<ConnectionHandleInner>);

#[derive(Debug)]
struct ConnectionHandleInner {
    number: u64,
    evicted: CancellationToken,
    shared: Arc<UnauthenticatedShared>,
}

impl ConnectionHandle {
    /// Records that a valid token came: the connection is not counted any more and is never evicted.
    pub(crate) fn mark_authenticated(&self) {
        self.0.shared.table().remove(self.0.number);
    }

    pub(super) fn is_authenticated(&self) -> bool {
        !self.0.shared.table().by_number.contains_key(&self.0.number)
    }

    pub(crate) async fn evicted(&self) {
        self.0.evicted.cancelled().await;
    }
}

impl Drop for ConnectionHandleInner {
    fn drop(&mut self) {
        self.shared.table().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use rstest::rstest;

    use super::*;

    fn peer_key(address: &str) -> PeerKey {
        PeerKey::from_ip(address.parse().unwrap())
    }

    fn is_evicted(connection: &ConnectionHandle) -> bool {
        connection.evicted().now_or_never().is_some()
    }

    #[test]
    fn the_newest_gets_in_and_the_oldest_of_its_peer_gives_way() {
        let connections = UnauthenticatedConnections::new(2, 1000);
        let other = connections.admit(peer_key("192.0.2.1"));
        let held: Vec<ConnectionHandle> = (0..3).map(|_| connections.admit(peer_key("192.0.2.7"))).collect();
        let evicted: Vec<bool> = held.iter().map(is_evicted).collect();
        assert_eq!((evicted, is_evicted(&other)), (vec![true, false, false], false));
    }

    #[test]
    fn a_connection_with_a_token_does_not_give_way() {
        let connections = UnauthenticatedConnections::new(1, 1000);
        let first = connections.admit(PeerKey::Loopback);
        first.mark_authenticated();
        let second = connections.admit(PeerKey::Loopback);
        assert!(first.is_authenticated() && !second.is_authenticated());
        drop(connections.admit(PeerKey::Loopback));
        assert_eq!((is_evicted(&first), is_evicted(&second)), (false, true));
        assert_eq!(connections.evict_oldest(10), 0);
    }

    #[test]
    fn many_peers_share_what_there_is_in_all() {
        let connections = UnauthenticatedConnections::new(1000, 64);
        let held: Vec<ConnectionHandle> =
            (0..17_u8).map(|n| connections.admit(PeerKey::V4([10, 0, 0, n].into()))).collect();
        assert_eq!(held.iter().filter(|connection| is_evicted(connection)).count(), 1);
        assert!(is_evicted(&held[0]));
    }

    #[test]
    fn closed_connections_are_not_counted() {
        let connections = UnauthenticatedConnections::new(1, 1000);
        drop(connections.admit(PeerKey::UnixSocket));
        let next = connections.admit(PeerKey::UnixSocket);
        assert!(!is_evicted(&next));
        let again = next.clone();
        drop(next);
        assert_eq!((connections.evict_oldest(10), is_evicted(&again)), (1, true));
    }

    #[rstest]
    #[case("127.0.0.1", "127.200.3.4", true)]
    #[case("127.0.0.1", "::1", true)]
    #[case("::ffff:127.0.0.1", "127.0.0.1", true)]
    #[case("::ffff:192.0.2.7", "192.0.2.7", true)]
    #[case("192.0.2.7", "192.0.2.8", false)]
    #[case("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", true)]
    #[case("2001:db8:0:1::1", "2001:db8:0:2::1", false)]
    fn addresses_that_one_machine_may_take_are_one_peer(#[case] one: &str, #[case] other: &str, #[case] same: bool) {
        assert_eq!(peer_key(one) == peer_key(other), same);
    }
}
