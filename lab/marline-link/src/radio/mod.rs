//! Radio model: the time a sleeping radio takes to wake, and the power it draws until it sleeps
//! again.
//!
//! *Problem.* A second path over cellular is not free. An idle LTE radio takes a quarter of a
//! second until the first packet leaves (promotion), and after the last one it stays awake for
//! eleven seconds (tail), at more power than a busy WiFi radio draws. A subflow opened "just in
//! case" costs some 12 J without carrying anything useful; one opened only when needed makes the
//! user wait for the promotion. Neither shows in byte counts.
//!
//! So each link may have a radio: a state machine of four states, after Huang et al. (MobiSys
//! 2012).
//!
//! ```text
//!            packet                          promotion over
//! idle ------------------> promotion -------------------------> transfer
//!  ^                                                            |    ^
//!  |  tail over                       nothing for 100 ms        v    | packet
//!  +----------------------------- tail (LTE: one, 3G: DCH, FACH) ----+
//! ```
//!
//! Energy is power times time, plus an energy per byte (power that grows linearly with throughput is
//! just that). All sums are integers of femtojoules: exact, additive, the same however time is cut
//! into calls, in virtual as in real time. What the radio draws while idle stands apart from what
//! traffic caused.
//!
//! What is left out: signal strength (a phone far from its mast sends at more power), the scans of a
//! WiFi station out of range, several subflows' packets over one radio at the same instant, the
//! display and the processor, which draw more than any of this.

mod energy;
mod machine;
mod parameters;
mod sensitivity;
mod tap;
#[cfg(test)]
mod tests;

pub use energy::{Energy, RadioReading};
pub use machine::{Radio, RadioState};
pub use parameters::{RadioKind, RadioParameters, Stay};
pub use sensitivity::{Sensitivity, Swing};
pub(crate) use tap::RadioTap;
