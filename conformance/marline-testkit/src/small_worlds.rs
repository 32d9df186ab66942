//! Small worlds, explored exhaustively: two endpoints, at most two paths, a few segments, with every order of events
//! and a bounded number of faults at any point.
//!
//! [`explore`] explores all worlds of a [`Scene`], each defined by a list of [`Choice`]s. A choice decides which
//! packet in flight arrives next, is lost, copied, held back or stripped of its MPTCP options, when timers run
//! although packets are in flight, or when the client loses an address. Packets have no delay, and arrive in every
//! [`Order`]. Time passes only if nothing is in flight, or as a fault. After the last fault, the world runs to its
//! end: all packets arrive, and all timers run. Then both ends must have equal bytes or a clear error, agree on the
//! mode, and hold no more state ([`Verdict`]).
//!
//! Worlds with the same states of both ends and the same packets in flight at the same time are equal, and are
//! entered once. An endpoint's state is its debug text, without counters and configuration. The behavior of an end
//! depends only on its inputs, so the real endpoint runs once for each state and input, regardless of the number of
//! worlds. Some results are compared with a replay of the same choices without merged states. A packet is lost, or
//! loses its options, only at times where a later loss would have another effect.

mod application;
mod choice;
mod ends;
mod explorer;
mod packet;
mod scene;
mod state_text;
mod verdict;
mod world;

pub use choice::{Choice, parse_script, script_text};
pub use explorer::{Finding, Report, explore, replay, trace};
pub use scene::{Action, Faults, Order, Scene, Step, Trigger};
pub use verdict::{RuleViolation, Verdict};
