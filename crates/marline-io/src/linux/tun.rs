//! TUN interfaces: whole IP packets through a file descriptor. Linux only.
//!
//! With offloading, each packet starts with a virtio header, and up to 64 kB of one TCP connection form a single
//! packet in both directions.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::check;
use crate::edge::virtio::VirtioHeader;

/// Constants that libc does not define for all targets.
const TUNSETOFFLOAD: u32 = 0x4004_54d0;
const TUNGETIFF: u32 = 0x8004_54d2;
const TUN_F_CSUM: libc::c_uint = 1;
const TUN_F_TSO4: libc::c_uint = 2;
const TUN_F_TSO6: libc::c_uint = 4;

/// Returns true if the descriptor belongs to an interface whose packets have a virtio header.
fn has_virtio_header(descriptor: &OwnedFd) -> bool {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    // SAFETY: TUNGETIFF writes an ifreq, which lives for the call; other descriptors refuse it.
    let asked = unsafe { libc::ioctl(descriptor.as_raw_fd(), TUNGETIFF as _, &raw mut request) };
    // SAFETY: the kernel has written the flags.
    asked == 0 && unsafe { request.ifr_ifru.ifru_flags } as libc::c_int & libc::IFF_VNET_HDR != 0
}

/// TUN interface of this process: packets that the kernel routes to it can be read, and written packets arrive in the
/// kernel. The interface exists as long as this value, and is removed even if the process crashes.
#[derive(Debug)]
pub struct Tun {
    file: File,
    offloads: bool,
}

impl Tun {
    /// Creates the interface in the network namespace of the calling thread, non-blocking. Needs CAP_NET_ADMIN in this
    /// namespace, unless a persistent interface of this name belongs to the user.
    ///
    /// The kernel segments packets and computes checksums before it passes them on.
    ///
    /// # Errors
    /// Fails if the privilege or /dev/net/tun is missing, or the name is in use or longer than 15 bytes.
    pub fn open(name: &str) -> io::Result<Tun> {
        Tun::open_with(name, libc::IFF_TUN | libc::IFF_NO_PI)
    }

    /// Opens a queue of the interface; the first queue creates the interface. The kernel distributes packets among the
    /// queues. Packets of a connection arrive in the queue to which packets of that connection were last written.
    ///
    /// # Errors
    /// See [`open`](Self::open); also `InvalidInput` if the interface was created with a single queue.
    pub fn open_queue(name: &str) -> io::Result<Tun> {
        Tun::open_with(name, libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE)
    }

    /// Creates the interface like [`open`](Self::open), with offloading.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_offloading(name: &str) -> io::Result<Tun> {
        let tun = Tun::open_with(name, libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR)?;
        let offload = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
        // SAFETY: TUNSETOFFLOAD takes its argument as a number.
        check(unsafe { libc::ioctl(tun.file.as_raw_fd(), TUNSETOFFLOAD as _, offload) })?;
        Ok(Tun { offloads: true, ..tun })
    }

    fn open_with(name: &str, flags: libc::c_int) -> io::Result<Tun> {
        let wanted = CString::new(name)?;
        let bytes = wanted.as_bytes_with_nul();
        if bytes.len() > libc::IFNAMSIZ {
            let what = format!("`{name}` is too long for an interface name (at most 15 bytes)");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        let file = options.open("/dev/net/tun")?;
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes an ifreq, which lives for the call.
        check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
        Ok(Tun { file, offloads: false })
    }

    /// Wraps a descriptor that another process may have opened and passed on. It may also be any other descriptor that
    /// reads and writes one packet per call, such as a packet socket in a test. Offloading is detected.
    ///
    /// # Errors
    /// Fails if the descriptor cannot be made non-blocking.
    pub fn adopt(descriptor: OwnedFd) -> io::Result<Tun> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        let offloads = has_virtio_header(&descriptor);
        Ok(Tun { file: descriptor.into(), offloads })
    }

    /// Creates a second handle to the same interface.
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
    pub fn try_clone(&self) -> io::Result<Tun> {
        Ok(Tun { file: self.file.try_clone()?, offloads: self.offloads })
    }

    /// Returns true if packets start with a virtio header.
    #[must_use]
    pub const fn offloads(&self) -> bool {
        self.offloads
    }

    /// Reads one packet, with its virtio header if offloading is on.
    ///
    /// # Errors
    /// `WouldBlock` if there is no packet.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut &self.file, buffer)
    }

    /// Writes one packet.
    ///
    /// # Errors
    /// Fails if the interface is down (EIO) or the packet is not valid.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        let header: &[u8] = if self.offloads { &[0; VirtioHeader::LEN] } else { &[] };
        let parts = [IoSlice::new(header), IoSlice::new(packet)];
        io::Write::write_vectored(&mut &self.file, &parts).map(|_| ())
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
