//! Link model for virtual and for real time.
//!
//! One [`Link`] is one direction of a link: a drop-tail queue, a rate that empties it, losses, a
//! delay, and the faults that packets meet on the way (reordering, duplication, corruption) until
//! the link itself goes down. It is a state machine without I/O over opaque packets:
//! [`Link::offer`] accepts one, [`Link::next_event`] returns the next deadline, [`Link::poll`]
//! returns arrived ones. The simulator calls it in virtual time; a relay or a TUN emulator with the
//! time of its clock.
//!
//! Randomness is one named stream per stage, drawn once per packet whether or not it matters, and
//! what belongs to time (Gilbert-Elliott states, outages, a walk away from the access point) is
//! drawn along the time line. So two senders with different policies meet the same conditions,
//! packet for packet or second for second.
//!
//! A link may go over a [`radio`] that sleeps, takes time to wake, and draws energy.
//!
//! A [`DuplexSpec`] is the text form (`rate=20M,delay=10ms,up.rate=5M`); resolving it with the traces
//! it names gives the two [`LinkConfig`]s.

#![forbid(unsafe_code)]

mod config;
mod link;
mod packet;
mod preset;
pub mod radio;
mod spec;
mod stage;
mod steps;
pub mod trace;
mod wifi_mobility;

pub use config::{
    DelayConfig, Faults, GilbertElliott, Jitter, LinkConfig, LossConfig, MiddleboxConfig, Mtu,
    Offset, OptionRule, OutageConfig, OutageMode, QueueLimit, RadioConfig, RateConfig, Rebind,
    Renumber, Reorder, Segments, Split, SplitOptions, TcpOption,
};
pub use link::{Link, LinkStats};
pub use packet::{Packet, ip_too_big, ip_with_tcp, tcp_of_ip};
pub use preset::PRESETS;
pub use spec::{
    Direction, DuplexConfig, DuplexSpec, LinkSpec, PingRef, RadioSpec, RadioUse, RateSpec,
    ResolveError, SpecError, TraceRef,
};
pub use steps::Steps;
pub use trace::TraceError;
pub use wifi_mobility::{PhoneMobility, PhoneMobilityProfile, WalkCycle, WalkCycleProfile};
