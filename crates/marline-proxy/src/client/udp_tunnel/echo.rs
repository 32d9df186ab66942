//! Echo request of an application (ICMP), and what became of it.

use std::net::IpAddr;

use super::inbox::Inbox;
use crate::udp::EchoError;

/// An echo request, without its data.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EchoRequest {
    /// Where it goes.
    pub to: IpAddr,
    /// Routers behind the server that it passes, and one.
    pub hops: u8,
    /// Its sequence number.
    pub sequence: u16,
}

/// What became of an echo request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EchoAnswer {
    /// It was answered.
    Replied {
        /// By whom.
        from: IpAddr,
        /// The request's sequence number.
        sequence: u16,
        /// The answer's data.
        payload: Vec<u8>,
    },
    /// It did not arrive.
    Failed {
        /// Where it was to go.
        to: IpAddr,
        /// The request's sequence number.
        sequence: u16,
        /// Why.
        error: EchoError,
    },
}

/// What comes for a sender of echo requests; it ends when that is dropped.
pub type EchoInbox = Inbox<EchoAnswer>;
