//! Effect of redundancy, estimated from captures of two paths: the delays of the paths, and of senders that use
//! both.
//!
//! Packets of the two paths that were sent at about the same time are a *pair*: either could have carried the
//! other's bytes. For each pair, four sending methods have a delay: the first path alone, the second path alone, the
//! path with the lower smoothed round trip according to the answers received by then (weight 1/8, RFC 6298), and
//! duplication, which takes the smaller delay. A lost packet has an infinite delay: captures do not show the delay of
//! a retransmission that another method would have made.
//!
//! Frömmgen and others evaluated ReMP TCP (2015) in this way from one redundant run: single-path results are computed,
//! not measured. The method is valid while copies do not fill a queue. On a full path, a copy delays the packets after
//! it, and captures without copies do not show that.
//!
//! Delays that are close in time are correlated, so intervals (95 %) are bootstraps over blocks of time.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;

use crate::estimate::{Estimate, Samples};
use crate::import::PathPacket;

/// Number of time blocks, which are the units of the bootstrap.
const BLOCKS: usize = 30;
/// Minimum number of pairs in a block.
const MIN_BLOCK_PAIRS: usize = 10;
/// Weight of a new sample in a smoothed round trip.
const GAIN: f64 = 1.0 / 8.0;

/// Meaning of the packets' delays.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Delay {
    /// One-way delay. The other direction is assumed to take as long.
    OneWay,
    /// Round trip, including the answer.
    RoundTrip,
}

/// A sending method.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sending {
    /// All packets on the first path.
    First,
    /// All packets on the second path.
    Second,
    /// Each packet on the path with the lower smoothed round trip.
    LowestRtt,
    /// Each packet on both paths.
    Both,
}

impl Sending {
    /// All sending methods.
    pub const ALL: [Sending; 4] =
        [Sending::First, Sending::Second, Sending::LowestRtt, Sending::Both];
}

/// Delays of a pair in ms, by [`Sending`]. Infinite if lost.
type Delays = [f64; 4];

/// Estimated effect of redundancy.
#[derive(Clone, Debug)]
pub struct WhatIf {
    /// Pairs in time blocks.
    blocks: Samples<Vec<Delays>>,
    /// Number of pairs.
    pub pairs: usize,
    /// Time from the first pair to the last.
    pub lasts: Duration,
    /// Median time between the two packets of a pair.
    pub apart: Duration,
}

/// Pairs the packets of two paths, each in the order of sending, that were sent at most `within` apart.
///
/// # Errors
/// There are fewer than 300 pairs.
pub fn what_if(
    first: &[PathPacket],
    second: &[PathPacket],
    within: Duration,
    delay: Delay,
) -> anyhow::Result<WhatIf> {
    let pairs = pair_passages(first, second, within);
    let least = BLOCKS * MIN_BLOCK_PAIRS;
    ensure!(
        pairs.len() >= least,
        "{} and {} packets give {} pairs that were sent within {within:?}; at least {least} are \
            needed. Were both \
         captured at the same time, using the same clock? (--within allows a longer gap)",
        first.len(),
        second.len(),
        pairs.len()
    );
    let mut apart: Vec<u64> = pairs.iter().map(|(a, b)| a.at_ns.abs_diff(b.at_ns)).collect();
    apart.sort_unstable();
    let lasts = pairs[pairs.len() - 1].0.at_ns.saturating_sub(pairs[0].0.at_ns);
    let delays = delays_of_pairs(&pairs, delay);
    let blocks = (0..BLOCKS).map(|block| {
        let at = |block: usize| block * delays.len() / BLOCKS;
        delays[at(block)..at(block + 1)].to_vec()
    });
    Ok(WhatIf {
        pairs: delays.len(),
        lasts: Duration::from_nanos(lasts.max(0).unsigned_abs()),
        apart: Duration::from_nanos(apart[apart.len() / 2]),
        blocks: Samples::new(blocks.collect(), 1).for_tables(),
    })
}

/// Pairs each packet with the nearest unpaired one of the other path.
fn pair_passages(
    first: &[PathPacket],
    second: &[PathPacket],
    within: Duration,
) -> Vec<(PathPacket, PathPacket)> {
    let mut pairs = Vec::new();
    let mut next = 0;
    for one in first {
        let apart = |other: &PathPacket| u128::from(one.at_ns.abs_diff(other.at_ns));
        while next + 1 < second.len() && apart(&second[next + 1]) < apart(&second[next]) {
            next += 1;
        }
        match second.get(next) {
            Some(other) if apart(other) <= within.as_nanos() => {
                pairs.push((*one, *other));
                next += 1;
            }
            _ => {}
        }
    }
    pairs
}

/// Delays of the pairs for every sending method.
fn delays_of_pairs(pairs: &[(PathPacket, PathPacket)], delay: Delay) -> Vec<Delays> {
    let ways = match delay {
        Delay::OneWay => 2,
        Delay::RoundTrip => 1,
    };
    let mut smoothed = [None, None];
    // Round trips by arrival time of the answer, path, and index.
    let mut coming: BTreeMap<(i64, usize, usize), f64> = BTreeMap::new();
    let mut delays = Vec::with_capacity(pairs.len());
    for (number, (one, other)) in pairs.iter().enumerate() {
        let now_ns = one.at_ns.min(other.at_ns);
        while let Some(entry) = coming.first_entry().filter(|entry| entry.key().0 <= now_ns) {
            let (_, path, _) = *entry.key();
            let sample = entry.remove();
            let before = smoothed[path].unwrap_or(sample);
            smoothed[path] = Some(before + GAIN * (sample - before));
        }
        let took = [one, other].map(|passage| passage.took_ns);
        for (path, took_ns) in took.iter().enumerate() {
            if let Some(round_ns) = took_ns.map(|ns| ways * ns) {
                let round_ms = round_ns as f64 / 1e6;
                // The first packet's round trip is assumed to be known from the handshake.
                smoothed[path].get_or_insert(round_ms);
                coming.insert((now_ns + round_ns, path, number), round_ms);
            }
        }
        let [a, b] = took.map(|ns| ns.map_or(f64::INFINITY, |ns| ns as f64 / 1e6));
        let chosen = match smoothed {
            [Some(first), Some(second)] if second < first => b,
            [None, Some(_)] => b,
            _ => a,
        };
        delays.push([a, b, chosen, a.min(b)]);
    }
    delays
}

impl WhatIf {
    /// A quantile of a sending method's delay in ms, by the nearest rank. Infinite if too many packets were lost.
    #[must_use]
    pub fn quantile(&self, way: Sending, share: f64) -> Estimate {
        self.blocks.estimate(|blocks| rank(blocks, way, share))
    }

    /// The ratio of this quantile for duplication to that of another method, pair by pair. Below 1, duplication is
    /// faster.
    #[must_use]
    pub fn ratio(&self, other: Sending, share: f64) -> Estimate {
        self.blocks
            .estimate(|blocks| rank(blocks, Sending::Both, share) / rank(blocks, other, share))
    }

    /// Share of the packets that were lost.
    #[must_use]
    pub fn lost(&self, way: Sending) -> Estimate {
        self.blocks.estimate(|blocks| lost(blocks, way))
    }

    /// Share lost on both paths, divided by the share expected from independent losses. NaN if a path lost nothing.
    #[must_use]
    pub fn joint_loss_ratio(&self) -> Estimate {
        let share = |blocks: &[&Vec<Delays>]| {
            let [first, second, _, both] = Sending::ALL.map(|way| lost(blocks, way));
            both / (first * second)
        };
        self.blocks.estimate(share)
    }
}

fn rank(blocks: &[&Vec<Delays>], way: Sending, share: f64) -> f64 {
    let all = blocks.iter().flat_map(|block| block.iter());
    let delays: Vec<f64> = all.map(|pair| pair[way as usize]).collect();
    marline_sim::quantile(&delays, share)
}

fn lost(blocks: &[&Vec<Delays>], way: Sending) -> f64 {
    let all = || blocks.iter().flat_map(|block| block.iter());
    let lost = all().filter(|pair| pair[way as usize].is_infinite()).count();
    lost as f64 / all().count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passage(at_ms: i64, took_ms: Option<i64>) -> PathPacket {
        PathPacket { at_ns: at_ms * 1_000_000, took_ns: took_ms.map(|ms| ms * 1_000_000) }
    }

    /// A packet every 20 ms, starting at `from_ms`. `took` returns a packet's delay by its number.
    fn path(from_ms: i64, took: impl Fn(i64) -> Option<i64>) -> Vec<PathPacket> {
        (0..600).map(|number| passage(from_ms + 20 * number, took(number))).collect()
    }

    fn values(result: &WhatIf, share: f64) -> [f64; 4] {
        Sending::ALL.map(|way| result.quantile(way, share).value)
    }

    #[test]
    fn duplication_has_the_lower_delay_and_lowest_round_trip_reacts_late() {
        // For the first half, the first path is faster, and then it takes 100 ms.
        let first = path(0, |number| Some(if number < 300 { 10 } else { 100 }));
        let second = path(1, |_| Some(40));
        let result = what_if(&first, &second, Duration::from_millis(5), Delay::OneWay).unwrap();
        assert_eq!((result.pairs, result.apart), (600, Duration::from_millis(1)));
        assert_eq!(values(&result, 0.25), [10.0, 40.0, 10.0, 10.0]);
        assert_eq!(values(&result, 0.75), [100.0, 40.0, 40.0, 40.0]);
        // Answers with a delay of 100 ms arrive after 200 ms, ten packets later, and four of them raise the average
        // above the other path's: about 13 packets.
        assert_eq!(values(&result, 0.99), [100.0, 40.0, 100.0, 40.0]);
        let slow = result.blocks.all().iter().flatten().filter(|pair| pair[2] == 100.0).count();
        assert!((11..=14).contains(&slow), "{slow}");
        assert_eq!(result.ratio(Sending::First, 0.99).value, 0.4);
    }

    #[test]
    fn a_loss_on_one_path_is_covered_by_the_other() {
        let first = path(0, |number| (number % 5 != 0).then_some(10));
        let second = path(0, |number| (number % 4 != 0).then_some(30));
        let result = what_if(&first, &second, Duration::ZERO, Delay::OneWay).unwrap();
        let lost = Sending::ALL.map(|way| result.lost(way).value);
        assert_eq!(lost, [0.2, 0.25, 0.2, 0.05]);
        assert!(
            (result.joint_loss_ratio().value - 1.0).abs() < 1e-9,
            "{:?}",
            result.joint_loss_ratio()
        );
        assert_eq!(values(&result, 0.9), [f64::INFINITY, f64::INFINITY, f64::INFINITY, 30.0]);
        let interval = result.lost(Sending::First);
        assert!(interval.low <= 0.2 && interval.high >= 0.2, "{interval:?}");
    }

    #[test]
    fn distant_packets_are_not_paired() {
        let (first, second) = (path(0, |_| Some(10)), path(4, |_| Some(10)));
        let error = what_if(&first, &second, Duration::from_millis(3), Delay::OneWay).unwrap_err();
        assert!(error.to_string().contains("0 pairs"), "{error}");
        // With four times as many packets, each is used only once.
        let dense: Vec<PathPacket> = (0..2_400).map(|n| passage(5 * n, Some(10))).collect();
        let result = what_if(&dense, &second, Duration::from_millis(3), Delay::OneWay).unwrap();
        assert_eq!(result.pairs, 600);
    }
}
