//! Contestants: the stack of the time with each kind of probe and each effect of pauses on the window.

use marline_lab::experiment::Variant;

use crate::mechanism::Mechanism;
use crate::plain::mptcp;

/// Loss recovery of the stack of the time, Linux 3.14.
pub(super) const LINUX_314_RECOVERY: &str = "rfc6675,pto=linux-3.10,fack=on,early-retransmit=on";

/// Maximum buffer sizes of Ubuntu 16.04, bytes. Linux's receive window depends on the bytes read, regardless of
/// pauses, so that after several bursts it is larger than any burst. The study says that Netflix bursts use both
/// paths. Marline counts the bytes read per RTT, which would throttle bursts shorter than a 4G RTT.
const SEND_BUFFER: u64 = 4 << 20;
const RECEIVE_BUFFER: u64 = 6 << 20;

/// Effect of a pause on a congestion window. The study does not state it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Windows {
    /// No effect (`tcp_slow_start_after_idle=0`).
    Kept,
    /// The window restarts, as is Linux's default.
    Restarted,
}

impl Windows {
    pub(super) const ALL: [Windows; 2] = [Windows::Kept, Windows::Restarted];

    pub(super) const fn text(self) -> &'static str {
        match self {
            Windows::Kept => "windows kept",
            Windows::Restarted => "restart after idle",
        }
    }

    const fn congestion(self) -> &'static str {
        match self {
            Windows::Kept => "cubic+keep-window",
            Windows::Restarted => "cubic",
        }
    }
}

/// The stack of the time, with these probes around its scheduler.
pub(super) fn historic_stack(name: &str, probes: &str, windows: Windows) -> Variant {
    let variant = mptcp(name)
        .scheduler(&format!("lowest-rtt+{probes}"))
        .congestion(windows.congestion())
        .recovery(LINUX_314_RECOVERY)
        .fixed_buffers(SEND_BUFFER, RECEIVE_BUFFER);
    // Linux 3.14 did not pace.
    Variant { unpaced: true, ..variant }
}

pub(super) fn standard(windows: Windows) -> Variant {
    historic_stack("TLP-STD", "tlp-std", windows)
}

pub(super) fn multipath(windows: Windows) -> Variant {
    let probes = match Mechanism::switched_off() {
        Some(Mechanism::TlpCopy) => "tlp-std",
        Some(Mechanism::TlpMove) => "tlp-mp,after=rto",
        _ => "tlp-mp,after=reinject",
    };
    historic_stack("TLP-MP", probes, windows)
}

/// The first contestant probes on one path only, the second on all.
pub(super) fn both_variants(windows: Windows) -> [Variant; 2] {
    [standard(windows), multipath(windows)]
}

/// The stack of the time without probes.
pub(super) fn variant_without_probes(windows: Windows) -> Variant {
    Variant { name: "no probes".to_owned(), ..standard(windows) }
        .recovery(&LINUX_314_RECOVERY.replace("linux-3.10", "off"))
}
