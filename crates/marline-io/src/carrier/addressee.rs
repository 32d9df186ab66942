//! Addressee of a frame on a server: the process, among those that share a port, to which the frame belongs
//! (docs/spec/udp-carrier.md section 7).

use marline_core::Shard;

use super::frame::{self, Frame};
use super::ingress::join_token;

/// Process to which a frame is addressed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// The process of this generation, which generated the id.
    Generation(u8),
    /// The process that has the connection with this token.
    Token(u32),
    /// Any process: the frame contains the peer's id, and the flow may belong to any of them.
    AnyProcess,
    /// The newest process.
    Newest,
}

impl Addressee {
    /// Determines the addressee of a frame that a server received.
    #[must_use]
    pub fn of(frame: &[u8]) -> Addressee {
        if frame::has_peer_id(frame) {
            return Addressee::AnyProcess;
        }
        match frame.get(1..).and_then(|rest| rest.first_chunk()).map(|id| u64::from_be_bytes(*id)) {
            None => Addressee::Newest,
            Some(0) => match Frame::parse(frame) {
                Some(Frame::Handshake { segment, .. }) => {
                    join_token(segment).map_or(Addressee::Newest, Addressee::Token)
                }
                _ => Addressee::Newest,
            },
            Some(id) => Addressee::Generation(Shard::generation_of_flow(id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_ids_name_the_generation_and_peer_ids_do_not() {
        let id: u64 = 0x1204_0000_0000_0001;
        let frame = |kind: u8, id: u64| {
            let mut bytes = vec![0x20 | kind];
            bytes.extend(id.to_be_bytes());
            bytes.extend([0; 40]);
            bytes
        };
        for kind in [0, 1, 2, 3, 4, 8] {
            assert_eq!(Addressee::of(&frame(kind, id)), Addressee::Generation(4), "type {kind}");
        }
        assert_eq!(Addressee::of(&frame(5, id)), Addressee::AnyProcess);
        assert_eq!(Addressee::of(&frame(0, 0)), Addressee::Newest);
        assert_eq!(Addressee::of(&[0x20, 1]), Addressee::Newest);
        let drawn = Shard { generation: Some(4), ..Shard::SINGLE }.with_generation(u64::MAX);
        assert_eq!(Addressee::of(&frame(0, drawn)), Addressee::Generation(4));
    }
}
