//! Ping traces: round-trip times and losses of a path over time, as measured by probes
//! (`carrier,seq,t_send_ms,rtt_ms`; an empty RTT is a lost probe).

use std::collections::BTreeMap;

use marline_time::Duration;

use super::{TraceError, millis, number, rows, text};

/// One probe.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Send time since the trace's start.
    pub at: Duration,
    /// Round-trip time. `None` if the probe was lost.
    pub rtt: Option<Duration>,
}

/// The probes of one path, in order of time. It repeats after the last probe's interval.
///
/// A probe applies until the next one: packets get half its round-trip time as delay. During a lost probe the delay of
/// the last answered probe applies, and a link with losses from the trace drops all packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingTrace {
    probes: Vec<Probe>,
    /// RTT that applies at each probe: its own, or that of the last answered probe.
    held: Vec<Duration>,
    period: Duration,
}

impl PingTrace {
    /// Parses a file's contents (gzip or plain) and extracts one carrier's probes.
    ///
    /// # Errors
    /// The header or a field is invalid, times decrease, the carrier is unknown (the error lists the known ones), or
    /// no probe was answered.
    pub fn parse(file: &str, bytes: &[u8], carrier: &str) -> Result<Self, TraceError> {
        let mut all = Self::parse_all(file, bytes)?;
        if let Some(trace) = all.remove(carrier) {
            return Ok(trace);
        }
        let known: Vec<&str> = all.keys().map(String::as_str).collect();
        let why = format!("unknown carrier `{carrier}`; known: {}", known.join(", "));
        Err(TraceError::for_file(file, why))
    }

    /// Parses all carriers of a file.
    ///
    /// # Errors
    /// See [`PingTrace::parse`].
    pub fn parse_all(file: &str, bytes: &[u8]) -> Result<BTreeMap<String, Self>, TraceError> {
        let text = text(file, bytes)?;
        let mut probes: BTreeMap<String, Vec<Probe>> = BTreeMap::new();
        for row in rows::<4>(file, &text, "carrier,seq,t_send_ms,rtt_ms")? {
            let (line, [carrier, seq, sent, rtt]) = row?;
            if carrier.is_empty() {
                return Err(TraceError::for_line(file, line, "the carrier has no name"));
            }
            number::<u64>(file, line, "seq", seq)?;
            let at = Duration::from_nanos(millis(file, line, "t_send_ms", sent)?);
            let rtt = match rtt.trim() {
                "" => None,
                some => Some(Duration::from_nanos(millis(file, line, "rtt_ms", some)?)),
            };
            let list = probes.entry(carrier.to_owned()).or_default();
            if list.last().is_some_and(|last| last.at >= at) {
                let why = "t_send_ms is not later than in the previous line";
                return Err(TraceError::for_line(file, line, why));
            }
            list.push(Probe { at, rtt });
        }
        if probes.is_empty() {
            return Err(TraceError::for_file(file, "the file contains no probes"));
        }
        let build = |(carrier, list): (String, Vec<Probe>)| {
            let why = format!("carrier `{carrier}`: ");
            let trace = Self::from_probes(list)
                .map_err(|reason| TraceError::for_file(file, why + reason))?;
            Ok((carrier, trace))
        };
        probes.into_iter().map(build).collect()
    }

    /// Creates a trace of these probes.
    ///
    /// # Errors
    /// If there are fewer than two probes, times do not ascend, or no probe was answered.
    pub fn from_probes(probes: Vec<Probe>) -> Result<Self, &'static str> {
        if probes.len() < 2 {
            return Err("fewer than two probes");
        }
        if probes.windows(2).any(|pair| pair[0].at >= pair[1].at) {
            return Err("the times of the probes do not ascend");
        }
        let Some(mut rtt) = probes.iter().find_map(|probe| probe.rtt) else {
            return Err("no probe was answered");
        };
        let mut held = Vec::with_capacity(probes.len());
        for probe in &probes {
            rtt = probe.rtt.unwrap_or(rtt);
            held.push(rtt);
        }
        let (first, last) = (probes[0].at, probes[probes.len() - 1].at);
        let period = last + (last - first) / (probes.len() as u32 - 1);
        Ok(PingTrace { probes, held, period })
    }

    /// Round-trip time that applies at this trace time.
    #[must_use]
    pub fn rtt_at(&self, at: Duration) -> Duration {
        self.held[self.index(at)]
    }

    /// Returns true if the probe that applies at this trace time was lost.
    #[must_use]
    pub fn lost_at(&self, at: Duration) -> bool {
        self.probes[self.index(at)].rtt.is_none()
    }

    /// The probes.
    #[must_use]
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// Period after which the trace repeats.
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.period
    }

    fn index(&self, at: Duration) -> usize {
        let within = marline_time::nanos(at) % marline_time::nanos(self.period);
        let within = Duration::from_nanos(within);
        self.probes.partition_point(|probe| probe.at <= within).saturating_sub(1)
    }
}
