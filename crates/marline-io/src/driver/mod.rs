//! Driver that runs the core's endpoints in real time.
//!
//! One [`Shard`] is one endpoint, one carrier and their sockets, behind one mutex. A task per shard receives and serves
//! the timers. Streams lock the shard themselves, so that a write is sent by the writing thread without a wake-up.
//! While many connections write, everything written in one turn of the runtime is sent at the end of that turn
//! (docs/decisions/driver.md).

mod carrier;
mod combined_packet;
mod datagrams;
mod driving;
mod egress;
mod generations;
mod ingress;
mod lane_traffic;
mod lanes;
mod link;
mod link_events;
mod link_tasks;
mod observers;
mod older_processes;
mod path_owners;
mod raw_sender;
mod reception;
mod routing;
mod sending;
mod shard;
mod sockets;
mod state;
mod stream;
mod streams;
mod task;
#[cfg(test)]
mod testing;
mod wakeups;

pub use carrier::{CarrierKind, udp_capabilities};
pub use datagrams::{Datagrams, LaneEndedError, LaneError};
pub use generations::Generations;
pub use lane_traffic::{Arrivals, LaneCounters, NamedPath, PathNumbers};
pub use link_events::LinkListener;
pub use observers::{
    Direction, EventObserver, ObservedPath, ObservedSegments, PacketObserver, SharedEventObserver,
    SharedObserver,
};
pub use routing::Links;
pub use shard::{Shard, ShardConfig, ShardHandle, StartError};
pub use sockets::SocketOptions;
pub use stream::{Request, Requests, Stream};
pub use streams::{AcceptQueue, Incoming, PacketSink};
pub use wakeups::MAX_BUSY_POLL;
