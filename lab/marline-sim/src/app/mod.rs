//! Applications: state machines that read from and write to a connection.
//!
//! An application is woken whenever it may be able to act (connected, readable, writable, closed, or its own timer). It
//! then does everything it can, and is woken again when a blocked operation becomes possible. All applications write
//! the verifiable bytes of [`Content`](crate::Content) and verify what they read.

mod bulk;
mod echo;
mod messages;
mod random;
mod report;
mod request;
mod socket;
mod stream;
mod units;

use core::fmt::Debug;

use marline_time::Instant;

pub use bulk::{Amount, Bulk};
pub use echo::{Echo, EchoServer};
pub use messages::{Message, Messages, Plan, SentAt};
pub use random::{Random, RandomPlan};
pub use report::{Hole, Report};
pub use request::{ExchangeSizes, RequestResponse, ResponseServer};
pub use socket::{Call, Socket, SocketStatus};
pub use units::{Pace, Units};

/// An application on one connection.
pub trait App: Debug {
    /// Called when the application may be able to act.
    fn wake(&mut self, socket: &mut Socket<'_>);

    /// Time at which the application must be woken even without an event.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Observations so far.
    fn report(&self) -> &Report;
}
