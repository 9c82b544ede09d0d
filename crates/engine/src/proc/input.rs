//! Descriptors that are sent to a warden over its socket: its order, and the reading end of the pipe that the command reads
//! from. Only the command keeps that one, so that closing the writing end is what the command sees as the end of its input.

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

/// Sends a descriptor.
pub(super) fn send_descriptor(socket: impl AsFd, descriptor: impl AsFd) -> io::Result<()> {
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&[CARRIER])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the next descriptor that was sent, and not one byte more.
pub(super) fn receive_descriptor(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    rights.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
