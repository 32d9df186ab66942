//! Call context: the parts of an endpoint that it lends to one of its connections for the duration of a call.

use marline_policy::SubflowId;
use marline_time::{Instant, Rng};

use super::chunks::ChunkSource;
use super::demux::{FlowKey, FlowRef};
use super::fast_join_memory::FastJoinMemory;
use super::fast_open_memory::FastOpenMemory;
use super::flow_table::FlowTable;
use super::network_memory::NetworkMemory;
use super::outbox::Outbox;
use super::path_faults::PathFaults;
use super::path_queues::PathQueues;
use super::reply_budget::ReplyBudget;
use super::scheduler_scratch::SchedulerScratch;
use super::silent_paths::SilentPaths;
use super::subflow_settings::SubflowSettings;
use crate::on_demand::OnDemand;
use crate::subflow::{InitialValues, Workspace};
use crate::{EndpointConfig, FourTuple, MemoryAccount, MemoryKind};

/// Lookup tables and outputs of a connection.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a EndpointConfig,
    pub(crate) rng: &'a mut dyn Rng,
    /// The account to which new connections are charged.
    pub(crate) account: &'a MemoryAccount,
    pub(crate) settings: &'a mut SubflowSettings,
    /// Buffers for the connection's scheduler.
    pub(crate) scheduler_scratch: &'a mut OnDemand<SchedulerScratch>,
    /// Buffers for the active subflow.
    pub(crate) workspace: &'a mut Workspace,
    pub(crate) flows: &'a mut FlowTable,
    pub(crate) networks: &'a mut NetworkMemory,
    /// Networks that answer SYNs with MP_CAPABLE without that option.
    pub(crate) plain_answers: &'a mut NetworkMemory,
    pub(crate) fast_joins: &'a mut FastJoinMemory,
    pub(crate) fast_opens: &'a mut FastOpenMemory,
    pub(crate) faults: &'a mut PathFaults,
    pub(crate) queues: &'a PathQueues,
    /// Paths on which connections wait for an answer.
    pub(crate) silent_paths: &'a mut SilentPaths,
    /// Budget for challenge ACKs of connections. Separate from other replies, so that unauthenticated peers cannot
    /// exhaust it.
    pub(crate) challenges: &'a mut ReplyBudget,
    pub(crate) out: &'a mut Outbox,
}

impl Context<'_> {
    /// Chunks for a buffer of a new connection.
    pub(crate) fn chunks_for(&self, kind: MemoryKind) -> ChunkSource {
        ChunkSource::new(self.account.clone(), kind)
    }

    /// Key of a new flow on this path, with a local flow id if the carrier uses ids.
    pub(crate) fn new_flow(&mut self, path: FourTuple, peer_flow: u64) -> FlowKey {
        let local_flow = self.flows.draw_flow_id(self.config, self.rng);
        FlowKey { path, local_flow, peer_flow }
    }

    /// Initial sequence number and timestamp offset of a subflow that opens on this path now.
    pub(crate) fn start_of(&self, path: FourTuple) -> InitialValues {
        let ts_offset = self.flows.initial().timestamp_offset(path);
        InitialValues { isn: self.flows.isn(self.now, path), ts_offset }
    }

    /// Routes packets of the flow to this subflow of the connection in `slot`.
    pub(crate) fn route(&mut self, key: FlowKey, slot: u32, subflow: SubflowId) {
        self.flows.insert(key, FlowRef { slot, subflow });
    }
}
