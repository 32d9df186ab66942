//! Small worlds, exhaustively: two endpoints, at most two paths, a few segments, and every order of what can
//! happen to them, with a bounded number of faults at any point.
//!
//! [`explore`] walks through all worlds of a [`Scene`] by lists of [`Choice`]s: which packet in flight arrives next, is
//! lost, copied, held back or stripped of its MPTCP options; when timers run although packets are in flight; when the
//! client loses an address. Packets take no time, and arrive in every [`Order`]; time passes only where nothing is on
//! its way, or as a fault. When the faults are used up, the world runs to its end: everything arrives, all timers run.
//! Then both ends must have equal bytes or a clear error, agree on the mode, and hold nothing any more ([`Verdict`]).
//!
//! Worlds with the same states of both ends and the same packets in flight at the same time are one, and it is entered
//! once. An endpoint's state is its debug text, without counters and configuration. An end is a function of what it was
//! given, so that the real endpoint is asked once for each state and input, however many worlds have both. Some ends
//! are compared with those of the same choices in a world where nothing is merged. A packet goes missing, or loses its
//! options, only where it makes a difference that it does so now, rather than later.

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
pub use verdict::{Complaint, Verdict};
