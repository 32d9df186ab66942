//! State and events of connections and subflows, for monitoring.

pub use marline_core::{
    CloseReason, ConnectionId, ConnectionInfo, Counters, Extensions, FallbackReason, ForecastScore,
    FourTuple, Metrics, MonitorEvent, MonitorKind, Purpose, SegmentReceived, SegmentSent,
    StreamDirection, SubflowInfo, SubflowState, Timer, Traffic,
};
pub use marline_io::carrier::CarrierCounters;
