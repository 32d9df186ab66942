//! Snapshot of a connection for monitoring.

use super::delivery_watch::DeliveryWatch;
use super::path_set::PathSet;
use super::receiver::Receiver;
use super::replaced_policies::ReplacedPolicies;
use super::sender::Sender;
use super::session::Session;
use crate::on_demand::OnDemand;
use crate::{ConnectionConfig, ConnectionId, ConnectionInfo};

/// Parts of a connection that a snapshot includes.
#[derive(Copy, Clone)]
pub(super) struct Snapshot<'a> {
    pub(super) id: ConnectionId,
    pub(super) config: &'a ConnectionConfig,
    pub(super) session: &'a Session,
    pub(super) paths: &'a PathSet,
    pub(super) sender: &'a Sender,
    pub(super) receiver: &'a Receiver,
    pub(super) replaced: &'a OnDemand<ReplacedPolicies>,
    pub(super) ack_watch: &'a DeliveryWatch,
}

impl Snapshot<'_> {
    pub(super) fn info(&self) -> ConnectionInfo {
        let (subflows, gone) = self.paths.info();
        let buffered = self.sender.memory() + self.receiver.memory() + self.paths.memory();
        let policies = &self.config.policies;
        let scheduler = self.replaced.scheduler().unwrap_or(&policies.scheduler);
        let path_manager = self.replaced.path_manager().unwrap_or(&policies.path_manager);
        let active_at = self.paths.last_active_at();
        let ack_due_since = active_at.and_then(|at| self.ack_watch.due_since(at));
        let data_due_since = active_at.and_then(|at| self.receiver.delivery_watch().due_since(at));
        ConnectionInfo {
            id: self.id,
            fallback: self.session.fallback_reason(),
            extensions: self.session.extensions(),
            scheduler: scheduler.name().to_owned(),
            path_manager: path_manager.name().to_owned(),
            bytes_written: self.sender.written_end().0,
            bytes_read: self.receiver.bytes_read(),
            bytes_acked: self.sender.una().0,
            unsent: self.sender.written_end().since(self.sender.sent()),
            readable: self.receiver.readable(),
            peer_finished: self.receiver.fin_reached(),
            buffered,
            bookkeeping: self.bookkeeping(),
            ack_due_since,
            data_due_since,
            subflows,
            gone,
        }
    }

    /// Memory of the bookkeeping lists, excluding stream data, in bytes.
    fn bookkeeping(&self) -> u64 {
        self.paths.bookkeeping() + self.sender.bookkeeping() + self.receiver.bookkeeping()
    }
}
