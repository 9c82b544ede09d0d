//! The standard input of a command: nothing, or a pipe whose reading end travels to the warden over its socket. Only the
//! command keeps it, so that closing the writing end is what the command sees as the end of its input.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Where a command reads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// `/dev/null`.
    Null,
    /// A pipe.
    Pipe,
}

/// The byte that carries the descriptor. It means nothing else.
const CARRIER: u8 = b'I';

impl Input {
    /// As an argument of a warden.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Pipe => "pipe",
        }
    }

    /// From an argument of a warden.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        [Self::Null, Self::Pipe].into_iter().find(|input| input.word() == word)
    }
}

/// Sends a reading end ahead of everything else.
pub(super) fn give(socket: impl AsFd, reader: impl AsFd) -> io::Result<()> {
    let readers = [reader.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&readers)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&[CARRIER])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the reading end that was sent, and not one byte more.
pub(super) fn take(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut readers) => readers.next(),
        _ => None,
    });
    rights.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
