//! The network namespace of a command: its own loopback, and nothing else.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Listens on the port of the proxy at this address of the own network namespace.
pub(in super::super) fn listen_for_proxy(address: Ipv4Addr) -> io::Result<TcpListener> {
    TcpListener::bind((address, super::PROXY_PORT))
}

/// Brings up `lo` in the own network namespace, so that servers and tests of the command can talk to each other.
#[expect(unsafe_code, reason = "the request SIOCSIFFLAGS has no safe wrapper in rustix 1.1")]
pub(super) fn raise_loopback() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    let up = libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or(libc::c_short::MAX);
    let request = libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: up } };
    // SAFETY: the request is a whole `ifreq` with a name that ends with a zero byte, and lives until the call returns.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
