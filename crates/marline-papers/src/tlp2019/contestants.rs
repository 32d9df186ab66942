//! Contestants: the stack of the time, with either kind of probe.

use marline_lab::experiment::Variant;

/// Loss recovery of the stack of then: Linux 3.14.
pub(super) const RECOVERY_OF_THEN: &str = "rfc6675,pto=linux-3.10,fack=on,early-retransmit=on";

/// The stack of then with this around its scheduler.
pub(super) fn of_then(name: &str, probes: &str) -> Variant {
    let variant = Variant::new(name)
        .scheduler(&format!("lowest-rtt+{probes}"))
        .congestion("cubic+keep-window")
        .recovery(RECOVERY_OF_THEN);
    // Linux 3.14 did not pace.
    Variant { unpaced: true, ..variant }
}

pub(super) fn standard() -> Variant {
    of_then("TLP-STD", "tlp-std")
}

pub(super) fn multipath() -> Variant {
    of_then("TLP-MP", "tlp-mp,after=reinject")
}
