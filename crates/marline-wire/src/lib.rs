//! Wire formats: parsers and emitters for everything that Marline sends or receives.
//!
//! The code does not allocate (except in [`pcapng`]), does no I/O, and does not panic on any input. A parser returns a
//! [`ParseError`] with the field and cause; an emitter returns an [`EmitError`]. Each file covers one header or option
//! of an RFC. The Multipath TCP options of RFC 8684 are in [`mptcp`].

#![forbid(unsafe_code)]

mod assembly;
mod bytes;
mod checksum;
mod dns;
mod error;
mod fast_open;
mod header_template;
mod ip;
mod ipv4;
mod ipv6;
pub mod mptcp;
mod nat64;
pub mod pcapng;
pub mod repair_code;
mod router_advertisement;
mod seq;
mod tcp;
mod tcp_options;
mod udp;

pub use assembly::{Assembly, BadPiece};
pub use checksum::{
    Checksum, dss_checksum, fill_tcp_checksum, store_tcp_checksum, tcp_checksum, tcp_pseudo_header,
    verify_tcp_checksum,
};
pub use dns::{
    DNS_A, DNS_AAAA, DNS_HEADER_LEN, DnsRecord, dns_answers, skip_dns_name, skip_dns_questions,
};
pub use error::{EmitError, ErrorKind, Layer, ParseError};
pub use fast_open::FastOpenOption;
pub use header_template::HeaderTemplate;
pub use ip::{IpPacket, PROTOCOL_TCP, PROTOCOL_UDP, emit_ip, ip_header_len, ip_version};
pub use ipv4::{Fragment, IPV4_HEADER_LEN, Ipv4Header, Ipv4Packet};
pub use ipv6::{IPV6_HEADER_LEN, Ipv6Header, Ipv6Packet};
pub use nat64::{BadPrefix64, Prefix64};
pub use router_advertisement::{Pref64, router_options};
pub use seq::{SeqNum, unwrap32};
pub use tcp::{TCP_HEADER_LEN, TcpFlags, TcpHeader, TcpSegment};
pub use tcp_options::{MAX_OPTIONS, SackBlock, SackBlocks, TcpOptions, Timestamps};
pub use udp::{UDP_HEADER_LEN, UdpDatagram, emit_udp, fill_udp_checksum, verify_udp_checksum};
