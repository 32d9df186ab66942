//! Channel between two processes of one server: complete messages in order, some of them with a descriptor.
//!
//! It is a pair of connected unix sockets (SOCK_SEQPACKET) without a name. No other process can reach it, and its
//! messages, which include secrets, do not appear in any file, log, argument or environment.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::sys::socket::raise_buffers;

/// Maximum message length: a run of datagrams that the kernel coalesced, with its origin.
pub(crate) const MAX_MESSAGE_LEN: usize = (64 << 10) + 256;

/// One end of a channel.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Creates both ends, non-blocking.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // The channel replaces the queue of a UDP socket, so it needs the same buffer.
        for end in [&one, &other] {
            raise_buffers(&socket2::SockRef::from(end));
        }
        Ok((Channel(one), Channel(other)))
    }

    /// Wraps the end that a process was started with.
    #[must_use]
    pub fn of(end: OwnedFd) -> Channel {
        Channel(end)
    }

    /// Returns the descriptor.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Duplicates the descriptor of this end.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn duplicate(&self) -> io::Result<Channel> {
        Ok(Channel(self.0.try_clone()?))
    }

    /// Makes reads and sends block (`true`) or not.
    ///
    /// # Errors
    /// The system's.
    pub fn set_blocking(&self, waits: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.0, !waits)?)
    }

    /// Sends a message in parts, optionally with a descriptor.
    pub(crate) fn send(&self, parts: &[&[u8]], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        send(self.0.as_fd(), parts, fd)
    }

    /// Receives the next message and its descriptor; `None` if the other end is closed.
    pub(crate) fn receive(
        &self,
        buffer: &mut [u8],
    ) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
        receive(self.0.as_fd(), buffer)
    }
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
            // Only one descriptor is sent; any others would be closed here.
            fds.for_each(|received| fd = Some(received));
        }
    }
    match (received.bytes, &fd) {
        (0, None) => Ok(None),
        (len, _) => Ok(Some((len, fd))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_stay_whole_and_bring_their_descriptor() {
        let (here, there) = Channel::pair().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut buffer = vec![0; MAX_MESSAGE_LEN];
        assert_eq!(there.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        here.send(&[b"one", b" and two"], Some(far.as_fd())).unwrap();
        here.send(&[b"three"], None).unwrap();
        drop(far);
        let (len, fd) = there.receive(&mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..len], b"one and two");
        UnixStream::from(fd.unwrap()).write_all(b"by the other end").unwrap();
        let mut said = String::new();
        near.read_to_string(&mut said).unwrap();
        assert_eq!(said, "by the other end");
        let (len, fd) = there.receive(&mut buffer).unwrap().unwrap();
        assert_eq!((&buffer[..len], fd.is_none()), (&b"three"[..], true));
        drop(here);
        assert!(there.receive(&mut buffer).unwrap().is_none(), "the other end is gone");
    }
}
