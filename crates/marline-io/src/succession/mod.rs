//! Succession of processes on one port: a newer process takes over the sockets, and an older one goes on with what it
//! has (docs/decisions/upgrades-and-shards.md).
//!
//! Two processes hold the same sockets, and one of them, the newest, receives. Ids of subflows and lanes name the
//! process that drew them (its *generation*), so the newest passes on what is not its own; everybody sends by
//! himself. What is passed on before and while that is the case goes through one [`Channel`] between the two.

pub(crate) mod channel;
mod estate;
mod message;

pub use channel::Channel;
pub use estate::{Estate, Heir, PROTOCOL};
pub use message::NativePart;
pub(crate) use message::{Message, Passed};
