//! Datagrams beside the streams of a session: delivered when they arrive, over several paths.
//!
//! A lane belongs to one connection, whose subflows are its paths; both ends of that connection tell each other, in
//! its stream, an id ([`Stream::draw_lane_id`]) and whatever else the keys are made of, and open their end
//! ([`Stream::open_lane`]). The client numbers the paths and tells the server
//! ([`Arrivals::paths`], [`Datagrams::add_path`]). docs/spec/datagrams.md has the frames. The cipher is the
//! caller's ([`Seal`], [`Open`]): marline-proxy has one.
//!
//! Needs the UDP carrier.

pub use marline_datagram::{
    FlowId, Keys, LaneConfig, LaneStats, Limits, Open, PathId, PathInfo, Seal, SendError, TAG_BYTES,
};
pub use marline_io::{
    Arrivals, Datagrams, LaneCounters, LaneEnded, LaneError, NamedPath, PathNumbers,
};
pub use marline_policy::FlowClass;

use crate::Stream;

impl Stream {
    /// Draws an id for a lane beside this connection, by which the peer is to address it; `None`: there can be none,
    /// as segments travel as native TCP.
    #[must_use]
    pub fn draw_lane_id(&self) -> Option<u64> {
        self.inner().draw_lane_id()
    }

    /// Begins a lane whose paths are the subflows of this connection. `ids`: ours, as drawn, and the peer's. The keys
    /// must never have sealed a packet before.
    ///
    /// # Errors
    /// See [`LaneError`].
    pub fn open_lane(
        &self,
        config: LaneConfig,
        ids: (u64, u64),
        keys: Keys,
        numbers: PathNumbers,
    ) -> Result<Datagrams, LaneError> {
        self.inner().open_lane(config, ids, keys, numbers)
    }
}
