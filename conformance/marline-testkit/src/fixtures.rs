//! Common starting states for tests.

use std::net::SocketAddr;
use std::time::Duration;

use marline_core::{
    Capabilities, ChecksumScope, ConnectionConfig, ConnectionId, EndpointConfig, FourTuple,
};
use marline_wire::SeqNum;
use marline_wire::mptcp::MptcpOption;

use crate::{Peer, Script, Seg, capabilities, config, endpoint_config};

/// Both ends of a subflow: port 80 of the endpoint and a port of a peer.
#[must_use]
pub fn path(net: u8, host: u8, port: u16) -> FourTuple {
    FourTuple {
        local: SocketAddr::from(([10, net, 0, 1], 80)),
        remote: SocketAddr::from(([10, net, 0, host], port)),
    }
}

/// Capabilities of a carrier like UDP: checksums without addresses, subflows identified by flow ids.
#[must_use]
pub const fn flow_capabilities() -> Capabilities {
    Capabilities { checksum: ChecksumScope::WithoutAddresses, flow_ids: true, ..capabilities() }
}

/// A listening endpoint with the default configuration.
#[must_use]
pub fn listening() -> EndpointConfig {
    endpoint_config(Some(config()))
}

/// A listening endpoint, and a peer that connected and sent `hello`, which was read.
///
/// # Panics
/// If the endpoint behaves unexpectedly.
#[must_use]
pub fn served(endpoint: EndpointConfig, seed: u64) -> (Script, Peer, ConnectionId) {
    let with_ids = endpoint.capabilities.flow_ids;
    let mut script = Script::new(endpoint, seed);
    let mut peer = Peer::new(path(0, 2, 40_000), 0x1111_2222_3333_4444);
    if with_ids {
        peer.flows = (0x7777, 0);
    }
    let id = serve(&mut script, &mut peer);
    (script, peer, id)
}

/// Connects `peer` and sends `hello` from it. The peer processes all answers.
///
/// # Panics
/// If the endpoint behaves unexpectedly.
pub fn serve(script: &mut Script, peer: &mut Peer) -> ConnectionId {
    peer.connect(script);
    peer.send_data(script, b"hello");
    let Some(id) = script.take_incoming() else { panic!("no connection was accepted") };
    script.advance(Duration::from_millis(100));
    peer.receive_all(script);
    assert_eq!(script.read_all(id), b"hello");
    let _ = script.take_events();
    peer.acknowledge(script);
    script.advance(Duration::from_secs(1));
    peer.receive_all(script);
    id
}

/// An endpoint that opened a connection from 10.0.0.1, and the scripted server, 10.9.0.1, that accepted it. The server
/// has not sent a DSS yet.
///
/// # Panics
/// If the endpoint behaves unexpectedly.
#[must_use]
pub fn calling(endpoint: EndpointConfig, open: ConnectionConfig) -> (Script, Peer, ConnectionId) {
    let mut script = Script::new(endpoint, 1);
    let path = FourTuple {
        local: SocketAddr::from(([10, 0, 0, 1], 0)),
        remote: SocketAddr::from(([10, 9, 0, 1], 443)),
    };
    let id = script.connect(open, path.local, path.remote);
    let mut peer = Peer::new(path, 7);
    peer.accept(&mut script);
    (script, peer, id)
}

/// A first packet of the UDP carrier: a HANDSHAKE frame (docs/spec/udp-carrier.md, section 3) with a SYN from this port
/// to port 443, a public key, a commitment and no cookie.
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
