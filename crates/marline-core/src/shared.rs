//! What all connections of an endpoint share: tables, counters, randomness and the event queue.

use std::collections::VecDeque;

use marline_time::{Duration, Instant, Rng};

use crate::connection::{ChunkPool, SparedPaths};
use crate::endpoint::demux::Demux;
use crate::endpoint::oracle::OracleView;
use crate::endpoint::time_wait::{Stray, TimeWait};
use crate::initial::InitialNumbers;
use crate::network_memory::NetworkMemory;
use crate::{ConnectionId, Counters, EndpointConfig, Event, MonitorEvent, MonitorKind, Shard};

/// Handed to a connection with each call.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: EndpointConfig,
    pub(crate) rng: Box<dyn Rng>,
    /// Behind ISNs and timestamps.
    pub(crate) initial: InitialNumbers,
    pub(crate) counters: Counters,
    pub(crate) events: VecDeque<Event>,
    pub(crate) demux: Demux,
    /// The ports that connections and subflows we open may use; `None`: any ephemeral one.
    pub(crate) local_ports: Option<Vec<u16>>,
    /// One was wanted, and none was free.
    pub(crate) short_of_ports: bool,
    pub(crate) pool: ChunkPool,
    pub(crate) time_wait: TimeWait,
    /// Networks that let no MP_CAPABLE pass.
    pub(crate) networks: NetworkMemory,
    /// Half-open connections, oldest first; entries that grew up are skipped.
    pub(crate) half_open: VecDeque<ConnectionId>,
    /// Segments without a connection: answers to strangers and last ACKs. They go before all else.
    pub(crate) strays: VecDeque<Stray>,
    /// How many of them are still half open.
    pub(crate) half_open_count: usize,
    /// Answers to strangers: resets, and last ACKs of ended subflows.
    pub(crate) answers: AnswerBudget,
    /// Where Fast JOIN did not get through.
    pub(crate) spared: SparedPaths,
    /// Challenge ACKs of connections. Apart, so that strangers cannot use them up.
    pub(crate) challenges: AnswerBudget,
    /// What the oracle says, and what it is to be told.
    pub(crate) oracle: OracleView,
}

/// How many answers of a kind may go out per second (RFC 5961 section 7).
///
/// A count that everybody can use up is also one that everybody can read: an attacker who provokes
/// answers on a connection of his own learns how many others drew, and from that whether his forged
/// segments hit (CVE-2016-5696). Each second therefore grants a random number, half the limit at
/// least.
#[derive(Debug)]
pub(crate) struct AnswerBudget {
    per_s: u32,
    left: u32,
    since: Instant,
}

impl AnswerBudget {
    pub(crate) const fn new(per_s: u32) -> Self {
        AnswerBudget { per_s, left: per_s, since: Instant::ZERO }
    }

    /// Whether one more may go out now.
    pub(crate) fn take(&mut self, now: Instant, rng: &mut dyn Rng) -> bool {
        if now.since(self.since) >= Duration::from_secs(1) {
            self.since = now;
            self.left = self.per_s - rng.below(u64::from(self.per_s / 2) + 1) as u32;
        }
        let granted = self.left > 0;
        self.left = self.left.saturating_sub(1);
        granted
    }
}

impl Shared {
    /// A subflow id that the carrier can route back to this shard; 0 where ids are not used.
    pub(crate) fn new_flow(&mut self) -> u64 {
        if !self.config.capabilities.flow_ids {
            return 0;
        }
        loop {
            let flow = self.rng.next_u64();
            let Shard { index, count } = self.config.shard;
            if flow != 0 && Shard::of_flow(flow, count) == index && !self.demux.has_flow(flow) {
                return flow;
            }
        }
    }

    /// Tells the observers, if there are any.
    pub(crate) fn monitor(&mut self, now: Instant, connection: ConnectionId, kind: MonitorKind) {
        if self.config.monitor {
            self.events.push_back(Event::Monitor(MonitorEvent { at: now, connection, kind }));
        }
    }
}
