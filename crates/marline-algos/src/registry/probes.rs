//! Parameters of tail loss probes, shared by every loss recovery that sends them.

use super::Parameters;
use crate::recovery::{ProbeConfig, PtoFormula};

impl Parameters<'_> {
    /// Reads the settings of tail loss probes: the formula (`pto`, a name in [`PtoFormula::ALL`] or `off`; `default` if
    /// omitted), the peer's longest ACK delay (`ack-delay`), and the number of probes in a row (`probes`, 1 or 2).
    pub fn probes(&mut self, default: &str) -> ProbeConfig {
        let mut words: Vec<_> =
            PtoFormula::ALL.iter().map(|(word, formula)| (*word, Some(*formula))).collect();
        words.push(("off", None));
        let formula = self.word("pto", default, &words);
        let usual = formula.map_or(ProbeConfig::OFF, ProbeConfig::new);
        ProbeConfig {
            formula,
            peer_ack_delay: self.duration("ack-delay", usual.peer_ack_delay),
            most_probes: self.count("probes", usual.most_probes.into(), 1..=2) as u8,
        }
    }
}
