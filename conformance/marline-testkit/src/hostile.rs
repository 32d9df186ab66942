//! Runs two endpoints, controlled by input bytes, over a network that may lose, repeat, delay, change and forge
//! segments, with applications that write, read and close at random.
//!
//! Whatever the input, no endpoint may panic, send endlessly or wake up endlessly, and its memory must stay bounded.
//! If the network only loses, repeats or delays segments or breaks their checksums, the bytes read must equal those
//! written. A network that knows the numbers and repairs checksums can change the data; TLS protects against this.
//!
//! The first bytes choose the configuration. Each operation then takes an opcode and parameters. At the end of the
//! bytes, the network becomes reliable for a while.

mod applications;
mod network;
mod trick;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use marline_algos::Registry;
use marline_core::{ConnectionConfig, ConnectionId, Extensions, LoneKeepalive, ReceiveTimer};
use marline_policy::{AddressId, LocalAddress, SchedulerFactory};

use self::trick::Manipulation;
use crate::{InFlightSegment, Pair, Side, config, endpoint_config, fixtures};

/// Maximum number of operations in one run.
const MAX_OPERATIONS: usize = 400;
/// Maximum number of arrivals and timers in one run. A larger number indicates an endless loop.
const MAX_STEPS: usize = 400_000;
/// Maximum number of payload bytes in flight or unread on one side, including both sides' buffers.
const MAX_BUFFERED: u64 = 32 << 20;

/// Outcome of a run, for tests of this module.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Connections established on both sides.
    pub connected: u32,
    /// Segments that the endpoints sent.
    pub segments: u64,
    /// Delivered segments with valid checksums that the endpoints had not sent in this form.
    pub forged: u32,
    /// Payload bytes read and verified on both sides.
    pub bytes_right: u64,
    /// True if all bytes written were read.
    pub complete: bool,
}

/// Reads numbers from the script; zeros after its end.
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

/// An application: its connection, and its write and read positions.
#[derive(Debug, Default)]
struct App {
    id: Option<ConnectionId>,
    written: u64,
    read: u64,
    closing: bool,
}

struct Run {
    pair: Pair,
    apps: [App; 2],
    manipulations: Vec<Manipulation>,
    /// The last segments seen, from which forged ones are made.
    seen: Vec<InFlightSegment>,
    steps: usize,
    outcome: Outcome,
}

const fn index(side: Side) -> usize {
    match side {
        Side::A => 0,
        Side::B => 1,
    }
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

/// Enables a client's receive timer. Its second path stays closed, because the timer requires an unused path.
fn enable_receive_timer(client: &mut ConnectionConfig, variant: u8) {
    if variant & 0x10 != 0 {
        client.extensions = Extensions::ALL;
    }
    if variant & 0x20 != 0 {
        let sets = [ReceiveTimer::multimob(), ReceiveTimer::with_probes()];
        client.receive_timer = Some(sets[usize::from(variant & 0x40 != 0)]);
        client.lone_keepalive = (variant & 0x80 != 0).then(LoneKeepalive::default);
        client.policies.path_manager = match Registry::default().path_manager("manual") {
            Ok(factory) => factory,
            Err(error) => panic!("{error}"),
        };
    }
}

/// Runs a script.
///
/// # Panics
/// If an endpoint violates an invariant (see the module documentation).
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
                backup: flags & 0x20 != 0 && id == 1,
                signal: side == Side::B && id == 1,
                ..LocalAddress::new(AddressId(id), address(side, net, 0))
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
        enable_receive_timer(&mut client, variant);
        let mut ends = (endpoint_config(None), endpoint_config(Some(server)));
        if flags & 0x40 != 0 {
            ends.0.capabilities = fixtures::flow_capabilities();
            ends.1.capabilities = fixtures::flow_capabilities();
        }
        let mut run = Run {
            pair: Pair::new(ends.0, ends.1, u64::from(seed)),
            apps: [App::default(), App::default()],
            manipulations: Vec::new(),
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
            5 => self.manipulations.push(Manipulation::Drop),
            6 => self
                .manipulations
                .push(Manipulation::Repeat(Duration::from_millis(u64::from(script.byte())))),
            7 => self
                .manipulations
                .push(Manipulation::Late(Duration::from_millis(u64::from(script.byte())))),
            8 => {
                let (at, with) = (script.word(), script.byte());
                self.manipulations.push(Manipulation::Corrupt { at, with });
            }
            9 => {
                let (at, with) = (script.word(), script.byte());
                self.manipulations.push(Manipulation::Forge { at, with });
            }
            10 => self.forge(script),
            11 => self.inject_noise(side, script),
            12 => self.close(side, script.byte()),
            13 => match script.byte() {
                how if how & 0xe0 == 0xe0 => self.change_scheduler(side, how),
                how if how & 0xe0 == 0xc0 => self.join(side, how),
                how => self.toggle_address(side, how),
            },
            14 => self.manipulations.clear(),
            _ => self.pass(Duration::from_millis(20)),
        }
        self.gather();
        self.check_bounds();
    }

    fn pass(&mut self, time: Duration) {
        let end = self.pair.now() + time;
        while self.pair.step(end) {
            self.steps += 1;
            assert!(
                self.steps < MAX_STEPS,
                "the endpoints never become idle, at {:?}",
                self.pair.now()
            );
            self.gather();
        }
    }

    /// Ends the hostile phase: everything is read and closed, and the remaining memory must be bounded.
    fn finish(mut self) -> Outcome {
        self.manipulations.clear();
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
            assert!(
                connections <= MAX_OPERATIONS,
                "{side:?} still holds {connections} connections"
            );
            for id in endpoint.connections() {
                let Some(info) = endpoint.info(id) else { continue };
                assert!(
                    info.buffered <= MAX_BUFFERED,
                    "{side:?} still holds {} bytes",
                    info.buffered
                );
                assert!(info.subflows.len() <= 32, "{} subflows", info.subflows.len());
            }
        }
    }
}
