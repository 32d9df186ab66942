//! A small world: two ends, the packets between them, and what a choice does to them.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use marline_core::{ChecksumScope, CloseReason, Endpoint, FourTuple, PacketMeta, TransmitBuf};
use marline_time::{Instant, SeedTree};

use super::application::End;
use super::choice::Choice;
use super::scene::{Order, Scene, client_address, server_address};
use crate::pair::arriving;
use crate::{Seg, Side};

/// Timers that one wait may run before an endpoint does something.
const MAX_IDLE_TIMERS: usize = 1_000;

/// A packet in flight.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) to: Side,
    pub(super) path: usize,
    meta: PacketMeta,
    bytes: Vec<u8>,
    pub(super) has_mptcp: bool,
    /// Time may pass while it is in flight.
    pub(super) held: bool,
    hash: u64,
}

impl Packet {
    fn new(to: Side, path: usize, meta: PacketMeta, bytes: Vec<u8>) -> Packet {
        let mut packet = Packet { to, path, meta, bytes, has_mptcp: false, held: false, hash: 0 };
        packet.rehash();
        packet
    }

    fn rehash(&mut self) {
        let seg = Seg::parse(&self.bytes).expect("what an endpoint sent");
        self.has_mptcp = seg.options.dss.is_some() || seg.options.mptcp.iter().next().is_some();
        let mut hasher = DefaultHasher::new();
        (self.to as u8, self.path, self.meta.flow, self.meta.peer_flow).hash(&mut hasher);
        self.bytes.hash(&mut hasher);
        self.hash = hasher.finish();
    }

    fn strip(&mut self, scope: ChecksumScope) {
        let mut seg = Seg::parse(&self.bytes).expect("what an endpoint sent");
        seg.options.dss = None;
        seg.options.mptcp = Default::default();
        let FourTuple { local, remote } = self.meta.path;
        let addresses = (scope == ChecksumScope::WithAddresses).then(|| (remote.ip(), local.ip()));
        self.bytes = seg.bytes(addresses);
        self.rehash();
    }
}

/// What a path does to MPTCP options.
#[derive(Copy, Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum OptionFate {
    Pass,
    /// They are removed.
    Removed,
    /// Packets that have some are lost.
    Lost,
}

/// Two ends and what is between them.
#[derive(Debug)]
pub(super) struct World {
    pub(super) ends: [End; 2],
    pub(super) in_flight: Vec<Packet>,
    pub(super) now: Instant,
    /// What paths do to options.
    pub(super) options: Vec<OptionFate>,
    pub(super) lost: Vec<bool>,
    pub(super) waits: usize,
    pub(super) faults: usize,
    order: Order,
    scope: ChecksumScope,
    buf: TransmitBuf,
    /// What happened, if somebody wants to read it.
    pub(super) log: Option<Vec<String>>,
}

impl World {
    /// The world of a scene, with the client's first SYN in flight.
    ///
    /// # Panics
    /// If the client cannot open a connection.
    pub(super) fn new(scene: &Scene) -> World {
        let seeds = SeedTree::new(1);
        let endpoint = |config: &marline_core::EndpointConfig, name| {
            Endpoint::new(config.clone(), Box::new(seeds.stream(name)))
        };
        let client = endpoint(&scene.client_endpoint, "a");
        let server = endpoint(&scene.server_endpoint, "b");
        let mut world = World {
            ends: [
                End::new(Side::A, client, &scene.client_steps),
                End::new(Side::B, server, &scene.server_steps),
            ],
            in_flight: Vec::new(),
            now: Instant::from_secs(1),
            options: vec![OptionFate::Pass; scene.paths],
            lost: vec![false; scene.paths],
            waits: 0,
            faults: 0,
            order: scene.order,
            scope: scene.client_endpoint.capabilities.checksum,
            buf: End::transmit_buf(),
            log: None,
        };
        let local = client_address(0).address;
        let (now, config) = (world.now, scene.client.clone());
        let id = world.ends[0].endpoint.connect(now, config, local, server_address());
        world.ends[0].id = Some(id.expect("room for a connection"));
        world.settle(Side::A);
        world
    }

    /// Whether packets are on their way that time waits for.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.iter().any(|packet| !packet.held)
    }

    /// When the next timer of either end runs.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.ends.iter().filter_map(End::deadline).min()
    }

    /// The same number for worlds that go on alike, by the states of both ends.
    pub(super) fn fingerprint(&self, states: [u64; 2]) -> u64 {
        let place = |packet: &Packet| match (packet.held, self.order) {
            (false, Order::Sent) => (false, packet.to as u8, packet.path, packet.hash),
            (held, _) => (held, 0, 0, packet.hash),
        };
        let mut packets: Vec<_> = self.in_flight.iter().map(place).collect();
        match self.order {
            // Packets of one path and direction keep their order.
            Order::Sent => packets.sort_by_key(|(held, to, path, hash)| {
                (*held, *to, *path, if *held { *hash } else { 0 })
            }),
            Order::Any => packets.sort_unstable(),
        }
        let mut hasher = DefaultHasher::new();
        (states, packets, self.now.as_nanos(), self.faults).hash(&mut hasher);
        (&self.options, &self.lost).hash(&mut hasher);
        self.ends.each_ref().map(|end| end.late_fallback).hash(&mut hasher);
        hasher.finish()
    }

    /// Packets that may arrive next. Of equal ones the first.
    pub(super) fn next_packets(&self) -> impl Iterator<Item = usize> {
        let may_be_next = |at: &usize| {
            let packet = &self.in_flight[*at];
            let hides = |other: &Packet| match (packet.held, other.held, self.order) {
                (false, false, Order::Sent) => (other.to, other.path) == (packet.to, packet.path),
                (held, other_held, _) => held == other_held && other.hash == packet.hash,
            };
            !self.in_flight[..*at].iter().any(hides)
        };
        (0..self.in_flight.len()).filter(may_be_next)
    }

    /// Does what was chosen. `false`: it is not possible here.
    pub(super) fn apply(&mut self, choice: Choice) -> bool {
        if let Some(log) = &mut self.log {
            log.push(format!("{choice} at {:?}", self.now));
        }
        let here = |n: usize| n < self.in_flight.len();
        match choice {
            Choice::Deliver(n) if here(n) => {
                let packet = self.in_flight.remove(n);
                self.hand_over(&packet);
            }
            Choice::Duplicate(n) if here(n) => {
                let packet = self.in_flight.remove(n);
                self.in_flight.insert(n, Packet { held: true, ..packet.clone() });
                self.hand_over(&packet);
            }
            Choice::Lose(n) if here(n) => drop(self.in_flight.remove(n)),
            Choice::Hold(n) if here(n) => self.in_flight[n].held = true,
            Choice::Strip(n) if here(n) => self.in_flight[n].strip(self.scope),
            Choice::StripPath(path) if path < self.options.len() => {
                self.options[path] = OptionFate::Removed;
            }
            Choice::BlockOptions(path) if path < self.options.len() => {
                self.options[path] = OptionFate::Lost;
            }
            Choice::LoseAddress(path) if path < self.lost.len() => self.lose_address(path),
            Choice::Wait if !self.is_busy() => self.run_timers(),
            Choice::TimeOut if self.is_busy() => self.run_timers(),
            _ => return false,
        }
        self.faults += usize::from(choice.is_fault());
        self.waits += usize::from(choice == Choice::Wait);
        true
    }

    fn hand_over(&mut self, packet: &Packet) {
        if packet.to == Side::A && self.lost[packet.path] {
            return;
        }
        let end = &mut self.ends[packet.to as usize];
        end.note_input(self.now, 0, &packet.hash.to_le_bytes());
        end.endpoint.handle_packet(self.now, &packet.meta, &packet.bytes);
        self.settle(packet.to);
    }

    fn lose_address(&mut self, path: usize) {
        self.lost[path] = true;
        let mut address = client_address(path);
        address.up = false;
        let end = &mut self.ends[0];
        end.note_input(self.now, 1, &[path as u8]);
        end.endpoint.set_local_address(self.now, None, address);
        self.settle(Side::A);
    }

    /// Goes from deadline to deadline until an endpoint sends something or says something.
    fn run_timers(&mut self) {
        for _ in 0..MAX_IDLE_TIMERS {
            let Some(at) = self.deadline() else { return };
            self.now = self.now.max(at);
            let mut acted = false;
            for side in [Side::A, Side::B] {
                let end = &mut self.ends[side as usize];
                if end.deadline().is_some_and(|at| at <= self.now) {
                    end.note_input(self.now, 2, &[]);
                    end.endpoint.handle_timeout(self.now);
                    acted |= self.settle(side);
                }
            }
            if acted {
                return;
            }
        }
        panic!("timers of an endpoint run without end at {:?}", self.now);
    }

    fn settle(&mut self, side: Side) -> bool {
        let World { ends, in_flight, options, lost, scope, now, buf, log, .. } = self;
        let events = ends[side as usize].events.len();
        let was_plain = ends[side as usize].fallback.is_some();
        let acted = ends[side as usize].settle(*now, buf, &mut |side, transmit, segment| {
            let client = if side == Side::A { transmit.path.local } else { transmit.path.remote };
            let path = (0..lost.len())
                .find(|path| client_address(*path).address.ip() == client.ip())
                .expect("an address of the client");
            let mut packet = Packet::new(side.other(), path, arriving(transmit), segment.to_vec());
            if options[path] == OptionFate::Removed {
                packet.strip(*scope);
            }
            if let Some(log) = log {
                let seg = Seg::parse(&packet.bytes).expect("what an endpoint sent");
                let place = in_flight.len();
                log.push(format!("    {side:?} sends {place} on path {path}: {}", in_words(&seg)));
            }
            let blocked = options[path] == OptionFate::Lost && packet.has_mptcp;
            if !lost[path] && !blocked {
                in_flight.push(packet);
            }
        });
        if !was_plain && ends[side as usize].fallback.is_some() {
            let peer = ends[side.other() as usize].closed;
            ends[side as usize].late_fallback = peer == Some(CloseReason::Finished);
        }
        if let Some(log) = log {
            let events = &ends[side as usize].events[events..];
            log.extend(events.iter().map(|event| format!("    {side:?}: {event:?}")));
        }
        acted
    }
}

/// A segment in a line.
fn in_words(seg: &Seg) -> String {
    let header = &seg.header;
    let mptcp: Vec<_> = seg.options.mptcp.iter().collect();
    format!(
        "{:?} seq {} ack {} len {} {:?} {mptcp:?}",
        header.flags,
        header.seq.0,
        header.ack.0,
        seg.payload.len(),
        seg.options.dss
    )
}
