//! A network namespace that the commands of one session share, so that one reaches the servers of another.
//!
//! The first command creates it, the others enter it. The daemon holds no process for it: the descriptors of the
//! namespace wait in the queue of a socket, from which each warden reads without taking them. So it exists as long as
//! a [`SessionNetwork`] does, or a process in it.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, MemfdFlags, fcntl_lock, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::fd_passing;

/// Loopback addresses for the proxies of commands that share a namespace: those of 127.0.0.0/8 but the first and the
/// last. None is given twice before all were.
const PROXY_ADDRESSES: u32 = (1 << 24) - 2;

/// How often a warden that waits for the lock looks whether it is to stop.
const LOCK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// A network namespace for several commands, created with the first one. A command without a closed or proxied network
/// takes no part.
#[derive(Debug, Default)]
pub struct SessionNetwork {
    exchange: OnceLock<NamespaceExchange>,
    proxies: AtomicU32,
}

impl SessionNetwork {
    /// Sends a warden what it needs to enter the namespace.
    pub(super) fn send_to(&self, warden: impl AsFd) -> io::Result<()> {
        let exchange = match self.exchange.get() {
            Some(exchange) => exchange,
            None => {
                let created = NamespaceExchange::new()?;
                self.exchange.get_or_init(|| created)
            }
        };
        fd_passing::send_descriptors(warden, &exchange.descriptors())
    }

    /// The address for the proxy of the next command.
    pub(super) fn next_proxy_address(&self) -> Ipv4Addr {
        let number = self.proxies.fetch_add(1, Ordering::Relaxed);
        Ipv4Addr::from_bits(Ipv4Addr::new(127, 0, 0, 1).to_bits() + number % PROXY_ADDRESSES)
    }
}

/// Where the wardens of a shared namespace leave its descriptors for each other.
#[derive(Debug)]
pub(super) struct NamespaceExchange {
    /// What is sent to the first end waits at the second.
    sender: OwnedFd,
    queue: OwnedFd,
    /// A file in memory. Its record lock is held by the warden that looks into the queue, so that only one of them
    /// creates the namespace. The kernel releases the lock of a dead warden.
    lock: OwnedFd,
}

impl NamespaceExchange {
    fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (sender, queue) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok(Self { sender, queue, lock: memfd_create("network", MemfdFlags::CLOEXEC)? })
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.sender.as_fd(), self.queue.as_fd(), self.lock.as_fd()]
    }

    /// In the warden: receives what [`SessionNetwork::send_to`] has sent.
    pub(super) fn receive_from(daemon: impl AsFd) -> io::Result<Self> {
        let received = fd_passing::receive_descriptors(daemon, RecvFlags::empty())?;
        let [sender, queue, lock] = <[OwnedFd; 3]>::try_from(received).map_err(|_| Errno::INVAL)?;
        Ok(Self { sender, queue, lock })
    }

    /// In the warden: enters the namespace, with the user namespace that owns it. If there is none yet, this process is
    /// the one to create it: others wait until it has dropped this value.
    ///
    /// # Errors
    /// The namespace exists and cannot be entered, or `daemon` has something to say, which can only be a stop.
    pub(super) fn enter(&self, daemon: impl AsFd) -> io::Result<SharedNamespace> {
        while let Err(error) = fcntl_lock(&self.lock, FlockOperation::NonBlockingLockExclusive) {
            if !matches!(error, Errno::AGAIN | Errno::ACCESS | Errno::INTR) {
                return Err(error.into());
            }
            let mut stops = [PollFd::new(&daemon, PollFlags::IN)];
            if poll(&mut stops, Some(&LOCK_INTERVAL))? > 0 {
                return Err(io::Error::other("the command was stopped before it began"));
            }
        }
        let found = match fd_passing::receive_descriptors(&self.queue, RecvFlags::PEEK) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(SharedNamespace::ToCreate),
            found => found?,
        };
        let [network, user] = match <[OwnedFd; 2]>::try_from(found) {
            Ok([network, user]) => [Some(network), Some(user)],
            Err(mut one) => [one.pop(), None],
        };
        let has_user_namespace = user.is_some();
        // First the owner of the network namespace: only there this process may enter it.
        if let Some(user) = user {
            move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
        }
        let network = network.ok_or(Errno::INVAL)?;
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        fcntl_lock(&self.lock, FlockOperation::Unlock)?;
        Ok(SharedNamespace::Entered { has_user_namespace })
    }

    /// In the init of the command that creates the namespace: leaves it for the others.
    pub(super) fn leave_own(&self, has_own_user_namespace: bool) -> io::Result<()> {
        let network = File::open("/proc/self/ns/net")?;
        let user = has_own_user_namespace.then(|| File::open("/proc/self/ns/user")).transpose()?;
        let descriptors: Vec<BorrowedFd<'_>> =
            [Some(&network), user.as_ref()].into_iter().flatten().map(AsFd::as_fd).collect();
        fd_passing::send_descriptors(&self.sender, &descriptors)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SharedNamespace {
    /// `has_user_namespace`: also the user namespace that owns it.
    Entered {
        has_user_namespace: bool,
    },
    ToCreate,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_proxies_of_a_network_have_the_same_address() {
        let network = SessionNetwork::default();
        let first = network.next_proxy_address();
        assert_eq!(first, Ipv4Addr::LOCALHOST, "programs that know no other address");
        for _ in 0..100_000 {
            let next = network.next_proxy_address();
            assert!(next != first && next.is_loopback(), "{next}");
        }
        network.proxies.store(PROXY_ADDRESSES - 1, Ordering::Relaxed);
        assert_eq!(network.next_proxy_address(), Ipv4Addr::new(127, 255, 255, 254));
        assert_eq!(network.next_proxy_address(), first);
    }
}
