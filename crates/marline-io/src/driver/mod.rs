//! Driver that runs the core's endpoints in real time.
//!
//! One [`Shard`] is one endpoint, one carrier and their sockets, behind one mutex. A task per shard receives and
//! serves the timers. Streams lock the shard themselves, so that a write is sent by the writing thread without a
//! wake-up. While many connections write, the data they write in one turn of the runtime is sent together at its end
//! (docs/decisions/driver.md).

mod busy_poll;
mod carrier;
mod combined_packet;
mod combined_sender;
mod datagrams;
mod egress;
mod error_watch;
mod events;
mod gateway;
mod generations;
mod ingress;
mod lane_serving;
mod lanes;
mod link;
mod link_flows;
mod link_table;
mod link_tasks;
mod native;
mod native_shards;
mod native_succession;
mod observers;
mod observing;
mod older_processes;
mod outgoing;
mod path_owners;
mod receiving;
mod reception;
mod rerouting;
mod sending;
mod shard;
mod socket;
mod sockets;
mod stalled;
mod standing_in;
mod start;
mod state;
mod stream;
mod streams;
mod task;
#[cfg(test)]
mod testing;
mod turns;

pub use busy_poll::MAX_BUSY_POLL;
pub use carrier::udp_capabilities;
pub use datagrams::{Datagrams, LaneEnded, LaneError};
pub use gateway::{Request, Requests};
pub use generations::Generations;
pub use lanes::{Arrivals, LaneCounters, NamedPath, PathNumbers};
pub use link_table::Links;
pub use link_tasks::LinkListener;
pub use observers::{
    Direction, EventObserver, ObservedPath, ObservedSegments, PacketObserver, SharedEventObserver,
    SharedObserver,
};
pub use shard::{Shard, ShardConfig, ShardHandle, StartError};
pub use socket::SocketOptions;
pub use state::CarrierKind;
pub use stream::Stream;
pub use streams::{AcceptQueue, Incoming, PacketSink};
