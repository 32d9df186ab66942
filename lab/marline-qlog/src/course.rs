//! Course of a connection's stream, taken from a trace: when which bytes went on which subflow, in which manner, what
//! was acknowledged, and where delivery stood still. It is what plots of places over time are drawn from.

use crate::header::Vantage;
use crate::read::Recording;

/// In which manner bytes were carried.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manner {
    /// For the first time.
    New,
    /// Twice at once, since the scheduler wanted it.
    Copy,
    /// On another subflow, since the first was in trouble.
    Reinjection,
    /// Again on the same subflow: a retransmission, or a probe.
    Repeat,
}

impl Manner {
    /// All, in the order in which they are named.
    pub const ALL: [Manner; 4] = [Manner::New, Manner::Copy, Manner::Reinjection, Manner::Repeat];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Manner::New => "new data",
            Manner::Copy => "copy",
            Manner::Reinjection => "reinjection",
            Manner::Repeat => "retransmission",
        }
    }
}

/// Bytes that were carried.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Carried {
    /// When, milliseconds.
    pub time_ms: f64,
    /// Slot of the subflow.
    pub subflow: u64,
    /// Place of the first byte in the stream.
    pub dsn: u64,
    /// How many.
    pub bytes: u64,
    /// In which manner.
    pub manner: Manner,
}

/// A pause of delivery.
#[derive(Clone, Debug, PartialEq)]
pub struct Hole {
    /// When it began, milliseconds.
    pub began_ms: f64,
    /// When it ended, milliseconds.
    pub ended_ms: f64,
    /// What was silent then, if anything: the slot of a subflow, and what showed it.
    pub silent: Option<(u64, String)>,
}

/// What became of the stream that the trace's end sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// What was carried, in the order of time.
    pub carried: Vec<Carried>,
    /// When the peer had everything before which place, milliseconds and bytes.
    pub acked: Vec<(f64, u64)>,
    /// Pauses of its delivery.
    pub holes: Vec<Hole>,
    /// Slots of subflows with the client's address, without the port, that tells them apart; the first that each had.
    pub subflows: Vec<(u64, String)>,
}

impl Course {
    /// The course of what was sent.
    #[must_use]
    pub fn of(recording: &Recording) -> Course {
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
                        Some("new" | "handshake") => Manner::New,
                        Some("copy") => Manner::Copy,
                        Some("reinjection") => Manner::Reinjection,
                        Some("retransmission" | "probe") => Manner::Repeat,
                        _ => continue,
                    };
                    let (dsn, bytes) = (record.number("dsn"), record.number("length"));
                    let (Some(dsn), Some(bytes)) = (dsn, bytes.filter(|bytes| *bytes > 0)) else {
                        continue;
                    };
                    course.carried.push(Carried { time_ms, subflow, dsn, bytes, manner });
                }
                "data_acked" => course.acked.extend(record.number("dsn").map(|dsn| (time_ms, dsn))),
                "delivery_hole" if record.word("direction") == Some("sent") => {
                    let began_ms = record.time("began").unwrap_or(time_ms);
                    let silent = record.number("silent_subflow").zip(record.word("cause"));
                    let silent = silent.map(|(subflow, cause)| (subflow, cause.to_owned()));
                    course.holes.push(Hole { began_ms, ended_ms: time_ms, silent });
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

    /// Bytes that went in this manner.
    #[must_use]
    pub fn bytes(&self, manner: Manner) -> u64 {
        self.carried.iter().filter(|carried| carried.manner == manner).map(|c| c.bytes).sum()
    }
}
