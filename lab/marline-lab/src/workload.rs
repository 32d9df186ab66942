//! Workloads of applications for any kind of stream, with a log of all event times.
//!
//! Both ends derive their times from the same schedule, which follows from a seed and is relative to a given start.
//! The loop is open: a late answer does not delay the next request. Times are those of the machine's monotonic clock,
//! which all namespaces share, so the logs of both ends can be compared: latencies are one-way where stated.

pub(crate) mod page;

use std::time::Duration;

use marline_time::{Rng, SeedTree};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

/// Time after a call's last frame during which frames may still arrive.
const VOICE_TAIL: Duration = Duration::from_secs(1);

/// A byte stream of any stack.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// A stream of any stack.
pub type Stream = Box<dyn Duplex>;

/// Interval between events, uniform between two bounds.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// Minimum in ms.
    pub least_ms: f64,
    /// Maximum in ms.
    pub most_ms: f64,
}

/// Traffic pattern.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Workload {
    /// The client sends requests, each on all its streams, and the server answers each.
    Ask {
        /// Request size in bytes.
        request_bytes: u32,
        /// Answer size in bytes.
        answer_bytes: u32,
        /// Interval of the requests.
        gap: Gap,
        /// Number of requests.
        count: u32,
    },
    /// The client sends requests, each in pieces, unless too much is unanswered. The server answers each immediately.
    Dialogue {
        /// Request size in bytes.
        request_bytes: u32,
        /// Answer size in bytes.
        answer_bytes: u32,
        /// Minimum and maximum size in bytes of a piece of a request.
        pieces: (u32, u32),
        /// Limit on unanswered bytes, above which a due request is skipped.
        unanswered_bytes: u32,
        /// Interval of the requests' due times.
        gap: Gap,
        /// Number of due requests.
        count: u32,
    },
    /// The server writes blocks as fast as the stack accepts them.
    Blocks {
        /// Block size in bytes.
        bytes: u32,
        /// Duration in ms.
        lasts_ms: u64,
    },
    /// The client writes blocks as fast as the stack accepts them.
    Upload {
        /// Block size in bytes.
        bytes: u32,
        /// Duration in ms.
        lasts_ms: u64,
    },
    /// Both ends send datagrams of a call: one frame after another.
    Voice {
        /// Datagram size in bytes.
        bytes: u32,
        /// Time from one frame to the next in ms.
        frame_ms: u32,
        /// Number of frames in each direction.
        count: u32,
    },
    /// The client plays a video, with a bit rate of its choice.
    Film(Film),
    /// The client loads pages, each over its own connections.
    Web {
        /// Interval of the pages' start times.
        gap: Gap,
        /// Number of pages.
        count: u32,
    },
    /// Both ends write this amount at the start, at the same time.
    Exchange {
        /// Size in each direction in bytes.
        bytes: u32,
    },
    /// The server writes bursts at scheduled times.
    Bursts {
        /// Burst size in bytes.
        bytes: u32,
        /// Interval of the bursts' start times.
        gap: Gap,
        /// Number of bursts.
        count: u32,
    },
    /// The server writes bursts of random sizes at scheduled times.
    RandomBursts {
        /// Minimum burst size in bytes.
        least_bytes: u32,
        /// Maximum burst size in bytes.
        most_bytes: u32,
        /// Interval of the bursts' start times.
        gap: Gap,
        /// Number of bursts.
        count: u32,
    },
}

/// A video.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Film {
    /// Length of a segment in ms.
    pub segment_ms: u32,
    /// Number of segments.
    pub segments: u32,
    /// Maximum buffer size in ms of video.
    pub buffer_ms: u32,
}

impl Film {
    /// Length in ms.
    pub(crate) const fn lasts_ms(self) -> u64 {
        self.segment_ms as u64 * self.segments as u64
    }

    pub(crate) const fn segment(self) -> Duration {
        Duration::from_millis(self.segment_ms as u64)
    }
}

/// Sizes of the messages that the client reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// One size for all messages in bytes.
    Even(u32),
    /// Size of each message in bytes.
    Each(Vec<u32>),
}

impl Sizes {
    /// Size of a message in bytes. 0 if it does not exist.
    #[must_use]
    pub fn size_of(&self, index: u32) -> u32 {
        match self {
            Sizes::Even(bytes) => *bytes,
            Sizes::Each(sizes) => sizes.get(index as usize).copied().unwrap_or(0),
        }
    }
}

/// Logged event.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Stream number.
    pub stream: u8,
    /// Number identifying the request, block or burst.
    pub index: u32,
    /// Time in ns of the monotonic clock.
    pub at_ns: u64,
}

/// Log of one end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// Time at which writing of each message began (blocks: at which the stack had accepted the block).
    pub sent: Vec<Mark>,
    /// Time at which each message had been read completely.
    pub received: Vec<Mark>,
    /// Number of due requests that were skipped.
    #[serde(default)]
    pub skipped: u64,
}

/// Logs of one end's workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndLogs {
    /// A log for each workload, in order.
    pub flows: Vec<Log>,
    /// Payload bytes that this end also sent on another subflow, if known.
    pub reinjected_bytes: u64,
}

/// The monotonic clock in ns.
#[must_use]
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither part is negative for this clock.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Waits until a time of the monotonic clock.
pub async fn wait_until(at_ns: u64) {
    let left = at_ns.saturating_sub(now_ns());
    if left > 0 {
        tokio::time::sleep(Duration::from_nanos(left)).await;
    }
}

impl Workload {
    /// Send times of requests or bursts in ns after the start. Empty without a schedule.
    #[must_use]
    pub fn times_ns(&self, seed: u64) -> Vec<u64> {
        let (gap, count) = match *self {
            Workload::Ask { gap, count, .. }
            | Workload::Dialogue { gap, count, .. }
            | Workload::Bursts { gap, count, .. }
            | Workload::Web { gap, count }
            | Workload::RandomBursts { gap, count, .. } => (gap, count),
            Workload::Blocks { .. }
            | Workload::Upload { .. }
            | Workload::Voice { .. }
            | Workload::Film(_)
            | Workload::Exchange { .. } => return Vec::new(),
        };
        let mut rng = SeedTree::new(seed).stream("workload");
        let mut at_ms = 0.0;
        let mut next = |_| {
            let at = at_ms;
            at_ms += (gap.most_ms - gap.least_ms).mul_add(rng.unit(), gap.least_ms);
            (at * 1e6) as u64
        };
        (0..count).map(&mut next).collect()
    }

    /// Number of messages. `None`: as many as fit into the time.
    #[must_use]
    pub const fn count(&self) -> Option<u32> {
        match *self {
            Workload::Ask { count, .. }
            | Workload::Dialogue { count, .. }
            | Workload::Bursts { count, .. }
            | Workload::Web { count, .. }
            | Workload::RandomBursts { count, .. } => Some(count),
            Workload::Film(film) => Some(film.segments),
            Workload::Exchange { .. } => Some(2),
            Workload::Voice { count, .. } => Some(2 * count),
            Workload::Blocks { .. } | Workload::Upload { .. } => None,
        }
    }

    /// Returns true if the client sends the messages: requests or uploads.
    #[must_use]
    pub const fn is_from_client(&self) -> bool {
        matches!(
            self,
            Workload::Ask { .. }
                | Workload::Dialogue { .. }
                | Workload::Upload { .. }
                | Workload::Film(_)
                | Workload::Web { .. }
        )
    }

    /// Sizes of answers, blocks or bursts. Random sizes are uniform, drawn from the seed. Sizes of a video depend on
    /// its player and are 0.
    #[must_use]
    pub fn sizes(&self, seed: u64) -> Sizes {
        match *self {
            Workload::Ask { answer_bytes: bytes, .. }
            | Workload::Dialogue { answer_bytes: bytes, .. }
            | Workload::Blocks { bytes, .. }
            | Workload::Upload { bytes, .. }
            | Workload::Voice { bytes, .. }
            | Workload::Exchange { bytes }
            | Workload::Bursts { bytes, .. } => Sizes::Even(bytes),
            Workload::Film(_) => Sizes::Even(0),
            Workload::Web { count, .. } => {
                Sizes::Each((0..count).map(|page| page::page_bytes(seed, page)).collect())
            }
            Workload::RandomBursts { least_bytes, most_bytes, count, .. } => {
                let mut rng = SeedTree::new(seed).stream("sizes");
                let span = u64::from(most_bytes.saturating_sub(least_bytes)) + 1;
                Sizes::Each((0..count).map(|_| least_bytes + rng.below(span) as u32).collect())
            }
        }
    }

    /// Planned duration after the start, on links that can carry the workload.
    #[must_use]
    pub fn duration(&self, seed: u64) -> Duration {
        match *self {
            Workload::Blocks { lasts_ms, .. } | Workload::Upload { lasts_ms, .. } => {
                Duration::from_millis(lasts_ms)
            }
            Workload::Film(film) => Duration::from_millis(film.lasts_ms()),
            // The last frames are in transit.
            Workload::Voice { frame_ms, count, .. } => {
                Duration::from_millis(u64::from(frame_ms) * u64::from(count)) + VOICE_TAIL
            }
            _ => Duration::from_nanos(self.times_ns(seed).last().copied().unwrap_or(0)),
        }
    }

    /// Due times of a dialogue's requests in ns after the start, and the lengths of their pieces. Empty for other
    /// workloads. Pieces are random, and the last one is the remainder.
    #[must_use]
    pub fn pieces(&self, seed: u64) -> Vec<(u64, Vec<u32>)> {
        let Workload::Dialogue { request_bytes, pieces: (least, most), .. } = *self else {
            return Vec::new();
        };
        let mut rng = SeedTree::new(seed).stream("pieces");
        let span = u64::from(most.saturating_sub(least)) + 1;
        let mut cut = |_: &u64| {
            let (mut left, mut pieces) = (request_bytes, Vec::new());
            while left > 0 {
                let piece = (least + rng.below(span) as u32).clamp(1, left);
                pieces.push(piece);
                left -= piece;
            }
            pieces
        };
        self.times_ns(seed).into_iter().map(|at| (at, cut(&at))).collect()
    }
}
