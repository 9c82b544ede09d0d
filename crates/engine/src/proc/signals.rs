//! Signals of a warden: the ones that would end it do nothing, and SIGCHLD becomes a byte in a pipe that can be polled.
//!
//! They are caught, not ignored or blocked, because only a caught signal is back to its default in the command.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;

/// Readable whenever a child may have changed.
#[derive(Debug)]
pub(super) struct ChildChanges(OwnedFd);

impl ChildChanges {
    /// Forgets what has come so far.
    pub(super) fn drain(&self) {
        let mut bytes = [0_u8; 64];
        while matches!(rustix::io::read(&self.0, &mut bytes), Ok(1..) | Err(Errno::INTR)) {}
    }
}

impl AsFd for ChildChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets TERM, INT, HUP and QUIT pass by, and catches SIGCHLD.
pub(super) fn catch() -> io::Result<ChildChanges> {
    let (changes, notify) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        on(signal, || ())?;
    }
    on(Signal::CHILD, move || {
        // A full pipe is as readable as a pipe with one byte more.
        let _ = rustix::io::write(&notify, &[0]);
    })?;
    Ok(ChildChanges(changes))
}

#[expect(unsafe_code, reason = "a signal handler can only be installed by a promise about what it does")]
fn on(signal: Signal, action: impl Fn() + Send + Sync + 'static) -> io::Result<()> {
    // SAFETY: both actions above are async-signal-safe: one does nothing, the other makes one `write` system call, without
    // allocating, locking or touching errno (rustix calls the kernel directly).
    unsafe { signal_hook_registry::register(signal.as_raw(), action) }?;
    Ok(())
}
