//! Send descriptors over a socket: to a warden the launch request, the lifetime limit and the reading end of the
//! command's input pipe, to other wardens the namespaces that they share.
//!
//! Only the command keeps its end of the pipe, so that it sees end of file when the writing end is closed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CommandInput {
    Null,
    Pipe,
}

/// The byte that carries a descriptor. Its value has no meaning.
const CARRIER_BYTE: u8 = b'I';
/// The most descriptors in one message.
const MAX_DESCRIPTORS: usize = 3;

pub(super) fn send_descriptor(socket: impl AsFd, descriptor: impl AsFd) -> io::Result<()> {
    send_descriptors(socket, &[descriptor.as_fd()])
}

/// Sends these descriptors in one message, at most three.
pub(super) fn send_descriptors(socket: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&[CARRIER_BYTE])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the next descriptor, and no byte more than the one that carries it.
pub(super) fn receive_descriptor(socket: impl AsFd) -> io::Result<OwnedFd> {
    receive_descriptors(socket, RecvFlags::empty())?.pop().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Receives the descriptors of the next message; none at the end of the stream. `RecvFlags::PEEK` leaves the message,
/// with its descriptors, for the next receiver.
pub(super) fn receive_descriptors(socket: impl AsFd, flags: RecvFlags) -> io::Result<Vec<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(rights.flatten().collect())
}
