//! Echo request (ICMP) from an application, and its result.

use std::net::IpAddr;

use super::inbox::Inbox;
use crate::udp::EchoError;

/// An echo request, without its data.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EchoRequest {
    /// Destination.
    pub to: IpAddr,
    /// Time to live at the server: one more than the number of routers beyond it that the request may pass.
    pub hops: u8,
    /// Sequence number.
    pub sequence: u16,
}

/// Result of an echo request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EchoAnswer {
    /// An answer was received.
    Replied {
        /// Sender of the answer.
        from: IpAddr,
        /// Sequence number of the request.
        sequence: u16,
        /// Data of the answer.
        payload: Vec<u8>,
    },
    /// The request was not delivered.
    Failed {
        /// Destination of the request.
        to: IpAddr,
        /// Sequence number of the request.
        sequence: u16,
        /// Error that prevented the delivery.
        error: EchoError,
    },
}

/// Results for a sender of echo requests. Ends when the sender is dropped.
pub type EchoInbox = Inbox<EchoAnswer>;
