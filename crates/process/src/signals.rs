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

/// Gives every signal its default action. What whoever started the daemon had ignored, as `nohup` does, each program
/// would pass on to the next, to the command as well (signal(7)). SIGPIPE is left to the standard library, which ignores
/// it here and not in what it starts.
#[expect(unsafe_code, reason = "an action can be a function")]
pub(super) fn restore_defaults() {
    // The numbers without the real-time signals.
    for signal in (1..32).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: the default action is no function. KILL and STOP, which always have theirs, are refused without effect.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
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
