//! Probes of silent paths: chooses the connection that sends the next one, and wakes connections after an answer. The
//! table is in `tables/silent_paths.rs`.

use std::collections::BTreeSet;

use marline_time::Instant;

use super::Endpoint;
use crate::tables::silent_paths::{DueAction, Prober};
use crate::{ConnectionId, PathAddresses};

impl Endpoint {
    /// Reports that a packet sent outside the endpoint's connections was answered on this path. Connections that wait
    /// for the path retry.
    pub fn on_path_answer(&mut self, now: Instant, path: PathAddresses) {
        self.silent_paths.on_answer(now, path);
    }

    /// Silent paths (our address and the peer's) that have answered since the last call.
    pub fn take_answered_paths(&mut self) -> BTreeSet<PathAddresses> {
        self.silent_paths.take_answered()
    }

    /// Returns true if the path between our address and the peer's is silent and is probed as often as a path in use.
    #[must_use]
    pub fn is_path_probed(&self, path: PathAddresses) -> bool {
        self.silent_paths.is_probed(path)
    }

    /// Reports that a connection is in use although its stream may be idle, for example because of its datagrams.
    pub fn mark_in_use(&mut self, now: Instant, id: ConnectionId) {
        let (slots, cx) = self.split_context(now);
        if let Some(connection) = slots.get_mut(id.0 as u32).filter(|c| c.id() == id) {
            connection.mark_in_use(now);
            cx.silent_paths.on_sent(now, id);
        }
    }

    /// Wakes connections whose path answered, and probes silent paths.
    pub(super) fn serve_silent_paths(&mut self, now: Instant) {
        while let Some(due) = self.silent_paths.take_due(now) {
            match due {
                DueAction::Wake(path, id) => {
                    self.with_connection(now, id, |c, cx| c.on_path_answers(cx, path));
                }
                DueAction::Probe(path) => self.probe_silent_path(now, path),
            }
        }
    }

    /// Makes one connection probe a silent path: the next connection in use, or occasionally any other.
    fn probe_silent_path(&mut self, now: Instant, path: PathAddresses) {
        let mut chosen: Option<Prober> = None;
        for id in self.silent_paths.members(path) {
            match self.connection(id).and_then(|connection| connection.select_prober(now, path)) {
                None => self.silent_paths.remove_connection(path, id),
                Some(prober) if prober.in_use => {
                    chosen = Some(prober);
                    break;
                }
                Some(prober) => chosen = chosen.or(Some(prober)),
            }
        }
        let may_probe =
            |prober: &Prober| prober.in_use || self.silent_paths.is_idle_probe_due(now, path);
        let prober = chosen.filter(may_probe);
        self.silent_paths.on_probed(now, path, prober);
        if let Some(prober) = prober {
            self.with_connection(now, prober.connection, |c, cx| c.probe_path(cx, path));
        }
    }
}
