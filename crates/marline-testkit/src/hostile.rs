//! Any bytes become a run of two endpoints over a network that may lose, repeat, delay, change and
//! forge segments, with applications that write, read and close at random.
//!
//! Whatever the bytes say, no endpoint may panic, send without end or wake up without end, and what
//! it holds in memory stays bounded. As long as the network only loses, repeats, delays or breaks
//! checksums, the bytes that come out are also those that went in. A network that knows the numbers
//! and repairs checksums can change the data itself; that is what TLS is for.
//!
//! The first bytes choose the configuration, then each operation takes an opcode and what it needs.
//! The end of the bytes is the end of the hostilities: the two then get a quiet network for a while.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use marline_algos::Registry;
use marline_core::{
    ChecksumScope, ConnectionConfig, ConnectionId, Event, Extensions, FourTuple, LoneKeepalive,
    ReceiveTimer,
};
use marline_policy::{AddressId, LocalAddress, PathAction, SchedulerFactory};

use crate::{Fate, Flight, Pair, Seg, Side, config, endpoint_config, scene};

/// Operations of one run.
const MAX_OPERATIONS: usize = 400;
/// Arrivals and timers of one run: beyond, somebody spins.
const MAX_STEPS: usize = 400_000;
/// One way of the network.
const DELAY: Duration = Duration::from_millis(10);
/// Payload bytes that one side may have on the way or unread, buffers and slack of both sides.
const MAX_BUFFERED: u64 = 32 << 20;

/// What a run came to, for tests of the test.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Connections that came about, of both sides.
    pub connected: u32,
    /// Segments the endpoints sent.
    pub segments: u64,
    /// Segments delivered that the endpoints had not sent like this, with right checksums.
    pub forged: u32,
    /// Payload bytes read and found right, of both sides.
    pub bytes_right: u64,
    /// All bytes written were read.
    pub complete: bool,
}

/// Takes numbers off the front of the script; zeros when it is at its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }
}

/// One application: its connection, and how far it has written and read.
#[derive(Debug, Default)]
struct App {
    id: Option<ConnectionId>,
    written: u64,
    read: u64,
    closing: bool,
}

/// What happens to segments that are sent from now on.
#[derive(Clone, Debug)]
enum Trick {
    Lose,
    Repeat(Duration),
    Late(Duration),
    Break { at: u16, with: u8 },
    Forge { at: u16, with: u8 },
}

struct Run {
    pair: Pair,
    apps: [App; 2],
    tricks: Vec<Trick>,
    /// Segments seen, to forge others from: the last few.
    seen: Vec<Flight>,
    steps: usize,
    outcome: Outcome,
}

const fn index(side: Side) -> usize {
    match side {
        Side::A => 0,
        Side::B => 1,
    }
}

/// The byte an application of `side` writes at a position.
const fn content(side: Side, position: u64) -> u8 {
    let mixed = position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    mixed as u8 ^ index(side) as u8
}

fn address(side: Side, net: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, net, 0, 1 + index(side) as u8], port))
}

/// One of the built-in schedulers.
fn scheduler(which: u8) -> Arc<dyn SchedulerFactory> {
    let name = ["min-rtt", "round-robin", "redundant"][usize::from(which & 3) % 3];
    match Registry::default().scheduler(name) {
        Ok(factory) => factory,
        Err(error) => panic!("{error}"),
    }
}

/// A client that watches for silence, and leaves its second path alone so that there is a reason to.
fn watch(client: &mut ConnectionConfig, variant: u8) {
    if variant & 0x10 != 0 {
        client.extensions = Extensions::ALL;
    }
    if variant & 0x20 != 0 {
        let sets = [ReceiveTimer::multimob(), ReceiveTimer::probing()];
        client.receive_timer = Some(sets[usize::from(variant & 0x40 != 0)]);
        client.lone_keepalive = (variant & 0x80 != 0).then(LoneKeepalive::default);
        client.policies.path_manager = match Registry::default().path_manager("manual") {
            Ok(factory) => factory,
            Err(error) => panic!("{error}"),
        };
    }
}

/// Whatever the network does, what an endpoint sends is well formed and fits its carrier.
fn check_egress(flight: &Flight, scope: ChecksumScope) {
    let path = flight.meta.path;
    let addresses = match scope {
        ChecksumScope::WithAddresses => Some((path.remote.ip(), path.local.ip())),
        ChecksumScope::WithoutAddresses => None,
    };
    assert!(marline_wire::verify_tcp_checksum(addresses, &flight.bytes), "a wrong checksum");
    let most = usize::from(scene::flow_capabilities().max_segment);
    assert!(flight.bytes.len() <= most, "a segment of {} bytes", flight.bytes.len());
    match Seg::parse(&flight.bytes) {
        Ok(seg) => {
            assert!(seg.options.fits() && !seg.options.mptcp.malformed, "{:?}", seg.options);
        }
        Err(error) => panic!("an endpoint sent a broken segment: {error}"),
    }
}

/// Runs a script.
///
/// # Panics
/// If an endpoint does what none may do (see the head of this file).
#[must_use]
pub fn run(script: &[u8]) -> Outcome {
    let mut script = Script(script);
    let mut run = Run::start(&mut script);
    for _ in 0..MAX_OPERATIONS {
        if script.0.is_empty() {
            break;
        }
        run.operation(&mut script);
    }
    run.finish()
}

impl Run {
    fn start(script: &mut Script<'_>) -> Run {
        let (flags, seed) = (script.byte(), script.word());
        let local = |side| {
            let addresses = [(0u8, 0u8), (1, 1)].map(|(id, net)| LocalAddress {
                id: AddressId(id),
                address: address(side, net, 0),
                remote: None,
                backup: flags & 0x20 != 0 && id == 1,
                signal: side == Side::B && id == 1,
                subflow: true,
                up: true,
            });
            addresses.to_vec()
        };
        let mut client = config();
        client.local_addresses = local(Side::A);
        client.mptcp = flags & 1 == 0;
        client.dss_checksum = flags & 2 != 0;
        client.ecn = flags & 4 != 0;
        let mut server = config();
        server.local_addresses = local(Side::B);
        server.mptcp = flags & 8 == 0;
        server.dss_checksum = flags & 16 != 0;
        let variant = script.byte();
        client.policies.scheduler = scheduler(variant);
        server.policies.scheduler = scheduler(variant >> 2);
        watch(&mut client, variant);
        let mut ends = (endpoint_config(None), endpoint_config(Some(server)));
        if flags & 0x40 != 0 {
            ends.0.capabilities = scene::flow_capabilities();
            ends.1.capabilities = scene::flow_capabilities();
        }
        let mut run = Run {
            pair: Pair::new(ends.0, ends.1, u64::from(seed)),
            apps: [App::default(), App::default()],
            tricks: Vec::new(),
            seen: Vec::new(),
            steps: 0,
            outcome: Outcome::default(),
        };
        let now = run.pair.now();
        let (from, to) = (address(Side::A, 0, 0), address(Side::B, 0, 80));
        run.apps[0].id = run.pair.endpoint(Side::A).connect(now, client, from, to).ok();
        run.gather();
        run
    }

    fn operation(&mut self, script: &mut Script<'_>) {
        let op = script.byte();
        let side = if op & 0x80 == 0 { Side::A } else { Side::B };
        match op % 16 {
            0 | 1 => self.write(side, script.word() % 8_192),
            2 => self.read(side),
            3 => self.pass(Duration::from_millis(u64::from(script.byte()))),
            4 => self.pass(Duration::from_millis(100 * u64::from(script.byte()))),
            5 => self.tricks.push(Trick::Lose),
            6 => self.tricks.push(Trick::Repeat(Duration::from_millis(u64::from(script.byte())))),
            7 => self.tricks.push(Trick::Late(Duration::from_millis(u64::from(script.byte())))),
            8 => {
                let (at, with) = (script.word(), script.byte());
                self.tricks.push(Trick::Break { at, with });
            }
            9 => {
                let (at, with) = (script.word(), script.byte());
                self.tricks.push(Trick::Forge { at, with });
            }
            10 => self.forge(script),
            11 => self.noise(side, script),
            12 => self.close(side, script.byte()),
            13 => match script.byte() {
                how if how & 0xe0 == 0xe0 => self.reschedule(side, how),
                how if how & 0xe0 == 0xc0 => self.join(side, how),
                how => self.toggle(side, how),
            },
            14 => self.tricks.clear(),
            _ => self.pass(Duration::from_millis(20)),
        }
        self.gather();
        self.check_bounds();
    }

    fn write(&mut self, side: Side, len: u16) {
        let now = self.pair.now();
        let app = &mut self.apps[index(side)];
        let Some(id) = app.id.filter(|_| !app.closing) else { return };
        let bytes: Vec<u8> = (0..u64::from(len)).map(|i| content(side, app.written + i)).collect();
        if let Ok(taken) = self.pair.endpoint(side).write(now, id, &bytes) {
            assert!(taken <= bytes.len(), "more was taken than given");
            app.written += taken as u64;
        }
    }

    fn read(&mut self, side: Side) {
        let (now, from) = (self.pair.now(), side.other());
        let app = &mut self.apps[index(side)];
        let Some(id) = app.id else { return };
        let mut out = [0; 4_096];
        while let Ok(len @ 1..) = self.pair.endpoint(side).read(now, id, &mut out) {
            for &byte in &out[..len] {
                if self.outcome.forged == 0 {
                    assert_eq!(byte, content(from, app.read), "byte {} of {from:?}", app.read);
                    self.outcome.bytes_right += 1;
                }
                app.read += 1;
            }
        }
        if self.outcome.forged == 0 {
            let (read, written) = (self.apps[index(side)].read, self.apps[index(from)].written);
            assert!(read <= written, "{side:?} read {read} bytes of {written}");
        }
    }

    fn close(&mut self, side: Side, how: u8) {
        let now = self.pair.now();
        let Some(id) = self.apps[index(side)].id else { return };
        let app = &mut self.apps[index(side)];
        app.closing = true;
        let endpoint = self.pair.endpoint(side);
        match how % 8 {
            0 => endpoint.abort(now, id),
            1 => endpoint.release(now, id),
            _ => endpoint.shutdown(now, id),
        }
    }

    /// A local address goes, comes back, or changes its priority.
    fn toggle(&mut self, side: Side, how: u8) {
        let (now, net) = (self.pair.now(), how & 1);
        let changed = LocalAddress {
            id: AddressId(net),
            address: address(side, net, 0),
            remote: None,
            backup: how & 2 != 0,
            signal: how & 4 != 0,
            subflow: true,
            up: how & 8 == 0,
        };
        let Some(id) = self.apps[index(side)].id else { return };
        let endpoint = self.pair.endpoint(side);
        if how & 0x10 == 0 {
            endpoint.set_local_address(now, Some(id), changed);
        } else {
            endpoint.set_backup(now, id, AddressId(net), how & 2 != 0);
        }
    }

    /// A subflow is wanted, in a hurry or not; perhaps because another one is dead.
    fn join(&mut self, side: Side, how: u8) {
        let (now, net) = (self.pair.now(), how & 1);
        let Some(id) = self.apps[index(side)].id else { return };
        let endpoint = self.pair.endpoint(side);
        if how & 2 != 0 {
            let dead = 1 - net;
            endpoint.path_unreachable(now, address(side, dead, 0), address(side.other(), 0, 80));
        }
        let action = PathAction::OpenSubflow {
            local: AddressId(net),
            remote: AddressId(how >> 2 & 1),
            backup: how & 8 != 0,
            fast: how & 16 == 0,
        };
        endpoint.path_action(now, id, action);
    }

    /// Another scheduler takes over.
    fn reschedule(&mut self, side: Side, which: u8) {
        let now = self.pair.now();
        let Some(id) = self.apps[index(side)].id else { return };
        self.pair.endpoint(side).set_scheduler(now, id, scheduler(which));
    }

    /// A segment made from one that was seen, with other numbers, flags or options.
    fn forge(&mut self, script: &mut Script<'_>) {
        let Some(mut flight) = self.pick(script.byte()) else { return };
        let Ok(mut seg) = Seg::parse(&flight.bytes) else { return };
        let what = script.byte();
        let by = u32::from(script.word());
        if what & 1 != 0 {
            seg.header.seq = seg.header.seq.add(by.wrapping_sub(0x8000));
        }
        if what & 2 != 0 {
            seg.header.ack = seg.header.ack.add(by.wrapping_sub(0x8000));
        }
        if what & 4 != 0 {
            seg.header.flags.0 ^= u16::from(script.byte());
        }
        if what & 8 != 0 {
            seg.header.window = script.word();
        }
        if what & 16 != 0 {
            seg.payload = vec![0xf0; usize::from(script.byte()) * 4];
        }
        if what & 32 != 0
            && let Some(mapping) = seg.options.dss.as_mut().and_then(|dss| dss.mapping.as_mut())
        {
            mapping.ssn = mapping.ssn.wrapping_add(by).wrapping_sub(0x8000);
            mapping.length = mapping.length.wrapping_add(script.word());
        }
        if what & 64 != 0 {
            seg.options.dss = None;
        }
        if what & 128 != 0
            && let Some(other) = self.pick(script.byte())
            && let Ok(other) = Seg::parse(&other.bytes)
        {
            seg.options = other.options;
        }
        if seg.options.fits() {
            flight.bytes = seg.bytes(None);
            self.launch_forged(flight);
        }
    }

    /// Random bytes, the first twenty of which may be a header that was seen.
    fn noise(&mut self, side: Side, script: &mut Script<'_>) {
        let len = usize::from(script.byte() % 64);
        let mut bytes: Vec<u8> = (0..len).map(|_| script.byte()).collect();
        let Some(mut flight) = self.pick(script.byte()) else { return };
        if len & 1 == 0 {
            bytes.splice(..0, flight.bytes.iter().copied().take(20));
        }
        flight.bytes = bytes;
        if len & 2 == 0 {
            let (local, remote) = (address(side, 0, 80), address(side.other(), 1, 4_000));
            flight.meta.path = FourTuple { local, remote };
            flight.to = side;
        }
        self.launch_forged(flight);
    }

    fn launch_forged(&mut self, mut flight: Flight) {
        self.pair.repair(&mut flight);
        self.outcome.forged += 1;
        self.pair.launch(flight, Duration::from_millis(1));
    }

    fn pick(&self, which: u8) -> Option<Flight> {
        self.seen.get(usize::from(which).checked_rem(self.seen.len())?).cloned()
    }

    fn gather(&mut self) {
        let Run { pair, tricks, seen, outcome, .. } = self;
        let scope = pair.scope();
        let mut forged = Vec::new();
        let mut judge = |flight: &mut Flight| {
            check_egress(flight, scope);
            outcome.segments += 1;
            if seen.len() == 16 {
                seen.remove(0);
            }
            seen.push(flight.clone());
            match tricks.pop() {
                None => Fate::Arrive(DELAY),
                Some(Trick::Lose) => Fate::Lose,
                Some(Trick::Repeat(after)) => Fate::Twice(DELAY, DELAY + after),
                Some(Trick::Late(by)) => Fate::Arrive(DELAY + by),
                Some(Trick::Break { at, with }) => {
                    // One changed byte is always noticed by the checksum.
                    let at = usize::from(at) % flight.bytes.len();
                    flight.bytes[at] ^= with.max(1);
                    Fate::Arrive(DELAY)
                }
                Some(Trick::Forge { at, with }) => {
                    let at = usize::from(at) % flight.bytes.len();
                    flight.bytes[at] ^= with;
                    forged.push(flight.clone());
                    Fate::Lose
                }
            }
        };
        let events = pair.gather(&mut judge);
        for flight in forged {
            self.launch_forged(flight);
        }
        for (side, event) in events {
            self.note(side, &event);
        }
    }

    fn note(&mut self, side: Side, event: &Event) {
        match event {
            Event::Incoming(id) => {
                self.outcome.connected += 1;
                // Later ones come from forged SYNs: nobody serves them.
                let app = &mut self.apps[index(side)];
                app.id = app.id.or(Some(*id));
            }
            Event::Connected { .. } => self.outcome.connected += 1,
            _ => {}
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.pair.now() + time;
        while self.pair.step(end) {
            self.steps += 1;
            assert!(self.steps < MAX_STEPS, "the endpoints never rest, at {:?}", self.pair.now());
            self.gather();
        }
    }

    /// Peace: everything is read and closed, and what is left must be bounded.
    fn finish(mut self) -> Outcome {
        self.tricks.clear();
        for _ in 0..200 {
            self.pass(Duration::from_millis(200));
            for side in [Side::A, Side::B] {
                self.read(side);
            }
            self.gather();
        }
        let [a, b] = &self.apps;
        self.outcome.complete = a.read == b.written && b.read == a.written;
        self.check_bounds();
        for side in [Side::A, Side::B] {
            self.close(side, 2);
        }
        self.gather();
        self.pass(Duration::from_secs(300));
        self.check_bounds();
        self.outcome
    }

    fn check_bounds(&mut self) {
        for side in [Side::A, Side::B] {
            let endpoint = self.pair.endpoint(side);
            let connections = endpoint.connections().len();
            assert!(connections <= MAX_OPERATIONS, "{side:?} holds {connections} connections");
            for id in endpoint.connections() {
                let Some(info) = endpoint.info(id) else { continue };
                assert!(info.buffered <= MAX_BUFFERED, "{side:?} holds {} bytes", info.buffered);
                assert!(info.subflows.len() <= 32, "{} subflows", info.subflows.len());
            }
        }
    }
}
