//! States of the two ends of a scene, and the steps that their inputs cause.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use marline_core::{Endpoint, Event, TransmitBuf};
use marline_time::{Instant, PcgRng, Rng, SeedTree};

use super::application::{End, EndState};
use super::packet::{Packet, PacketId, Packets};
use super::scene::{Scene, client_address, server_address};
use crate::Side;
use crate::pair::arrival_meta;

/// Start time of a world.
pub(super) const START: Instant = Instant::from_secs(1);

/// Random number generator that counts its draws, so that an endpoint's state contains everything that determines its
/// behavior.
#[derive(Debug)]
struct CountedRng {
    rng: PcgRng,
    drawn: u64,
}

impl Rng for CountedRng {
    fn next_u64(&mut self) -> u64 {
        self.drawn += 1;
        self.rng.next_u64()
    }
}

/// Index of a state in an [`Ends`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StateId(u32);

/// Input to an end.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Input {
    Packet(PacketId),
    Timers,
    /// The client's address on this path is lost.
    AddressLost(usize),
}

/// Effect of an input on an end.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) to: StateId,
    pub(super) sent: Vec<PacketId>,
    /// True if the end sent a packet or reported an event.
    pub(super) acted: bool,
    /// Events of the endpoint, if they are logged.
    pub(super) events: Vec<Event>,
}

/// A step, or a panic message.
type Made = Result<Rc<Step>, Rc<str>>;

#[derive(Debug)]
struct State {
    side: Side,
    facts: EndState,
    /// The first input that led to this state, with the state before it and the time.
    before: Option<(StateId, Instant, Input)>,
}

/// All states of the ends seen so far. The behavior of an end depends only on its inputs, so the real endpoint runs
/// only once for each state and input. If equal states are merged, this is far less often than worlds are entered.
#[derive(Debug)]
pub(super) struct Ends<'a> {
    scene: &'a Scene,
    /// True if equal states are merged. Otherwise every input leads to a new state.
    merges: bool,
    keeps_events: bool,
    states: Vec<State>,
    ids: HashMap<u64, StateId>,
    steps: HashMap<(StateId, Instant, Input), Made>,
    pub(super) packets: Packets,
    /// For each side, the end that ran last and its state.
    live: [Option<(StateId, End)>; 2],
    buf: TransmitBuf,
    /// Packets sent at the start.
    first_sent: Vec<PacketId>,
}

impl<'a> Ends<'a> {
    /// Creates the ends of a scene, after the client has sent its first SYN.
    pub(super) fn new(scene: &'a Scene, merges: bool, keeps_events: bool) -> Self {
        let mut ends = Ends {
            scene,
            merges,
            keeps_events,
            states: Vec::new(),
            ids: HashMap::new(),
            steps: HashMap::new(),
            packets: Packets::default(),
            live: [None, None],
            buf: End::transmit_buf(),
            first_sent: Vec::new(),
        };
        for side in [Side::A, Side::B] {
            let (mut end, sent) = ends.new_end(side);
            ends.first_sent.extend(sent);
            let facts = end.facts();
            end.take_events();
            ends.states.push(State { side, facts, before: None });
            ends.live[side as usize] = Some((ends.first(side), end));
        }
        ends
    }

    /// Initial state of an end.
    pub(super) const fn first(&self, side: Side) -> StateId {
        StateId(side as u32)
    }

    /// Packets sent at the start.
    pub(super) fn first_sent(&self) -> Vec<PacketId> {
        self.first_sent.clone()
    }

    pub(super) fn facts(&self, state: StateId) -> &EndState {
        &self.states[state.0 as usize].facts
    }

    /// Number of different states seen, and number of steps computed with a real endpoint.
    pub(super) fn counts(&self) -> [usize; 2] {
        [self.states.len(), self.steps.len()]
    }

    /// Gives an input to an end in this state.
    ///
    /// # Errors
    /// The message of a panic.
    pub(super) fn step(&mut self, from: StateId, now: Instant, input: Input) -> Made {
        if let Some(known) = self.steps.get(&(from, now, input)) {
            return known.clone();
        }
        let made = catch_unwind(AssertUnwindSafe(|| self.new_step(from, now, input)));
        let step = made.map(Rc::new).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let words = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Rc::from(words.unwrap_or_default())
        });
        self.steps.insert((from, now, input), step.clone());
        step
    }

    fn new_step(&mut self, from: StateId, now: Instant, input: Input) -> Step {
        let side = self.states[from.0 as usize].side as usize;
        let mut end = match self.live[side].take() {
            Some((at, end)) if at == from => end,
            _ => self.rebuild(from),
        };
        let (sent, acted) = self.give(&mut end, now, input);
        let events = end.take_events();
        let to = self.state_of(&end, from, now, input);
        self.live[side] = Some((to, end));
        Step { to, sent, acted, events: if self.keeps_events { events } else { Vec::new() } }
    }

    fn state_of(&mut self, end: &End, from: StateId, now: Instant, input: Input) -> StateId {
        let next = StateId(self.states.len() as u32);
        if self.merges {
            let id = *self.ids.entry(end.state()).or_insert(next);
            if id != next {
                return id;
            }
        }
        let side = self.states[from.0 as usize].side;
        self.states.push(State { side, facts: end.facts(), before: Some((from, now, input)) });
        next
    }

    /// Rebuilds an end in this state by repeating all inputs from its initial state.
    fn rebuild(&mut self, state: StateId) -> End {
        let mut inputs = Vec::new();
        let mut at = state;
        while let Some((before, now, input)) = self.states[at.0 as usize].before {
            inputs.push((now, input));
            at = before;
        }
        let (mut end, _) = self.new_end(self.states[state.0 as usize].side);
        for (now, input) in inputs.into_iter().rev() {
            self.give(&mut end, now, input);
        }
        end.take_events();
        end
    }

    fn new_end(&mut self, side: Side) -> (End, Vec<PacketId>) {
        let (config, name, steps) = match side {
            Side::A => (&self.scene.client_endpoint, "a", &self.scene.client_steps),
            Side::B => (&self.scene.server_endpoint, "b", &self.scene.server_steps),
        };
        let rng = CountedRng { rng: SeedTree::new(1).stream(name), drawn: 0 };
        let endpoint = Endpoint::new(config.clone(), Box::new(rng));
        let mut end = End::new(side, endpoint, steps);
        if side == Side::B {
            return (end, Vec::new());
        }
        end.connect(
            START,
            self.scene.client.clone(),
            [client_address(0).address, server_address()],
        );
        let (sent, _) = self.settle(&mut end, START);
        (end, sent)
    }

    fn give(&mut self, end: &mut End, now: Instant, input: Input) -> (Vec<PacketId>, bool) {
        match input {
            Input::Packet(id) => {
                let packet = self.packets.get(id);
                end.endpoint.handle_packet(now, &packet.meta, &packet.bytes);
            }
            Input::Timers => end.endpoint.handle_timeout(now),
            Input::AddressLost(path) => {
                let mut address = client_address(path);
                address.up = false;
                end.endpoint.set_local_address(now, None, address);
            }
        }
        self.settle(end, now)
    }

    /// Runs an end until it has nothing more to do. Returns its packets, and whether it sent or reported anything.
    fn settle(&mut self, end: &mut End, now: Instant) -> (Vec<PacketId>, bool) {
        let Ends { packets, buf, scene, .. } = self;
        let mut sent = Vec::new();
        let acted = end.settle(now, buf, &mut |side, transmit, segment| {
            let client = if side == Side::A { transmit.path.local } else { transmit.path.remote };
            let path = (0..scene.paths)
                .find(|path| client_address(*path).address.ip() == client.ip())
                .expect("the address belongs to the client");
            let packet = Packet::new(side.other(), path, arrival_meta(transmit), segment.to_vec());
            sent.push(packets.add(packet));
        });
        (sent, acted)
    }
}
