//! Timeline scripts of Multipath TCP, segment by segment. Sent segments are represented as text, and keys, tokens,
//! HMACs and checksums are recomputed. Subflow `a` is the first, `b` the next one that appears. Sequence numbers are
//! relative to the subflow's SYN, and data sequence numbers to MP_CAPABLE, so that the first byte is 1 in both.
//!
//! ```text
//! a: S capable                       a: S ack capable key         a: ack 1 capable keys
//! a: 1:6 P capable keys+5            the first data, with the keys and its length
//! a: 1:6 P dack 1 dsn 1+5            data with its own mapping a: ack 6 dack 6                    `dack8`, `dsn8`:
//! with all 64 bits a: ack 1 dack 1 dsn 6+1@0 dfin     a DATA_FIN alone: mapped at subflow number 0 a: 6:11 P dsn8
//! 6+inf               an infinite mapping b: S join 2                        b: S ack join 0 hmac         b: ack 1
//! join hmac add 5 10.0.0.9:81   echo 5 10.0.0.9:81   remove 5 6   prio B   fail 1   fastclose   reset 3 T
//! ```
//! `sum` is a correct checksum. A question mark follows wrong values: `keys?`, `hmac?`, `sum?`.

mod words;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_core::{
    CloseReason, ConnectionConfig, ConnectionId, EndpointConfig, Event, FallbackReason, FourTuple,
};
use marline_time::Instant;
use marline_wire::mptcp::{AddAddr, MpCapable, MpCapableForm, MpJoin, MptcpOption, WireDsn};
use marline_wire::{Checksum, TcpFlags, dss_checksum};

use crate::fixtures::path;
use crate::{Peer, Script, Seg, endpoint_config, keys, with_known_mtu};

/// The peer's key.
pub const KEY: u64 = 0x1111_2222_3333_4444;
/// The peer's nonce in joins that it opens.
pub const NONCE: u32 = 0x1234_5678;

/// The default configuration without pacing and timestamps, so that segments are sent as soon as permitted.
#[must_use]
pub fn multipath() -> ConnectionConfig {
    ConnectionConfig { pacing: false, timestamps: false, ..crate::config() }
}

/// MP_CAPABLE of version 1 with only flag H.
#[must_use]
pub const fn capable(form: MpCapableForm) -> MpCapable {
    MpCapable {
        version: 1,
        checksum_required: false,
        extensibility: false,
        deny_join_id0: false,
        hmac_sha256: true,
        form,
    }
}

/// An endpoint under test, and the test as its peer on any number of subflows.
#[derive(Debug)]
pub struct Subflows {
    /// The endpoint and its clock.
    pub script: Script,
    /// The connection, once there is one.
    pub id: Option<ConnectionId>,
    /// The peer's ends: `a`, `b`, ..
    pub peers: Vec<Peer>,
    /// Nonces of each subflow that joined: the peer's and the endpoint's.
    nonces: Vec<(u32, u32)>,
    /// True if checksums are negotiated.
    checksums: bool,
}

impl Subflows {
    /// A listening endpoint without connections yet.
    #[must_use]
    pub fn listening(config: ConnectionConfig) -> Self {
        Subflows::listening_with_config(endpoint_config(Some(config)))
    }

    /// Like [`listening`](Self::listening), with other limits.
    #[must_use]
    pub fn listening_with_config(config: EndpointConfig) -> Self {
        let peer = Peer::new(path(0, 2, 40_000), KEY);
        Subflows {
            script: Script::new(with_known_mtu(config), 7),
            id: None,
            peers: vec![peer],
            nonces: vec![(0, 0)],
            checksums: false,
        }
    }

    /// An accepted connection: SYN, SYN/ACK, third ACK and its answer.
    ///
    /// # Panics
    /// If the endpoint behaves unexpectedly.
    #[must_use]
    pub fn served(config: ConnectionConfig) -> Self {
        let mut line = Subflows::listening(config);
        line.open();
        line
    }

    /// Opens a connection to a listening endpoint.
    ///
    /// # Panics
    /// If the endpoint behaves unexpectedly.
    pub fn open(&mut self) {
        let checksums = self.checksums;
        let option = |form| {
            MptcpOption::Capable(MpCapable { checksum_required: checksums, ..capable(form) })
        };
        self.send(0, syn().mptcp(option(MpCapableForm::Syn)));
        let answer = self.sent();
        assert!(answer[0].starts_with("a: S ack capable"), "{answer:?}");
        self.wait(10);
        let third = option(self.keys_form());
        self.send(0, Seg::ack().mptcp(third));
        let _ = self.sent();
        self.id = self.script.take_incoming();
        assert!(self.id.is_some(), "no connection was accepted");
    }

    /// An endpoint that opens a connection. Its SYN has been sent but not answered.
    ///
    /// # Panics
    /// If no SYN is sent.
    #[must_use]
    pub fn calling(config: ConnectionConfig) -> Self {
        let mut line = Subflows::listening_with_config(endpoint_config(None));
        let local = SocketAddr::from(([10, 0, 0, 1], 40_000));
        let remote = SocketAddr::from(([10, 0, 0, 2], 443));
        line.peers[0].path = FourTuple { local, remote };
        line.id = Some(line.script.connect(config, local, remote));
        line
    }

    /// A connection that the endpoint opened. Its third ACK was sent.
    ///
    /// # Panics
    /// If the endpoint behaves unexpectedly.
    #[must_use]
    pub fn called(config: ConnectionConfig) -> Self {
        let mut line = Subflows::calling(config);
        assert_eq!(line.sent(), ["a: S capable"]);
        line.wait(10);
        let form = MpCapableForm::SynAck { listener_key: KEY };
        line.send(0, syn_ack().mptcp(MptcpOption::Capable(capable(form))));
        assert_eq!(line.sent(), ["a: ack 1 capable keys"]);
        line
    }

    /// Sets flag A in the peer's MP_CAPABLE and checksums in its mappings.
    #[must_use]
    pub fn with_checksums(mut self) -> Self {
        self.checksums = true;
        self
    }

    /// Both keys, in the form that a peer sends to a listening endpoint.
    #[must_use]
    pub fn keys_form(&self) -> MpCapableForm {
        let Peer { key, their_key, .. } = self.peers[0];
        MpCapableForm::Ack { initiator_key: key, listener_key: their_key, data: None }
    }

    /// The connection.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        match self.id {
            Some(id) => id,
            None => panic!("no connection yet"),
        }
    }

    /// Sends the peer's next segment on a subflow. It acknowledges all segments taken so far.
    pub fn send(&mut self, on: usize, seg: Seg) {
        self.peers[on].send(&mut self.script, seg);
    }

    /// Sends a segment at a position in the peer's stream, regardless of earlier ones.
    pub fn send_at(&mut self, on: usize, at: u32, seg: Seg) {
        let peer = &self.peers[on];
        let opens = seg.header.flags == TcpFlags::SYN;
        let seg = seg.at(peer.iss.add(at));
        let seg = if opens { seg } else { seg.acking(peer.expected) };
        peer.inject(&mut self.script, seg);
    }

    /// A segment with the peer's next data, its mapping and a DATA_ACK; not sent yet.
    #[must_use]
    pub fn mapped(&self, on: usize, bytes: &[u8]) -> Seg {
        let seg = self.peers[on].mapped(bytes);
        if self.checksums { with_sum(seg) } else { seg }
    }

    /// Sends data from the peer with its mapping and a DATA_ACK.
    pub fn data(&mut self, on: usize, bytes: &[u8]) {
        let seg = self.mapped(on, bytes);
        self.advance_dsn(bytes.len() as u64);
        self.send(on, seg);
    }

    /// Sends a pure ACK with a DATA_ACK for all segments taken so far.
    pub fn ack(&mut self, on: usize) {
        let ack = self.peers[on].expected_dsn;
        self.send(on, Seg::ack().data_ack(ack));
    }

    /// Sends the peer's DATA_FIN alone.
    pub fn data_fin(&mut self, on: usize) {
        let peer = &self.peers[on];
        let seg = Seg::ack().data_ack(peer.expected_dsn).mapping(peer.next_dsn, 0, 1).data_fin();
        let seg = if self.checksums { with_sum(seg) } else { seg };
        self.advance_dsn(1);
        self.send(on, seg);
    }

    /// Sends a pure ACK with this option.
    pub fn option(&mut self, on: usize, option: MptcpOption) {
        self.send(on, Seg::ack().mptcp(option));
    }

    /// Advances the peer's DSN on all subflows.
    pub fn advance_dsn(&mut self, by: u64) {
        for peer in &mut self.peers {
            peer.next_dsn = peer.next_dsn.wrapping_add(by);
        }
    }

    /// The peer's DSN at this position in its stream, counted from 1.
    #[must_use]
    pub fn dsn(&self, at: u64) -> u64 {
        keys::idsn(self.peers[0].key).wrapping_add(at)
    }

    /// The endpoint's DSN at this position in its stream, counted from 1.
    #[must_use]
    pub fn endpoint_dsn(&self, at: u64) -> u64 {
        keys::idsn(self.peers[0].their_key).wrapping_add(at)
    }

    /// Adds another end of the peer, which has not sent anything yet.
    pub fn add_path(&mut self) -> usize {
        let n = self.peers.len() as u8;
        let mut peer = Peer::new(path(n, 2, 40_000 + u16::from(n)), KEY);
        let Peer { their_key, next_dsn, expected_dsn, .. } = self.peers[0];
        (peer.their_key, peer.next_dsn, peer.expected_dsn) = (their_key, next_dsn, expected_dsn);
        self.peers.push(peer);
        self.nonces.push((NONCE, 0));
        usize::from(n)
    }

    /// A SYN that joins the connection from another end, with this address id; not sent yet.
    #[must_use]
    pub fn join_syn(&self, address_id: u8, backup: bool) -> Seg {
        let token = keys::token(self.peers[0].their_key);
        let join = MpJoin::Syn { backup, address_id, token, nonce: NONCE };
        syn().mptcp(MptcpOption::Join(join))
    }

    /// The SYN/ACK to a join from the endpoint, with the correct HMAC; not sent yet.
    #[must_use]
    pub fn join_syn_ack(&self, on: usize, address_id: u8, backup: bool) -> Seg {
        let Peer { key, their_key, .. } = self.peers[on];
        let (ours, theirs) = self.nonces[on];
        let hmac = keys::left64(keys::join_hmac(key, their_key, ours, theirs));
        let join = MpJoin::SynAck { backup, address_id, hmac, nonce: ours };
        syn_ack().mptcp(MptcpOption::Join(join))
    }

    /// The third ACK of a join from the peer, with the correct HMAC; not sent yet.
    #[must_use]
    pub fn join_ack(&self, on: usize) -> Seg {
        let Peer { key, their_key, .. } = self.peers[on];
        let (ours, theirs) = self.nonces[on];
        let mut hmac = [0; 20];
        hmac.copy_from_slice(&keys::join_hmac(key, their_key, ours, theirs)[..20]);
        Seg::ack().mptcp(MptcpOption::Join(MpJoin::Ack { hmac }))
    }

    /// Joins the connection from another end and completes the handshake.
    ///
    /// # Panics
    /// If the endpoint behaves unexpectedly.
    pub fn join(&mut self, address_id: u8) -> usize {
        let on = self.add_path();
        let syn = self.join_syn(address_id, false);
        self.send(on, syn);
        let answer = self.sent();
        assert!(answer.iter().any(|words| words.ends_with("S ack join 0 hmac")), "{answer:?}");
        self.wait(10);
        let third = self.join_ack(on);
        self.send(on, third);
        let fourth = self.sent();
        assert_eq!(fourth.len(), 1, "{fourth:?}");
        on
    }

    /// ADD_ADDR from the peer with the correct HMAC.
    #[must_use]
    pub fn add_addr(&self, address_id: u8, address: IpAddr, port: Option<u16>) -> AddAddr {
        let Peer { key, their_key, .. } = self.peers[0];
        let plain = AddAddr { address_id, address, port, hmac: None };
        AddAddr { hmac: Some(address_hmac(key, their_key, &plain)), ..plain }
    }

    /// Writes this many bytes as the application.
    ///
    /// # Panics
    /// If not all of them are accepted.
    pub fn write(&mut self, len: usize) {
        let id = self.id();
        let taken = self.script.run(|e, now| e.write(now, id, &vec![b'x'; len]));
        assert_eq!(taken, Ok(len));
    }

    /// Reads all available data as the application.
    pub fn read(&mut self) -> Vec<u8> {
        let id = self.id();
        self.script.read_all(id)
    }

    /// Ends the application's stream.
    pub fn shutdown(&mut self) {
        let id = self.id();
        self.script.run(|e, now| e.shutdown(now, id));
    }

    /// Aborts the connection.
    pub fn abort(&mut self) {
        let id = self.id();
        self.script.run(|e, now| e.abort(now, id));
    }

    /// Releases the connection.
    pub fn release(&mut self) {
        let id = self.id();
        self.script.run(|e, now| e.release(now, id));
    }

    /// Lets `ms` milliseconds pass.
    pub fn wait(&mut self, ms: u64) {
        self.script.advance(Duration::from_millis(ms));
    }

    /// Waits until the endpoint sends something on its own, at most `within_ms`. Returns the milliseconds waited.
    pub fn wait_for_send(&mut self, within_ms: u64) -> Option<u64> {
        let before: Instant = self.script.now();
        let sends = self.script.advance_to_send(Duration::from_millis(within_ms));
        sends.then(|| self.script.now().since(before).as_millis() as u64)
    }

    /// Reason for the connection's end, if it ended since events were last taken.
    pub fn closed(&mut self) -> Option<CloseReason> {
        self.script.take_events().into_iter().find_map(|event| match event {
            Event::Closed { reason, .. } => Some(reason),
            _ => None,
        })
    }

    /// Reason why the connection is plain TCP, if it is.
    #[must_use]
    pub fn fallback(&self) -> Option<FallbackReason> {
        self.script.endpoint.info(self.id())?.fallback
    }

    /// Segments sent since the last call, as text. They count as received by the peer.
    pub fn sent(&mut self) -> Vec<String> {
        let sent = self.script.take_sent();
        sent.iter().map(|sent| self.words(sent)).collect()
    }
}

/// A SYN with the usual TCP options, without timestamps.
#[must_use]
pub fn syn() -> Seg {
    Seg::syn().mss(1_400).sack_permitted().window_scale(7)
}

/// A SYN/ACK with the usual TCP options, without timestamps.
#[must_use]
pub fn syn_ack() -> Seg {
    Seg::syn_ack().mss(1_400).sack_permitted().window_scale(7)
}

/// The segment with the correct checksum in its mapping, which covers all of its payload.
#[must_use]
pub fn with_sum(mut seg: Seg) -> Seg {
    if let Some(mapping) = seg.options.dss.as_mut().and_then(|dss| dss.mapping.as_mut())
        && let WireDsn::Long(dsn) = mapping.dsn
    {
        mapping.checksum = Some(sum(dsn, mapping.ssn, mapping.length, &seg.payload));
    }
    seg
}

/// The checksum of a mapping and its data.
#[must_use]
pub fn sum(dsn: u64, ssn: u32, length: u16, payload: &[u8]) -> u16 {
    let mut data = Checksum::new();
    data.add_bytes(payload);
    dss_checksum(dsn, ssn, length, data)
}

/// The HMAC of an announcement: id, address, port (two zero octets if there is none).
fn address_hmac(own_key: u64, other_key: u64, add: &AddAddr) -> u64 {
    let mut message = vec![add.address_id];
    match add.address {
        IpAddr::V4(address) => message.extend(address.octets()),
        IpAddr::V6(address) => message.extend(address.octets()),
    }
    message.extend(add.port.unwrap_or(0).to_be_bytes());
    keys::right64(keys::hmac(own_key, other_key, &message))
}
