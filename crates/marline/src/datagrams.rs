//! Datagrams in parallel to the streams of a session: delivered when they arrive, over several paths.
//!
//! A lane belongs to one connection, whose subflows are its paths. Both ends exchange an id
//! ([`Stream::draw_lane_id`]) and the data for deriving keys in the connection's stream, and open their end
//! ([`Stream::open_lane`]). The client numbers the paths and announces them to the server ([`Arrivals::paths`],
//! [`Datagrams::add_path`]). The frames are specified in docs/spec/datagrams.md. The caller provides the cipher
//! ([`Seal`], [`Open`]), as marline-proxy does.
//!
//! Needs the UDP carrier.

pub use marline_datagram::{
    FlowId, Keys, LaneConfig, LaneIds, LaneStats, Limits, Open, PathId, PathInfo, Seal, SendError,
    TAG_BYTES,
};
pub use marline_io::{
    Arrivals, Datagrams, LaneCounters, LaneEnded, LaneError, NamedPath, PathNumbers,
};
pub use marline_policy::FlowClass;

use crate::Stream;

impl Stream {
    /// Draws an id for a lane of this connection, which the peer uses to address it. Returns `None` if the
    /// connection uses native TCP, which cannot have lanes.
    #[must_use]
    pub fn draw_lane_id(&self) -> Option<u64> {
        self.inner().draw_lane_id()
    }

    /// Opens a lane whose paths are the subflows of this connection. Our id must have been drawn, and the
    /// keys must never have sealed a packet before.
    ///
    /// # Errors
    /// See [`LaneError`].
    pub fn open_lane(
        &self,
        config: LaneConfig,
        ids: LaneIds,
        keys: Keys,
        numbers: PathNumbers,
    ) -> Result<Datagrams, LaneError> {
        self.inner().open_lane(config, ids, keys, numbers)
    }
}
