//! Signals of a warden: TERM, INT, HUP and QUIT do nothing, and SIGCHLD becomes a byte in a pipe that can be polled.
//!
//! They are caught, not ignored or blocked, because `exec` resets only caught signals to their default for the command.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;

/// Readable when a child may have changed its state.
#[derive(Debug)]
pub(super) struct ChildChanges(OwnedFd);

impl ChildChanges {
    /// Discards the bytes of past changes.
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

/// Makes TERM, INT, HUP and QUIT do nothing, and catches SIGCHLD.
pub(super) fn install_handlers() -> io::Result<ChildChanges> {
    let (changes, notify) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        register_handler(signal, || ())?;
    }
    register_handler(Signal::CHILD, move || {
        // If the pipe is full, it is readable already.
        let _ = rustix::io::write(&notify, &[0]);
    })?;
    Ok(ChildChanges(changes))
}

#[expect(
    unsafe_code,
    reason = "installing a signal handler is unsafe: the caller guarantees that it is async-signal-safe"
)]
fn register_handler(signal: Signal, action: impl Fn() + Send + Sync + 'static) -> io::Result<()> {
    // SAFETY: both actions above are async-signal-safe. One does nothing; the other makes one `write` system call,
    // and does not allocate, lock or touch errno (rustix calls the kernel directly).
    unsafe { signal_hook_registry::register(signal.as_raw(), action) }?;
    Ok(())
}
