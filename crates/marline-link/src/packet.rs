//! What a link must know of a packet.

/// A packet as a link sees it: so many bytes that can be damaged.
pub trait Packet: Clone {
    /// Bytes the packet takes on the link, lower headers included.
    fn wire_len(&self) -> usize;

    /// The bytes that corruption may hit; may be fewer than `wire_len`, may be none.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Packet for Vec<u8> {
    fn wire_len(&self) -> usize {
        self.len()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl<P: Packet> Packet for Box<P> {
    fn wire_len(&self) -> usize {
        (**self).wire_len()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        (**self).bytes_mut()
    }
}
