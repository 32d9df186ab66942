//! Reader of the WiFi signal strength: hints for paths whose signal fades, once a second from Linux's
//! /proc/net/wireless.
//!
//! The file has a line for each associated interface of a driver with wireless extensions, including cfg80211's, with
//! the level of the last beacons in dBm. If the file or line is missing, no hints are given, which is normal without a
//! radio, with a driver for WiFi 7 (which has no wireless extensions), or in a namespace without the interface.
//! Cellular modems do not appear there. A program that reads a modem's signal can call `marline path wwan0 hint
//! fading`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use marline::Client;
use marline::paths::PathChange;
use marline::policy::{SignalMonitor, SignalThresholds};
use marline_time::Instant;

const FILE: &str = "/proc/net/wireless";
/// Interval between reads. Beacons arrive ten times a second.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Plausible levels of a radio, in dBm. Other values come from drivers with other units, or are -256, which means no
/// value.
const LEVELS: std::ops::RangeInclusive<i32> = -120..=-1;

/// A reader whose thresholds can be changed. Clones share them.
#[derive(Clone, Debug)]
pub struct SignalReader(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Thresholds; `None` if the file is not read.
    thresholds: Option<SignalThresholds>,
    /// Signal monitors by interface.
    judges: BTreeMap<String, SignalMonitor>,
}

impl SignalReader {
    /// Creates a reader with these thresholds. Without thresholds, it does nothing.
    #[must_use]
    pub fn new(thresholds: Option<SignalThresholds>) -> SignalReader {
        SignalReader(Arc::new(Mutex::new(State { thresholds, judges: BTreeMap::new() })))
    }

    /// Applies these thresholds.
    pub fn change(&self, thresholds: Option<SignalThresholds>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.thresholds != thresholds {
            state.thresholds = thresholds;
            if let Some(thresholds) = thresholds {
                state.judges.values_mut().for_each(|judge| judge.change(thresholds));
            }
        }
    }

    /// Gives hints to the client's paths until dropped.
    pub async fn watch_signals(&self, client: &Client) {
        let begun = tokio::time::Instant::now();
        let mut looks = tokio::time::interval(READ_INTERVAL);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            looks.tick().await;
            let now = Instant::from_nanos(begun.elapsed().as_nanos() as u64);
            self.read_signals(client, now);
        }
    }

    fn read_signals(&self, client: &Client, now: Instant) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.thresholds.is_none() && state.judges.is_empty() {
            return;
        }
        // A few hundred bytes that the kernel generates in memory, so that reading does not block.
        let text = std::fs::read_to_string(FILE).unwrap_or_default();
        let statuses = client.paths();
        let interfaces = statuses.iter().map(|status| status.interface.as_deref());
        for (number, fading) in state.judge(interfaces, &levels(&text), now) {
            let change = if fading { PathChange::Fading } else { PathChange::Steady };
            // Paths may have changed in the meantime.
            if let Err(error) = client.set_path(&number.to_string(), change) {
                tracing::debug!("{error}");
                continue;
            }
            let path = statuses[number].interface.as_deref().unwrap_or_default();
            match fading {
                true => {
                    tracing::info!(
                        "{path}: signal is fading: new data uses other paths if possible"
                    )
                }
                false => tracing::info!("{path}: signal is steady again"),
            }
        }
    }
}

impl State {
    /// Returns the changes of the paths with these interfaces: number, and whether the signal fades.
    fn judge<'a>(
        &mut self,
        interfaces: impl Iterator<Item = Option<&'a str>>,
        levels: &BTreeMap<&str, f32>,
        now: Instant,
    ) -> Vec<(usize, bool)> {
        let interfaces: Vec<Option<&str>> = interfaces.collect();
        let on = self.thresholds;
        self.judges.retain(|name, judge| {
            interfaces.contains(&Some(name.as_str())) && (on.is_some() || judge.is_fading())
        });
        if let Some(thresholds) = on {
            for interface in interfaces.iter().flatten().filter(|name| levels.contains_key(**name))
            {
                let new = || SignalMonitor::new(thresholds);
                self.judges.entry((*interface).to_owned()).or_insert_with(new);
            }
        }
        let mut changed = BTreeMap::new();
        for (name, judge) in &mut self.judges {
            let change = match on {
                Some(_) => judge.read(now, levels.get(name.as_str()).copied()),
                None => Some(false),
            };
            changed.extend(change.map(|fading| (name.clone(), fading)));
        }
        if on.is_none() {
            self.judges.clear();
        }
        let of = |(number, name): (usize, &Option<&str>)| Some((number, *changed.get((*name)?)?));
        interfaces.iter().enumerate().filter_map(of).collect()
    }
}

/// Returns the levels by interface, in dBm.
fn levels(text: &str) -> BTreeMap<&str, f32> {
    text.lines().filter_map(parse_line).collect()
}

/// Returns the interface and level of a line. Two lines are headings. A dot marks a new value.
fn parse_line(line: &str) -> Option<(&str, f32)> {
    let (name, rest) = line.split_once(':')?;
    let level = rest.split_whitespace().nth(2)?;
    let level: i32 = level.trim_end_matches('.').parse().ok()?;
    LEVELS.contains(&level).then_some((name.trim(), level as f32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of Linux 6.1 for three radios: associated, not associated, and one with other units.
    const TEXT: &str = "\
Inter-| sta-|   Quality        |   Discarded packets               | Missed | WE
 face | tus | link level noise |  nwid  crypt   frag  retry   misc | beacon | 22
 wlan0: 0000   54.  -56.  -256        0      0      0      0     72        0
wlp3s0: 0000    0     0     0        0      0      0      0      0        0
 wifi2: 0000   70.   40.    0        0      0      0      0      0        0
";

    fn at_level(level: i32) -> String {
        TEXT.replace("-56.", &format!("{level}."))
    }

    fn state(text: &str) -> State {
        let thresholds = Some(text.parse().unwrap());
        State { thresholds, judges: BTreeMap::new() }
    }

    /// Returns the changes of three paths, the second and third over one interface, at these levels, one per second.
    fn changes(state: &mut State, from_s: u64, texts: &[String]) -> Vec<(u64, usize, bool)> {
        let interfaces = [Some("eth0"), Some("wlan0"), Some("wlan0"), None];
        let mut all = Vec::new();
        for (second, text) in (from_s..).zip(texts) {
            let now = Instant::from_secs(second);
            let changed = state.judge(interfaces.into_iter(), &levels(text), now);
            all.extend(changed.into_iter().map(|(number, fading)| (second, number, fading)));
        }
        all
    }

    #[test]
    fn levels_are_those_in_dbm_of_radios_that_have_one() {
        assert_eq!(levels(TEXT), BTreeMap::from([("wlan0", -56.0)]));
        let none = at_level(-256);
        for text in ["", "nonsense", ":", "wlan0:", "wlan0: 0000 54.", &none] {
            assert!(levels(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn only_paths_over_a_radio_get_signal_hints() {
        let mut state = state("on");
        let texts: Vec<String> = (0..20).map(|second| at_level(-65 - second)).collect();
        let told = changes(&mut state, 0, &texts);
        assert_eq!(told, [(16, 1, true), (16, 2, true)]);
        // The interface has left its network: the level is unknown, and after a while the hint is withdrawn.
        let gone = vec![String::new(); 10];
        assert_eq!(changes(&mut state, 20, &gone), [(24, 1, false), (24, 2, false)]);
    }

    #[test]
    fn a_machine_without_a_radio_gets_no_hints() {
        let mut state = state("fading=-60,steady=-50");
        assert_eq!(changes(&mut state, 0, &vec![String::new(); 10]), []);
        assert!(state.judges.is_empty());
    }

    #[test]
    fn changed_thresholds_apply_immediately_and_removing_them_ends_hints() {
        let reader = SignalReader::new(Some("on".parse().unwrap()));
        let tell = |from_s, level| {
            let mut state = reader.0.lock().unwrap();
            changes(&mut state, from_s, &[at_level(level), at_level(level)])
        };
        assert_eq!(tell(0, -75), []);
        reader.change(Some("fading=-70,steady=-60".parse().unwrap()));
        assert_eq!(tell(2, -75), [(2, 1, true), (2, 2, true)]);
        reader.change(None);
        assert_eq!(tell(4, -75), [(4, 1, false), (4, 2, false)]);
    }
}
