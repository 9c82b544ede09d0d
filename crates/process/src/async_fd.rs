//! Wait for a descriptor in the runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the runtime that this is called in.
///
/// # Errors
/// [`io::Error`] when epoll does not take the descriptor, for example that of a plain file.
///
/// # Panics
/// Outside of a runtime with I/O.
#[expect(unsafe_code, reason = "the caller guarantees tokio that the descriptor stays open and the same")]
pub fn into_async_fd(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` always returns the same descriptor, which stays open as long as the `OwnedFd` lives. The
    // `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register(descriptor) }?)
}
