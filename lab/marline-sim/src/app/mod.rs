//! Applications: state machines over a connection's read and write.
//!
//! An application is woken whenever something may be possible for it (connected, readable,
//! writable, closed, or its own timer) and then does all it can: it is woken again when a blocked
//! operation becomes possible. All of them write the verifiable bytes of
//! [`Content`](crate::Content) and verify what they read.

mod bulk;
mod dialogue;
mod echo;
mod random;
mod report;
mod request;
mod socket;
mod stream;
mod units;

use core::fmt::Debug;

use marline_time::Instant;

pub use bulk::{Amount, Bulk};
pub use dialogue::{Dialogue, Request};
pub use echo::{Echo, EchoServer};
pub use random::{Random, RandomPlan};
pub use report::{Hole, Report};
pub use request::{RequestResponse, ResponseServer};
pub use socket::{Socket, SocketStatus};
pub use units::{Pace, Units};

/// An application on one connection.
pub trait App: Debug {
    /// Something may have become possible.
    fn wake(&mut self, socket: &mut Socket<'_>);

    /// When it wants to be woken whatever happens.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// What it has seen so far.
    fn report(&self) -> &Report;
}
