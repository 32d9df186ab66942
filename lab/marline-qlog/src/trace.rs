//! Trace of one connection: writes the core's events as records.

use std::collections::BTreeMap;

use marline_core::{
    FourTuple, Metrics, MonitorEvent, MonitorKind, SegmentReceived, SegmentSent, Traffic,
};
use marline_policy::{DataRange, Grounds, SubflowId};
use marline_time::{Duration, Instant};

use crate::header::Header;
use crate::line::{Line, time_since};
use crate::words;

/// A metric's name, and its value if it is known.
type MetricGetter<T> = (&'static str, fn(&Metrics) -> Option<T>);

/// Writes the events of one connection, up to a size limit.
#[derive(Debug)]
pub struct Trace {
    zero: Instant,
    metrics: BTreeMap<SubflowId, Metrics>,
    limit_bytes: u64,
    written_bytes: u64,
    cut: bool,
}

impl Trace {
    /// Starts a trace in `out`. Times count from `zero`. The trace takes at most `limit_bytes`, plus a record that
    /// marks the cut.
    #[must_use]
    pub fn begin(header: &Header, zero: Instant, limit_bytes: u64, out: &mut String) -> Trace {
        let record = header.record();
        out.push_str(&record);
        let written_bytes = record.len() as u64;
        Trace { zero, metrics: BTreeMap::new(), limit_bytes, written_bytes, cut: false }
    }

    /// Returns true if the size limit was reached. Nothing more is written then.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.cut
    }

    /// Appends the records of an event to `out`; none if traces do not contain this kind of event.
    pub fn event(&mut self, event: &MonitorEvent, out: &mut String) {
        if self.cut {
            return;
        }
        let before = out.len();
        self.write(event, out);
        let bytes = (out.len() - before) as u64;
        if self.written_bytes + bytes > self.limit_bytes {
            out.truncate(before);
            self.cut = true;
            self.begin_line(event.at, "trace_cut", out)
                .number("limit_bytes", self.limit_bytes)
                .end();
            return;
        }
        self.written_bytes += bytes;
    }

    /// Appends a record that `count` events with `unwritten_bytes` bytes are missing. The next metrics are complete,
    /// because earlier ones may be among the missing events.
    pub fn record_missed(&mut self, at: Instant, count: u64, unkept_bytes: u64, out: &mut String) {
        self.metrics.clear();
        // A record that marks the size limit would itself be among the missing events.
        self.cut &= unkept_bytes == 0;
        self.written_bytes = self.written_bytes.saturating_sub(unkept_bytes);
        let before = out.len();
        self.write_missed(at, count, out);
        self.written_bytes += (out.len() - before) as u64;
    }

    fn pen<'a>(&self, at: Instant, out: &'a mut String) -> RecordWriter<'a> {
        RecordWriter { after: time_since(at, self.zero), out }
    }

    fn begin_line<'a>(&self, at: Instant, name: &str, out: &'a mut String) -> Line<'a> {
        self.pen(at, out).begin(name)
    }

    fn write(&mut self, event: &MonitorEvent, out: &mut String) {
        match &event.kind {
            MonitorKind::Traffic { what, missed } => {
                self.write_missed(event.at, *missed, out);
                self.traffic(event.at, what, out);
            }
            MonitorKind::Decided { reason, missed } => {
                self.write_missed(event.at, *missed, out);
                let line = self.begin_line(event.at, "scheduler_decided", out);
                write_decision(line, &reason.grounds);
            }
            MonitorKind::Hole { direction, since, ended_by, unreachable } => {
                self.begin_line(event.at, "delivery_hole", out)
                    .word("direction", direction.name())
                    .time("began", time_since(*since, self.zero))
                    .time("duration", time_since(event.at, *since))
                    .number("subflow", ended_by.0)
                    .optional(*unreachable, |line, (subflow, cause)| {
                        line.number("unreachable_subflow", subflow.0)
                            .word("cause", &words::silence(cause))
                    })
                    .end();
            }
            kind => {
                self.connection(event.at, kind, out);
                self.subflow(event.at, kind, out);
            }
        }
    }

    fn write_missed(&self, at: Instant, missed: u64, out: &mut String) {
        if missed > 0 {
            self.begin_line(at, "events_missed", out).number("count", missed).end();
        }
    }

    /// Writes an event of the connection as a whole.
    fn connection(&self, at: Instant, kind: &MonitorKind, out: &mut String) {
        let pen = self.pen(at, out);
        match kind {
            MonitorKind::Created(path) => ends(pen.begin("connection_started"), path).end(),
            MonitorKind::Established(path) => ends(pen.begin("connection_established"), path).end(),
            MonitorKind::Closed(reason) => {
                pen.begin("connection_closed").word("reason", &words::closed(*reason)).end();
            }
            MonitorKind::Fallback(reason) => {
                pen.begin("fallback").word("reason", &words::fallback(*reason)).end();
            }
            MonitorKind::Agreed(extensions) => {
                pen.begin("extensions_agreed").word("extensions", &extensions.to_string()).end();
            }
            MonitorKind::Announced { id, address } => {
                pen.begin("address_announced")
                    .number("address_id", id.0)
                    .address("address", *address)
                    .end();
            }
            MonitorKind::Removed(id) => {
                pen.begin("address_removed").number("address_id", id.0).end()
            }
            _ => {}
        }
    }

    /// Writes an event of a subflow.
    fn subflow(&self, at: Instant, kind: &MonitorKind, out: &mut String) {
        let pen = self.pen(at, out);
        const HEALTH: &str = "subflow_health_changed";
        match kind {
            MonitorKind::SubflowEstablished { id, path, backup } => {
                ends(pen.begin_on_subflow("subflow_established", *id), path)
                    .flag("backup", *backup)
                    .end();
            }
            MonitorKind::SubflowClosed { id, path, reason } => {
                let line = ends(pen.begin_on_subflow("subflow_closed", *id), path);
                line.word("reason", &words::closed(*reason)).end();
            }
            MonitorKind::SubflowPriority { id, backup } => {
                pen.begin_on_subflow("subflow_priority_changed", *id).flag("backup", *backup).end();
            }
            MonitorKind::SubflowSilent { id, cause } => {
                let line = pen.begin_on_subflow(HEALTH, *id).word("health", "silent");
                line.word("cause", &words::silence(*cause)).end();
            }
            MonitorKind::SubflowReachability { id, reachable } => {
                let health = if *reachable { "reachable" } else { "unreachable" };
                pen.begin_on_subflow(HEALTH, *id).word("health", health).end();
            }
            MonitorKind::AddressPair { id, fault } => {
                let health = match fault {
                    Some(_) => "address_pair_degraded",
                    None => "address_pair_usable",
                };
                pen.begin_on_subflow(HEALTH, *id)
                    .word("health", health)
                    .optional(*fault, |line, fault| line.word("cause", &words::fault(fault)))
                    .end();
            }
            _ => {}
        }
    }

    fn traffic(&mut self, at: Instant, what: &Traffic, out: &mut String) {
        if let Traffic::Metrics(metrics) = what {
            return self.metrics(at, metrics, out);
        }
        if let Traffic::Timer { on, timer, count } = what {
            return self
                .begin_line(at, "timer_expired", out)
                .optional(*on, |line, on| line.number("subflow", on.0))
                .word("timer", words::timer(*timer))
                .number("count", *count)
                .end();
        }
        let pen = self.pen(at, out);
        match what {
            Traffic::Opened { on, path } => {
                ends(pen.begin_on_subflow("subflow_created", *on), path).end()
            }
            Traffic::Sent(sent) => {
                write_segment_sent(pen.begin_on_subflow("segment_sent", sent.on), sent)
            }
            Traffic::Received(came) => {
                write_segment_received(pen.begin_on_subflow("segment_received", came.on), came)
            }
            Traffic::DataReceived { on, data, duplicate_bytes } => {
                pen.begin_on_subflow("data_received", *on)
                    .number("dsn", data.start.0)
                    .number("length", data.len())
                    .optional(nonzero(*duplicate_bytes), |line, bytes| {
                        line.number("duplicate_length", bytes)
                    })
                    .end();
            }
            Traffic::DataAcked { on, to } => {
                pen.begin_on_subflow("data_acked", *on).number("dsn", to.0).end()
            }
            Traffic::Lost { on, data, bytes, by_timer } => {
                pen.begin_on_subflow("data_lost", *on)
                    .optional(start_of(data), |line, dsn| line.number("dsn", dsn))
                    .number("length", *bytes)
                    .word("trigger", if *by_timer { "timer" } else { "ack" })
                    .end();
            }
            _ => {}
        }
    }

    /// Writes the metrics that changed.
    fn metrics(&mut self, at: Instant, now: &Metrics, out: &mut String) {
        let before = self.metrics.insert(now.on, *now);
        if before.as_ref() == Some(now) {
            return;
        }
        let us = |time: Duration| time.as_micros() as u64;
        let known = |ssthresh: u64| (ssthresh != u64::MAX).then_some(ssthresh);
        let fields: [MetricGetter<u64>; 3] = [
            ("cwnd_bytes", |m| Some(m.cwnd_bytes)),
            ("in_flight_bytes", |m| Some(m.in_flight_bytes)),
            ("delivery_bits_per_s", |m| m.delivery_rate.map(|rate| rate.bits_per_s())),
        ];
        let times: [MetricGetter<Duration>; 4] = [
            ("srtt_us", |m| m.srtt),
            ("rttvar_us", |m| m.srtt.map(|_| m.rttvar)),
            ("min_rtt_us", |m| m.min_rtt),
            ("rto_us", |m| Some(m.rto)),
        ];
        let phase = before.as_ref().map(|m| m.phase) != Some(now.phase);
        let ssthresh = known(now.ssthresh_bytes);
        let ssthresh = ssthresh.filter(|_| before.as_ref().map(|m| m.ssthresh_bytes) != ssthresh);
        let mut line = self.begin_line(at, "metrics_updated", out).number("subflow", now.on.0);
        line = line.optional(phase.then_some(now.phase), |line, p| line.word("phase", p.name()));
        line = line.optional(ssthresh, |line, bytes| line.number("ssthresh_bytes", bytes));
        for (name, of) in fields {
            let fresh = of(now).filter(|value| before.as_ref().and_then(of) != Some(*value));
            line = line.optional(fresh, |line, value| line.number(name, value));
        }
        for (name, of) in times {
            let old = before.as_ref().and_then(of).map(us);
            let fresh = of(now).map(us).filter(|value| old != Some(*value));
            line = line.optional(fresh, |line, value| line.number(name, value));
        }
        line.end();
    }
}

/// Starts the record of an event.
struct RecordWriter<'a> {
    after: Duration,
    out: &'a mut String,
}

impl<'a> RecordWriter<'a> {
    fn begin(self, name: &str) -> Line<'a> {
        Line::begin(self.out, self.after, name)
    }

    /// Starts the record of an event on a subflow.
    fn begin_on_subflow(self, name: &str, subflow: SubflowId) -> Line<'a> {
        self.begin(name).number("subflow", subflow.0)
    }
}

fn ends<'a>(line: Line<'a>, path: &FourTuple) -> Line<'a> {
    line.address("local", path.local).address("remote", path.remote)
}

/// The count, or `None` if it is zero.
fn nonzero(count: u64) -> Option<u64> {
    (count > 0).then_some(count)
}

/// Start of the data, or `None` without data.
fn start_of(data: &DataRange) -> Option<u64> {
    (!data.is_empty()).then_some(data.start.0)
}

fn write_segment_sent(line: Line<'_>, sent: &SegmentSent) {
    line.word("purpose", words::purpose(sent.purpose))
        .optional(words::cause(sent.purpose), |line, cause| line.word("cause", cause))
        .number("seq", sent.seq.0)
        .optional(start_of(&sent.data), |line, dsn| line.number("dsn", dsn))
        .number("length", sent.payload_bytes)
        .optional((sent.segments > 1).then_some(sent.segments), |line, n| {
            line.number("segments", n)
        })
        .end();
}

fn write_segment_received(line: Line<'_>, came: &SegmentReceived) {
    let flags = words::flags(came.flags);
    line.number("seq", came.seq.0)
        .number("ack", came.ack.0)
        .optional((!flags.is_empty()).then_some(flags), |line, flags| line.word("flags", &flags))
        .number("length", came.payload_bytes)
        .optional(came.mapping, |line, mapping| {
            line.number("mapping_dsn", mapping.start.0).number("mapping_length", mapping.len())
        })
        .end();
}

fn write_decision(line: Line<'_>, grounds: &Grounds) {
    line.word("rule", &grounds.rule.name().replace('-', "_"))
        .optional(grounds.path, |line, id| line.number("subflow", id.0))
        .optional(grounds.other, |line, id| line.number("other_subflow", id.0))
        .optional(grounds.arrives_us, |line, us| line.number("arrives_us", us))
        .optional(grounds.other_us, |line, us| line.number("other_us", us))
        .optional(grounds.gain_us, |line, us| line.number("gain_us", us))
        .optional(grounds.price_us, |line, us| line.number("price_us", us))
        .end();
}

#[cfg(test)]
mod tests;
