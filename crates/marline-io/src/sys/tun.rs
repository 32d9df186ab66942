//! TUN interfaces: whole IP packets through a descriptor, without a header in front. Linux only.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::check;

/// An interface of this process: packets the system routes there are read, packets written come in
/// there. It goes away with this value, however the process ends.
#[derive(Debug)]
pub struct Tun {
    file: File,
}

impl Tun {
    /// Makes the interface in the network namespace of the calling thread; needs CAP_NET_ADMIN there,
    /// unless a persistent interface of this name belongs to the user. Non-blocking.
    ///
    /// Without a virtio header the kernel segments and checksums what it hands over.
    ///
    /// # Errors
    /// No such right, no /dev/net/tun, a name that is taken or longer than 15 bytes.
    pub fn open(name: &str) -> io::Result<Tun> {
        let wanted = CString::new(name)?;
        let bytes = wanted.as_bytes_with_nul();
        if bytes.len() > libc::IFNAMSIZ {
            let what = format!("`{name}` is longer than an interface's name may be (15 bytes)");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        let file = options.open("/dev/net/tun")?;
        // SAFETY: all bytes zero is a valid ifreq.
        let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes an ifreq, which lives for the call.
        check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
        Ok(Tun { file })
    }

    /// The interface behind a descriptor that another process may have opened and passed on. Anything else that
    /// gives and takes one packet per call will do as well, such as a socket of packets in a test.
    ///
    /// # Errors
    /// The descriptor cannot be made non-blocking.
    pub fn adopt(descriptor: OwnedFd) -> io::Result<Tun> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Tun { file: descriptor.into() })
    }

    /// A second handle on the same interface.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn try_clone(&self) -> io::Result<Tun> {
        Ok(Tun { file: self.file.try_clone()? })
    }

    /// Reads one packet.
    ///
    /// # Errors
    /// `WouldBlock` when there is none.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut &self.file, buffer)
    }

    /// Writes one packet.
    ///
    /// # Errors
    /// The interface is down (EIO), or the packet is none.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        io::Write::write(&mut &self.file, packet).map(|_| ())
    }
}

impl From<Tun> for OwnedFd {
    fn from(tun: Tun) -> OwnedFd {
        tun.file.into()
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
