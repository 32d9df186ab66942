//! Scripts of segments, random operations and invariant checks for Marline's own tests.
//!
//! [`Script`] drives one [`Endpoint`](marline_core::Endpoint) in virtual time against a test that
//! plays the peer: it injects segments made with [`Seg`] and takes what the endpoint sent. [`Peer`]
//! remembers numbers and keys of one subflow, so that a test says only what matters to it;
//! [`timeline`] reads plain TCP as words. [`Pair`]
//! connects two endpoints over links that drop, delay, repeat and forge, and [`hostile`] turns any
//! bytes into such a run: for random tests and for fuzzing. [`small_worlds`] goes through every order of what can
//! happen to a few packets. [`views`] and [`sender`] are what unit tests of
//! policies show them.
#![forbid(unsafe_code)]

mod expect;
pub mod first_packets;
pub mod fixtures;
pub mod hostile;
pub mod keys;
pub mod need;
mod pair;
mod peer;
mod script;
mod seg;
pub mod sender;
pub mod small_worlds;
pub mod timeline;
pub mod views;
pub mod wiretap;

pub use expect::Expect;
pub use pair::{Fate, Flight, Pair, Side};
pub use peer::{Peer, capable};
pub use script::{Script, Sent, capabilities, config, endpoint_config, with_known_mtu};
pub use seg::Seg;
