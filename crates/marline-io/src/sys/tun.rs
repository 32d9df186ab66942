//! TUN interfaces: whole IP packets through a descriptor. Linux only.
//!
//! With offloading, each packet has a virtio header in front, and the kernel hands over, and takes, up to 64 kB of
//! one TCP connection as a single packet.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::check;

/// Not in libc for all targets.
const TUNSETOFFLOAD: u32 = 0x4004_54d0;
const TUNGETIFF: u32 = 0x8004_54d2;
const TUN_F_CSUM: libc::c_uint = 1;
const TUN_F_TSO4: libc::c_uint = 2;
const TUN_F_TSO6: libc::c_uint = 4;

/// Header in front of a packet (`virtio_net_hdr`), in the machine's byte order: what is left to do for who gets it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VirtioHeader {
    /// The checksum covers everything from here, and its field has the sum of the pseudo-header so far: where it
    /// begins, and where in that its field is. 0 and 0: it is finished.
    pub(crate) checksum: (u16, u16),
    /// Bytes of payload of each segment that the packet stands for, and its family; `None`: it stands for itself.
    pub(crate) segments: Option<(u16, bool)>,
    /// Bytes of headers.
    pub(crate) header_len: u16,
}

impl VirtioHeader {
    pub(crate) const LEN: usize = 10;
    const NEEDS_CHECKSUM: u8 = 1;
    const TCP_V4: u8 = 1;
    const TCP_V6: u8 = 4;

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let (size, ipv6) = self.segments.unwrap_or_default();
        let mut bytes = [0; Self::LEN];
        bytes[0] = if self.checksum == (0, 0) { 0 } else { Self::NEEDS_CHECKSUM };
        bytes[1] = match self.segments {
            None => 0,
            Some(_) if ipv6 => Self::TCP_V6,
            Some(_) => Self::TCP_V4,
        };
        let numbers = [self.header_len, size, self.checksum.0, self.checksum.1];
        for (to, number) in bytes[2..].chunks_exact_mut(2).zip(numbers) {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    /// Where the checksum is unfinished: from where it counts, and the place of its field.
    pub(crate) fn unfinished(bytes: &[u8; Self::LEN]) -> Option<(usize, usize)> {
        let number = |at: usize| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        let (start, offset) = (number(6), number(8));
        (bytes[0] & Self::NEEDS_CHECKSUM != 0).then_some((start, start + offset))
    }
}

/// Whether a descriptor is that of an interface whose packets have the header.
fn has_virtio_header(descriptor: &OwnedFd) -> bool {
    // SAFETY: all bytes zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    // SAFETY: TUNGETIFF writes an ifreq, which lives for the call; other descriptors refuse it.
    let asked = unsafe { libc::ioctl(descriptor.as_raw_fd(), TUNGETIFF as _, &raw mut request) };
    // SAFETY: the kernel has written the flags.
    asked == 0 && unsafe { request.ifr_ifru.ifru_flags } as libc::c_int & libc::IFF_VNET_HDR != 0
}

/// An interface of this process: packets the system routes there are read, packets written come in
/// there. It goes away with this value, however the process ends.
#[derive(Debug)]
pub struct Tun {
    file: File,
    offloads: bool,
}

impl Tun {
    /// Makes the interface in the network namespace of the calling thread; needs CAP_NET_ADMIN there,
    /// unless a persistent interface of this name belongs to the user. Non-blocking.
    ///
    /// The kernel segments and checksums what it hands over.
    ///
    /// # Errors
    /// No such right, no /dev/net/tun, a name that is taken or longer than 15 bytes.
    pub fn open(name: &str) -> io::Result<Tun> {
        Tun::open_with(name, libc::IFF_TUN | libc::IFF_NO_PI)
    }

    /// Opens a queue of the interface, which is made with the first. The kernel spreads what comes over the queues, and
    /// sends what comes of a connection where it was last written to.
    ///
    /// # Errors
    /// As of [`open`](Self::open); `InvalidInput` as well if the interface was made to have one queue.
    pub fn open_queue(name: &str) -> io::Result<Tun> {
        Tun::open_with(name, libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE)
    }

    /// Makes the interface as [`open`](Self::open) does, with offloading.
    ///
    /// # Errors
    /// As there.
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
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes an ifreq, which lives for the call.
        check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
        Ok(Tun { file, offloads: false })
    }

    /// The interface behind a descriptor that another process may have opened and passed on. Anything else that
    /// gives and takes one packet per call will do as well, such as a socket of packets in a test. Whether it offloads
    /// is asked of the kernel.
    ///
    /// # Errors
    /// The descriptor cannot be made non-blocking.
    pub fn adopt(descriptor: OwnedFd) -> io::Result<Tun> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        let offloads = has_virtio_header(&descriptor);
        Ok(Tun { file: descriptor.into(), offloads })
    }

    /// A second handle on the same interface.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn try_clone(&self) -> io::Result<Tun> {
        Ok(Tun { file: self.file.try_clone()?, offloads: self.offloads })
    }

    /// Whether packets have a virtio header in front.
    #[must_use]
    pub const fn offloads(&self) -> bool {
        self.offloads
    }

    /// Reads one packet, with its header if there are such.
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
