//! A small world: two ends, the packets between them, and the effects of choices.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;

use marline_core::{ChecksumScope, CloseReason};
use marline_time::Instant;

use super::application::EndState;
use super::choice::Choice;
use super::ends::{Ends, Input, START, StateId, Step};
use super::packet::PacketId;
use super::scene::{MAX_PATHS, Order, Scene};
use super::verdict::{FaultEffect, FinalWorld};
use crate::{Seg, Side};

/// Maximum number of timers that fire in one wait before an endpoint does something.
const MAX_IDLE_TIMERS: usize = 1_000;

/// A packet in flight.
#[derive(Copy, Clone, Debug)]
pub(super) struct InFlight {
    id: PacketId,
    to: Side,
    path: usize,
    pub(super) has_mptcp: bool,
    /// True if time can pass while it is in flight.
    pub(super) held: bool,
}

/// Treatment of MPTCP options on a path.
#[derive(Copy, Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum OptionTreatment {
    Pass,
    /// The options are removed.
    Removed,
    /// Packets with such options are lost.
    Lost,
}

/// Reason why a choice failed.
#[derive(Clone, Debug)]
pub(super) enum Failed {
    /// The choice is not possible in this world.
    Impossible,
    /// An endpoint panicked with this message.
    Panicked(Rc<str>),
}

/// Two ends, as states of an [`Ends`], and the network between them.
#[derive(Clone, Debug)]
pub(super) struct World {
    states: [StateId; 2],
    pub(super) in_flight: Vec<InFlight>,
    pub(super) now: Instant,
    /// Treatment of options, by path.
    pub(super) options: [OptionTreatment; MAX_PATHS],
    pub(super) lost: [bool; MAX_PATHS],
    /// Number of waits in which timers ran, in total and since the last fault.
    pub(super) waits: usize,
    pub(super) waits_without_fault: usize,
    pub(super) faults: usize,
    effects: FaultEffect,
    /// For each end: true if it fell back to plain TCP after the last bytes for which the mode matters
    /// ([`is_late`](Self::is_late)).
    late_fallback: [bool; 2],
    /// The packet that the next choice must use. Any other choice would have had the same effect before the last
    /// choice.
    pub(super) bound: Option<usize>,
    order: Order,
    scope: ChecksumScope,
    /// Log of events, if requested.
    pub(super) log: Option<Vec<String>>,
}

impl World {
    /// The initial world of a scene, with the client's first SYN in flight.
    pub(super) fn new(scene: &Scene, ends: &mut Ends<'_>) -> World {
        let mut world = World {
            states: [ends.first(Side::A), ends.first(Side::B)],
            in_flight: Vec::new(),
            now: START,
            options: [OptionTreatment::Pass; MAX_PATHS],
            lost: [false; MAX_PATHS],
            waits: 0,
            waits_without_fault: 0,
            faults: 0,
            effects: FaultEffect::None,
            late_fallback: [false; 2],
            bound: None,
            order: scene.order,
            scope: scene.client_endpoint.capabilities.checksum,
            log: None,
        };
        for id in ends.first_sent() {
            world.send(ends, id);
        }
        world
    }

    /// True if packets are in flight that arrive before time passes.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.iter().any(|packet| !packet.held)
    }

    fn facts<'a>(&self, ends: &'a Ends<'_>, side: Side) -> &'a EndState {
        ends.facts(self.states[side as usize])
    }

    /// True if the client's connection has ended and its application has released it.
    pub(super) fn has_client_ended(&self, ends: &Ends<'_>) -> bool {
        self.facts(ends, Side::A).closed.is_some()
    }

    /// The time of the next timer at either end.
    pub(super) fn deadline(&self, ends: &Ends<'_>) -> Option<Instant> {
        self.states.iter().filter_map(|state| ends.facts(*state).deadline).min()
    }

    /// This world in the form needed for a verdict.
    pub(super) fn final_state<'a>(&self, ends: &'a Ends<'_>, endless: bool) -> FinalWorld<'a> {
        let facts = [self.facts(ends, Side::A), self.facts(ends, Side::B)];
        FinalWorld {
            ends: facts,
            late_fallback: self.late_fallback,
            effects: self.effects,
            endless,
        }
    }

    /// Fingerprint that is equal for worlds with the same possible continuations.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut packets = self.in_flight.clone();
        match self.order {
            // Packets of one path and direction keep their order.
            Order::Sent => packets.sort_by_key(|packet| match packet.held {
                true => (true, packet.to as u8, packet.path, Some(packet.id)),
                false => (false, packet.to as u8, packet.path, None),
            }),
            Order::Any => packets.sort_by_key(|packet| (packet.held, packet.id)),
        }
        self.print(&packets)
    }

    /// Fingerprint that is equal for worlds with the same continuation without further choices.
    pub(super) fn exact_fingerprint(&self) -> u64 {
        self.print(&self.in_flight)
    }

    fn print(&self, packets: &[InFlight]) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.states, self.now, self.faults, self.effects, self.options).hash(&mut hasher);
        let bound = self.bound.map(|n| self.in_flight[n].id);
        (self.lost, self.late_fallback, bound).hash(&mut hasher);
        for packet in packets {
            (packet.id, packet.held).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Packets that can arrive next. Only the first of equal packets is listed.
    pub(super) fn next_packets(&self) -> impl Iterator<Item = usize> {
        let may_be_next = |at: &usize| {
            let packet = &self.in_flight[*at];
            let hides = |other: &InFlight| match (packet.held, other.held, self.order) {
                (false, false, Order::Sent) => (other.to, other.path) == (packet.to, packet.path),
                (held, other_held, _) => held == other_held && other.id == packet.id,
            };
            !self.in_flight[..*at].iter().any(hides)
        };
        (0..self.in_flight.len()).filter(may_be_next)
    }

    /// Returns true if losing or holding back this packet now differs from doing so later.
    ///
    /// There is no difference before the next packet of its path and direction can arrive, or before time passes.
    pub(super) fn is_loss_distinct(&self, n: usize) -> bool {
        let packet = self.in_flight[n];
        let others = self.in_flight.iter().enumerate().filter(|(at, _)| *at != n);
        let mut prompt = others.filter(|(_, other)| !other.held).map(|(_, other)| other);
        let is_next = |other: &InFlight| (other.to, other.path) == (packet.to, packet.path);
        prompt.clone().next().is_none() || (self.order == Order::Sent && prompt.any(is_next))
    }

    /// Applies a choice.
    pub(super) fn apply(&mut self, ends: &mut Ends<'_>, choice: Choice) -> Result<(), Failed> {
        if let Some(log) = &mut self.log {
            log.push(format!("{choice} at {:?}", self.now));
        }
        let here = |n: usize| n < self.in_flight.len();
        self.bound = None;
        match choice {
            Choice::Deliver(n) if here(n) => {
                let packet = self.in_flight.remove(n);
                self.deliver_packet(ends, packet)?;
            }
            Choice::Duplicate(n) if here(n) => {
                let packet = self.in_flight[n];
                self.in_flight[n].held = true;
                self.deliver_packet(ends, packet)?;
            }
            Choice::Drop(n) if here(n) => {
                let packet = self.in_flight.remove(n);
                self.require_next(packet);
            }
            Choice::Hold(n) if here(n) => {
                self.in_flight[n].held = true;
                self.require_next(self.in_flight[n]);
            }
            Choice::Strip(n) if here(n) => {
                let packet = &mut self.in_flight[n];
                packet.id = ends.packets.strip_options(packet.id, self.scope);
                packet.has_mptcp = false;
                self.bound = Some(n);
            }
            Choice::StripPath(path) if path < self.options.len() => {
                self.options[path] = OptionTreatment::Removed;
            }
            Choice::BlockOptions(path) if path < self.options.len() => {
                self.options[path] = OptionTreatment::Lost;
            }
            Choice::LoseAddress(path) if path < self.lost.len() => {
                self.lost[path] = true;
                self.give(ends, Side::A, Input::AddressLost(path))?;
            }
            Choice::Wait if !self.is_busy() => self.run_timers(ends)?,
            Choice::TimeOut if self.is_busy() => self.run_timers(ends)?,
            _ => return Err(Failed::Impossible),
        }
        self.count(ends, choice);
        Ok(())
    }

    /// Requires that the next packet of the same path and direction arrives before this one, so that the gap is
    /// visible.
    fn require_next(&mut self, missed: InFlight) {
        let is_next =
            |other: &InFlight| !other.held && (other.to, other.path) == (missed.to, missed.path);
        let next = self.in_flight.iter().position(is_next);
        self.bound = next.filter(|_| self.order == Order::Sent);
    }

    fn count(&mut self, ends: &Ends<'_>, choice: Choice) {
        self.effects = match self.effects {
            harm if choice.is_benign() => harm,
            FaultEffect::None if self.is_early(ends, choice) => FaultEffect::NoOptions,
            _ => FaultEffect::Other,
        };
        if choice.is_fault() {
            (self.faults, self.waits_without_fault) = (self.faults + 1, 0);
        } else if choice == Choice::Wait {
            (self.waits, self.waits_without_fault) = (self.waits + 1, self.waits_without_fault + 1);
        }
    }

    /// Returns true if the first path no longer passes options, and either end can still detect that the connection is
    /// plain TCP. If packets with options are lost, an end that has received a DSS considers the path dead.
    fn is_early(&self, ends: &Ends<'_>, choice: Choice) -> bool {
        let [client, server] = [self.facts(ends, Side::A), self.facts(ends, Side::B)];
        match choice {
            Choice::StripPath(0) => client.received + server.received == 0,
            Choice::BlockOptions(0) => !server.is_open && server.closed.is_none(),
            _ => false,
        }
    }

    fn deliver_packet(&mut self, ends: &mut Ends<'_>, packet: InFlight) -> Result<(), Failed> {
        if packet.to == Side::B || !self.lost[packet.path] {
            self.give(ends, packet.to, Input::Packet(packet.id))?;
        }
        Ok(())
    }

    /// Runs timers, deadline by deadline, until an endpoint sends or reports something.
    fn run_timers(&mut self, ends: &mut Ends<'_>) -> Result<(), Failed> {
        for _ in 0..MAX_IDLE_TIMERS {
            let Some(at) = self.deadline(ends) else { return Ok(()) };
            self.now = self.now.max(at);
            let mut acted = false;
            for side in [Side::A, Side::B] {
                if self.facts(ends, side).deadline.is_some_and(|at| at <= self.now) {
                    acted |= self.give(ends, side, Input::Timers)?;
                }
            }
            if acted {
                return Ok(());
            }
        }
        Err(Failed::Panicked("the timers of an endpoint fire endlessly".into()))
    }

    /// Gives an input to an end, and puts the packets that it sends in flight. Returns true if it sent or reported
    /// anything.
    fn give(&mut self, ends: &mut Ends<'_>, side: Side, input: Input) -> Result<bool, Failed> {
        let at = side as usize;
        let before = self.states[at];
        let step = ends.step(self.states[at], self.now, input).map_err(Failed::Panicked)?;
        self.states[at] = step.to;
        for id in &step.sent {
            self.send(ends, *id);
        }
        let is_plain = |state| ends.facts(state).fallback.is_some();
        if !is_plain(before) && is_plain(step.to) {
            self.late_fallback[at] = self.is_late(ends, side, before, input);
        }
        self.log_events(side, &step);
        Ok(step.acted)
    }

    /// Returns true if an end may fall back although its peer does not. `before` is its state before the input that
    /// makes it fall back. Either the peer has finished, or this end has the peer's whole stream, has sent its own,
    /// and receives a packet that shows that options do not pass.
    fn is_late(&self, ends: &Ends<'_>, side: Side, before: StateId, input: Input) -> bool {
        let (end, peer) = (ends.facts(before), self.facts(ends, side.other()));
        let has_all = end.at_end && end.written == end.all_written;
        peer.closed == Some(CloseReason::Finished) || has_all && matches!(input, Input::Packet(_))
    }

    fn send(&mut self, ends: &mut Ends<'_>, mut id: PacketId) {
        let path = ends.packets.get(id).path;
        if self.options[path] == OptionTreatment::Removed {
            id = ends.packets.strip_options(id, self.scope);
        }
        let packet = ends.packets.get(id);
        if let Some(log) = &mut self.log {
            let (from, place) = (packet.to.other(), self.in_flight.len());
            let words = describe_segment(&packet.seg());
            log.push(format!("    {from:?} sends {place} on path {path}: {words}"));
        }
        let blocked = self.options[path] == OptionTreatment::Lost && packet.has_mptcp;
        if !self.lost[path] && !blocked {
            let (to, has_mptcp) = (packet.to, packet.has_mptcp);
            self.in_flight.push(InFlight { id, to, path, has_mptcp, held: false });
        }
    }

    fn log_events(&mut self, side: Side, step: &Step) {
        if let Some(log) = &mut self.log {
            log.extend(step.events.iter().map(|event| format!("    {side:?}: {event:?}")));
        }
    }
}

/// A segment as one line of text.
fn describe_segment(seg: &Seg) -> String {
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
