//! Answers of a server, and what a client takes from each.

use std::net::SocketAddr;
use std::time::Duration;

use crate::message::{Message, Offer};
use crate::session::datagram_keys::LaneEnd;

/// It works on a request.
pub(super) fn working(message: &Message) -> Option<()> {
    matches!(message, Message::Working).then_some(())
}

/// It listens there.
pub(super) fn listening(message: &Message) -> Option<SocketAddr> {
    match message {
        Message::Listening(address) => Some(*address),
        _ => None,
    }
}

/// Its end of a lane.
pub(super) fn lane(message: &Message) -> Option<LaneEnd> {
    match message {
        Message::Lane(end) => Some(*end),
        _ => None,
    }
}

/// It lets us in: how long an unused connection may wait, the session that it offers, its own addresses.
pub(super) fn welcome(message: &Message) -> Option<(Duration, Option<Offer>, Vec<SocketAddr>)> {
    match message {
        Message::Welcome { idle_limit_s, session, own } => {
            Some((Duration::from_secs((*idle_limit_s).into()), *session, own.clone()))
        }
        _ => None,
    }
}
