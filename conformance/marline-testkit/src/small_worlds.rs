//! Small worlds, explored exhaustively: two endpoints, at most two paths, a few segments, and every order of
//! events, with a bounded number of faults at any point.
//!
//! [`explore`] explores all worlds of a [`Scene`] by lists of [`Choice`]s. A choice decides which packet in flight
//! arrives next, is lost, copied, held back or stripped of its MPTCP options, when timers run although packets are
//! in flight, or when the client loses an address. Packets take no time, and arrive in every [`Order`]. Time passes
//! only if nothing is in flight, or as a fault. After the last fault, the world runs to its end: all packets
//! arrive, and all timers run. Then both ends must have equal bytes or a clear error, agree on the mode, and hold
//! no more state ([`Verdict`]).
//!
//! Worlds with the same states of both ends and the same packets in flight at the same time are equal, and are
//! entered once. An endpoint's state is its debug text, without counters and configuration. An end is a function of
//! its inputs. Therefore the real endpoint runs once for each state and input, however many worlds contain both.
//! Some ends are compared with those of the same choices in a world without merged states. A packet is lost, or
//! loses its options, only at times where doing so later would be different.

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
