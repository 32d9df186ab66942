//! First packets of the UDP carrier: a SYN in a HANDSHAKE frame (docs/spec/udp-carrier.md, section 3).

use marline_wire::SeqNum;
use marline_wire::mptcp::MptcpOption;

use crate::Seg;

/// A frame with a first SYN from this port to port 443, a public key, a commitment and no cookie.
#[must_use]
pub fn first_packet(flow: u64, port: u16, option: MptcpOption) -> Vec<u8> {
    let syn = Seg::syn().ports(port, 443).at(SeqNum(flow as u32)).mss(1_400).sack_permitted();
    let mut frame = vec![0x21];
    frame.extend([0; 8]);
    frame.extend(flow.to_be_bytes());
    frame.extend([7; 32 + 16].into_iter().chain([0]));
    frame.extend(syn.mptcp(option).bytes(None));
    frame
}
