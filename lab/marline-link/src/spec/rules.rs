//! Text form of rules about TCP options: `mptcp:syn`, `mp_join`, `sack:rest+timestamps`, `dss@2s`.

use core::fmt;

use marline_time::Duration;

use super::value::{Time, duration};
use crate::{OptionRule, Segments, TcpOption};

/// Named options. Other options are given by the number of their kind.
const OPTIONS: [(&str, TcpOption); 16] = [
    ("mptcp", TcpOption::Kind(30)),
    ("mp_capable", TcpOption::Mptcp(0)),
    ("mp_join", TcpOption::Mptcp(1)),
    ("dss", TcpOption::Mptcp(2)),
    ("add_addr", TcpOption::Mptcp(3)),
    ("remove_addr", TcpOption::Mptcp(4)),
    ("mp_prio", TcpOption::Mptcp(5)),
    ("mp_fail", TcpOption::Mptcp(6)),
    ("mp_fastclose", TcpOption::Mptcp(7)),
    ("mp_tcprst", TcpOption::Mptcp(8)),
    ("mp_experimental", TcpOption::Mptcp(15)),
    ("mss", TcpOption::Kind(2)),
    ("window_scale", TcpOption::Kind(3)),
    ("sack_permitted", TcpOption::Kind(4)),
    ("sack", TcpOption::Kind(5)),
    ("timestamps", TcpOption::Kind(8)),
];

const SEGMENTS: [(&str, Segments); 4] = [
    ("all", Segments::All),
    ("syn", Segments::Syn),
    ("synack", Segments::SynAck),
    ("rest", Segments::Rest),
];

/// Maximum number of rules in a list.
const MAX_RULES: usize = 32;

impl OptionRule {
    /// Parses rules from `OPTION[:SEGMENTS][@TIME]+...`, or `none`.
    ///
    /// # Errors
    /// The text cannot be parsed. The error lists the valid forms.
    pub(crate) fn parse_list(text: &str) -> Result<Vec<OptionRule>, String> {
        if text == "none" {
            return Ok(Vec::new());
        }
        let rules: Vec<OptionRule> = text.split('+').map(rule).collect::<Result<_, _>>()?;
        if rules.len() > MAX_RULES {
            return Err(format!("more than {MAX_RULES} rules"));
        }
        Ok(rules)
    }
}

fn rule(text: &str) -> Result<OptionRule, String> {
    let (text, from) = match text.split_once('@') {
        Some((text, from)) => (text, duration(from)?),
        None => (text, Duration::ZERO),
    };
    let (option, segments) = text.split_once(':').unwrap_or((text, "all"));
    let named = OPTIONS.iter().find(|(name, _)| *name == option).map(|(_, option)| *option);
    let numbered = || option.parse().ok().filter(|kind| *kind > 1).map(TcpOption::Kind);
    let option = named.or_else(numbered).ok_or_else(|| {
        let names = OPTIONS.map(|(name, _)| name).join(", ");
        format!("unknown TCP option `{option}`; known: {names}, or a kind from 2 to 255")
    })?;
    let found = SEGMENTS.iter().find(|(name, _)| *name == segments);
    let (_, segments) = found.ok_or_else(|| {
        let names = SEGMENTS.map(|(name, _)| name).join(", ");
        format!("unknown segments `{segments}`; known: {names}")
    })?;
    Ok(OptionRule { option, segments: *segments, from })
}

impl fmt::Display for OptionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (OPTIONS.iter().find(|(_, option)| *option == self.option), self.option) {
            (Some((name, _)), _) => f.write_str(name)?,
            (None, TcpOption::Kind(kind)) => write!(f, "{kind}")?,
            // Subtypes without a name cannot be parsed, so they never occur here.
            (None, TcpOption::Mptcp(subtype)) => write!(f, "mptcp/{subtype}")?,
        }
        match SEGMENTS.iter().find(|(_, segments)| *segments == self.segments) {
            Some((_, Segments::All)) | None => {}
            Some((name, _)) => write!(f, ":{name}")?,
        }
        if self.from.is_zero() { Ok(()) } else { write!(f, "@{}", Time(self.from)) }
    }
}
