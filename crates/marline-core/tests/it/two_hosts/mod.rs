//! Test network of two hosts with an application each, and a middlebox between them that sees and can change every
//! segment.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_core::{
    CloseReason, ConnectionConfig, ConnectionId, ConnectionInfo, Counters, EndpointConfig, Event,
    FallbackReason, FourTuple, MonitorKind, PacketMeta,
};
use marline_policy::{AddressId, LocalAddress};
use marline_testkit::{
    InFlightSegment, Pair, Peer, Script, Seg, SegmentOutcome, Side, capable, config,
    endpoint_config, keys,
};
use marline_wire::mptcp::{MpCapableForm, MptcpOption};
use marline_wire::{SeqNum, TcpFlags};

/// Action of the middlebox on a segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MiddleboxAction {
    Pass,
    Drop,
    /// Dropped, and its sender gets a RST without options.
    Refuse,
}

/// A segment in the middlebox.
pub struct Packet<'a> {
    pub to: Side,
    /// 0 for the first path, 1 for the second.
    pub path: usize,
    pub seg: &'a mut Seg,
    /// Further segments to the same side that the middlebox sends after this one, with their delays.
    pub behind: Vec<(Seg, Duration)>,
}

impl Packet<'_> {
    /// Removes all MPTCP options.
    pub fn strip(&mut self) {
        self.seg.options.dss = None;
        self.seg.options.mptcp = Default::default();
    }
}

/// Pseudo-random numbers for losses of a test.
pub struct Dice(pub u64);

impl Dice {
    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33).is_multiple_of(n)
    }
}

pub type Middlebox = Box<dyn FnMut(&mut Packet<'_>) -> MiddleboxAction>;

/// One end of the connection.
#[derive(Debug, Default)]
pub struct End {
    pub id: Option<ConnectionId>,
    to_write: Vec<u8>,
    shut_when_written: bool,
    /// The application does not read.
    pub sleeps: bool,
    pub received: Vec<u8>,
    pub at_end: bool,
    pub closed: Option<CloseReason>,
    pub fallback: Option<FallbackReason>,
    pub monitor: Vec<MonitorKind>,
}

pub struct TwoHosts {
    pub pair: Pair,
    pub ends: [End; 2],
    pub middlebox: Middlebox,
    /// All segments sent, including changes by the middlebox.
    pub trace: Vec<(Side, Seg)>,
}

/// A stream whose content identifies its origin.
pub fn bytes(n: usize, salt: u8) -> Vec<u8> {
    (0..n).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ salt).collect()
}

pub fn local_address(id: u8, address: &str) -> LocalAddress {
    LocalAddress::new(AddressId(id), SocketAddr::new(address.parse().expect("an address"), 0))
}

/// A client with a second address that it joins from.
pub fn two_paths(mut config: ConnectionConfig) -> ConnectionConfig {
    config.local_addresses = vec![local_address(1, "10.0.0.1"), local_address(2, "10.1.0.1")];
    config
}

/// A client with a second address that stays unused.
pub fn second_unused(mut config: ConnectionConfig) -> ConnectionConfig {
    let registry = marline_algos::Registry::default();
    config.policies.path_manager = registry.path_manager("manual").expect("a path manager");
    two_paths(config)
}

/// Sends on the subflows in turns.
pub fn by_turns(mut config: ConnectionConfig) -> ConnectionConfig {
    let registry = marline_algos::Registry::default();
    config.policies.scheduler = registry.scheduler("round-robin,segments=1").expect("a scheduler");
    config
}

pub fn with_checksums() -> ConnectionConfig {
    ConnectionConfig { dss_checksum: true, ..config() }
}

/// Path on which scripted peers reach a listening endpoint; `n` distinguishes them.
pub fn served_path(n: u8) -> FourTuple {
    FourTuple {
        local: "10.9.0.1:443".parse().expect("an address"),
        remote: format!("10.{n}.0.1:40000").parse().expect("an address"),
    }
}

/// A listening endpoint and a peer with a complete handshake.
pub fn served(accept: ConnectionConfig, key: u64, seed: u64) -> (Script, Peer) {
    let mut script = Script::new(endpoint_config(Some(accept)), seed);
    let mut peer = Peer::new(served_path(0), key);
    peer.connect(&mut script);
    let fourth = script.next_sent().expect("the fourth ACK");
    peer.record_received(&fourth);
    (script, peer)
}

/// Two subflows to a listening endpoint; the second one's address has id 2.
pub fn two_subflows(accept: ConnectionConfig) -> (Script, Peer, Peer) {
    let (mut script, first) = served(accept, 7, 1);
    let mut second = Peer::new(served_path(1), 0);
    second.join(&mut script, &first, 2);
    script.advance(Duration::from_millis(20));
    for sent in script.take_sent() {
        if sent.path == second.path {
            second.record_received(&sent);
        }
    }
    (script, first, second)
}

/// Like [`served`], without timestamps, with this SYN and its window throughout.
pub fn served_by(listener: EndpointConfig, syn: Seg) -> (Script, Peer) {
    let mut script = Script::new(listener, 1);
    let mut peer = Peer::new(served_path(0), 7);
    let window = syn.header.window;
    peer.send(&mut script, syn.mptcp(capable(MpCapableForm::Syn)));
    let answer = script.take_sent().pop().expect("a SYN/ACK");
    let Some(MpCapableForm::SynAck { listener_key }) =
        answer.seg.options.mptcp.capable().map(|c| c.form)
    else {
        panic!("no key in {:?}", answer.seg);
    };
    peer.record_received(&answer);
    peer.their_key = listener_key;
    peer.expected_dsn = keys::idsn(listener_key).wrapping_add(1);
    let form = MpCapableForm::Ack { initiator_key: 7, listener_key, data: None };
    peer.send(&mut script, Seg::ack().window(window).mptcp(capable(form)));
    script.take_sent();
    (script, peer)
}

/// Reads all available bytes.
pub fn read(script: &mut Script) -> Vec<u8> {
    let id = script.endpoint.connections()[0];
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n) = script.run(|e, now| e.read(now, id, &mut buffer)) {
        all.extend_from_slice(&buffer[..n]);
        if n == 0 {
            break;
        }
    }
    all
}

pub fn write(script: &mut Script, data: &[u8]) {
    let id = script.endpoint.connections()[0];
    let n = script.run(|e, now| e.write(now, id, data));
    assert_eq!(n, Ok(data.len()));
}

/// Reason for the end of the connection, if it ended.
pub fn closed(script: &mut Script) -> Option<CloseReason> {
    script.take_events().into_iter().find_map(|e| match e {
        Event::Closed { reason, .. } => Some(reason),
        _ => None,
    })
}

/// The reason of an MP_TCPRST.
pub fn reset_reason(seg: &Seg) -> Option<u8> {
    seg.options.mptcp.iter().find_map(|o| match o {
        MptcpOption::TcpRst(rst) => Some(rst.reason),
        _ => None,
    })
}

/// RST of a middlebox in the receiver's name.
fn bare_reset(flight: &InFlightSegment, seg: &Seg) -> InFlightSegment {
    let header = &seg.header;
    let FourTuple { local, remote } = flight.meta.path;
    let reset = match header.flags.contains(TcpFlags::ACK) {
        true => Seg::rst().at(header.ack),
        false => Seg::rst().at(SeqNum(0)).acking(seg.end()),
    };
    let reset = reset.ports(local.port(), remote.port());
    let meta = PacketMeta { path: FourTuple { local: remote, remote: local }, ..flight.meta };
    let bytes = reset.bytes(Some((local.ip(), remote.ip())));
    InFlightSegment { to: flight.to.other(), meta, bytes }
}

impl TwoHosts {
    /// A client that connects immediately.
    pub fn new(
        client: ConnectionConfig,
        server: ConnectionConfig,
        middlebox: impl FnMut(&mut Packet<'_>) -> MiddleboxAction + 'static,
        seed: u64,
    ) -> Self {
        let (mut a, mut b) = (endpoint_config(None), endpoint_config(Some(server)));
        (a.monitor, b.monitor) = (true, true);
        let mut pair = Pair::new(a, b, seed);
        let now = pair.now();
        let local = "10.0.0.1:0".parse().expect("an address");
        let remote = "10.9.0.1:443".parse().expect("an address");
        let id = pair.endpoint(Side::A).connect(now, client, local, remote).expect("room");
        let mut ends = [End::default(), End::default()];
        ends[0].id = Some(id);
        TwoHosts { pair, ends, middlebox: Box::new(middlebox), trace: Vec::new() }
    }

    pub fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    pub fn id(&self, side: Side) -> ConnectionId {
        self.ends[side as usize].id.expect("a connection")
    }

    /// Lets the application of one side write this, as far as there is room.
    pub fn write(&mut self, side: Side, data: &[u8]) {
        self.end(side).to_write.extend_from_slice(data);
    }

    /// Lets the application shut down after its data.
    pub fn shutdown(&mut self, side: Side) {
        self.end(side).shut_when_written = true;
    }

    pub fn info(&mut self, side: Side) -> ConnectionInfo {
        let id = self.id(side);
        self.pair.endpoint(side).info(id).expect("a connection")
    }

    /// Sum of a counter of both endpoints.
    pub fn count(&mut self, counter: fn(&Counters) -> u64) -> u64 {
        [Side::A, Side::B].map(|side| counter(&self.pair.endpoint(side).counters())).iter().sum()
    }

    /// Lets time pass; every segment takes 10 ms, 20 ms on the second path.
    pub fn run(&mut self, time: Duration) {
        let end = self.pair.now() + time;
        loop {
            self.applications();
            self.gather();
            if !self.pair.step(end) {
                break;
            }
        }
        self.applications();
        self.gather();
    }

    pub fn run_ms(&mut self, ms: u64) {
        self.run(Duration::from_millis(ms));
    }

    fn gather(&mut self) {
        let (middlebox, trace) = (&mut self.middlebox, &mut self.trace);
        let mut refused = Vec::new();
        let mut inserted = Vec::new();
        let events = self.pair.gather(&mut |flight: &mut InFlightSegment| {
            let mut seg = Seg::parse(&flight.bytes).expect("a segment");
            let ends = [flight.meta.path.local.ip(), flight.meta.path.remote.ip()];
            let is_second = |ip: &IpAddr| ip.is_ipv6() || ip.to_string().starts_with("10.1.");
            let path = usize::from(ends.iter().any(is_second));
            let before = seg.clone();
            let mut packet = Packet { to: flight.to, path, seg: &mut seg, behind: Vec::new() };
            let action = middlebox(&mut packet);
            for (seg, later) in packet.behind {
                let (src, dst) = (flight.meta.path.remote.ip(), flight.meta.path.local.ip());
                let bytes = seg.bytes(Some((src, dst)));
                let takes = Duration::from_millis(10 * (path as u64 + 1)) + later;
                inserted.push((InFlightSegment { bytes, ..flight.clone() }, takes));
            }
            trace.push((flight.to, seg.clone()));
            if seg != before {
                let (src, dst) = (flight.meta.path.remote.ip(), flight.meta.path.local.ip());
                flight.bytes = seg.bytes(Some((src, dst)));
            }
            match action {
                MiddleboxAction::Pass => {
                    SegmentOutcome::Arrive(Duration::from_millis(10 * (path as u64 + 1)))
                }
                MiddleboxAction::Drop => SegmentOutcome::Drop,
                MiddleboxAction::Refuse => {
                    refused.push(bare_reset(flight, &seg));
                    SegmentOutcome::Drop
                }
            }
        });
        for reset in refused {
            self.pair.launch(reset, Duration::from_millis(5));
        }
        for (flight, takes) in inserted {
            self.pair.launch(flight, takes);
        }
        for (side, event) in events {
            self.on_event(side, event);
        }
    }

    fn on_event(&mut self, side: Side, event: Event) {
        let end = self.end(side);
        match event {
            Event::Incoming(id) => end.id = Some(id),
            Event::Connected { fallback, .. } => end.fallback = fallback,
            Event::Closed { reason, .. } => end.closed = Some(reason),
            Event::Monitor(event) => {
                if let MonitorKind::Fallback(reason) = event.kind {
                    end.fallback = Some(reason);
                }
                end.monitor.push(event.kind);
            }
            _ => {}
        }
    }

    fn applications(&mut self) {
        let now = self.pair.now();
        for side in [Side::A, Side::B] {
            let end = &mut self.ends[side as usize];
            let Some(id) = end.id else { continue };
            let endpoint = self.pair.endpoint(side);
            while !end.to_write.is_empty() {
                let Ok(n) = endpoint.write(now, id, &end.to_write) else { break };
                end.to_write.drain(..n);
            }
            if end.to_write.is_empty() && std::mem::take(&mut end.shut_when_written) {
                endpoint.shutdown(now, id);
            }
            let mut buffer = [0; 16_384];
            while !end.sleeps
                && let Ok(n) = endpoint.read(now, id, &mut buffer)
            {
                end.at_end |= n == 0;
                end.received.extend_from_slice(&buffer[..n]);
                if n == 0 {
                    break;
                }
            }
        }
    }

    /// Both sides write and end, and must receive each other's bytes and end.
    #[track_caller]
    pub fn exchange_and_close(&mut self, first: Side, from_client: &[u8], from_server: &[u8]) {
        let had = [self.ends[0].received.len(), self.ends[1].received.len()];
        let data = [from_client, from_server];
        self.write(first, data[first as usize]);
        self.run_ms(30_000);
        assert!(self.ends[1].id.is_some(), "the server never received a SYN");
        self.write(first.other(), data[first.other() as usize]);
        self.shutdown(first.other());
        self.run_ms(30_000);
        self.shutdown(first);
        self.run_ms(30_000);
        let [client, server] = &self.ends;
        let wanted = [from_server, from_client];
        for (name, end, had, wanted) in
            [("client", client, had[0], wanted[0]), ("server", server, had[1], wanted[1])]
        {
            let got = &end.received[had..];
            assert_eq!(got.len(), wanted.len(), "bytes at the {name}, {:?}", end.closed);
            assert!(got == wanted, "wrong bytes at the {name}");
            assert!(end.at_end, "no end of stream at the {name}: {:?}", end.closed);
            assert_eq!(end.closed, Some(CloseReason::Finished), "at the {name}");
        }
    }

    /// Segments sent to a side after `since` entries of the trace.
    pub fn sent_to(&self, side: Side, since: usize) -> impl Iterator<Item = &Seg> {
        self.trace[since..].iter().filter(move |(to, _)| *to == side).map(|(_, seg)| seg)
    }
}
