//! Measures the data rate of a client's routes, and the share of repeated data.
//!
//! A network that polices a transport silently drops data beyond some rate. The symptoms are many repetitions together
//! with a low rate. Both directions are measured here from the sequence numbers of segments: a segment below the
//! highest end of its flow is a repetition.
//!
//! Lanes do not repeat data. Their loss counts only if it is far higher than that of radio links, because a trial over
//! TCP delays their datagrams.

use core::num::NonZeroU64;
use std::collections::BTreeMap;

use marline_time::{Duration, Instant};

use crate::carrier::FlowEnds;

/// Length of a measurement window.
const WINDOW_LENGTH: Duration = Duration::from_secs(2);
/// Number of consecutive windows that must look policed.
const MIN_POLICED_WINDOWS: u32 = 2;
/// Minimum payload for a valid measurement, in bytes.
const MIN_BYTES: u64 = 64_000;
/// Data rate at or above which a route counts as fast enough.
const MIN_FAST_BITS_PER_S: u64 = 20_000_000;
/// On a policed route, at least one in this many bytes is repeated.
const POLICED_REPEAT_SHARE: u64 = 50;
/// On a policed route, at least one in this many bytes of a lane is lost.
const POLICED_LANE_LOSS: u64 = 6;
/// Minimum length of a segment that belongs to a bulk transfer, in bytes.
const BULK_BYTES: usize = 400;
/// Maximum numbers of measured routes and flows. Beyond them, all measurements restart.
const MAX_ROUTES: usize = 64;
const MAX_FLOWS: usize = 512;

const TCP_HEADER: usize = 20;

/// Direction of data from the client's point of view.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DataDirection {
    /// To the server.
    Up,
    /// From the server.
    Down,
}

/// Route that looks policed: direction and rate.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicedRoute {
    pub(crate) heading: DataDirection,
    /// True if the measurement is based on lanes instead of segments.
    pub(crate) by_lanes: bool,
    pub(crate) bits_per_s: u64,
}

/// Byte counts of a lane in one direction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaneBytes {
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
}

/// Payload bytes in one direction.
#[derive(Copy, Clone, Debug, Default)]
struct DirectionBytes {
    new_bytes: u64,
    /// Number of repeated bytes, or of lost bytes for lanes.
    repeated: u64,
}

/// Measurements of a route in the current window.
#[derive(Copy, Clone, Debug)]
struct Window {
    since: Instant,
    /// Bytes in each direction: up, down.
    carried: [DirectionBytes; 2],
    /// Number of consecutive earlier windows that looked policed.
    policed: u32,
}

impl Window {
    const fn new(since: Instant) -> Window {
        Window { since, carried: [DirectionBytes { new_bytes: 0, repeated: 0 }; 2], policed: 0 }
    }

    /// Counts bytes, and evaluates the window if it has ended. A route looks policed if one byte in `repeated_of` is
    /// repeated. Returns direction and rate if enough consecutive windows looked policed.
    fn count_bytes(
        &mut self,
        now: Instant,
        heading: DataDirection,
        carried: DirectionBytes,
        repeated_of: u64,
    ) -> Option<(DataDirection, u64)> {
        let sum = &mut self.carried[heading as usize];
        (sum.new_bytes, sum.repeated) =
            (sum.new_bytes + carried.new_bytes, sum.repeated + carried.repeated);
        if now < self.since + WINDOW_LENGTH {
            return None;
        }
        let look = |heading: DataDirection| {
            let DirectionBytes { new_bytes: fresh, repeated } = self.carried[heading as usize];
            let rate = bits_per_s(fresh, self.since, now)?;
            let is_slow = fresh >= MIN_BYTES && rate <= MIN_FAST_BITS_PER_S;
            (is_slow && repeated * repeated_of >= fresh + repeated).then_some((heading, rate))
        };
        let found = look(DataDirection::Down).or_else(|| look(DataDirection::Up));
        let policed = found.map_or(0, |_| self.policed.saturating_add(1));
        *self = Window { policed, ..Window::new(now) };
        found.filter(|_| policed >= MIN_POLICED_WINDOWS)
    }
}

/// Returns the rate of these bytes, or `None` if no time has passed.
fn bits_per_s(bytes: u64, since: Instant, now: Instant) -> Option<u64> {
    let elapsed_ms = NonZeroU64::new(now.since(since).as_millis() as u64)?;
    Some(bytes * 8_000 / elapsed_ms)
}

#[derive(Copy, Clone, Debug)]
struct Pace {
    segments: Window,
    lanes: Window,
    /// Start of a trial, which spans several windows, and its new data in segments and in lanes, each up and down.
    trial: Option<(Instant, [[u64; 2]; 2])>,
}

impl Pace {
    const fn new(since: Instant) -> Pace {
        Pace { segments: Window::new(since), lanes: Window::new(since), trial: None }
    }

    fn count_bytes(
        &mut self,
        now: Instant,
        by_lanes: bool,
        heading: DataDirection,
        carried: DirectionBytes,
    ) -> Option<PolicedRoute> {
        if let Some((_, sums)) = &mut self.trial {
            sums[usize::from(by_lanes)][heading as usize] += carried.new_bytes;
        }
        let (window, repeated_of) = match by_lanes {
            true => (&mut self.lanes, POLICED_LANE_LOSS),
            false => (&mut self.segments, POLICED_REPEAT_SHARE),
        };
        let (heading, bits_per_s) = window.count_bytes(now, heading, carried, repeated_of)?;
        Some(PolicedRoute { heading, by_lanes, bits_per_s })
    }
}

/// Measurements of all routes.
#[derive(Debug, Default)]
pub(crate) struct Paces {
    routes: BTreeMap<FlowEnds, Pace>,
    /// Highest end of data seen per flow and direction.
    seen: BTreeMap<(u64, DataDirection), u32>,
}

impl Paces {
    /// Counts segments of a flow on a route. Returns the direction and rate once the route looks policed.
    pub(crate) fn note<'a>(
        &mut self,
        now: Instant,
        ends: FlowEnds,
        flow: u64,
        heading: DataDirection,
        segments: impl Iterator<Item = &'a [u8]>,
    ) -> Option<PolicedRoute> {
        let mut carried = DirectionBytes::default();
        for (seq, len) in segments.filter_map(bulk) {
            if self.seen.len() >= MAX_FLOWS && !self.seen.contains_key(&(flow, heading)) {
                self.seen.clear();
            }
            let seen = self.seen.entry((flow, heading)).or_insert(seq);
            let end = seq.wrapping_add(len);
            // A sequence number less than 2^31 below the highest end is a repetition.
            if (seq.wrapping_sub(*seen) as i32) < 0 {
                carried.repeated += u64::from(len);
            } else {
                carried.new_bytes += u64::from(len);
                *seen = end;
            }
        }
        if carried.new_bytes + carried.repeated == 0 {
            return None;
        }
        self.pace(now, ends).count_bytes(now, false, heading, carried)
    }

    /// Counts bytes of a lane on a route. Returns the direction and rate once the route looks policed.
    pub(crate) fn count_lane_bytes(
        &mut self,
        now: Instant,
        ends: FlowEnds,
        heading: DataDirection,
        LaneBytes { delivered, lost }: LaneBytes,
    ) -> Option<PolicedRoute> {
        if delivered + lost == 0 {
            return None;
        }
        let carried = DirectionBytes { new_bytes: delivered, repeated: lost };
        self.pace(now, ends).count_bytes(now, true, heading, carried)
    }

    fn pace(&mut self, now: Instant, ends: FlowEnds) -> &mut Pace {
        if self.routes.len() >= MAX_ROUTES && !self.routes.contains_key(&ends) {
            self.routes.clear();
        }
        self.routes.entry(ends).or_insert_with(|| Pace::new(now))
    }

    /// Returns the rate of new data since the start of a trial; `None` if there is not enough data.
    pub(crate) fn trial_rate(
        &self,
        now: Instant,
        ends: &FlowEnds,
        of: &PolicedRoute,
    ) -> Option<u64> {
        let (since, sums) = self.routes.get(ends)?.trial?;
        let fresh = sums[usize::from(of.by_lanes)][of.heading as usize];
        let rate = bits_per_s(fresh, since, now)?;
        (fresh >= MIN_BYTES).then_some(rate)
    }

    /// Starts a trial, for which data counts from now on.
    pub(crate) fn begin_trial(&mut self, now: Instant, ends: FlowEnds) {
        let trial = Some((now, [[0; 2]; 2]));
        self.routes.insert(ends, Pace { trial, ..Pace::new(now) });
    }

    /// Drops the measurements of a route.
    pub(crate) fn drop_route(&mut self, ends: &FlowEnds) {
        self.routes.remove(ends);
    }
}

/// Returns the sequence number and payload length of a segment that belongs to a bulk transfer.
fn bulk(segment: &[u8]) -> Option<(u32, u32)> {
    let header = segment.get(..TCP_HEADER)?;
    let payload = segment.len().checked_sub(usize::from(header[12] >> 4) * 4)?;
    let seq = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    (payload >= BULK_BYTES).then_some((seq, u32::try_from(payload).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> FlowEnds {
        FlowEnds::new([192, 0, 2, 9].into(), ([203, 0, 113, 7], 7_777).into())
    }

    fn segment(seq: u32) -> Vec<u8> {
        let mut bytes = vec![0; TCP_HEADER + 1_000];
        bytes[4..8].copy_from_slice(&seq.to_be_bytes());
        bytes[12] = 5 << 4;
        bytes
    }

    /// Sends 125 segments per second (1 Mbit/s); one in `repeats_each` is repeated.
    fn run(paces: &mut Paces, repeats_each: u32) -> Vec<(u64, PolicedRoute)> {
        let mut found = Vec::new();
        for number in 0..1_000_u32 {
            let now = Instant::from_millis(u64::from(number) * 8);
            let bytes = segment((u32::MAX - 5_000).wrapping_add(number * 1_000));
            let mut segments = vec![&bytes[..]];
            if number % repeats_each == 0 {
                segments.push(&bytes);
            }
            let policed = paces.note(now, ends(), 7, DataDirection::Down, segments.into_iter());
            found.extend(policed.map(|policed| (now.as_millis(), policed)));
        }
        found
    }

    #[test]
    fn a_slow_route_that_repeats_much_looks_policed_after_a_while() {
        let found = run(&mut Paces::default(), 20);
        let [(first_ms, policed), ..] = found[..] else { panic!("no rate found") };
        assert_eq!((first_ms, policed.heading), (4_000, DataDirection::Down));
        assert!((990_000..1_010_000).contains(&policed.bits_per_s), "{}", policed.bits_per_s);
    }

    #[test]
    fn a_slow_route_that_loses_little_does_not() {
        assert_eq!(run(&mut Paces::default(), 100), []);
    }

    #[test]
    fn a_route_looks_policed_by_a_lane_that_loses_far_more_than_radios_do() {
        let found_at = |bytes: u64, lost_percent: u64| {
            let mut paces = Paces::default();
            let lost = bytes * lost_percent / 100;
            let bytes = LaneBytes { delivered: bytes - lost, lost };
            (0..20).map(|look| look * 500).find(|ms| {
                let now = Instant::from_millis(*ms);
                paces
                    .count_lane_bytes(now, ends(), DataDirection::Up, bytes)
                    .is_some_and(|found| found.by_lanes)
            })
        };
        assert_eq!(found_at(250_000, 75), Some(4_000), "4 Mbit/s");
        assert_eq!(found_at(250_000, 10), None);
        assert_eq!(found_at(5_000, 75), None, "a call");
        assert_eq!(found_at(8_000_000, 50), None, "fast enough");
    }

    #[test]
    fn the_pace_table_is_bounded_and_short_segments_are_ignored() {
        let (mut paces, bytes) = (Paces::default(), segment(1));
        for flow in 0..2_000_u16 {
            let ends = FlowEnds::new(ends().local, ([203, 0, 113, 7], flow).into());
            let (flow, heading) = (u64::from(flow), DataDirection::Up);
            let segments = [&bytes[..]].into_iter();
            let policed = paces.note(Instant::from_millis(1), ends, flow, heading, segments);
            assert_eq!(policed, None);
        }
        assert!(paces.routes.len() <= MAX_ROUTES && paces.seen.len() <= MAX_FLOWS);
        assert_eq!(bulk(&bytes[..200]), None);
        assert_eq!(bulk(&bytes[..10]), None);
    }
}
