//! Connected Unix sockets (unix(7), SOCK_SEQPACKET) between two processes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::socket::raise_buffers;

/// Creates both ends, non-blocking.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // The channel replaces the queue of a UDP socket, so it needs the same buffer.
    for end in [&one, &other] {
        raise_buffers(&socket2::SockRef::from(end));
    }
    Ok((one, other))
}

/// Sends a message in parts, optionally with a descriptor.
pub(crate) fn send(
    to: BorrowedFd<'_>,
    parts: &[&[u8]],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let parts: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds
        && !ancillary.push(SendAncillaryMessage::ScmRights(fds))
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(to, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the next message and its descriptor; `None` if the other end is closed.
pub(crate) fn receive(
    from: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(buffer)];
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(from, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut fd = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            // Only one descriptor is sent; any others are closed here.
            fds.for_each(|received| fd = Some(received));
        }
    }
    match (received.bytes, &fd) {
        (0, None) => Ok(None),
        (len, _) => Ok(Some((len, fd))),
    }
}
