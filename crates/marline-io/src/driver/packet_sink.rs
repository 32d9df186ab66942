//! Sink of packets that the core has no use for.

/// Receiver of the packets of a gateway's interface that are not TCP, malformed ones and fragments included.
pub trait PacketSink: Send {
    /// Takes a packet, from the IP header on, if it has one. It is called while the shard is locked, so it must
    /// neither wait nor call the shard.
    fn on_packet(&mut self, packet: &[u8]);
}
