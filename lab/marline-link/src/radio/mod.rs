//! Radio model: the time in which a sleeping radio wakes, and the power that it draws until it sleeps again.
//!
//! *Problem.* A second path over cellular is not free. An idle LTE radio needs a quarter of a second until the first
//! packet can leave (promotion), and after the last one it stays awake for eleven seconds (tail), at more power than a
//! busy WiFi radio. A subflow opened "just in case" costs about 12 J without carrying useful data. If it is opened
//! only when needed, the user waits for the promotion. Byte counts show neither.
//!
//! A link may therefore have a radio: a state machine with four states, after Huang et al. (MobiSys 2012).
//!
//! ```text
//!            packet                          promotion over
//! idle ------------------> promotion -------------------------> transfer
//!  ^                                                            |    ^
//!  |  tail over                       nothing for 100 ms        v    | packet
//!  +----------------------------- tail (LTE: one, 3G: DCH, FACH) ----+
//! ```
//!
//! Energy is power times time, plus an energy per byte (which is equivalent to power that grows linearly with
//! throughput). All sums are integers of femtojoules: exact, additive, and independent of how time is divided into
//! calls, in virtual and in real time. The energy of the idle radio is counted separately from that caused by traffic.
//!
//! Not modeled: signal strength (a phone far from its mast sends with more power), the scans of a WiFi station out of
//! range, packets of several subflows over one radio at the same instant, and the display and processor, which draw
//! more power than the radios.

mod energy;
mod machine;
mod parameters;
mod sensitivity;
mod tap;
#[cfg(test)]
mod tests;

pub use energy::{Energy, RadioReading};
pub use machine::{Radio, RadioState};
pub use parameters::{RadioKind, RadioParameters, TimedState};
pub use sensitivity::{ParameterSwing, Sensitivity};
pub(crate) use tap::RadioTap;
