//! Detection of paths that fail together: they probably share a line, so neither is a backup for the other.
//!
//! Interfaces do not show what lies behind them: a phone tethered by cable and WiFi, or two modems of one provider,
//! look like two networks. Such paths are detected if they repeatedly fail together while others work.

use std::collections::BTreeMap;

/// Number of common failures that no longer counts as a coincidence.
const MIN_COMMON_FAILURES: u32 = 2;
/// Maximum number of remembered pairs.
const MAX_PAIRS: usize = 64;

/// Number of common failures per pair of paths.
#[derive(Debug, Default)]
pub(super) struct CommonFailures {
    times: BTreeMap<(String, String), u32>,
}

impl CommonFailures {
    pub(super) const fn new() -> Self {
        CommonFailures { times: BTreeMap::new() }
    }

    /// Records paths that have failed at the same time. Returns notices about pairs that have now failed together
    /// repeatedly.
    pub(super) fn on_failure(&mut self, failed: &[&str]) -> Vec<String> {
        let is_among = |path: &String| failed.contains(&path.as_str());
        // A path that fails without the other has its own line.
        self.times.retain(|(one, other), _| is_among(one) == is_among(other));
        let mut notices = Vec::new();
        for (at, one) in failed.iter().enumerate() {
            for other in &failed[at + 1..] {
                let pair = if one < other { (one, other) } else { (other, one) };
                let pair = ((*pair.0).to_owned(), (*pair.1).to_owned());
                if self.times.len() >= MAX_PAIRS && !self.times.contains_key(&pair) {
                    continue;
                }
                let text = format!(
                    "paths {} and {} have failed together {MIN_COMMON_FAILURES} times; they probably share a line, \
                     so neither is a backup for the other",
                    pair.0, pair.1
                );
                let times = self.times.entry(pair).or_default();
                *times = times.saturating_add(1);
                if *times == MIN_COMMON_FAILURES {
                    notices.push(text);
                }
            }
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_paths_that_fail_together_twice_are_named_once() {
        let mut fate = CommonFailures::default();
        assert_eq!(fate.on_failure(&["wwan0", "usb0"]), [""; 0]);
        let said = fate.on_failure(&["usb0", "wwan0"]);
        assert_eq!(said.len(), 1);
        assert!(
            said[0].starts_with("paths usb0 and wwan0 have failed together 2 times"),
            "{said:?}"
        );
        assert_eq!(fate.on_failure(&["usb0", "wwan0"]), [""; 0]);
    }

    #[test]
    fn a_path_that_fails_alone_shares_no_line() {
        let mut fate = CommonFailures::default();
        fate.on_failure(&["wlan0", "wwan0"]);
        fate.on_failure(&["wlan0"]);
        assert_eq!(fate.on_failure(&["wlan0", "wwan0"]), [""; 0]);
    }

    #[test]
    fn remembered_entries_are_bounded() {
        let mut fate = CommonFailures::default();
        for number in 0..1_000 {
            let names = [format!("usb{number}"), format!("eth{number}")];
            fate.on_failure(&[&names[0], &names[1]]);
        }
        assert_eq!(fate.times.len(), MAX_PAIRS);
    }
}
