//! The library's pictures and events as the control protocol words them.

use std::time::Duration;

use marline::policy::Phase;
use marline::{
    ConnectionInfo, FourTuple, MonitorEvent, MonitorKind, PathStatus, SubflowInfo, SubflowState,
};

use super::protocol::{Connection, Event, Path, Subflow};

impl From<&ConnectionInfo> for Connection {
    fn from(info: &ConnectionInfo) -> Self {
        Connection {
            connection: info.id.0,
            fallback: info.fallback.map(|reason| reason.to_string()),
            scheduler: info.scheduler.clone(),
            path_manager: info.path_manager.clone(),
            bytes_written: info.bytes_written,
            bytes_read: info.bytes_read,
            bytes_acked: info.bytes_acked,
            buffered: info.buffered,
            subflows: info.subflows.iter().map(Subflow::from).collect(),
            gone: info.gone.iter().map(Subflow::from).collect(),
        }
    }
}

impl From<&SubflowInfo> for Subflow {
    fn from(info: &SubflowInfo) -> Self {
        Subflow {
            subflow: info.id.0.into(),
            local: info.path.local.to_string(),
            remote: info.path.remote.to_string(),
            state: state_name(info.state).to_owned(),
            phase: phase_name(info.phase).to_owned(),
            backup: info.backup,
            potentially_failed: info.potentially_failed,
            srtt_us: info.srtt.map(micros),
            rttvar_us: micros(info.rttvar),
            min_rtt_us: info.min_rtt.map(micros),
            cwnd: info.cwnd,
            in_flight: info.in_flight,
            mss: info.mss,
            rate_bits_per_s: info.delivery_rate.map(|rate| rate.bits_per_s()),
            bytes_sent: info.bytes_sent,
            bytes_received: info.bytes_received,
            bytes_retransmitted: info.bytes_retransmitted,
            bytes_reinjected: info.bytes_reinjected,
            bytes_duplicate: info.bytes_duplicate,
            rtos: info.rtos,
            probes: info.probes,
            undone: info.undone,
        }
    }
}

impl From<&PathStatus> for Path {
    fn from(status: &PathStatus) -> Self {
        let addresses: Vec<String> = status.addresses.iter().map(ToString::to_string).collect();
        Path {
            name: status.spec.local.to_string(),
            local: (!addresses.is_empty()).then(|| addresses.join(" ")),
            remote: status.spec.remote.map(|remote| remote.to_string()),
            up: status.up,
            backup: status.backup,
            problem: status.error.clone(),
        }
    }
}

impl From<&MonitorEvent> for Event {
    fn from(event: &MonitorEvent) -> Self {
        let base = Event {
            at_us: event.at.as_micros(),
            connection: event.connection.0,
            ..Event::default()
        };
        match &event.kind {
            MonitorKind::Created(path) => on_path(base, "CREATED", path),
            MonitorKind::Established(path) => on_path(base, "ESTABLISHED", path),
            MonitorKind::Closed(reason) => because(named(base, "CLOSED"), reason),
            MonitorKind::Fallback(reason) => because(named(base, "FALLBACK"), reason),
            MonitorKind::Announced { id, address } => Event {
                address_id: Some(id.0),
                address: Some(address.to_string()),
                ..named(base, "ANNOUNCED")
            },
            MonitorKind::Removed(id) => Event { address_id: Some(id.0), ..named(base, "REMOVED") },
            MonitorKind::SubflowEstablished { id, path, backup } => Event {
                subflow: Some(id.0.into()),
                backup: Some(*backup),
                ..on_path(base, "SF_ESTABLISHED", path)
            },
            MonitorKind::SubflowClosed { id, path, reason } => Event {
                subflow: Some(id.0.into()),
                ..because(on_path(base, "SF_CLOSED", path), reason)
            },
            MonitorKind::SubflowPriority { id, backup } => Event {
                subflow: Some(id.0.into()),
                backup: Some(*backup),
                ..named(base, "SF_PRIO")
            },
            MonitorKind::SubflowSuspected { id, suspected } => {
                let name = if *suspected { "SF_SUSPECTED" } else { "SF_RECOVERED" };
                Event { subflow: Some(id.0.into()), ..named(base, name) }
            }
        }
    }
}

fn named(base: Event, name: &str) -> Event {
    Event { event: name.to_owned(), ..base }
}

fn on_path(base: Event, name: &str, path: &FourTuple) -> Event {
    let (local, remote) = (Some(path.local.to_string()), Some(path.remote.to_string()));
    Event { local, remote, ..named(base, name) }
}

fn because(event: Event, reason: &dyn std::fmt::Display) -> Event {
    Event { reason: Some(reason.to_string()), ..event }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

const fn state_name(state: SubflowState) -> &'static str {
    match state {
        SubflowState::Closed => "CLOSED",
        SubflowState::SynSent => "SYN-SENT",
        SubflowState::SynReceived => "SYN-RECEIVED",
        SubflowState::Established => "ESTABLISHED",
        SubflowState::FinWait1 => "FIN-WAIT-1",
        SubflowState::FinWait2 => "FIN-WAIT-2",
        SubflowState::CloseWait => "CLOSE-WAIT",
        SubflowState::Closing => "CLOSING",
        SubflowState::LastAck => "LAST-ACK",
        SubflowState::TimeWait => "TIME-WAIT",
    }
}

const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Open => "open",
        Phase::Recovery => "recovery",
        Phase::Loss => "loss",
    }
}
