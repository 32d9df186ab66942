//! Marline in real time: the UDP carrier, the clock, sockets, the interface watcher and the driver
//! that runs the core's endpoints on tokio.

mod capture;
pub mod carrier;
mod clock;
mod contacts;
mod driver;
mod echo_socket;
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "some values exist only on Linux"))]
mod edge;
mod links;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(test)]
mod mutation;
mod native;
mod net;
mod path_radio;
mod path_resolve;
mod path_spec;
mod pending_table;
#[cfg(not(target_os = "linux"))]
mod portable;
mod privileges;
mod random;
pub mod succession;
mod tap;

// Interface to the operating system: the only code that depends on which system it is.
#[cfg(target_os = "linux")]
use linux as sys;
#[cfg(not(target_os = "linux"))]
use portable as sys;

pub use capture::{Captures, packets_not_captured};
pub use clock::Clock;
pub use contacts::{Contact, DeliveryError, DeliveryErrorKind, UnansweredPackets};
pub use driver::{
    AcceptQueue, Arrivals, CarrierKind, Datagrams, Direction, EventObserver, Generations, Incoming,
    LaneCounters, LaneEndedError, LaneError, LinkListener, Links, MAX_BUSY_POLL, NamedPath,
    ObservedPath, ObservedSegments, PacketObserver, PacketSink, PathNumbers, Request, Requests,
    Shard, ShardConfig, ShardHandle, SharedEventObserver, SharedObserver, SocketOptions,
    StartError, Stream, udp_capabilities,
};
pub use echo_socket::{EchoAnswer, EchoSocket};
pub use edge::capabilities::KeptCapabilities;
pub use edge::interface::Interface;
pub use edge::socket_spec::PortSharing;
pub use links::{CarrierRates, UdpUse};
pub use marline_core::{PendingId, PendingLimits, PendingPeers, Source};
pub use marline_wire::{Pref64, Prefix64};
pub use native::{RawSockets, native_capabilities};
pub use net::resolv_conf;
pub use net::{
    GATEWAY_INTERFACE, Interfaces, PrefixAnswer, Watcher, discover_nat64, dns_query,
    interface_resolvers, lookup_over,
};
pub use path_radio::{RadioKind, has_battery, is_mobile_interface};
pub use path_resolve::{LocalEnd, ResolveError};
pub use path_spec::{LocalSpec, PathSpec, PathSpecError};
pub use pending_table::{PendingEntry, PendingTable};
pub use privileges::{drop_capabilities, port_help};
pub use random::{ResetSeed, SecretRng};
pub use sys::netlink::is_local_address;
pub use sys::pref64::Pref64Listener;
pub use sys::privileges::{has_net_admin, keep_capabilities};
pub use sys::setup::InterfaceSetup;
pub use sys::socket::{restore_receive_buffer, set_initial_receive_buffer};
pub use sys::tun::Tun;
pub use tap::{SegmentLog, TappedSegment};

use marline_core::CloseReason;
use std::io;

/// Releases freed memory from the allocator to the operating system. Returns true if there was any. Takes some
/// milliseconds per hundred megabytes, during which other threads may wait for memory.
#[must_use]
pub fn release_free_memory() -> bool {
    sys::memory::release_free()
}

/// Maps the reason why a connection ended to the kind of `io::Error` that the application gets.
#[must_use]
pub const fn error_kind(reason: CloseReason) -> io::ErrorKind {
    match reason {
        CloseReason::Finished => io::ErrorKind::BrokenPipe,
        CloseReason::Aborted => io::ErrorKind::ConnectionAborted,
        CloseReason::PeerReset => io::ErrorKind::ConnectionReset,
        CloseReason::Refused => io::ErrorKind::ConnectionRefused,
        CloseReason::Unreachable => io::ErrorKind::HostUnreachable,
        CloseReason::TimedOut => io::ErrorKind::TimedOut,
        CloseReason::PeerMisbehaved => io::ErrorKind::InvalidData,
        CloseReason::ResourceLimit => io::ErrorKind::QuotaExceeded,
        _ => io::ErrorKind::Other,
    }
}
