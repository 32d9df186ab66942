//! Scripts of segments, random operations and invariant checks for Marline's own tests.
//!
//! [`Script`] runs one [`Endpoint`](marline_core::Endpoint) in virtual time against a test that acts as the peer: it
//! injects segments made with [`Seg`] and receives what the endpoint sends. [`Peer`] keeps the numbers and keys of one
//! subflow, so that a test contains only the relevant details. [`timeline`] represents plain TCP as text. [`Pair`]
//! connects two endpoints over links that drop, delay, repeat and forge segments. [`hostile`] turns arbitrary bytes
//! into such a run, for random tests and fuzzing. [`small_worlds`] tries every order of events for a few packets.
//! [`views`] and [`sender`] provide inputs for unit tests of policies.
#![forbid(unsafe_code)]

mod expect;
pub mod fixtures;
pub mod hostile;
pub mod keys;
pub mod need;
mod pair;
mod peer;
mod ports;
mod script;
mod seg;
pub mod sender;
pub mod small_worlds;
pub mod timeline;
pub mod views;
pub mod wiretap;

pub use expect::Expect;
pub use pair::{InFlightSegment, Pair, SegmentOutcome, Side};
pub use peer::{Peer, capable};
pub use ports::{free_address, free_port};
pub use script::{Script, SentSegment, capabilities, config, endpoint_config, with_known_mtu};
pub use seg::Seg;
