//! Segments of native TCP between the processes that share its sockets (docs/decisions/upgrades-and-shards.md).
//!
//! *Problem.* A segment has no id of the process that it belongs to. The core of the newest process recognizes its
//! own segments. The others are passed from the youngest of the older processes to the oldest. Each takes what its
//! core claims and returns the rest. Segments that no process claims belong to the newest: a new connection, or a
//! stray segment that must be answered. The owner of each path is cached, so that this search happens only once.

use marline_core::{Ecn, FourTuple, PacketMeta};

use super::shard::Shard;

const fn meta(path: FourTuple, ecn: Ecn) -> PacketMeta {
    PacketMeta { path, ecn, flow: 0, peer_flow: 0, checksum_verified: true }
}

impl Shard {
    /// Takes a segment that the newest process passed on. Returns false if the core does not claim it.
    pub(super) fn on_passed_segment(&self, path: FourTuple, ecn: Ecn, segment: &[u8]) -> bool {
        let meta = meta(path, ecn);
        let mut state = self.lock();
        let now = self.now(&mut state);
        if !state.endpoint.claims(now, &meta, segment) {
            return false;
        }
        state.take_segment(now, &meta, segment);
        self.finish_foreign_access(&mut state, now);
        true
    }

    /// Takes a segment that an older process returned and no other shard claims, unless another older process has to
    /// be asked.
    pub(super) fn on_returned_segment(
        &self,
        generation: u8,
        path: FourTuple,
        ecn: Ecn,
        segment: &[u8],
    ) {
        let meta = meta(path, ecn);
        let mut state = self.lock();
        let now = self.now(&mut state);
        // An earlier segment may have made it ours.
        if !state.endpoint.claims(now, &meta, segment)
            && let Some(elders) = self.links.connected_older_processes()
            && elders.ask_next_process(generation, &path, ecn, segment)
        {
            return;
        }
        state.take_segment(now, &meta, segment);
        self.serve(&mut state, now);
    }
}
