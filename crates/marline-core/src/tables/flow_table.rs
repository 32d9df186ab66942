//! Flow table of an endpoint: addresses, ids and tokens in use, and the remaining state of flows that ended.

use core::net::{IpAddr, SocketAddr};

use marline_policy::Token;
use marline_time::{Instant, Rng};
use marline_wire::SeqNum;

use super::demux::{Demux, FlowKey, FlowRef};
use super::initial_numbers::InitialNumbers;
use super::outbox::Outbox;
use super::time_wait::{EndedSubflow, TimeWait};
use crate::{EndpointConfig, FourTuple, Shard};

/// Ephemeral ports: Linux's default range.
const FIRST_PORT: u16 = 32_768;
const PORTS: u64 = 28_232;
/// Number of random ports tried before an address pair counts as exhausted.
const PORT_TRIES: usize = 64;

/// Flows, tokens and ports in use.
#[derive(Debug)]
pub(crate) struct FlowTable {
    demux: Demux,
    time_wait: TimeWait,
    /// Source of ISNs, timestamps and cookies.
    initial: InitialNumbers,
    /// Ports allowed for connections and subflows that we open; `None` allows any ephemeral one.
    local_ports: Option<Vec<u16>>,
    /// A port was needed, and none was free.
    short_of_ports: bool,
}

impl FlowTable {
    pub(crate) fn new(config: &EndpointConfig, rng: &mut dyn Rng) -> Self {
        let demux = Demux::new(rng.next_u64());
        FlowTable {
            demux,
            initial: InitialNumbers::draw(rng),
            time_wait: TimeWait::new(config.limits.time_wait),
            local_ports: None,
            short_of_ports: false,
        }
    }

    /// Flow of a packet; ids are 0 on carriers without ids.
    pub(crate) fn find(&self, path: &FourTuple, flow: u64, peer_flow: u64) -> Option<FlowRef> {
        self.demux.find(path, flow, peer_flow)
    }

    pub(crate) fn find_flow(&self, flow: u64) -> Option<FlowRef> {
        self.demux.find_flow(flow)
    }

    pub(crate) fn has_tuple(&self, path: &FourTuple) -> bool {
        self.demux.has_tuple(path)
    }

    pub(crate) fn insert(&mut self, key: FlowKey, flow: FlowRef) {
        self.demux.insert(key, flow);
    }

    pub(crate) fn remove(&mut self, key: &FlowKey) {
        self.demux.remove(key);
    }

    /// Slot of the connection with this token.
    pub(crate) fn token(&self, token: Token) -> Option<u32> {
        self.demux.token(token)
    }

    pub(crate) fn insert_token(&mut self, token: Token, slot: u32) {
        self.demux.insert_token(token, slot);
    }

    pub(crate) fn remove_token(&mut self, token: Token) {
        self.demux.remove_token(token);
    }

    /// New flow id that the carrier can route back to this shard; 0 if ids are not used.
    pub(crate) fn draw_flow_id(&self, config: &EndpointConfig, rng: &mut dyn Rng) -> u64 {
        if !config.capabilities.flow_ids {
            return 0;
        }
        loop {
            let flow = config.shard.with_generation(rng.next_u64());
            let Shard { index, count, .. } = config.shard;
            if flow != 0 && Shard::of_flow(flow, count) == index && !self.demux.has_flow(flow) {
                return flow;
            }
        }
    }

    /// Generator of initial sequence numbers and timestamp offsets.
    pub(crate) const fn initial(&self) -> &InitialNumbers {
        &self.initial
    }

    /// Initial sequence number of a subflow that opens on this path now.
    pub(crate) fn isn(&self, now: Instant, path: FourTuple) -> SeqNum {
        self.initial.isn(now, path)
    }

    pub(crate) fn set_local_ports(&mut self, ports: Option<Vec<u16>>) {
        self.local_ports = ports;
    }

    pub(crate) fn take_port_shortage(&mut self) -> bool {
        core::mem::take(&mut self.short_of_ports)
    }

    /// A free ephemeral port on the local address, or `None` if this pair of addresses is exhausted.
    pub(crate) fn free_port(
        &mut self,
        rng: &mut dyn Rng,
        mut local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<u16> {
        let FlowTable { local_ports, demux, .. } = self;
        let mut is_free = |port: u16| {
            local.set_port(port);
            !demux.has_tuple(&FourTuple { local, remote })
        };
        let found = match local_ports {
            None => {
                let mut random = (0..PORT_TRIES).map(|_| FIRST_PORT + rng.below(PORTS) as u16);
                random.find(|port| is_free(*port))
            }
            // Tries all ports, starting at a random one (RFC 6056 section 3.3.1).
            Some(ports) => {
                let start = rng.below(ports.len().max(1) as u64) as usize;
                let (before, after) = ports.split_at(start.min(ports.len()));
                after.iter().chain(before).copied().find(|port| is_free(*port))
            }
        };
        self.short_of_ports |= found.is_none();
        found
    }

    /// Takes over the remaining state of a subflow that ended.
    pub(crate) fn keep_ended(&mut self, ended: EndedSubflow, out: &mut Outbox) {
        self.time_wait.insert(ended, &mut self.demux, out);
    }

    /// Remaining state of the subflow in a slot with [`TIME_WAIT_BIT`](super::time_wait::TIME_WAIT_BIT).
    pub(crate) fn ended_subflow(&self, slot: u32) -> Option<EndedSubflow> {
        self.time_wait.get(slot).copied()
    }

    /// Drops an entry early, because its address pair is needed for a new connection.
    pub(crate) fn forget_ended(&mut self, slot: u32, out: &mut Outbox) {
        self.time_wait.evict(slot, &mut self.demux, out);
    }

    /// Sends resets that could not be sent before a local address came back.
    pub(crate) fn send_unsent(&mut self, from: IpAddr, out: &mut Outbox) {
        self.time_wait.send_unsent(from, out);
    }

    /// Drops expired entries.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut Outbox) {
        self.time_wait.expire(now, &mut self.demux, out);
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.time_wait.next_timeout()
    }
}
