//! Header of packets that the kernel or the network card will segment.

/// Header in front of a packet (`virtio_net_hdr`), in the machine's byte order. It describes the work that is left to
/// the receiver.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VirtioHeader {
    /// Start of the data that an unfinished checksum covers, and the offset of the checksum field from there. The field
    /// contains the sum of the pseudo-header. Both are 0 if the checksum is finished.
    pub(crate) checksum: (u16, u16),
    /// Payload length of each segment in the packet, and true for IPv6; `None` for a single segment.
    pub(crate) segments: Option<(u16, bool)>,
    /// Length of the headers.
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

    /// Returns the start of the data that an unfinished checksum covers, and the position of the checksum field.
    pub(crate) fn checksum_range(bytes: &[u8; Self::LEN]) -> Option<(usize, usize)> {
        let number = |at: usize| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        let (start, offset) = (number(6), number(8));
        (bytes[0] & Self::NEEDS_CHECKSUM != 0).then_some((start, start + offset))
    }
}
