//! Mirror of the settings that scripts change in their network namespace for the stack under test.
//!
//! Sysctls are read from `/proc/sys`, which shows those of the namespace. `ip mptcp` would change the kernel's path
//! manager and `nstat` would count its segments. Therefore the runner puts its own programs first in the PATH. They
//! write and read files in one directory (`state=` in the flags), which this module also uses:
//!
//! * `endpoints`: a line for each `ip mptcp endpoint`: address, id, and flags.
//! * `flushes`: a byte for each `ip tcp_metrics flush`, which removes Fast Open cookies.
//! * `limits`: two numbers as in `ip mptcp limits`: subflows, and accepted addresses.
//! * `counters.json`: our counters, under the kernel's names.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use marline_algos::Registry;
use marline_core::{BufferTuning, ConnectionConfig, Counters};
use marline_policy::{AddressId, CongestionFactory, LocalAddress, PolicySet};
use marline_time::Duration;

use crate::options::SocketOptions;

/// Connections that fell back to plain TCP, by reason.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fallbacks {
    /// A client's third ACK had no keys.
    pub(crate) by_third_ack: u64,
    /// A server's SYN/ACK had no keys.
    pub(crate) syn_ack_without_keys: u64,
    /// SYNs with the option were not answered, but one without it was.
    pub(crate) unanswered_syns: u64,
    /// The first SYN without the option was answered: the network is remembered as one that drops the option.
    pub(crate) remembered: u64,
    /// The network was already known to drop the option.
    pub(crate) remembered_network: u64,
    /// Data arrived without a DSS.
    pub(crate) by_missing_option: u64,
}

/// Side that opens a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// This side.
    Active,
    /// The peer.
    Passive,
}

/// Settings of the namespace and of the script.
#[derive(Debug)]
pub(crate) struct Mirror {
    locals: Vec<IpAddr>,
    /// Directory shared with the programs of the runner (`state=` in the flags).
    state_dir: Option<PathBuf>,
    endpoints: Vec<LocalAddress>,
    endpoints_read_at: Option<SystemTime>,
    /// Number of `ip tcp_metrics flush` calls that were handled.
    flushes: u64,
    last_reported: Option<(Counters, Fallbacks)>,
}

impl Mirror {
    pub(crate) fn new(locals: Vec<IpAddr>, state_dir: Option<PathBuf>) -> Self {
        let endpoints = Vec::new();
        let mut mirror = Mirror {
            locals,
            state_dir,
            endpoints,
            endpoints_read_at: None,
            flushes: 0,
            last_reported: None,
        };
        mirror.refresh();
        mirror
    }

    /// Local address of opened connections.
    pub(crate) fn local(&self, like: IpAddr) -> Option<IpAddr> {
        self.locals.iter().copied().find(|local| local.is_ipv4() == like.is_ipv4())
    }

    /// Reads changes made by `ip mptcp`. Returns true if there are any.
    pub(crate) fn refresh(&mut self) -> bool {
        let Some(path) = self.state_dir.as_ref().map(|dir| dir.join("endpoints")) else {
            return false;
        };
        let modified = fs::metadata(&path).and_then(|meta| meta.modified()).ok();
        if modified.is_none() || modified == self.endpoints_read_at {
            return false;
        }
        self.endpoints_read_at = modified;
        let text = fs::read_to_string(&path).unwrap_or_default();
        let new: Vec<LocalAddress> = text.lines().filter_map(endpoint).collect();
        // Removed addresses stay in the list as addresses that are down.
        let gone = self.endpoints.iter().filter(|old| new.iter().all(|n| n.id != old.id));
        let gone: Vec<LocalAddress> = gone.map(|old| LocalAddress { up: false, ..*old }).collect();
        self.endpoints = new.into_iter().chain(gone).collect();
        true
    }

    /// Returns true if `ip tcp_metrics flush` was run since the last call.
    pub(crate) fn take_flush(&mut self) -> bool {
        let file = self.state_dir.as_ref().map(|dir| dir.join("flushes"));
        let flushes = file.and_then(|file| fs::metadata(file).ok()).map_or(0, |meta| meta.len());
        core::mem::replace(&mut self.flushes, flushes) != flushes
    }

    /// Addresses set by `ip mptcp endpoint`.
    pub(crate) fn addresses(&self) -> Vec<LocalAddress> {
        self.endpoints.clone()
    }

    /// Configuration of a connection, from the sysctls of the namespace and the socket's own options.
    pub(crate) fn connection_config(
        &self,
        opening: Opening,
        mptcp: bool,
        socket: &SocketOptions,
    ) -> ConnectionConfig {
        let named = socket.congestion.clone().unwrap_or_else(|| self.congestion_by_sysctl());
        let mut config = ConnectionConfig::new(policies(&named));
        config.mptcp = mptcp && sysctl("net/mptcp/enabled", 0).unwrap_or(1) != 0;
        config.dss_checksum = sysctl("net/mptcp/checksum_enabled", 0) == Some(1);
        config.local_addresses = self.endpoints.iter().copied().filter(|e| e.up).collect();
        // Scripts expect a single SYN.
        config.connection_attempt_delay = None;
        config.pacing = self.state_dir.as_ref().is_some_and(|dir| dir.join("paced").exists());
        config.timestamps = sysctl("net/ipv4/tcp_timestamps", 0) != Some(0);
        config.buffer_tuning = BufferTuning::Fixed;
        // Half of the memory is for the kernel's own data.
        config.send_buffer = socket.send_buffer.unwrap_or_else(|| read_tcp_memory("tcp_wmem", 1));
        config.receive_buffer = read_tcp_memory("tcp_rmem", 2);
        // 1 requests and accepts ECN. 2, the default, only accepts it.
        let ecn = sysctl("net/ipv4/tcp_ecn", 0).unwrap_or(2);
        config.ecn = ecn == 1 || ecn == 2 && opening == Opening::Passive;
        let retries = match opening {
            Opening::Active => sysctl("net/ipv4/tcp_syn_retries", 0).unwrap_or(6),
            Opening::Passive => sysctl("net/ipv4/tcp_synack_retries", 0).unwrap_or(5),
        };
        config.syn_retries = retries as u32;
        config.linear_syn_retries =
            sysctl("net/ipv4/tcp_syn_linear_timeouts", 0).unwrap_or(0) as u32;
        let first = sysctl("net/mptcp/syn_retrans_before_tcp_fallback", 0);
        config.mptcp_syn_retries = first.map_or(config.mptcp_syn_retries, |count| count as u32);
        if let Some(ms) = sysctl("net/ipv4/tcp_rto_max_ms", 0) {
            config.rtt.max_rto = Duration::from_millis(ms);
        }
        config.linger.timeout = match sysctl("net/mptcp/close_timeout", 0) {
            Some(seconds) => Duration::from_secs(seconds),
            None => config.linger.timeout,
        };
        socket.apply(&mut config);
        config
    }

    /// The default congestion control: the value set by the script's `sysctl`, or the machine's.
    pub(crate) fn congestion_by_sysctl(&self) -> String {
        let said = self.state_dir.as_ref().map(|dir| dir.join("congestion"));
        let said = said.and_then(|file| fs::read_to_string(file).ok());
        let machine = || fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").ok();
        let text = said.or_else(machine).unwrap_or_else(|| "cubic".to_owned());
        text.trim().to_owned()
    }

    /// Writes our counters for the namespace's `nstat`.
    pub(crate) fn write_counters(&mut self, counters: &Counters, fallbacks: Fallbacks) {
        let Some(dir) = self.state_dir.as_ref() else { return };
        if self.last_reported.replace((*counters, fallbacks)) == Some((*counters, fallbacks)) {
            return;
        }
        let values = [
            ("MPTcpExtMPCapableSYNRX", counters.mp_capable_syn_rx),
            ("MPTcpExtMPCapableSYNTX", counters.mp_capable_syn_tx),
            ("MPTcpExtMPCapableFallbackACK", fallbacks.by_third_ack),
            ("MPTcpExtMPCapableFallbackSYNACK", fallbacks.syn_ack_without_keys),
            ("MPTcpExtMPCapableSYNTXDrop", fallbacks.unanswered_syns),
            ("MPTcpExtMPCapableSYNTXDisabled", fallbacks.remembered_network),
            ("MPTcpExtBlackhole", fallbacks.remembered),
            ("MPTcpExtDssFallback", fallbacks.by_missing_option),
            ("MPTcpExtMPJoinSynRx", counters.mp_join_syn_rx),
            ("MPTcpExtMPJoinAckRx", counters.mp_join_ack_rx),
            ("MPTcpExtMPJoinNoTokenFound", counters.mp_join_no_token),
            ("MPTcpExtDataCsumErr", counters.data_csum_err),
            ("MPTcpExtMPFailRx", counters.mp_fail_rx),
            ("MPTcpExtMPFailTx", counters.mp_fail_tx),
            ("MPTcpExtMPFastcloseRx", counters.mp_fastclose_rx),
            ("MPTcpExtMPFastcloseTx", counters.mp_fastclose_tx),
            ("MPTcpExtMPRstRx", counters.mp_rst_rx),
            ("MPTcpExtMPRstTx", counters.mp_rst_tx),
            ("MPTcpExtAddAddr", counters.add_addr_rx),
            ("MPTcpExtAddAddrTx", counters.add_addr_tx),
            ("MPTcpExtEchoAdd", counters.echo_add_rx),
            ("MPTcpExtRmAddr", counters.rm_addr_rx),
            ("MPTcpExtRmAddrTx", counters.rm_addr_tx),
            ("MPTcpExtMPPrioRx", counters.mp_prio_rx),
            ("MPTcpExtMPPrioTx", counters.mp_prio_tx),
            ("MPTcpExtDuplicateData", counters.duplicate_data),
            ("MPTcpExtDSSNotMatching", counters.dss_not_matching),
            ("TcpExtTCPChallengeACK", counters.challenge_acks),
            ("TcpOutRsts", counters.resets_out),
        ];
        let lines: Vec<String> =
            values.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let text = format!("{{\"kernel\":{{{}}}}}\n", lines.join(","));
        if let Err(error) = fs::write(dir.join("counters.json"), text) {
            eprintln!("packetdrill-adapter: counters: {error}");
        }
    }
}

/// The congestion control with this name. Only names known to Linux are supported.
pub(crate) fn congestion(name: &str) -> Option<Arc<dyn CongestionFactory>> {
    ["cubic", "reno", "bbr"].contains(&name).then(|| Registry::default().congestion(name).ok())?
}

/// The reference policies with the requested congestion control. Scripts name CUBIC, and expect no copies.
fn policies(named: &str) -> PolicySet {
    let mut policies = marline_algos::reference_policies();
    if let Some(congestion) = congestion(named).filter(|_| named != "cubic") {
        policies.congestion = congestion;
    }
    policies
}

/// Parses a line of `endpoints`.
fn endpoint(line: &str) -> Option<LocalAddress> {
    let mut words = line.split_whitespace();
    let address: IpAddr = words.next()?.parse().ok()?;
    let id: u8 = words.next()?.parse().ok()?;
    let flags: Vec<&str> = words.collect();
    let has = |flag| flags.contains(&flag);
    Some(LocalAddress {
        backup: has("backup"),
        signal: has("signal"),
        subflow: has("subflow") || has("fullmesh"),
        ..LocalAddress::new(AddressId(id), SocketAddr::new(address, 0))
    })
}

/// The word at `index` of a sysctl, as a number.
pub(crate) fn sysctl(name: &str, index: usize) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    text.split_whitespace().nth(index)?.parse().ok()
}

/// The word at `index` of `tcp_rmem` or `tcp_wmem`, in bytes.
pub(crate) fn read_tcp_memory(name: &str, index: usize) -> u64 {
    sysctl(&format!("net/ipv4/{name}"), index).unwrap_or(4 << 20).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_with_their_flags() {
        let known = endpoint("10.0.0.2 3 signal backup").expect("an endpoint");
        assert_eq!(
            (known.id, known.signal, known.backup, known.subflow),
            (AddressId(3), true, true, false)
        );
        assert_eq!(endpoint("nowhere 3"), None);
        assert_eq!(endpoint(""), None);
    }

    #[test]
    fn endpoints_that_vanish_are_down() {
        let dir = std::env::temp_dir().join(format!("packetdrill-mirror-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        fs::write(dir.join("endpoints"), "10.0.0.2 1 signal\n10.0.0.3 2 subflow\n")
            .expect("written");
        let mut mirror = Mirror::new(Vec::new(), Some(dir.clone()));
        assert_eq!(mirror.addresses().len(), 2);
        assert!(!mirror.refresh(), "nothing changed");
        mirror.endpoints_read_at = None;
        fs::write(dir.join("endpoints"), "10.0.0.3 2 subflow\n").expect("written");
        assert!(mirror.refresh());
        let up: Vec<_> = mirror.addresses().iter().map(|a| (a.id.0, a.up)).collect();
        assert_eq!(up, [(2, true), (1, false)]);
        fs::remove_dir_all(&dir).expect("removed");
    }
}
