use core::net::SocketAddr;
use std::collections::BTreeSet;
use std::path::Path;

use marline_core::{
    AddressPairFault, CloseReason, ConnectionId, Extensions, FallbackReason, Purpose,
    StreamDirection, Timer,
};
use marline_policy::{AddressId, Dsn, Phase, ReinjectionCause, UnreachableCause};
use marline_time::Rate;
use marline_wire::{SeqNum, TcpFlags};

use super::*;
use crate::schema::{EventKind, Field};
use crate::{Course, SCHEMA, TransmissionKind, Vantage, read};

const ON: SubflowId = SubflowId(1);

fn ms(at: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(at)
}

fn path() -> FourTuple {
    let end = |text: &str| text.parse::<SocketAddr>().expect("an address");
    FourTuple { local: end("10.0.0.1:4000"), remote: end("[2001:db8::9]:443") }
}

fn range(start: u64, end: u64) -> DataRange {
    DataRange::new(Dsn(start), Dsn(end))
}

fn header() -> Header {
    let title = "a \"title\"".to_owned();
    Header { title, vantage: Vantage::Client, connection: 7, wall_clock: None }
}

fn event(at_ms: u64, kind: MonitorKind) -> MonitorEvent {
    MonitorEvent { at: ms(at_ms), connection: ConnectionId(7), kind }
}

fn traffic(at_ms: u64, what: Traffic) -> MonitorEvent {
    event(at_ms, MonitorKind::Traffic { what: Box::new(what), missed: 0 })
}

fn sent(purpose: Purpose, data: DataRange) -> Traffic {
    let (seq, payload_bytes) = (SeqNum(5), data.len());
    Traffic::Sent(SegmentSent { on: ON, purpose, seq, data, payload_bytes, segments: 1 })
}

fn metrics() -> Metrics {
    Metrics {
        on: ON,
        phase: Phase::Open,
        cwnd_bytes: 14_000,
        ssthresh_bytes: 9_000,
        in_flight_bytes: 0,
        srtt: Some(Duration::from_millis(20)),
        rttvar: Duration::from_millis(1),
        min_rtt: Some(Duration::from_millis(19)),
        rto: Duration::from_millis(200),
        delivery_rate: Some(Rate::from_bits_per_s(8_000)),
    }
}

/// One event of each kind, and several of kinds with variants. Decisions are tested with the schedulers that make
/// them.
fn all() -> Vec<MonitorEvent> {
    let kinds = [
        MonitorKind::Created(path()),
        MonitorKind::Established(path()),
        MonitorKind::Agreed(Extensions::IDLE.union(Extensions::RTO)),
        MonitorKind::Announced { id: AddressId(3), address: path().remote },
        MonitorKind::Removed(AddressId(3)),
        MonitorKind::SubflowEstablished { id: ON, path: path(), backup: true },
        MonitorKind::SubflowPriority { id: ON, backup: false },
        MonitorKind::SubflowSilent { id: ON, cause: UnreachableCause::ReceiveTimer },
        MonitorKind::SubflowReachability { id: ON, reachable: false },
        MonitorKind::AddressPair { id: ON, fault: Some(AddressPairFault::Loss) },
        MonitorKind::AddressPair { id: ON, fault: None },
        MonitorKind::SubflowClosed { id: ON, path: path(), reason: CloseReason::PeerReset },
        MonitorKind::Fallback(FallbackReason::SynAckWithoutOption),
        MonitorKind::Hole {
            direction: StreamDirection::Sent,
            since: ms(2),
            ended_by: SubflowId(0),
            unreachable: Some((ON, UnreachableCause::ProbeTimeout)),
        },
        MonitorKind::Closed(CloseReason::Finished),
    ];
    let flags = TcpFlags::ACK.with(TcpFlags::PSH).with(TcpFlags::FIN);
    let (seq, ack, mapping) = (SeqNum(1), SeqNum(2), Some(range(0, 10)));
    let came = SegmentReceived { on: ON, seq, ack, flags, payload_bytes: 3, mapping };
    let traffics = [
        Traffic::Opened { on: ON, path: path() },
        sent(Purpose::New, range(0, 1_000)),
        sent(Purpose::Copy, range(0, 1_000)),
        sent(Purpose::Reinjection(ReinjectionCause::SubflowRto), range(0, 500)),
        sent(Purpose::Retransmission { after_timeout: true }, range(0, 400)),
        sent(Purpose::Probe, range(0, 300)),
        sent(Purpose::Ack, range(0, 0)),
        Traffic::Received(came),
        Traffic::DataReceived { on: ON, data: range(0, 3), duplicate_bytes: 1 },
        Traffic::DataAcked { on: ON, to: Dsn(1_000) },
        Traffic::Lost { on: ON, data: range(0, 400), bytes: 400, by_timer: true },
        Traffic::Timer { on: Some(ON), timer: Timer::Retransmission, count: 2 },
        Traffic::Timer { on: None, timer: Timer::Persist, count: 1 },
        Traffic::Metrics(metrics()),
    ];
    let kinds = kinds.into_iter().map(|kind| event(1_000, kind));
    kinds.chain(traffics.into_iter().map(|what| traffic(1_000, what))).collect()
}

fn written(events: &[MonitorEvent]) -> String {
    let mut out = String::new();
    let mut trace = Trace::begin(&header(), Instant::ZERO, u64::MAX, &mut out);
    events.iter().for_each(|event| trace.event(event, &mut out));
    out
}

/// Metrics may be among the missing events, so they are written completely, and their space is available again.
#[test]
fn after_a_gap_a_trace_repeats_all_metrics() {
    let mut kept = String::new();
    let mut trace = Trace::begin(&header(), Instant::ZERO, 1_000, &mut kept);
    let whole = |trace: &mut Trace, ms| {
        let mut out = String::new();
        trace.event(&traffic(ms, Traffic::Metrics(metrics())), &mut out);
        out
    };
    let first = whole(&mut trace, 1);
    let mut unkept = first.len();
    for ms in 2..1_000 {
        let mut out = String::new();
        trace.event(&traffic(ms, Traffic::DataAcked { on: ON, to: Dsn(1) }), &mut out);
        unkept += out.len();
    }
    assert!(trace.is_cut());
    trace.record_missed(Instant::from_nanos(1_000_000_000), 999, unkept as u64, &mut kept);
    let again = whole(&mut trace, 1_001);
    assert_eq!(again.len(), first.len() + "1001".len() - "1".len(), "{again}");
    let recording = read(&(kept + &again)).expect("a trace");
    assert_eq!(recording.records[0].number("count"), Some(999));
    assert!(!trace.is_cut() && recording.records[1].number("cwnd_bytes").is_some());
}

#[test]
fn every_event_is_a_record_of_the_schema_and_every_kind_of_the_schema_is_written() {
    let mut events = all();
    let missed = MonitorKind::Traffic {
        what: Box::new(Traffic::DataAcked { on: ON, to: Dsn(1) }),
        missed: 4,
    };
    events.push(event(2_000, missed));
    let text = written(&events);
    let recording = read(&text).expect("as in the schema");
    assert_eq!((recording.title.as_str(), recording.vantage), ("a \"title\"", Vantage::Client));
    let seen: BTreeSet<&str> =
        recording.records.iter().map(|record| record.name.as_str()).collect();
    let elsewhere = ["scheduler_decided", "trace_cut"];
    for kind in SCHEMA.iter().filter(|kind| !elsewhere.contains(&kind.name)) {
        assert!(seen.contains(kind.name), "{} is never written", kind.name);
        let has = |field: &str| {
            let mut alike = recording.records.iter().filter(|record| record.name == kind.name);
            alike.any(|record| record.data.contains_key(field))
        };
        for field in kind.fields.iter().filter(|field| field.name != "segments") {
            assert!(has(field.name), "{}: {} is never written", kind.name, field.name);
        }
    }
}

#[test]
fn a_hole_and_a_course_are_read_back_as_they_were() {
    let recording = read(&written(&all())).expect("a trace");
    let course = Course::from_recording(&recording);
    let bytes = TransmissionKind::ALL.map(|manner| course.bytes(manner));
    assert_eq!(bytes, [1_000, 1_000, 500, 700]);
    assert_eq!(course.acked, [(1_000.0, 1_000)]);
    let hole = &course.holes[0];
    assert_eq!((hole.began_ms, hole.ended_ms), (2.0, 1_000.0));
    assert_eq!(hole.unreachable, Some((1, "probe_timeout".to_owned())));
    assert_eq!(course.subflows, [(1, "10.0.0.1".to_owned())]);
}

#[test]
fn metrics_records_hold_only_changes() {
    let again = Metrics { cwnd_bytes: 15_000, ..metrics() };
    let events = [metrics(), metrics(), again].map(|m| traffic(5, Traffic::Metrics(m)));
    let text = written(&events);
    let recording = read(&text).expect("a trace");
    assert_eq!(recording.records.len(), 2);
    let second: Vec<&String> = recording.records[1].data.keys().collect();
    assert_eq!(second, ["cwnd_bytes", "subflow"]);
}

#[test]
fn a_trace_ends_at_its_size_and_says_so() {
    let mut out = String::new();
    let limit = 2_000;
    let mut trace = Trace::begin(&header(), Instant::ZERO, limit, &mut out);
    for at in 0..100 {
        trace.event(&traffic(at, sent(Purpose::New, range(at * 100, at * 100 + 100))), &mut out);
    }
    assert!(trace.is_cut() && (out.len() as u64) < limit + 200);
    let recording = read(&out).expect("a trace");
    assert_eq!(recording.records.last().map(|record| record.name.as_str()), Some("trace_cut"));
    assert_eq!(recording.records.iter().filter(|record| record.name == "trace_cut").count(), 1);
}

#[test]
fn an_invalid_trace_is_refused_with_the_reason() {
    let good =
        written(&[event(1, MonitorKind::Created(path())), event(1, MonitorKind::Created(path()))]);
    let said = |text: &str| read(text).expect_err("bad").to_string();
    assert_eq!(said("{}"), "record 1: does not begin with a record separator (RFC 7464)");
    assert!(said("\x1e{}\n").contains("file_schema"));
    assert!(said("\x1enonsense\n").contains("is not valid JSON"));
    assert!(said(&good.replace("112026/mptcp", "112026/quic")).contains("event_schemas"));
    assert!(
        said(&good.replace("mptcp:connection_started", "mptcp:sneezed")).contains("is unknown")
    );
    assert!(said(&good.replace("\"local\"", "\"here\"")).contains("has no field local"));
    let older = format!(
        "{good}{}",
        "\x1e{\"time\":0.5,\"name\":\"mptcp:address_removed\",\"data\":{\"address_id\":1}}\n"
    );
    assert!(said(&older).contains("record 4: time 0.5 is earlier"));
    // Events of other namespaces are skipped, and a partial last record is ignored.
    let others = format!(
        "{good}\x1e{{\"time\":0,\"name\":\"quic:x\",\"data\":{{}}}}\n\x1e{{\"time\":9,\"na"
    );
    let recording = read(&others).expect("a trace");
    assert!(recording.is_cut_off && recording.records.len() == 2);
}

/// Environment variable that `cargo xtask reference` sets to write the page.
const WRITE: &str = "MARLINE_WRITE_REFERENCE";

/// Fields that the page explains once, before the events.
const COMMON: [&str; 3] = ["subflow", "local", "remote"];

/// An event and its fields, as a paragraph of the page.
fn paragraph(kind: &EventKind) -> String {
    let field = |field: &Field| {
        let name = format!("`{}`{}", field.name, if field.optional { "?" } else { "" });
        let is_common = COMMON.contains(&field.name) && !field.optional;
        if is_common { name } else { format!("{name} ({}): {}", field.unit, field.about) }
    };
    let fields: Vec<String> = kind.fields.iter().map(field).collect();
    format!("- **mptcp:{}**. {} {}.\n", kind.name, kind.about, fields.join("; "))
}

/// docs/spec/qlog.md has every event with all fields of the schema, and no others.
#[test]
fn the_page_shows_the_schema() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/spec/qlog.md");
    let page = std::fs::read_to_string(&file).expect("docs/spec/qlog.md");
    let events: String = SCHEMA.iter().map(paragraph).collect();
    let head = page.split("- **mptcp:").next().unwrap_or_default();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&file, format!("{head}{events}")).expect("the page can be written");
    } else {
        let there = page.strip_prefix(head).unwrap_or_default();
        assert!(
            there == events,
            "docs/spec/qlog.md: run `cargo xtask reference`; events are\n{events}"
        );
    }
}
