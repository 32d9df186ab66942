//! Driver that runs the core's endpoints in real time.
//!
//! One [`Shard`] is one endpoint, one carrier and their sockets, behind one mutex. A task per shard receives and
//! serves the timers. Streams lock the shard themselves, so that a write is sent by the writing thread without a
//! wake-up. While many connections write, the data they write in one turn of the runtime is sent together at its end
//! (docs/decisions/driver.md).

mod accept;
mod busy_poll;
mod carrier;
mod connections;
mod contacts;
mod datagrams;
mod egress;
mod elders;
mod error_watch;
mod events;
mod frame_batch;
mod gateway;
mod gathered;
mod generations;
mod ingress;
mod joined;
mod joining;
mod lane_serving;
mod lanes;
mod link_flows;
mod link_progress;
mod link_tasks;
mod links;
mod native;
mod native_shards;
mod native_succession;
mod observer;
mod observers;
mod observing;
mod outgoing;
mod packet_sink;
mod path_owners;
mod receive_buffer;
mod receiving;
mod reception;
mod relayed_links;
mod rerouting;
mod send_error;
mod shard;
mod socket;
mod sockets;
mod stalled_links;
mod standing_in;
mod start;
mod state;
mod stream;
mod super_packets;
mod task;
#[cfg(test)]
mod testing;
mod turns;

pub use accept::{AcceptQueue, Incoming};
pub use busy_poll::MAX_BUSY_POLL;
pub use carrier::udp_capabilities;
pub use datagrams::{Datagrams, LaneEnded, LaneError};
pub use gateway::{Request, Requests};
pub use generations::Generations;
pub use lanes::{Arrivals, LaneCounters, NamedPath, PathNumbers};
pub use link_tasks::LinkListener;
pub use links::Links;
pub use observer::{
    Direction, EventObserver, ObservedPath, ObservedSegments, PacketObserver, SharedEventObserver,
    SharedObserver,
};
pub use packet_sink::PacketSink;
pub use shard::{Shard, ShardConfig, ShardHandle, StartError};
pub use socket::SocketOptions;
pub use state::CarrierKind;
pub use stream::Stream;
