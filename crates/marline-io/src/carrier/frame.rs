//! The frames of the UDP carrier (docs/spec/udp-carrier.md section 1): bytes to values and back.

/// Protocol version in the high nibble of the first byte.
const VERSION: u8 = 1 << 4;

const DATA: u8 = VERSION;
const HANDSHAKE: u8 = VERSION | 1;
const CHALLENGE: u8 = VERSION | 2;
const RESPONSE: u8 = VERSION | 3;
const KEEPALIVE: u8 = VERSION | 4;
const RESET: u8 = VERSION | 5;

/// Bytes before the segment of a DATA or RESET frame, and the headroom the core leaves us.
pub const SHORT_HEADER: usize = 9;
/// Bytes before the segment of a HANDSHAKE frame.
pub const HANDSHAKE_HEADER: usize = 17;
/// Bytes of a CHALLENGE or RESPONSE.
pub(super) const CHALLENGE_LEN: usize = 25;
/// Bytes of a TCP header without options: no segment is shorter.
const SHORTEST_SEGMENT: usize = 20;

/// A challenge's nonce.
pub(super) type Nonce = [u8; 16];

/// A parsed frame. Ids are big-endian on the wire.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// A segment for a flow.
    Data { flow: u64, segment: &'a [u8] },
    /// A SYN or SYN/ACK with the sender's own id.
    Handshake { flow: u64, sender: u64, segment: &'a [u8] },
    /// Prove that you receive at this address.
    Challenge { flow: u64, nonce: Nonce },
    /// The proof.
    Response { flow: u64, nonce: Nonce },
    /// Keeps mappings open.
    Keepalive { flow: u64 },
    /// Nobody here has the id you sent to.
    Reset { unknown: u64, segment: &'a [u8] },
}

fn id_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn nonce(bytes: &[u8]) -> Option<Nonce> {
    bytes.get(SHORT_HEADER..)?.try_into().ok()
}

fn segment(bytes: &[u8], at: usize) -> Option<&[u8]> {
    bytes.get(at..).filter(|segment| segment.len() >= SHORTEST_SEGMENT)
}

impl<'a> Frame<'a> {
    /// Reads a datagram; `None` if it is no frame of this version.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Frame<'a>> {
        let flow = id_at(bytes, 1)?;
        match bytes[0] {
            DATA => Some(Frame::Data { flow, segment: segment(bytes, SHORT_HEADER)? }),
            HANDSHAKE => {
                let sender = id_at(bytes, SHORT_HEADER)?;
                Some(Frame::Handshake { flow, sender, segment: segment(bytes, HANDSHAKE_HEADER)? })
            }
            CHALLENGE => Some(Frame::Challenge { flow, nonce: nonce(bytes)? }),
            RESPONSE => Some(Frame::Response { flow, nonce: nonce(bytes)? }),
            KEEPALIVE => (bytes.len() == SHORT_HEADER).then_some(Frame::Keepalive { flow }),
            RESET => Some(Frame::Reset { unknown: flow, segment: segment(bytes, SHORT_HEADER)? }),
            _ => None,
        }
    }
}

/// The header of a DATA frame.
pub(super) fn data_header(flow: u64) -> [u8; SHORT_HEADER] {
    short(DATA, flow)
}

/// The header of a RESET frame.
pub(super) fn reset_header(unknown: u64) -> [u8; SHORT_HEADER] {
    short(RESET, unknown)
}

/// The header of a HANDSHAKE frame.
pub(super) fn handshake_header(flow: u64, sender: u64) -> [u8; HANDSHAKE_HEADER] {
    let mut header = [0; HANDSHAKE_HEADER];
    header[..SHORT_HEADER].copy_from_slice(&short(HANDSHAKE, flow));
    header[SHORT_HEADER..].copy_from_slice(&sender.to_be_bytes());
    header
}

fn short(kind: u8, flow: u64) -> [u8; SHORT_HEADER] {
    let mut header = [kind; SHORT_HEADER];
    header[1..].copy_from_slice(&flow.to_be_bytes());
    header
}

/// A frame without a segment, ready to be sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ControlFrame {
    bytes: [u8; CHALLENGE_LEN],
    len: u8,
}

impl ControlFrame {
    /// A challenge.
    pub(super) fn challenge(flow: u64, nonce: &Nonce) -> Self {
        ControlFrame::with_nonce(CHALLENGE, flow, nonce)
    }

    /// The answer to a challenge.
    pub(super) fn response(flow: u64, nonce: &Nonce) -> Self {
        ControlFrame::with_nonce(RESPONSE, flow, nonce)
    }

    /// A keepalive.
    pub(super) fn keepalive(flow: u64) -> Self {
        let mut bytes = [0; CHALLENGE_LEN];
        bytes[..SHORT_HEADER].copy_from_slice(&short(KEEPALIVE, flow));
        ControlFrame { bytes, len: SHORT_HEADER as u8 }
    }

    fn with_nonce(kind: u8, flow: u64, nonce: &Nonce) -> Self {
        let mut bytes = [0; CHALLENGE_LEN];
        bytes[..SHORT_HEADER].copy_from_slice(&short(kind, flow));
        bytes[SHORT_HEADER..].copy_from_slice(nonce);
        ControlFrame { bytes, len: CHALLENGE_LEN as u8 }
    }

    /// Its bytes on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_is_read_back_and_none_survives_truncation() {
        let segment = [7u8; 20];
        let mut data = data_header(0x0102_0304_0506_0708).to_vec();
        data.extend(segment);
        assert_eq!(
            Frame::parse(&data),
            Some(Frame::Data { flow: 0x0102_0304_0506_0708, segment: &segment })
        );
        let mut handshake = handshake_header(3, 4).to_vec();
        handshake.extend(segment);
        assert_eq!(
            Frame::parse(&handshake),
            Some(Frame::Handshake { flow: 3, sender: 4, segment: &segment })
        );
        let mut reset = reset_header(9).to_vec();
        reset.extend(segment);
        assert_eq!(Frame::parse(&reset), Some(Frame::Reset { unknown: 9, segment: &segment }));
        let nonce = [5; 16];
        let challenge = ControlFrame::challenge(6, &nonce);
        assert_eq!(Frame::parse(challenge.as_bytes()), Some(Frame::Challenge { flow: 6, nonce }));
        let response = ControlFrame::response(6, &nonce);
        assert_eq!(Frame::parse(response.as_bytes()), Some(Frame::Response { flow: 6, nonce }));
        let keepalive = ControlFrame::keepalive(8);
        assert_eq!(Frame::parse(keepalive.as_bytes()), Some(Frame::Keepalive { flow: 8 }));
        for frame in [
            &data[..],
            &handshake[..],
            &reset[..],
            challenge.as_bytes(),
            response.as_bytes(),
            keepalive.as_bytes(),
        ] {
            for len in 0..frame.len() {
                assert_eq!(Frame::parse(&frame[..len]), None, "{len} of {frame:?}");
            }
        }
    }

    #[test]
    fn other_versions_and_types_are_no_frames() {
        let mut bytes = vec![0u8; 60];
        for first in 0..=255u8 {
            bytes[0] = first;
            let known = matches!(first, DATA | HANDSHAKE | RESET);
            assert_eq!(Frame::parse(&bytes).is_some(), known, "{first:#x}");
        }
    }
}
