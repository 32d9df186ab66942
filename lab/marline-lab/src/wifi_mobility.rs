//! WiFi mobility model: walks out of WiFi range with LTE available, as used by multimob2018 and multimob-live.
//!
//! A seed determines a walk: the movement of the phone, the losses and pauses of WiFi
//! ([`marline_link::PhoneMobility`]), and the part of a recorded LTE drive that is replayed with it. A seed gives the
//! same walk in virtual time and over emulated links, because random numbers are derived from the names of the links.

use std::path::Path as FilePath;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Context;
use marline_link::{DuplexConfig, DuplexSpec, PhoneMobility, RateSpec};
use marline_time::{Rng, SeedTree};
use serde::Deserialize;

use crate::emulation::{script, traces};
use crate::scenario::Path;

const TEXT: &str = include_str!("../papers/walks.toml");

/// Names of the paths, in order.
pub const PATHS: [&str; 2] = ["wifi", "lte"];

/// Contents of `papers/walks.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    walks: u32,
    lasts: String,
    leaving: String,
    staying: String,
    lte: Lte,
    fit: Fit,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lte {
    link: String,
    untraced: String,
    trace: Vec<Recording>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recording {
    name: String,
    lasts: String,
}

/// Bounds on the model's results, which are explained in the file.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// Median of the round trips in ms.
    pub rtt_p50_ms: (f64, f64),
    /// 99.9th percentile of the round trips in ms.
    pub rtt_p999_ms: (f64, f64),
    /// Longest round trip in ms.
    pub rtt_max_ms: (f64, f64),
    /// Share of the seconds with less than 1 Mbit/s to the phone.
    pub slow_share: (f64, f64),
    /// Share of the probes that were lost.
    pub lost_share: (f64, f64),
}

static FILE: LazyLock<File> =
    LazyLock::new(|| toml::from_str(TEXT).unwrap_or_else(|error| panic!("walks.toml: {error}")));

/// A walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MobilityRun {
    /// Seed of the walk.
    pub seed: u64,
    /// The WiFi link (docs/research/link.md).
    pub wifi: String,
    /// The LTE link.
    pub lte: String,
}

/// Number of walks.
#[must_use]
pub fn count() -> u32 {
    FILE.walks
}

/// Duration of a walk.
#[must_use]
pub fn walk_duration() -> Duration {
    script::duration(&FILE.lasts).unwrap_or(Duration::from_secs(80))
}

/// Bounds that the model must meet.
#[must_use]
pub fn fit_bounds() -> Fit {
    FILE.fit
}

/// Creates the walk of this seed: out of WiFi range, or always within it if `leaves` is false. LTE has the rates of a
/// recorded drive, or constant rates if `traced` is false.
#[must_use]
pub fn mobility_run(seed: u64, leaves: bool, traced: bool) -> MobilityRun {
    let wifi = if leaves { &FILE.leaving } else { &FILE.staying };
    let lte = if traced {
        let mut rng = SeedTree::new(seed).stream("walks/lte");
        let recording = &FILE.lte.trace[rng.below(FILE.lte.trace.len() as u64) as usize];
        let whole = script::duration(&recording.lasts).unwrap_or_default();
        let from_s = rng.below(whole.saturating_sub(walk_duration()).as_secs().max(1));
        format!("trace={}@{from_s}s,{}", recording.name, FILE.lte.link)
    } else {
        format!("{},{}", FILE.lte.untraced, FILE.lte.link)
    };
    MobilityRun { seed, wifi: wifi.clone(), lte }
}

impl MobilityRun {
    /// The walk with radios that are always awake: their energy is counted, but packets do not wait.
    #[must_use]
    pub fn without_promotion(mut self) -> MobilityRun {
        self.wifi = self.wifi.replace("radio=wifi", "radio=wifi:meter");
        self.lte = self.lte.replace("radio=lte", "radio=lte:meter");
        self
    }

    /// The two paths, for scenarios and experiments.
    #[must_use]
    pub fn paths(&self) -> Vec<Path> {
        let path = |(name, link): (&str, &String)| Path {
            name: name.to_owned(),
            link: link.clone(),
            ..Path::default()
        };
        PATHS.into_iter().zip([&self.wifi, &self.lte]).map(path).collect()
    }

    /// The links, for worlds: WiFi, LTE.
    ///
    /// # Errors
    /// A recorded drive is missing.
    pub fn links(&self, trace_dir: Option<&FilePath>) -> anyhow::Result<Vec<DuplexConfig>> {
        let link = |path: Path| {
            let seeds = SeedTree::new(self.seed).branch(&path.name);
            traces::resolve(&path.spec()?, trace_dir, &seeds)
        };
        self.paths().into_iter().map(link).collect()
    }

    /// Periods after the start of the links in which the WiFi interface has no address. Without an end, the address
    /// does not return. Empty if the interface always has an address.
    ///
    /// # Errors
    /// The link does not use the WiFi mobility model.
    pub fn absence_periods(&self) -> anyhow::Result<Vec<(Duration, Option<Duration>)>> {
        let spec: DuplexSpec = self.wifi.parse()?;
        let RateSpec::PhoneMobility(phone) = spec.down.rate else {
            anyhow::bail!("unknown walk `{}`", self.wifi)
        };
        Ok(self.profile(phone).away_periods)
    }

    fn profile(&self, phone: PhoneMobility) -> marline_link::PhoneMobilityProfile {
        phone.draw(&SeedTree::new(self.seed).branch(PATHS[0]))
    }
}

/// Results of probing WiFi during some walks, until the interface disassociates.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeResults {
    /// Round trips in ms, ascending.
    pub rtts_ms: Vec<f64>,
    /// Number of probes lost before the last answered one.
    pub lost: usize,
    /// Number of seconds, and number of seconds with less than 1 Mbit/s to the phone.
    pub seconds: (usize, usize),
}

/// Probes WiFi during these walks: 200 bytes every 200 ms, answered immediately.
///
/// # Errors
/// The same as [`MobilityRun::links`].
pub fn probe(seeds: impl Iterator<Item = u64>, leaves: bool) -> anyhow::Result<ProbeResults> {
    let mut seen = ProbeResults { rtts_ms: Vec::new(), lost: 0, seconds: (0, 0) };
    for seed in seeds {
        let run = mobility_run(seed, leaves, false);
        let end = run
            .absence_periods()?
            .first()
            .map_or(walk_duration(), |away_periods| away_periods.0.min(walk_duration()));
        let links = run.links(None)?;
        probe_one(links.first().context("the scenario has no WiFi link")?, seed, end, &mut seen);
    }
    seen.rtts_ms.sort_by(f64::total_cmp);
    Ok(seen)
}

fn probe_one(wifi: &DuplexConfig, seed: u64, end: Duration, seen: &mut ProbeResults) {
    use marline_link::{Link, RateConfig};
    use marline_time::Instant;

    let seeds = SeedTree::new(seed).branch(PATHS[0]);
    let up = Link::new(wifi.up.clone(), &seeds.branch("up"), Instant::ZERO);
    let down = Link::new(wifi.down.clone(), &seeds.branch("down"), Instant::ZERO);
    let mut links = [up, down];
    let numbered = |number: u64| {
        let mut probe = vec![0; 200];
        probe[..8].copy_from_slice(&number.to_be_bytes());
        probe
    };
    let sent_at = |number: u64| Instant::from_millis(number * 200);
    let (mut sent, mut answered, mut until) = (0, 0, 0);
    loop {
        let wants = Some(sent_at(sent)).filter(|at| *at < Instant::ZERO + end);
        let event = links.iter().filter_map(Link::next_event).chain(wants).min();
        let Some(now) = event else { break };
        if wants == Some(now) {
            links[0].offer(now, numbered(sent));
            sent += 1;
        }
        while let Some(probe) = links[0].poll(now) {
            links[1].offer(now, probe);
        }
        while let Some(answer) = links[1].poll(now) {
            let number = answer.first_chunk().copied().map_or(0, u64::from_be_bytes);
            seen.rtts_ms.push(now.since(sent_at(number)).as_secs_f64() * 1e3);
            (answered, until) = (answered + 1, until.max(number as usize + 1));
        }
    }
    // After the last answer WiFi is out of range, so later probes do not count as lost.
    seen.lost += until - answered;
    let RateConfig::Steps(rates) = &wifi.down.rate else { return };
    for second in 0..sent_at(until as u64).as_millis() / 1_000 {
        let sample =
            |tenth: u64| rates.value_at(Duration::from_millis(second * 1_000 + tenth * 100)).0;
        let bits: u64 = (0..10).map(|tenth| sample(tenth).bits_per_s() / 10).sum();
        seen.seconds.0 += 1;
        seen.seconds.1 += usize::from(bits < 1_000_000);
    }
}

#[cfg(test)]
mod tests {
    use marline_sim::quantile;

    use super::*;

    #[test]
    fn equal_seeds_give_equal_walks() {
        let first = mobility_run(7, true, true);
        assert_eq!(first, mobility_run(7, true, true));
        let drives: std::collections::BTreeSet<String> =
            (1..=u64::from(count())).map(|seed| mobility_run(seed, true, true).lte).collect();
        assert!(drives.len() > 50, "{drives:?}");
        let untraced = mobility_run(7, true, false);
        assert_eq!(untraced.wifi, first.wifi);
        let links = untraced.links(None).expect("no traces needed");
        assert!(links[1].up.radio.expect("a radio").waits);
        let awake = untraced.without_promotion().links(None).expect("links");
        assert!(!awake[1].up.radio.expect("a radio").waits);
        assert_eq!(awake[0], links[0]);
        assert_eq!(walk_duration(), Duration::from_secs(80));
    }

    #[test]
    fn recorded_drives_are_long_enough() {
        let Some(directory) = marline_testkit::need::trace_dir() else { return };
        for seed in 1..=u64::from(count()) {
            mobility_run(seed, true, true).links(Some(&directory)).expect("the drive");
        }
    }

    #[test]
    fn the_walks_match_published_measurements() {
        let within = |what: &str, value: f64, (least, most): (f64, f64)| {
            assert!(
                (least..=most).contains(&value),
                "{what}: {value} is not between {least} and {most}"
            );
        };
        let all = 1..=u64::from(count());
        let seen = probe(all.clone(), true).expect("probes");
        let fit = fit_bounds();
        let probes = (seen.rtts_ms.len() + seen.lost) as f64;
        let figures = [
            ("median", quantile(&seen.rtts_ms, 0.5), fit.rtt_p50_ms),
            ("p99.9", quantile(&seen.rtts_ms, 0.999), fit.rtt_p999_ms),
            ("longest", quantile(&seen.rtts_ms, 1.0), fit.rtt_max_ms),
            ("slow seconds", seen.seconds.1 as f64 / seen.seconds.0 as f64, fit.slow_share),
            ("lost", seen.lost as f64 / probes, fit.lost_share),
        ];
        for (what, value, bounds) in figures {
            within(what, value, bounds);
        }
        let gone = all.clone().filter(|seed| {
            let away_periods = mobility_run(*seed, true, false).absence_periods().expect("a walk");
            away_periods.first().is_some_and(|away_periods| away_periods.0 < walk_duration())
        });
        assert!(gone.count() * 10 >= 9 * count() as usize);
        // A walk within range has almost no loss and is never slow.
        let still = probe(all, false).expect("probes");
        assert_eq!(still.seconds.1, 0);
        assert!((still.lost as f64) < 0.005 * still.rtts_ms.len() as f64, "{}", still.lost);
        within("median at rest", quantile(&still.rtts_ms, 0.5), fit.rtt_p50_ms);
    }
}
