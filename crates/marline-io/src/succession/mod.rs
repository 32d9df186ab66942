//! Succession of processes on one port: a newer process takes over the sockets, and an older one continues its
//! connections (docs/decisions/upgrades-and-shards.md).
//!
//! Both processes have the same sockets, and only the newest receives. Ids of subflows and lanes contain the
//! *generation* of the process that created them, so the newest process passes packets on to the others. Each process
//! sends its own packets. The handover state and forwarded packets go through one [`Channel`] between each two
//! processes.

mod channel;
mod handover_state;
mod message;

pub use channel::Channel;
pub(crate) use channel::MAX_MESSAGE_LEN;
pub use handover_state::{HandoverState, PROTOCOL, PendingSuccessor};
pub use message::NativePart;
pub(crate) use message::{ForwardedOrigin, Message};
