//! Link model for virtual and real time.
//!
//! One [`Link`] is one direction of a link: a drop-tail queue, a rate that empties it, losses, a delay, faults of
//! single packets (reordering, duplication, corruption), and outages of the link itself. It is a state machine without
//! I/O over opaque packets. [`Link::offer`] accepts a packet, [`Link::next_event`] returns the next deadline, and
//! [`Link::poll`] returns packets that have arrived. The simulator calls it in virtual time, a relay or TUN emulator
//! with the time of its clock.
//!
//! Each stage has its own named random stream, from which every packet draws once, even without effect. Events that
//! depend on time (Gilbert-Elliott states, outages, walking away from the access point) are drawn along the time line.
//! Two senders with different policies therefore meet the same conditions, packet for packet or second for second.
//!
//! A link may use a [`radio`] that sleeps, takes time to wake, and draws energy.
//!
//! A [`DuplexSpec`] is the text form (`rate=20M,delay=10ms,up.rate=5M`). Resolving it with the traces it names gives
//! the two [`LinkConfig`]s.

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
    OptionRule, OutageConfig, OutageMode, QueueLimit, RadioConfig, RateConfig, Rebind, Renumber,
    Reorder, Segments, Split, SplitOptions, TcpOption, TraceStart,
};
pub use link::{Link, LinkStats};
pub use packet::{Packet, find_tcp, make_packet_too_big, replace_tcp};
pub use preset::PRESETS;
pub use spec::{
    Direction, DuplexConfig, DuplexSpec, LinkSpec, PingRef, RadioSpec, RadioUse, RateSpec,
    ResolveError, SpecError, TraceRef,
};
pub use steps::Steps;
pub use trace::TraceError;
pub use wifi_mobility::{PhoneMobility, PhoneMobilityProfile, WalkCycle, WalkCycleProfile};
