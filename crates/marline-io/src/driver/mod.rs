//! The driver: runs the core's endpoints in real time.
//!
//! One [`Shard`] is one endpoint, one carrier and their sockets, behind one mutex. A task per shard
//! receives and keeps the timers; streams lock the shard themselves, so that a write leaves in the
//! system call of the thread that wrote, without waking anybody (docs/adr/0010).

mod accept;
mod carrier;
mod connections;
mod contacts;
mod egress;
mod error_watch;
mod events;
mod ingress;
mod native;
mod radios;
mod shard;
mod socket;
mod sockets;
mod state;
mod stream;
mod task;

pub use accept::AcceptQueue;
pub use shard::{Shard, ShardConfig, ShardHandle, StartError};
pub use socket::SocketOptions;
pub use state::CarrierKind;
pub use stream::Stream;

use marline_core::{Capabilities, ChecksumScope};

use crate::carrier::{BASE_DATAGRAM, LARGEST_DATAGRAM, SHORT_HEADER};

/// What the UDP carrier can do.
#[must_use]
pub const fn udp_capabilities() -> Capabilities {
    Capabilities {
        base_segment: BASE_DATAGRAM - SHORT_HEADER as u16,
        max_segment: LARGEST_DATAGRAM - SHORT_HEADER as u16,
        checksum: ChecksumScope::WithoutAddresses,
        flow_ids: true,
        ecn: true,
    }
}
