//! Channel between two processes of one server: complete messages in order, some of them with a descriptor.
//!
//! The channel is a pair of connected, unnamed sockets. No other process can reach it, and its messages, which include
//! secrets, never appear in a file, log, argument or environment variable.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::channel::{pair, receive, send};

/// Maximum message length: a run of datagrams that the kernel coalesced, with its origin.
pub(crate) const MAX_MESSAGE_LEN: usize = (64 << 10) + 256;

/// One end of a channel.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Creates both ends, non-blocking.
    ///
    /// # Errors
    /// Fails if no file descriptors are left.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let (one, other) = pair()?;
        Ok((Channel(one), Channel(other)))
    }

    /// Wraps the end with which a process was started.
    #[must_use]
    pub fn from_fd(end: OwnedFd) -> Channel {
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
    /// Fails if no file descriptors are left.
    pub fn duplicate(&self) -> io::Result<Channel> {
        Ok(Channel(self.0.try_clone()?))
    }

    /// Sets whether reads and sends block.
    ///
    /// # Errors
    /// Fails if the descriptor's flags cannot be changed.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_stay_whole_and_carry_their_descriptor() {
        let (here, there) = Channel::pair().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut buffer = vec![0; MAX_MESSAGE_LEN];
        assert_eq!(there.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        here.send(&[b"one", b" and two"], Some(far.as_fd())).unwrap();
        here.send(&[b"three"], None).unwrap();
        drop(far);
        let (len, fd) = there.receive(&mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..len], b"one and two");
        UnixStream::from(fd.unwrap()).write_all(b"from the other end").unwrap();
        let mut said = String::new();
        near.read_to_string(&mut said).unwrap();
        assert_eq!(said, "from the other end");
        let (len, fd) = there.receive(&mut buffer).unwrap().unwrap();
        assert_eq!((&buffer[..len], fd.is_none()), (&b"three"[..], true));
        drop(here);
        assert!(there.receive(&mut buffer).unwrap().is_none(), "the other end has closed");
    }
}
