//! Connections that have shown no valid token yet: how many there may be, of each peer and in all. The newest always gets in, and
//! the oldest gives way: who floods closes its own connections, and who comes to stop sends its request at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// In all they get this share of the descriptors.
const SHARE: u64 = 4;
/// However few descriptors there are.
const LEAST_IN_ALL: usize = 16;

/// A peer, as connections are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    /// This machine: a process may take any address of the loopback network.
    Loopback,
    V4(Ipv4Addr),
    /// The network, of which one machine may take any address.
    V6([u16; 4]),
    /// The Unix socket.
    Local,
    /// The same, by processes that may not use it.
    Refused,
}

impl Peer {
    pub(super) fn of(address: IpAddr) -> Self {
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

/// All connections without a valid token. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    per_peer: usize,
    in_all: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// By number, so that the oldest is the first.
    waiting: BTreeMap<u64, (Peer, CancellationToken)>,
    of_peer: HashMap<Peer, BTreeSet<u64>>,
}

impl Table {
    /// Takes a connection out; the caller closes it or has let it in.
    fn remove(&mut self, number: u64) -> Option<CancellationToken> {
        let (peer, evicted) = self.waiting.remove(&number)?;
        if let Some(numbers) = self.of_peer.get_mut(&peer) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.of_peer.remove(&peer);
            }
        }
        Some(evicted)
    }
}

impl Connections {
    /// At most `per_peer` of each peer, and in all a share of the descriptors.
    pub(super) fn new(per_peer: usize, descriptors: u64) -> Self {
        let in_all = usize::try_from(descriptors / SHARE).unwrap_or(usize::MAX).max(LEAST_IN_ALL);
        Self(Arc::new(Shared { per_peer: per_peer.clamp(1, in_all), in_all, table: Mutex::default() }))
    }

    /// Takes in a connection; the oldest of its peer gives way, or the oldest of all.
    pub(super) fn admit(&self, peer: Peer) -> Connection {
        let evicted = CancellationToken::new();
        let mut table = self.0.table();
        let number = table.next;
        table.next += 1;
        table.waiting.insert(number, (peer, evicted.clone()));
        let of_peer = table.of_peer.entry(peer).or_default();
        of_peer.insert(number);
        let oldest = of_peer.first().copied().filter(|_| of_peer.len() > self.0.per_peer);
        let oldest = oldest.or_else(|| {
            let first = table.waiting.first_key_value().map(|(number, _)| *number);
            first.filter(|_| table.waiting.len() > self.0.in_all)
        });
        let closed = oldest.and_then(|oldest| table.remove(oldest));
        drop(table);
        if let Some(closed) = closed {
            closed.cancel();
        }
        Connection(Arc::new(Entry { number, evicted, shared: Arc::clone(&self.0) }))
    }

    /// Closes up to `most` of the oldest. Answers how many.
    pub(super) fn evict_oldest(&self, most: usize) -> usize {
        let mut table = self.0.table();
        let oldest: Vec<u64> = table.waiting.keys().copied().take(most).collect();
        let closed: Vec<CancellationToken> = oldest.into_iter().filter_map(|number| table.remove(number)).collect();
        drop(table);
        closed.iter().for_each(CancellationToken::cancel);
        closed.len()
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection. Clones are the same; the last one that is dropped takes it out of the count.
#[derive(Debug, Clone)]
pub(crate) struct Connection(Arc<Entry>);

#[derive(Debug)]
struct Entry {
    number: u64,
    evicted: CancellationToken,
    shared: Arc<Shared>,
}

impl Connection {
    /// A valid token came: from now on it is not counted and does not give way.
    pub(crate) fn authenticated(&self) {
        self.0.shared.table().remove(self.0.number);
    }

    pub(super) fn is_authenticated(&self) -> bool {
        !self.0.shared.table().waiting.contains_key(&self.0.number)
    }

    /// Waits until it has to give way.
    pub(crate) async fn evicted(&self) {
        self.0.evicted.cancelled().await;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.table().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use rstest::rstest;

    use super::*;

    fn of(address: &str) -> Peer {
        Peer::of(address.parse().unwrap())
    }

    fn is_evicted(connection: &Connection) -> bool {
        connection.evicted().now_or_never().is_some()
    }

    #[test]
    fn the_newest_gets_in_and_the_oldest_of_its_peer_gives_way() {
        let connections = Connections::new(2, 1000);
        let other = connections.admit(of("192.0.2.1"));
        let held: Vec<Connection> = (0..3).map(|_| connections.admit(of("192.0.2.7"))).collect();
        let evicted: Vec<bool> = held.iter().map(is_evicted).collect();
        assert_eq!((evicted, is_evicted(&other)), (vec![true, false, false], false));
    }

    #[test]
    fn a_connection_with_a_token_does_not_give_way() {
        let connections = Connections::new(1, 1000);
        let first = connections.admit(Peer::Loopback);
        first.authenticated();
        let second = connections.admit(Peer::Loopback);
        assert!(first.is_authenticated() && !second.is_authenticated());
        drop(connections.admit(Peer::Loopback));
        assert_eq!((is_evicted(&first), is_evicted(&second)), (false, true));
        assert_eq!(connections.evict_oldest(10), 0);
    }

    #[test]
    fn many_peers_share_what_there_is_in_all() {
        let connections = Connections::new(1000, 64);
        let held: Vec<Connection> = (0..17_u8).map(|n| connections.admit(Peer::V4([10, 0, 0, n].into()))).collect();
        assert_eq!(held.iter().filter(|connection| is_evicted(connection)).count(), 1);
        assert!(is_evicted(&held[0]));
    }

    #[test]
    fn what_is_over_is_not_counted() {
        let connections = Connections::new(1, 1000);
        drop(connections.admit(Peer::Local));
        let next = connections.admit(Peer::Local);
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
        assert_eq!(of(one) == of(other), same);
    }
}
