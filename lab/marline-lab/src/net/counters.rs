//! Kernel counters of a host.

use std::collections::BTreeMap;

use anyhow::Context;
use marline_emulator::netns;

/// Counters by name: `TcpExt` and `MPTcpExt` of /proc/net/netstat, `Tcp` of /proc/net/snmp (with that
/// prefix, since names repeat).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Reads the counters of a namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn read(namespace: &str) -> anyhow::Result<Counters> {
        let read = || {
            let netstat = std::fs::read_to_string("/proc/thread-self/net/netstat")?;
            Ok(netstat + &std::fs::read_to_string("/proc/thread-self/net/snmp")?)
        };
        let text = netns::run_in(namespace, read).context("cannot read the kernel's counters")?;
        Ok(Counters(parse(&text)))
    }

    /// A counter by its name. 0 if the kernel does not have it.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Increase of the counters since `before`.
    #[must_use]
    pub fn since(&self, before: &Counters) -> Counters {
        let grown =
            |(name, value): (&String, &u64)| (name.clone(), value.saturating_sub(before.get(name)));
        Counters(self.0.iter().map(grown).collect())
    }

    /// Counters above zero whose name starts with `prefix`.
    pub fn nonzero<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        let all = self.0.iter().map(|(name, value)| (name.as_str(), *value));
        all.filter(move |(name, value)| *value > 0 && name.starts_with(prefix))
    }
}

/// Parses pairs of lines: `Group: NAME NAME`, `Group: NUMBER NUMBER`.
fn parse(text: &str) -> BTreeMap<String, u64> {
    let lines: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(':')).collect();
    let mut counters = BTreeMap::new();
    for pair in lines.chunks_exact(2) {
        let [(group, names), (_, values)] = pair else { continue };
        let prefix = if matches!(*group, "TcpExt" | "MPTcpExt") { "" } else { group };
        let names = names.split_ascii_whitespace();
        for (name, value) in names.zip(values.split_ascii_whitespace()) {
            // Signed values (Tcp MaxConn -1) are not needed.
            if let Ok(value) = value.parse() {
                counters.insert(format!("{prefix}{name}"), value);
            }
        }
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_kernels_names() {
        let text = "TcpExt: SyncookiesSent TCPTimeouts\nTcpExt: 0 7\nMPTcpExt: MPJoinAckRx\n\
                    MPTcpExt: 2\nTcp: MaxConn RetransSegs\nTcp: -1 5\n";
        let counters = Counters(parse(text));
        assert_eq!((counters.get("TCPTimeouts"), counters.get("MPJoinAckRx")), (7, 2));
        assert_eq!((counters.get("TcpRetransSegs"), counters.get("TcpMaxConn")), (5, 0));
        let before = Counters(parse("MPTcpExt: MPJoinAckRx\nMPTcpExt: 1\n"));
        assert_eq!(counters.since(&before).get("MPJoinAckRx"), 1);
        assert_eq!(counters.nonzero("MPJoin").collect::<Vec<_>>(), [("MPJoinAckRx", 2)]);
    }
}
