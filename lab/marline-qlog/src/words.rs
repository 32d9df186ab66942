//! Names of the core's values in records: stable, in lower case, joined by underscores.

use marline_core::{CloseReason, FallbackReason, Purpose, Timer};
use marline_policy::{AddressPairFault, ReinjectionCause, UnreachableCause};
use marline_wire::TcpFlags;

pub(crate) const fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::New => "new",
        Purpose::Copy => "copy",
        Purpose::Reinjection(_) => "reinjection",
        Purpose::Retransmission { .. } => "retransmission",
        Purpose::Probe => "probe",
        Purpose::Repair => "repair",
        Purpose::Handshake => "handshake",
        Purpose::Ack => "ack",
        Purpose::AckRequest => "ack_request",
        Purpose::DataFin => "data_fin",
        Purpose::Fin => "fin",
        Purpose::Reset => "reset",
        _ => "other",
    }
}

/// Further details of the reason, if any.
pub(crate) const fn cause(purpose: Purpose) -> Option<&'static str> {
    match purpose {
        Purpose::Reinjection(cause) => Some(match cause {
            ReinjectionCause::UnansweredProbe => "unanswered_probe",
            ReinjectionCause::SubflowRto => "retransmission_timeout",
            ReinjectionCause::SubflowClosed => "subflow_closed",
            ReinjectionCause::DataRto => "data_timeout",
            ReinjectionCause::Loss => "lost",
            ReinjectionCause::Policy => "policy",
        }),
        Purpose::Retransmission { after_timeout: true } => Some("retransmission_timeout"),
        Purpose::Retransmission { after_timeout: false } => Some("lost"),
        _ => None,
    }
}

pub(crate) const fn timer(timer: Timer) -> &'static str {
    match timer {
        Timer::Probe => "probe",
        Timer::Retransmission => "retransmission",
        Timer::DataRetransmission => "data_retransmission",
        Timer::Persist => "persist",
        _ => "other",
    }
}

/// Converts a text of the program to a name: `reset by the peer` becomes `reset_by_the_peer`.
fn to_identifier(sentence: &impl std::fmt::Display) -> String {
    let small = sentence.to_string().to_lowercase();
    let parts = small.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("_")
}

pub(crate) fn silence(cause: UnreachableCause) -> String {
    to_identifier(&cause)
}

pub(crate) fn fault(fault: AddressPairFault) -> String {
    to_identifier(&fault)
}

pub(crate) fn closed(reason: CloseReason) -> String {
    to_identifier(&reason)
}

pub(crate) fn fallback(reason: FallbackReason) -> String {
    to_identifier(&reason)
}

/// Control bits in the order of the header, without `ACK`, which nearly all segments have: `syn fin`.
pub(crate) fn flags(flags: TcpFlags) -> String {
    let names = [
        (TcpFlags::FIN, "fin"),
        (TcpFlags::SYN, "syn"),
        (TcpFlags::RST, "rst"),
        (TcpFlags::PSH, "psh"),
        (TcpFlags::ECE, "ece"),
        (TcpFlags::CWR, "cwr"),
    ];
    let set: Vec<&str> =
        names.into_iter().filter(|(bit, _)| flags.contains(*bit)).map(|(_, name)| name).collect();
    set.join(" ")
}
