//! Conversion of the library's snapshots and events to control protocol messages.

use std::time::{Duration, SystemTime};

use marline::monitor::{
    ConnectionInfo, FourTuple, MonitorEvent, MonitorKind, SubflowInfo, SubflowState,
};
use marline::paths::{AddressPairInfo, PathEvent, PathStatus, Reach, ServerReach};
use marline::policy::SubflowId;
use marline_proxy::quota::QuotaState;
use marline_proxy::server::allowances::QuotaUse;

use super::protocol::{
    AddressPair, Client, Clients, Connection, Event, Path, Quota, Reached, Subflow, Trouble,
};
use crate::service_counts::ServiceCounts;

// The snapshots are destructured field by field, so that omitted fields are visible here. A field that the core adds is
// shown only once it is listed here.

impl From<&ServiceCounts> for Clients {
    fn from(service: &ServiceCounts) -> Self {
        let unix_s =
            |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).map(|t| t.as_secs());
        let clients = service.clients.iter().map(|counts| Client {
            name: counts.name.to_string(),
            open: counts.open,
            connections: counts.connections,
            to_targets: counts.to_targets,
            from_targets: counts.from_targets,
            seen_unix_s: unix_s(counts.seen_at).unwrap_or_default(),
            quota: counts.quota.as_ref().map(quota),
            memory: counts.memory,
            memory_waits: counts.memory_waits,
        });
        let refusals = service.refusals.iter().filter(|(_, count)| *count > 0);
        let refusals = refusals.map(|(reason, count)| (reason.label().to_owned(), *count));
        Clients { clients: clients.collect(), refusals: refusals.collect() }
    }
}

/// Returns the usage of a quota.
pub(crate) fn quota(used: &QuotaUse) -> Quota {
    let QuotaUse { quota, used_bytes, until_unix_s, state: standing, words } = used;
    let standing = match standing {
        QuotaState::Within => "within",
        QuotaState::BeyondSoftLimit => "soft",
        QuotaState::UsedUp => "hard",
    };
    Quota {
        bytes: quota.bytes,
        used_bytes: *used_bytes,
        soft_percent: quota.soft_percent,
        until_unix_s: *until_unix_s,
        state: standing.to_owned(),
        text: words.clone(),
    }
}

impl From<&ConnectionInfo> for Connection {
    fn from(info: &ConnectionInfo) -> Self {
        Connection {
            connection: info.id.0,
            fallback: info.fallback.map(|reason| reason.to_string()),
            extensions: info.extensions.to_string(),
            scheduler: info.scheduler.clone(),
            path_manager: info.path_manager.clone(),
            bytes_written: info.bytes_written,
            bytes_read: info.bytes_read,
            bytes_acked: info.bytes_acked,
            buffered: info.buffered,
            ack_due_since_us: info.ack_due_since.map(|since| since.as_micros()),
            data_due_since_us: info.data_due_since.map(|since| since.as_micros()),
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
            phase: info.phase.name().to_owned(),
            backup: info.backup,
            health: info.health.path_health(),
            cause: info.health.cause().map(str::to_owned),
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

impl From<&AddressPairInfo> for AddressPair {
    fn from(info: &AddressPairInfo) -> Self {
        AddressPair {
            local: info.address_pair.local.to_string(),
            remote: info.address_pair.remote.to_string(),
            interface: info.address_pair.interface,
            interface_name: None,
            members: info.members,
            loss: info.loss,
            retransmissions: info.retransmissions,
            rto_us: micros(info.rto),
            health: info.health,
            cause: info.cause.map(|fault| fault.to_string()),
            watched: info.watched,
            times_degraded: info.times_degraded,
        }
    }
}

impl From<&PathStatus> for Path {
    fn from(status: &PathStatus) -> Self {
        let addresses: Vec<String> = status.addresses.iter().map(ToString::to_string).collect();
        Path {
            name: status.spec.short_name(),
            local: (!addresses.is_empty()).then(|| addresses.join(" ")),
            remote: status.spec.remote.map(|remote| remote.to_string()),
            up: status.up,
            backup: status.backup,
            metered: status.metered,
            limited: status.limited,
            fading: status.fading,
            nat64: status.nat64.map(|prefix| prefix.to_string()),
            health: status.health,
            cause: status.cause.clone(),
            servers: status.servers.iter().map(Reached::from).collect(),
            quota: None,
        }
    }
}

impl From<&ServerReach> for Reached {
    fn from(reached: &ServerReach) -> Self {
        let ServerReach { server, local: _, reach, by_tcp, tcp_failure, carrier_rates, .. } =
            reached;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let base = Reached {
            server: server.to_string(),
            reach: reach.name().to_owned(),
            by_tcp: *by_tcp,
            udp_bits_per_s: carrier_rates.map(|rates| rates.udp_bits_per_s),
            tcp_bits_per_s: carrier_rates.map(|rates| rates.tcp_bits_per_s),
            tcp_failure: tcp_failure.clone(),
            text: reach.to_string(),
            ..Reached::default()
        };
        match reach {
            Reach::Answers { since_last_packet: heard } => {
                Reached { last_rx_ms: Some(millis(*heard)), ..base }
            }
            Reach::NoAnswer { since, tries } => {
                Reached { silent_ms: Some(millis(*since)), tries: Some(*tries), ..base }
            }
            Reach::Blocked { by, .. } => Reached { by: by.map(|by| by.to_string()), ..base },
            _ => base,
        }
    }
}

impl From<&marline_proxy::client::trouble::Trouble> for Trouble {
    fn from(trouble: &marline_proxy::client::trouble::Trouble) -> Self {
        let (kind, help) = (trouble.kind.name().to_owned(), trouble.kind.advice().to_owned());
        Trouble { kind, text: trouble.text.clone(), help }
    }
}

impl From<&PathEvent> for Event {
    fn from(event: &PathEvent) -> Self {
        let name = if event.fault.is_some() { "PATH_FAILED" } else { "PATH_WORKS" };
        let base = Event {
            at_us: event.at.as_micros(),
            paths: Some(event.paths.clone()),
            reach: event.fault.map(str::to_owned),
            remote: Some(event.server.to_string()),
            ..Event::default()
        };
        with_reason(with_subflow_name(base, name), &event.text)
    }
}

/// Returns a decision as text, for the connection with this number and paths with these names, or `None` for other
/// events.
pub(super) fn decision(
    event: &MonitorEvent,
    number: u64,
    name: &dyn Fn(SubflowId) -> String,
) -> Option<Event> {
    let MonitorKind::Decided { reason, missed } = &event.kind else { return None };
    let base = Event {
        at_us: event.at.as_micros(),
        connection: Some(number),
        subflow: reason.grounds.path.map(|id| id.0.into()),
        rule: Some(reason.grounds.rule.name().to_owned()),
        text: Some(reason.text(name)),
        record: Some(reason.record()),
        missed: Some(*missed).filter(|missed| *missed > 0),
        ..Event::default()
    };
    Some(with_subflow_name(base, "DECISION"))
}

impl Event {
    /// Creates the event of a connection with this number.
    #[must_use]
    pub(crate) fn from_monitor_event(event: &MonitorEvent, number: u64) -> Self {
        let base =
            Event { at_us: event.at.as_micros(), connection: Some(number), ..Event::default() };
        match &event.kind {
            MonitorKind::Created(path) => on_path(base, "CREATED", path),
            MonitorKind::Established(path) => on_path(base, "ESTABLISHED", path),
            MonitorKind::Closed(reason) => with_reason(with_subflow_name(base, "CLOSED"), reason),
            MonitorKind::Fallback(reason) => {
                with_reason(with_subflow_name(base, "FALLBACK"), reason)
            }
            MonitorKind::Announced { id, address } => Event {
                address_id: Some(id.0),
                address: Some(address.to_string()),
                ..with_subflow_name(base, "ANNOUNCED")
            },
            MonitorKind::Removed(id) => {
                Event { address_id: Some(id.0), ..with_subflow_name(base, "REMOVED") }
            }
            MonitorKind::Agreed(extensions) => {
                Event { reason: Some(extensions.to_string()), ..with_subflow_name(base, "AGREED") }
            }
            MonitorKind::SubflowEstablished { id, path, backup } => Event {
                subflow: Some(id.0.into()),
                backup: Some(*backup),
                ..on_path(base, "SF_ESTABLISHED", path)
            },
            MonitorKind::SubflowClosed { id, path, reason } => Event {
                subflow: Some(id.0.into()),
                ..with_reason(on_path(base, "SF_CLOSED", path), reason)
            },
            MonitorKind::SubflowPriority { id, backup } => Event {
                subflow: Some(id.0.into()),
                backup: Some(*backup),
                ..with_subflow_name(base, "SF_PRIO")
            },
            MonitorKind::SubflowSilent { id, cause } => Event {
                subflow: Some(id.0.into()),
                reason: Some(cause.to_string()),
                ..with_subflow_name(base, "SF_SILENT")
            },
            MonitorKind::AddressPair { id, fault } => {
                let name = match fault {
                    Some(_) => "SF_ADDRESS_PAIR_DEGRADED",
                    None => "SF_ADDRESS_PAIR_USABLE",
                };
                let event = Event { subflow: Some(id.0.into()), ..with_subflow_name(base, name) };
                Event { reason: fault.map(|fault| fault.to_string()), ..event }
            }
            MonitorKind::Hole { direction, since, ended_by, unreachable } => Event {
                since_us: Some(since.as_micros()),
                direction: Some(direction.name().to_owned()),
                subflow: Some(ended_by.0.into()),
                unreachable: unreachable.map(|(id, _)| id.0.into()),
                reason: unreachable.map(|(_, cause)| cause.to_string()),
                ..with_subflow_name(base, "HOLE")
            },
            MonitorKind::SubflowReachability { id, reachable } => {
                let name = if *reachable { "SF_REACHABLE" } else { "SF_UNREACHABLE" };
                Event { subflow: Some(id.0.into()), ..with_subflow_name(base, name) }
            }
            _ => with_subflow_name(base, "OTHER"),
        }
    }
}

fn with_subflow_name(base: Event, name: &str) -> Event {
    Event { event: name.to_owned(), ..base }
}

fn on_path(base: Event, name: &str, path: &FourTuple) -> Event {
    let (local, remote) = (Some(path.local.to_string()), Some(path.remote.to_string()));
    Event { local, remote, ..with_subflow_name(base, name) }
}

fn with_reason(event: Event, reason: &dyn std::fmt::Display) -> Event {
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
