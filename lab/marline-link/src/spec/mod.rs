//! Link specs: a link in one line of text, `rate=20M,delay=10ms,queue=80ms,loss=1%,up.rate=5M`.
//!
//! Items are separated by commas. Each sets one property of both directions, or of one direction with the prefix `up.`
//! (from the client) or `down.` (to the client). The first item may be the name of a preset. Units are SI decimal:
//! `k`, `M`, `G` bit/s; `B`, `kB`, `MB` bytes; `ns`, `us`, `ms`, `s`, `min`, `h`.
//!
//! | item | meaning |
//! |---|---|
//! | `rate=20M`, `rate=unlimited` | constant rate |
//! | `rate=0s:20M+10s:0+12s:20M`, `.../30s` | rate steps; after `/` the period after which they repeat |
//! | `rate=walkout:30M` | the WiFi walk-out model with this peak rate (and its losses) |
//! | `rate=leaving:40M`, `rate=staying:40M` | a walk of 80 s out of range; a phone that stays in range |
//! | `trace=ATT-LTE-driving`, `...@30s` | mahimahi trace, starting at that time |
//! | `mtu=1280B`, `mtu=1280B:silent` | largest IP packet; senders of larger ones are notified, or not |
//! | `queue=80ms`, `queue=64kB` | drop-tail limit |
//! | `delay=10ms` | one-way delay |
//! | `jitter=uniform:5ms`, `jitter=normal:2ms`, `jitter=5ms` | its variation (uniform by default) |
//! | `overtaking=yes` | jitter may reorder |
//! | `rtt=s042:verizon`, `...@5s` | half of this ping trace's RTT added to the delay |
//! | `lost=s042:verizon` | its lost probes are losses; `ping=` sets both |
//! | `loss=1%` | random loss |
//! | `ge=2s:100ms:50%:0` | Gilbert-Elliott: mean good and bad period, loss when bad (1) and good (0) |
//! | `drop=3+7` | these packets are lost, counted from 1 |
//! | `reorder=1%:20ms`, `duplicate=0.1%`, `corrupt=0.1%` | faults |
//! | `rewrite=0.1%` | a gateway changes a byte of a TCP payload and repairs the checksum |
//! | `strip=mptcp:syn`, `strip=dss+sack:rest` | a middlebox overwrites these TCP options |
//! | `mangle=mp_experimental:syn` | a middlebox inverts the bits of these TCP options |
//! | `block=mp_join`, `block=mptcp:synack@3s` | a middlebox drops segments with these TCP options (starting at a time)
//! |
//! | `renumber=yes`, `renumber=not-sack` | a middlebox chooses other sequence numbers (and leaves SACK untranslated) |
//! | `rebind=5s` | a NAT loses its translations at that time |
//! | `split=500B`, `split=500B:first` | a middlebox splits segments; their options go on each piece, or the first |
//! | `coalesce=2ms` | a middlebox waits this long to merge two segments, with the options of the first |
//! | `thin=4` | a middlebox passes one of this many acknowledgments |
//! | `swallow=1%` | a middlebox acknowledges data and drops it |
//! | `radio=lte` | a radio that sleeps: `lte`, `umts`, `wifi`; an idle radio delays the packet that wakes it |
//! | `radio=lte:400ms`, `radio=lte:meter` | with this delay; with no delay, only counting energy |
//! | `down=10s-15s+20s-21s` | outages |
//! | `flap=10s:500ms` | random outages: mean time up and down |
//! | `outage=suspend` | outages keep packets instead of dropping them |

mod display;
mod parse;
mod resolve;
mod rules;
#[cfg(test)]
mod tests;
mod value;

use core::fmt;

use marline_time::{Duration, Rate};

use crate::radio::RadioKind;
use crate::{
    Faults, GilbertElliott, Jitter, MiddleboxConfig, Mtu, OutageConfig, PhoneMobility, QueueLimit,
    Steps,
};
pub use resolve::{DuplexConfig, ResolveError};

/// One of the two directions of a link.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client.
    Up,
    /// To the client.
    Down,
}

/// Both directions of a link, as parsed from text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DuplexSpec {
    /// From the client.
    pub up: LinkSpec,
    /// To the client.
    pub down: LinkSpec,
}

/// One direction, as parsed from text. Traces are still names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkSpec {
    /// Rate.
    pub rate: RateSpec,
    /// Maximum packet size.
    pub mtu: Option<Mtu>,
    /// Queue limit.
    pub queue: QueueLimit,
    /// Constant delay.
    pub delay: Duration,
    /// Variation of the delay.
    pub jitter: Jitter,
    /// True if jitter may reorder packets.
    pub overtaking: bool,
    /// Delay from a ping trace.
    pub rtt: Option<PingRef>,
    /// Losses from a ping trace.
    pub lost: Option<PingRef>,
    /// Random loss probability.
    pub loss: f64,
    /// Loss bursts.
    pub gilbert_elliott: Option<GilbertElliott>,
    /// Numbers of packets lost.
    pub drop: Vec<u64>,
    /// Reordering, duplication, corruption.
    pub faults: Faults,
    /// Middleboxes that modify TCP.
    pub middlebox: MiddleboxConfig,
    /// Time at which a NAT loses its translations.
    pub rebind: Option<Duration>,
    /// Outages.
    pub outage: OutageConfig,
    /// The radio.
    pub radio: Option<RadioSpec>,
}

/// A radio, as parsed from text.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RadioSpec {
    /// Kind of the radio.
    pub kind: RadioKind,
    /// Effect on the delay of packets.
    pub wakes: RadioUse,
}

/// Treatment of packets that arrive while the radio is idle.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum RadioUse {
    /// They wait for the published promotion time, if this kind of radio delays packets.
    #[default]
    Published,
    /// They wait this long.
    WakesAfter(Duration),
    /// They do not wait, but energy is counted as if they did.
    Meter,
}

/// A rate, as parsed from text.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RateSpec {
    /// No limit.
    #[default]
    Unlimited,
    /// Constant.
    Constant(Rate),
    /// Steps.
    Steps(Steps<Rate>),
    /// A mahimahi trace.
    Trace(TraceRef),
    /// The walk-out model with this peak rate.
    WalkCycle(Rate),
    /// A walk of 80 s out of range, or a phone that stays within range.
    PhoneMobility(PhoneMobility),
}

/// A trace by name, and its start position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRef {
    /// File name without `.up`, `.down`, `.csv` and `.gz`.
    pub name: String,
    /// Trace time at the link's start.
    pub start: Duration,
}

/// One mobile carrier of a ping trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingRef {
    /// The file.
    pub trace: TraceRef,
    /// The carrier in the file.
    pub carrier: String,
}

/// An invalid item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// The item as written.
    pub item: String,
    /// Description of the error.
    pub problem: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link description: `{}`: {}", self.item, self.problem)
    }
}

impl core::error::Error for SpecError {}
