//! Course of a connection's stream, extracted from a trace: when, on which subflow and how each byte was sent, what
//! was acknowledged, and when delivery stalled. Sequence plots are drawn from it.

use crate::header::Vantage;
use crate::read::Recording;

/// Kind of transmission.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransmissionKind {
    /// First transmission.
    New,
    /// A copy requested by the scheduler.
    Copy,
    /// Reinjection on another subflow because the first one failed.
    Reinjection,
    /// Retransmission or probe on the same subflow.
    Repeat,
}

impl TransmissionKind {
    /// All kinds, in the order of their names.
    pub const ALL: [TransmissionKind; 4] = [
        TransmissionKind::New,
        TransmissionKind::Copy,
        TransmissionKind::Reinjection,
        TransmissionKind::Repeat,
    ];

    /// Name of the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TransmissionKind::New => "new data",
            TransmissionKind::Copy => "copy",
            TransmissionKind::Reinjection => "reinjection",
            TransmissionKind::Repeat => "retransmission",
        }
    }
}

/// Bytes that were sent together.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct CarriedBytes {
    /// Time in milliseconds.
    pub time_ms: f64,
    /// Slot of the subflow.
    pub subflow: u64,
    /// Position of the first byte in the stream.
    pub dsn: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Kind of transmission.
    pub manner: TransmissionKind,
}

/// A delivery gap.
#[derive(Clone, Debug, PartialEq)]
pub struct Hole {
    /// Start of the gap in milliseconds.
    pub began_ms: f64,
    /// End of the gap in milliseconds.
    pub ended_ms: f64,
    /// The subflow that was unreachable at that time, if any, and the cause.
    pub unreachable: Option<(u64, String)>,
}

/// The stream sent by the endpoint that wrote the trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// Transmissions, ordered by time.
    pub carried: Vec<CarriedBytes>,
    /// Acknowledgments: time in milliseconds, and the position before which the peer had received all data.
    pub acked: Vec<(f64, u64)>,
    /// Delivery gaps.
    pub holes: Vec<Hole>,
    /// Subflow slots, each with its first client address, without the port.
    pub subflows: Vec<(u64, String)>,
}

impl Course {
    /// Extracts the course of the sent stream.
    #[must_use]
    pub fn from_recording(recording: &Recording) -> Course {
        let mut course = Course::default();
        let client = match recording.vantage {
            Vantage::Client => "local",
            Vantage::Server => "remote",
        };
        for record in &recording.records {
            let subflow = record.number("subflow").unwrap_or_default();
            let time_ms = record.time_ms;
            match record.name.as_str() {
                "subflow_created" => course.meet(subflow, record.word(client)),
                "segment_sent" => {
                    let manner = match record.word("purpose") {
                        Some("new" | "handshake") => TransmissionKind::New,
                        Some("copy") => TransmissionKind::Copy,
                        Some("reinjection") => TransmissionKind::Reinjection,
                        Some("retransmission" | "probe") => TransmissionKind::Repeat,
                        _ => continue,
                    };
                    let (dsn, bytes) = (record.number("dsn"), record.number("length"));
                    let (Some(dsn), Some(bytes)) = (dsn, bytes.filter(|bytes| *bytes > 0)) else {
                        continue;
                    };
                    course.carried.push(CarriedBytes { time_ms, subflow, dsn, bytes, manner });
                }
                "data_acked" => course.acked.extend(record.number("dsn").map(|dsn| (time_ms, dsn))),
                "delivery_hole" if record.word("direction") == Some("sent") => {
                    let began_ms = record.time("began").unwrap_or(time_ms);
                    let unreachable =
                        record.number("unreachable_subflow").zip(record.word("cause"));
                    let unreachable =
                        unreachable.map(|(subflow, cause)| (subflow, cause.to_owned()));
                    course.holes.push(Hole { began_ms, ended_ms: time_ms, unreachable });
                }
                _ => {}
            }
        }
        course
    }

    fn meet(&mut self, subflow: u64, client: Option<&str>) {
        if self.subflows.iter().any(|(known, _)| *known == subflow) {
            return;
        }
        let client = client.unwrap_or_default();
        let address = client.rsplit_once(':').map_or(client, |(address, _)| address);
        self.subflows.push((subflow, address.trim_matches(['[', ']']).to_owned()));
    }

    /// Number of bytes carried by this kind of transmission.
    #[must_use]
    pub fn bytes(&self, manner: TransmissionKind) -> u64 {
        self.carried.iter().filter(|carried| carried.manner == manner).map(|c| c.bytes).sum()
    }
}
