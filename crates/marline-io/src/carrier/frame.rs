//! Frames of the UDP carrier (docs/spec/udp-carrier.md section 1): encoding and parsing.

/// Version of the carrier, in the high nibble of a frame's first byte.
const VERSION: u8 = 2;

const DATA: u8 = 0;
const HANDSHAKE: u8 = 1;
const CHALLENGE: u8 = 2;
const RESPONSE: u8 = 3;
const KEEPALIVE: u8 = 4;
const RESET: u8 = 5;
const RETRY: u8 = 6;
const VERSIONS: u8 = 7;
/// Frame type of a session's datagram lane, which the crate marline-datagram parses.
const LANE: u8 = marline_datagram::FRAME_TYPE;
/// First byte of a VERSIONS frame, which is independent of the version.
const VERSIONS_BYTE: u8 = VERSIONS;

/// Length of the header before the segment of a DATA frame, and of the core's headroom.
pub const SHORT_HEADER: usize = 9;
/// Length of a HANDSHAKE frame up to the end of its ids.
pub(super) const HANDSHAKE_IDS: usize = 17;
/// Length of a public key (X25519).
pub(super) const KEY_LEN: usize = 32;
/// Length of nonces, proofs, reset tokens and commitments.
const PROOF_LEN: usize = 16;
/// Length of a cookie.
pub(super) const COOKIE_LEN: usize = 17;
/// Offset of the cookie's length in a HANDSHAKE frame.
const COOKIE_AT: usize = HANDSHAKE_IDS + KEY_LEN + PROOF_LEN;
/// Length of the header before the segment of the longest HANDSHAKE frame.
pub const MAX_HANDSHAKE_HEADER: usize = COOKIE_AT + 1 + COOKIE_LEN;
/// Length of the longest frame without a segment.
const MAX_CONTROL_FRAME: usize = SHORT_HEADER + COOKIE_LEN;
/// Length of a frame with an id and a proof.
const PROOF_FRAME: usize = SHORT_HEADER + PROOF_LEN;
/// Minimum length of a segment: a TCP header without options.
const MIN_SEGMENT_LEN: usize = 20;

/// Nonce of a challenge.
pub(super) type Nonce = [u8; PROOF_LEN];
/// Response to a challenge, or a reset token.
pub(super) type Proof = [u8; PROOF_LEN];
/// Cookie that a server gives to a client for its next SYN.
pub(super) type Cookie = [u8; COOKIE_LEN];

/// Sender information in a HANDSHAKE.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct SenderInfo {
    /// Public key (X25519).
    pub(super) key: [u8; KEY_LEN],
    /// Hash of the token that a later RESET reveals.
    pub(super) commitment: Proof,
}

/// Parsed frame. Ids are big-endian on the wire.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// Segment for a flow.
    Data { flow: u64, segment: &'a [u8] },
    /// SYN or SYN/ACK with the sender's own id.
    Handshake { flow: u64, sender: u64, more: HandshakeBody, segment: &'a [u8] },
    /// Request to prove reception at this address.
    Challenge { flow: u64, nonce: Nonce },
    /// Response to a challenge.
    Response { flow: u64, proof: Proof },
    /// Keepalive for a NAT mapping.
    Keepalive { flow: u64 },
    /// Answer to an unknown id, proven with the token to which the sender committed itself.
    Reset { unknown: u64, token: Proof },
    /// Request to repeat the SYN with a cookie.
    Retry { flow: u64, cookie: Cookie },
    /// First SYN in an unsupported version.
    UnsupportedVersion { sender: u64 },
    /// Frame for the lane with this id.
    Lane { lane: u64 },
}

/// Content of a HANDSHAKE beyond the ids.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct HandshakeBody {
    /// Information about the sender.
    pub(super) introduction: SenderInfo,
    /// Cookie that the server issued earlier.
    pub(super) cookie: Option<Cookie>,
}

/// Returns true if the id in a frame belongs to the peer instead of the receiver: the frame is a RESET.
pub(super) fn has_peer_id(frame: &[u8]) -> bool {
    frame.first().is_some_and(|first| first & 0x0f == RESET)
}

fn id_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(array(bytes, at)?))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn segment(bytes: &[u8], at: usize) -> Option<&[u8]> {
    bytes.get(at..).filter(|segment| segment.len() >= MIN_SEGMENT_LEN)
}

/// Returns the proof if the datagram has exactly the length of a frame with one.
fn parse_proof(bytes: &[u8]) -> Option<Proof> {
    (bytes.len() == PROOF_FRAME).then(|| array(bytes, SHORT_HEADER)).flatten()
}

impl<'a> Frame<'a> {
    /// Parses a datagram. Returns `None` if it is not a frame of a supported version.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Frame<'a>> {
        let flow = id_at(bytes, 1)?;
        let kind = bytes[0] & 0xf;
        let newer = bytes[0] >> 4 > VERSION;
        if newer && kind == HANDSHAKE && flow == 0 {
            let sender = id_at(bytes, SHORT_HEADER)?;
            segment(bytes, HANDSHAKE_IDS)?;
            return Some(Frame::UnsupportedVersion { sender });
        }
        if bytes[0] >> 4 != VERSION {
            return None;
        }
        Some(match kind {
            DATA => Frame::Data { flow, segment: segment(bytes, SHORT_HEADER)? },
            HANDSHAKE => return handshake(bytes, flow),
            CHALLENGE => Frame::Challenge { flow, nonce: parse_proof(bytes)? },
            RESPONSE => Frame::Response { flow, proof: parse_proof(bytes)? },
            KEEPALIVE if bytes.len() == PROOF_FRAME => Frame::Keepalive { flow },
            RESET => Frame::Reset { unknown: flow, token: parse_proof(bytes)? },
            LANE => Frame::Lane { lane: marline_datagram::Header::parse(bytes)?.lane },
            RETRY if bytes.len() == SHORT_HEADER + COOKIE_LEN => {
                Frame::Retry { flow, cookie: array(bytes, SHORT_HEADER)? }
            }
            _ => return None,
        })
    }
}

fn handshake(bytes: &[u8], flow: u64) -> Option<Frame<'_>> {
    let sender = id_at(bytes, SHORT_HEADER)?;
    let introduction = SenderInfo {
        key: array(bytes, HANDSHAKE_IDS)?,
        commitment: array(bytes, HANDSHAKE_IDS + KEY_LEN)?,
    };
    let cookie_len = usize::from(*bytes.get(COOKIE_AT)?);
    let cookie = match cookie_len {
        0 => None,
        COOKIE_LEN => Some(array(bytes, COOKIE_AT + 1)?),
        _ => return None,
    };
    let segment = segment(bytes, COOKIE_AT + 1 + cookie_len)?;
    let more = HandshakeBody { introduction, cookie };
    Some(Frame::Handshake { flow, sender, more, segment })
}

/// Parses the receiver's id and the following id at the beginning of one of our frames. In a first SYN, the receiver's
/// id is 0 and the sender's id follows.
pub(super) fn parse_ids(beginning: &[u8]) -> Option<(u64, u64)> {
    Some((id_at(beginning, 1)?, id_at(beginning, SHORT_HEADER)?))
}

/// Builds the header of a DATA frame.
pub(super) fn data_header(flow: u64) -> [u8; SHORT_HEADER] {
    short_header(DATA, flow)
}

fn short_header(kind: u8, flow: u64) -> [u8; SHORT_HEADER] {
    let mut header = [VERSION << 4 | kind; SHORT_HEADER];
    header[1..].copy_from_slice(&flow.to_be_bytes());
    header
}

/// Header of a HANDSHAKE frame, to be placed in front of a segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct HandshakeHeader {
    bytes: [u8; MAX_HANDSHAKE_HEADER],
    len: u8,
}

impl HandshakeHeader {
    /// Builds the header of a SYN or SYN/ACK.
    pub(super) fn new(flow: u64, sender: u64, more: &HandshakeBody) -> Self {
        let HandshakeBody { introduction, cookie } = more;
        let mut bytes = [0; MAX_HANDSHAKE_HEADER];
        bytes[..SHORT_HEADER].copy_from_slice(&short_header(HANDSHAKE, flow));
        bytes[SHORT_HEADER..HANDSHAKE_IDS].copy_from_slice(&sender.to_be_bytes());
        let commitment_at = HANDSHAKE_IDS + KEY_LEN;
        bytes[HANDSHAKE_IDS..commitment_at].copy_from_slice(&introduction.key);
        bytes[commitment_at..COOKIE_AT].copy_from_slice(&introduction.commitment);
        let mut len = COOKIE_AT + 1;
        if let Some(cookie) = cookie {
            bytes[COOKIE_AT] = COOKIE_LEN as u8;
            bytes[len..].copy_from_slice(cookie);
            len += COOKIE_LEN;
        }
        HandshakeHeader { bytes, len: len as u8 }
    }

    /// Returns the encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the number of bytes that do not fit into the headroom.
    pub(super) fn extra_header_bytes(&self) -> usize {
        usize::from(self.len) - SHORT_HEADER
    }
}

/// Encoded frame without a segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ControlFrame {
    bytes: [u8; MAX_CONTROL_FRAME],
    len: u8,
}

impl ControlFrame {
    /// Builds a CHALLENGE.
    pub(super) fn challenge(flow: u64, nonce: &Nonce) -> Self {
        ControlFrame::new(CHALLENGE, flow, nonce)
    }

    /// Builds a RESPONSE.
    pub(super) fn response(flow: u64, proof: &Proof) -> Self {
        ControlFrame::new(RESPONSE, flow, proof)
    }

    /// Builds a KEEPALIVE, padded to the length of its possible answers.
    pub(super) fn keepalive(flow: u64) -> Self {
        ControlFrame::new(KEEPALIVE, flow, &[0; PROOF_LEN])
    }

    /// Builds a RESET for an unknown id, with the token whose hash was sent in the handshake.
    pub(super) fn reset(unknown: u64, token: &Proof) -> Self {
        ControlFrame::new(RESET, unknown, token)
    }

    /// Builds a RETRY: a request to repeat the SYN with this cookie.
    pub(super) fn retry(flow: u64, cookie: &Cookie) -> Self {
        ControlFrame::new(RETRY, flow, cookie)
    }

    /// Builds a VERSIONS frame, which lists the supported versions.
    pub(super) fn versions(flow: u64) -> Self {
        let mut frame = ControlFrame::new(VERSIONS, flow, &[VERSION]);
        frame.bytes[0] = VERSIONS_BYTE;
        frame
    }

    fn new(kind: u8, flow: u64, rest: &[u8]) -> Self {
        let mut bytes = [0; MAX_CONTROL_FRAME];
        let len = SHORT_HEADER + rest.len();
        bytes[..SHORT_HEADER].copy_from_slice(&short_header(kind, flow));
        bytes[SHORT_HEADER..len].copy_from_slice(rest);
        ControlFrame { bytes, len: len as u8 }
    }

    /// Returns the encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: u64 = 0x0102_0304_0506_0708;

    fn handshake_body(cookie: Option<Cookie>) -> HandshakeBody {
        HandshakeBody { introduction: SenderInfo { key: [1; 32], commitment: [2; 16] }, cookie }
    }

    #[test]
    fn frames_parse_back_and_truncated_ones_are_refused() {
        let segment = &[7u8; 20][..];
        let with = |header: &[u8]| [header, segment].concat();
        let of = |frame: ControlFrame| frame.as_bytes().to_vec();
        let proof = [5; 16];
        let retry = ControlFrame::retry(6, &[8; COOKIE_LEN]);
        let mut frames = vec![
            (Frame::Reset { unknown: 9, token: proof }, of(ControlFrame::reset(9, &proof))),
            (Frame::Retry { flow: 6, cookie: [8; COOKIE_LEN] }, of(retry)),
            (Frame::Data { flow: FLOW, segment }, with(&data_header(FLOW))),
            (Frame::Challenge { flow: 6, nonce: proof }, of(ControlFrame::challenge(6, &proof))),
            (Frame::Response { flow: 6, proof }, of(ControlFrame::response(6, &proof))),
            (Frame::Keepalive { flow: 8 }, of(ControlFrame::keepalive(8))),
        ];
        for more in [handshake_body(None), handshake_body(Some([3; COOKIE_LEN]))] {
            let header = HandshakeHeader::new(3, 4, &more);
            let frame = Frame::Handshake { flow: 3, sender: 4, more, segment };
            frames.push((frame, with(header.as_bytes())));
        }
        for (frame, bytes) in frames {
            assert_eq!(Frame::parse(&bytes), Some(frame));
            for len in 0..bytes.len() {
                assert_eq!(Frame::parse(&bytes[..len]), None, "{len} of {bytes:?}");
            }
        }
    }

    #[test]
    fn other_versions_and_types_are_refused() {
        let mut bytes = vec![0u8; 120];
        for first in 0..=255u8 {
            bytes[0] = first;
            let known = matches!(first, 0x20 | 0x21 | 0x28);
            let newer = first >= 0x30 && first & 0xf == HANDSHAKE;
            assert_eq!(Frame::parse(&bytes).is_some(), known || newer, "{first:#x}");
        }
    }

    #[test]
    fn the_version_answer_is_shorter_than_its_request() {
        let told = ControlFrame::versions(4);
        assert_eq!(told.as_bytes(), [7, 0, 0, 0, 0, 0, 0, 0, 4, VERSION]);
        assert!(told.as_bytes().len() < HANDSHAKE_IDS + MIN_SEGMENT_LEN);
    }
}
