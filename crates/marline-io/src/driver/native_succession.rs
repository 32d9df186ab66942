//! Segments of native TCP between the processes that share its sockets (docs/decisions/upgrades-and-shards.md).
//!
//! *Problem.* A segment has no id that would tell which process it is for. The core of the newest tells what it knows
//! itself. What is left goes from the youngest elder to the oldest, each of which takes what its core claims and
//! gives back the rest, and what nobody claims is the newest's: a new connection, or an answer to a stranger. Who has a
//! path is kept, so that the way is taken once.

use marline_core::{Ecn, FourTuple, PacketMeta};

use super::shard::Shard;

const fn meta(path: FourTuple, ecn: Ecn) -> PacketMeta {
    PacketMeta { path, ecn, flow: 0, peer_flow: 0, checksum_verified: true }
}

impl Shard {
    /// Takes a segment that the newest process passed on, if it concerns something here.
    pub(super) fn on_passed_segment(&self, path: FourTuple, ecn: Ecn, segment: &[u8]) -> bool {
        let meta = meta(path, ecn);
        let mut state = self.lock();
        let now = self.now(&mut state);
        if !state.endpoint.claims(now, &meta, segment) {
            return false;
        }
        state.take_segment(now, &meta, segment);
        self.after_foreign(&mut state, now);
        true
    }

    /// Takes a segment that an elder gave back and none of the other shards claims, unless another elder is to be
    /// asked.
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
        // What came before it may have made it ours.
        if !state.endpoint.claims(now, &meta, segment)
            && let Some(elders) = self.links.living_elders()
            && elders.ask_after(generation, &path, ecn, segment)
        {
            return;
        }
        state.take_segment(now, &meta, segment);
        self.serve(&mut state, now);
    }
}
