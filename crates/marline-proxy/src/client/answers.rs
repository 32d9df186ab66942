//! Server answers that a client expects, and the values in them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::message::{Message, Offer};
use crate::session::datagram_keys::LaneEnd;

/// Returns `Some` for `Working`: the server has received the request.
pub(super) fn expect_working(message: &Message) -> Option<()> {
    matches!(message, Message::Working).then_some(())
}

/// Returns the address of `Listening`, at which the server listens.
pub(super) fn parse_listening(message: &Message) -> Option<SocketAddr> {
    match message {
        Message::Listening(address) => Some(*address),
        _ => None,
    }
}

/// Returns the server's end of a lane from `Lane`.
pub(super) fn lane(message: &Message) -> Option<LaneEnd> {
    match message {
        Message::Lane(end) => Some(*end),
        _ => None,
    }
}

/// Returns the idle limit, the offered session and the server's own addresses from `Welcome`.
pub(super) fn expect_welcome(
    message: &Message,
) -> Option<(Duration, Option<Offer>, Vec<SocketAddr>)> {
    match message {
        Message::Welcome { idle_limit_s, session, own } => {
            Some((Duration::from_secs((*idle_limit_s).into()), *session, own.clone()))
        }
        _ => None,
    }
}
