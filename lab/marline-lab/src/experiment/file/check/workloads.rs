//! Validation of the workloads of an experiment file.

use std::ops::RangeInclusive;
use std::time::Duration;

use marline_link::{DuplexSpec, RateSpec};

use super::Checker;
use crate::experiment::Load;
use crate::experiment::file::diagnostic::KeyPath;
use crate::experiment::file::raw::{RawWorkload, RawWorkloads};
use crate::experiment::file::values::{Bytes, Span};
use crate::workload::{Film, Gap, Workload};

/// Kinds of workloads and their keys, in addition to the common ones.
const KINDS: [(&str, &[&str]); 11] = [
    ("echo", &["bytes", "gap", "count"]),
    ("ask", &["request", "answer", "gap", "count"]),
    ("dialogue", &["request", "answer", "pieces", "unanswered", "gap", "count"]),
    ("bursts", &["bytes", "gap", "count"]),
    ("exchange", &["bytes"]),
    ("blocks", &["bytes", "lasts"]),
    ("bulk", &["bytes", "lasts"]),
    ("upload", &["bytes", "lasts"]),
    ("voice", &["bytes", "lasts"]),
    ("video", &["rate", "lasts"]),
    ("web", &["gap", "count"]),
];
/// Maximum number of workloads in a run.
const MAX_WORKLOADS: usize = 32;
/// Limits on the size of a message in bytes and on the number of messages of a run.
const MESSAGE_BYTES_RANGE: RangeInclusive<u64> = 1..=256_000_000;
const MESSAGE_COUNT_RANGE: RangeInclusive<u32> = 1..=1_000_000;
/// Limit on the number of pages of a workload, each of which uses several ports.
const PAGE_COUNT_RANGE: RangeInclusive<u32> = 1..=100;
/// Block size of a bulk stream in bytes. Only the rate matters, so any size would do.
const BULK_BYTES: u64 = 65_536;
/// Video settings except the length.
const FILM: Film = Film { segment_ms: 4_000, segments: 0, buffer_ms: 30_000 };
/// Time between two frames of a video with a constant rate.
const VIDEO_FRAME_INTERVAL_MS: u64 = 40;
/// Frames of a call, G.711 with an RTP header: datagram size in bytes, and interval in ms.
const VOICE_FRAME_BYTES: u64 = 172;
const VOICE_FRAME_MS: u32 = 20;
/// Latency above which a frame of a call is late: the limit of acceptable quality in ITU-T G.114, from memory.
const VOICE_DEADLINE: Duration = Duration::from_millis(150);

/// The workloads with their positions in the file. If there are several, those without a name are named after their
/// kind.
pub(super) fn loads(checker: &mut Checker<'_>, raw: &RawWorkloads) -> Vec<Load> {
    let top = KeyPath::top_level("workload");
    if !(1..=MAX_WORKLOADS).contains(&raw.all.len()) {
        checker.report(
            &top,
            format!("expected 1 to {MAX_WORKLOADS} workloads, found {}", raw.all.len()),
        );
    }
    let mut loads: Vec<Load> = Vec::new();
    for (number, raw_load) in raw.all.iter().enumerate() {
        let key_path = if raw.is_list { top.at(number) } else { top.clone() };
        let usual = if raw.all.len() > 1 { raw_load.kind.as_str() } else { "" };
        let name = raw_load.name.as_deref().unwrap_or(usual).to_owned();
        if loads.iter().any(|other| other.name == name) {
            let what = format!("two workloads are named `{name}`: give each a `name`");
            checker.report(&key_path, what);
        }
        let before = checker.diagnostics.len();
        let workload = Keys { checker, key_path, raw: raw_load }.workload();
        if let Some(workload) = workload.filter(|_| checker.diagnostics.len() == before) {
            let usual = matches!(workload, Workload::Voice { .. }).then_some(VOICE_DEADLINE);
            let deadline = raw_load.deadline.map(|time| time.0).or(usual);
            let from = raw_load.from.map_or(Duration::ZERO, |time| time.0);
            let connection = raw_load.connection.clone();
            loads.push(Load { name, workload, connection, deadline, from });
        }
    }
    loads
}

/// Keys of a workload.
struct Keys<'a, 'b> {
    checker: &'a mut Checker<'b>,
    key_path: KeyPath,
    raw: &'a RawWorkload,
}

impl Keys<'_, '_> {
    fn workload(mut self) -> Option<Workload> {
        let kind = self.raw.kind.as_str();
        let Some((_, allowed)) = KINDS.iter().find(|(known, _)| *known == kind) else {
            let known = KINDS.map(|(kind, _)| kind).join(", ");
            let what = format!("unknown workload `{kind}`; known: {known}");
            self.checker.report(&self.key_path.key("kind"), what);
            return None;
        };
        for key in self.raw.given_keys().into_iter().filter(|key| !allowed.contains(key)) {
            let what =
                format!("kind = \"{kind}\" has no key `{key}`; it has {}", allowed.join(", "));
            self.checker.report(&self.key_path.key(key), what);
        }
        match kind {
            "echo" => {
                let (bytes, gap, count) =
                    (self.bytes(None), self.gap(), self.count(MESSAGE_COUNT_RANGE));
                let (request_bytes, answer_bytes) = (bytes?, bytes?);
                Some(Workload::Ask { request_bytes, answer_bytes, gap: gap?, count: count? })
            }
            "bursts" => self.bursts(),
            "exchange" => Some(Workload::Exchange { bytes: self.bytes(None)? }),
            "blocks" => {
                let (bytes, lasts_ms) = (self.bytes(None), self.lasts_ms());
                Some(Workload::Blocks { bytes: bytes?, lasts_ms: lasts_ms? })
            }
            "bulk" | "upload" => {
                let (bytes, lasts_ms) = (self.bytes(Some(BULK_BYTES))?, self.lasts_ms()?);
                Some(match kind {
                    "bulk" => Workload::Blocks { bytes, lasts_ms },
                    _ => Workload::Upload { bytes, lasts_ms },
                })
            }
            "voice" => {
                let (bytes, lasts_ms) = (self.bytes(Some(VOICE_FRAME_BYTES))?, self.lasts_ms()?);
                let count = (lasts_ms as u32 / VOICE_FRAME_MS).max(1);
                Some(Workload::Voice { bytes, frame_ms: VOICE_FRAME_MS, count })
            }
            "video" => self.video(),
            "web" => {
                let (gap, count) = (self.gap(), self.count(PAGE_COUNT_RANGE));
                Some(Workload::Web { gap: gap?, count: count? })
            }
            _ => self.questions(),
        }
    }

    fn report(&mut self, key: &str, what: &str) {
        self.checker.report(&self.key_path.key(key), what);
    }

    fn need<T>(&mut self, key: &str, example: &str, value: Option<T>) -> Option<T> {
        self.checker.need(&self.key_path, key, example, value)
    }

    fn gap(&mut self) -> Option<Gap> {
        let gap = self.need("gap", "\"100ms\" or [\"100ms\", \"200ms\"]", self.raw.gap)?;
        let (least_ms, most_ms) = (gap.least.ms(), gap.most.ms());
        if least_ms > most_ms {
            self.report("gap", "the values are reversed; give the smaller one first");
        }
        Some(Gap { least_ms, most_ms })
    }

    fn count(&mut self, range: RangeInclusive<u32>) -> Option<u32> {
        let count = self.need("count", "200", self.raw.count)?;
        if !range.contains(&count) {
            self.report("count", &format!("must be {} to {}", range.start(), range.end()));
        }
        Some(count)
    }

    fn lasts_ms(&mut self) -> Option<u64> {
        let lasts = self.need("lasts", "\"30s\"", self.raw.lasts)?;
        Some(lasts.0.as_millis() as u64)
    }

    fn size(&mut self, key: &str, bytes: Bytes) -> Option<u32> {
        if !MESSAGE_BYTES_RANGE.contains(&bytes.0) {
            let (least, most) = (MESSAGE_BYTES_RANGE.start(), MESSAGE_BYTES_RANGE.end());
            self.report(key, &format!("{} bytes: must be {least} to {most}", bytes.0));
            return None;
        }
        Some(bytes.0 as u32)
    }

    /// Parses the smallest and largest size.
    fn sizes(&mut self, key: &str, span: Span<Bytes>) -> Option<(u32, u32)> {
        let (least, most) = (self.size(key, span.least)?, self.size(key, span.most)?);
        if least > most {
            self.report(key, "the values are reversed; give the smaller one first");
        }
        Some((least, most))
    }

    /// Parses a single size.
    fn bytes(&mut self, usual: Option<u64>) -> Option<u32> {
        let usual = usual.map(|bytes| Span { least: Bytes(bytes), most: Bytes(bytes) });
        let bytes = self.need("bytes", "8192", self.raw.bytes.or(usual))?;
        if bytes.least != bytes.most {
            self.report("bytes", "expected a single size; only bursts have random sizes");
        }
        self.size("bytes", bytes.least)
    }

    fn bursts(&mut self) -> Option<Workload> {
        let bytes = self.need("bytes", "\"100kB\" or [\"0.5MB\", \"1.5MB\"]", self.raw.bytes);
        let (gap, count) = (self.gap(), self.count(MESSAGE_COUNT_RANGE));
        let (least_bytes, most_bytes) = self.sizes("bytes", bytes?)?;
        let (gap, count) = (gap?, count?);
        Some(match least_bytes == most_bytes {
            true => Workload::Bursts { bytes: least_bytes, gap, count },
            false => Workload::RandomBursts { least_bytes, most_bytes, gap, count },
        })
    }

    /// Parses a video whose player chooses the rate. With `rate`, a frame is sent every 40 ms.
    fn video(&mut self) -> Option<Workload> {
        let lasts_ms = self.lasts_ms()?;
        let Some(rate) = &self.raw.rate else {
            let segments = (lasts_ms as u32 / FILM.segment_ms).max(1);
            return Some(Workload::Film(Film { segments, ..FILM }));
        };
        let link = format!("rate={rate}").parse::<DuplexSpec>();
        let spec = self
            .checker
            .check_result(&self.key_path.key("rate"), link.map_err(|error| error.problem))?;
        let RateSpec::Constant(rate) = spec.down.rate else {
            self.report("rate", "expected a constant rate such as \"4M\"");
            return None;
        };
        let bytes = (rate.bits_per_s() * VIDEO_FRAME_INTERVAL_MS / 8_000).max(1) as u32;
        let gap = Gap {
            least_ms: VIDEO_FRAME_INTERVAL_MS as f64,
            most_ms: VIDEO_FRAME_INTERVAL_MS as f64,
        };
        Some(Workload::Bursts {
            bytes,
            gap,
            count: (lasts_ms / VIDEO_FRAME_INTERVAL_MS).max(1) as u32,
        })
    }

    /// Parses requests and answers. By default, dialogues send requests as a whole and do not limit unanswered data.
    fn questions(&mut self) -> Option<Workload> {
        let request = self.need("request", "100", self.raw.request);
        let answer = self.need("answer", "1000", self.raw.answer);
        let request = request.and_then(|bytes| self.size("request", bytes));
        let answer = answer.and_then(|bytes| self.size("answer", bytes));
        let (gap, count) = (self.gap(), self.count(MESSAGE_COUNT_RANGE));
        let (request_bytes, answer_bytes) = (request?, answer?);
        let (gap, count) = (gap?, count?);
        if self.raw.kind == "ask" {
            return Some(Workload::Ask { request_bytes, answer_bytes, gap, count });
        }
        let pieces = match self.raw.pieces {
            None => (request_bytes, request_bytes),
            Some(span) => self.sizes("pieces", span)?,
        };
        let unanswered = self.raw.unanswered.map(|bytes| self.size("unanswered", bytes));
        let unanswered_bytes = unanswered.unwrap_or(Some(u32::MAX))?;
        Some(Workload::Dialogue {
            request_bytes,
            answer_bytes,
            pieces,
            unanswered_bytes,
            gap,
            count,
        })
    }
}
