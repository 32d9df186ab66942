//! Datagrams alongside the streams of a session, delivered as they arrive over several paths.
//!
//! A lane belongs to one connection, whose subflows are its paths. Over the connection's stream, both sides exchange an
//! id ([`Stream::draw_lane_id`]) and the data for deriving keys; then each opens its end ([`Stream::open_lane`]). The
//! client numbers the paths and announces them to the server ([`Arrivals::paths`], [`Datagrams::add_path`]). The frames
//! are specified in docs/spec/datagrams.md. The caller provides the cipher ([`Seal`], [`Open`]), as marline-proxy does.
//!
//! Needs the UDP carrier.

pub use marline_datagram::{
    FlowId, Keys, LaneConfig, LaneIds, LaneStats, Limits, Open, PathId, PathInfo, Seal, SendError,
    TAG_BYTES,
};
pub use marline_io::{
    Arrivals, Datagrams, LaneCounters, LaneEndedError, LaneError, NamedPath, PathNumbers,
};
pub use marline_policy::FlowClass;

use crate::Stream;

impl Stream {
    /// Generates an id for a lane of this connection, with which the peer addresses the lane. Returns `None` for native
    /// TCP, which cannot have lanes.
    #[must_use]
    pub fn draw_lane_id(&self) -> Option<u64> {
        self.inner().draw_lane_id()
    }

    /// Opens a lane whose paths are the subflows of this connection. Our id must come from
    /// [`draw_lane_id`](Self::draw_lane_id), and the keys must never have sealed a packet.
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
