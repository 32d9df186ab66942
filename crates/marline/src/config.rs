//! Settings of clients, servers and connections.

pub use marline_core::{
    BufferTuning, Limits, Linger, LoneKeepalive, Probing, ReceiveProbes, ReceiveTimer,
};
pub use marline_io::MAX_BUSY_POLL;

pub use crate::builder::{Builder, OwnSettings};
pub use crate::carrier::{MAX_KEEPALIVE_INTERVAL, TunPath};
pub use crate::client::ClientSettings;
pub use crate::multimob::InteractiveParameters;
pub use crate::server::{ServerAddress, ServerSettings};
pub use crate::transport_config::TransportConfig;
