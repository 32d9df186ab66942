//! Succession of processes on one port: a newer process takes over the sockets, and an older one continues its
//! connections (docs/decisions/upgrades-and-shards.md).
//!
//! Both processes have the same sockets, and only the newest receives. Ids of subflows and lanes contain the process
//! that drew them (its *generation*), so the newest passes on the packets of others. Each process sends by itself.
//! The handover state and the passed packets go through one [`Channel`] between the two.

mod channel;
mod handover_state;
mod message;

pub use channel::Channel;
pub(crate) use channel::MAX_MESSAGE_LEN;
pub use handover_state::{HandoverState, PROTOCOL, PendingSuccessor};
pub use message::NativePart;
pub(crate) use message::{ForwardedOrigin, Message};
