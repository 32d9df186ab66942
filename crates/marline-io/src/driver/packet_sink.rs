//! Sink of packets that the core does not handle.

/// Receiver of the packets from a gateway's interface that are not TCP, including malformed packets and fragments.
pub trait PacketSink: Send {
    /// Takes a packet, starting at the IP header if it has one. The shard is locked during the call, so this must
    /// neither wait nor call the shard.
    fn on_packet(&mut self, packet: &[u8]);
}
