//! Pictures for people.

use marline_policy::SubflowId;

use super::{Connection, Leg};
use crate::{ConnectionInfo, SubflowInfo};

/// Pairs of addresses whose totals are kept after their subflows went.
const MAX_GONE: usize = 32;

impl Connection {
    pub(crate) fn info(&self) -> ConnectionInfo {
        let subflows = self.legs.iter().enumerate().filter_map(|(slot, leg)| {
            let leg = leg.as_deref()?;
            Some(leg.tcp.info(SubflowId(slot as u8), leg.is_backup()))
        });
        let held: u64 = self.legs.iter().flatten().map(|leg| leg.tcp.memory()).sum();
        ConnectionInfo {
            id: self.id,
            fallback: self.session.fallback(),
            extensions: self.session.extensions(),
            scheduler: self.scheduling.name().to_owned(),
            path_manager: self.path_manager_name.clone(),
            bytes_written: self.sender.written().0,
            bytes_read: self.receiver.bytes_read(),
            bytes_acked: self.sender.una().0,
            unsent: self.sender.written().since(self.sender.sent()),
            readable: self.receiver.readable(),
            buffered: self.sender.memory() + self.receiver.memory() + held,
            bookkeeping: self.bookkeeping(),
            subflows: subflows.collect(),
            gone: self.gone.clone(),
        }
    }

    /// Adds an ended subflow to the totals of its pair of addresses.
    pub(super) fn remember_totals(&mut self, leg: &Leg, id: SubflowId) {
        // What never came about has no totals, and anybody could fill the list with it.
        if !leg.was_joined() && !leg.is_initial() {
            return;
        }
        let last = leg.tcp.info(id, leg.is_backup());
        let same = |g: &SubflowInfo| {
            g.path.local.ip() == last.path.local.ip() && g.path.remote == last.path.remote
        };
        match self.gone.iter().position(same) {
            Some(known) => {
                let sum = &mut self.gone[known];
                sum.bytes_sent += last.bytes_sent;
                sum.bytes_received += last.bytes_received;
                sum.bytes_retransmitted += last.bytes_retransmitted;
                sum.bytes_reinjected += last.bytes_reinjected;
                sum.bytes_duplicate += last.bytes_duplicate;
                sum.rtos += last.rtos;
                sum.probes += last.probes;
                sum.undone += last.undone;
                sum.state = last.state;
                sum.last_heard_at = last.last_heard_at;
            }
            None if self.gone.len() < MAX_GONE => self.gone.push(last),
            None => {}
        }
    }
}
