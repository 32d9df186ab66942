//! Special cases outside the matrix, for path management and fallback. Each has its own sequence of events.
//!
//! Every case transfers data in both directions, which is compared as in the matrix, and checks the captures. A case
//! also checks kernel counters, and the amount of data on each path before and after an event.

mod extensions;
mod fallback;
mod limits;
mod paths;
mod policies;
mod priority;
mod servers;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::path::Path as FilePath;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use crate::kernel_log::KernelLog;
use anyhow::{Context, ensure};
use marline_lab::net::{Counters, Net, Options, RelayReport};
use marline_lab::scenario::{Endpoint, EndpointFlag, Path, Scenario, Side};
use marline_testkit::wiretap::Findings;

use crate::cell::{Family, Workload};
use crate::cell_result::{CellResult, Evidence};
use crate::cell_setup::{PORT, address, ipnet};
use crate::exchange::Plan;
use crate::judge;
use crate::peer::{AnnouncedAddress, Extra, Job, Stack};
use crate::play::{Play, seed};

/// The two paths of most cases.
const WIFI: &str = "wifi";
const LTE: &str = "lte";
/// Links of these paths.
const LINKS: [&str; 2] = ["rate=20M,delay=10ms,queue=100ms", "rate=20M,delay=20ms,queue=100ms"];
/// Bytes of a transfer that is long enough to use every path.
const SHORT_BYTES: u64 = 4 << 20;
/// Bytes of a transfer that takes seven seconds on one path, so that events occur during it.
const LONG: u64 = 16 << 20;
/// Time limit for a case.
const CASE_TIME_LIMIT: Duration = Duration::from_secs(60);

/// An external action.
#[derive(Copy, Clone, Debug)]
enum Act {
    /// Records all counters.
    RecordCounters,
    /// Applies a command to a path.
    Path(&'static str, &'static str),
    /// Runs a program on a host.
    Run(Side, &'static str),
}

/// A case.
pub(crate) struct SpecialCase {
    pub(crate) name: &'static str,
    client: Stack,
    server: Stack,
    scenario: Scenario,
    /// Address to which the client connects.
    to: SocketAddr,
    /// Paths of a Marline client, in the form of its command line.
    paths: Vec<&'static str>,
    extra: Extra,
    bytes: u64,
    /// Receive buffer of both ends in bytes. `None`: the default.
    receive_buffer: Option<u32>,
    /// Actions before the ends are started.
    before: Vec<Act>,
    /// Actions in order, with their times in ms after the client's start.
    acts: Vec<(u64, Act)>,
    /// Kernel counters that may change only in this case.
    expected: &'static [&'static str],
    /// True if the case tests plain TCP.
    plain: bool,
    /// True for DSS checksums at both ends.
    checksum: bool,
    /// True if the payload is changed in transit, which is visible in later captures.
    tampered: bool,
    check: fn(&mut CaseResults<'_>),
}

impl std::fmt::Debug for SpecialCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Counters at one point in time.
struct CountSnapshot {
    /// Bytes that each path has delivered up and down.
    delivered: Vec<(String, u64, u64)>,
    client: Counters,
    server: Counters,
}

impl CountSnapshot {
    fn take(net: &Net) -> anyhow::Result<CountSnapshot> {
        let bytes = |report: RelayReport| {
            let (up, down) = (report.up.stats.delivered_bytes, report.down.stats.delivered_bytes);
            (report.name, up, down)
        };
        Ok(CountSnapshot {
            delivered: net.report()?.into_iter().map(bytes).collect(),
            client: net.counters(Side::Client)?,
            server: net.counters(Side::Server)?,
        })
    }
}

/// Results of a case, and its problems.
struct CaseResults<'a> {
    evidence: &'a Evidence<'a>,
    /// Side that Marline runs on (the client if both sides use it).
    marline: Side,
    /// Counters at each [`Act::RecordCounters`] and at the end.
    notes: Vec<CountSnapshot>,
    capture: Findings,
    problems: Vec<String>,
}

impl CaseResults<'_> {
    /// Counters at this snapshot. Snapshots are counted from 0, and the last one is taken at the end.
    fn snapshot(&self, number: usize) -> &CountSnapshot {
        &self.notes[number.min(self.notes.len() - 1)]
    }

    /// Counters of a side's kernel from the start to the end.
    fn counters(&self, side: Side) -> &Counters {
        let end = self.snapshot(usize::MAX);
        if side == Side::Client { &end.client } else { &end.server }
    }

    fn counter(&self, side: Side, name: &str) -> u64 {
        self.counters(side).get(name)
    }

    /// Requires that a counter of a side's kernel has at least this value.
    fn require_at_least(&mut self, side: Side, name: &str, least: u64) {
        let count = self.counter(side, name);
        if count < least {
            self.problems.push(format!(
                "the {side}'s kernel counter {name} is {count}; expected at least {least}"
            ));
        }
    }

    /// Requires that a counter of a side's kernel has exactly this value.
    fn require_exactly(&mut self, side: Side, name: &str, wanted: u64) {
        let count = self.counter(side, name);
        if count != wanted {
            self.problems
                .push(format!("the {side}'s kernel counter {name} is {count}; expected {wanted}"));
        }
    }

    /// True if Marline is the client.
    fn is_marline_client_case(&self) -> bool {
        self.marline == Side::Client
    }

    /// Requires at least this many occurrences in the captures.
    fn require_captured(&mut self, name: &str, least: u64) {
        let seen =
            self.capture.seen.get(name).copied().unwrap_or(0) + self.capture.count_correct(name);
        if seen < least {
            self.problems.push(format!("captured {seen} {name}; expected at least {least}"));
        }
    }

    /// Bytes that a path delivered up and down between two snapshots. Snapshots are counted from 1; 0 is the start.
    fn between(&self, path: &str, from: usize, to: usize) -> (u64, u64) {
        let at = |number: usize| {
            let Some(before) = number.checked_sub(1) else { return (0, 0) };
            let mut paths = self.snapshot(before).delivered.iter();
            paths.find(|(name, ..)| name == path).map_or((0, 0), |(_, up, down)| (*up, *down))
        };
        let (from, to) = (at(from), at(to));
        (to.0 - from.0, to.1 - from.1)
    }

    /// Requires that a path carried payload in this direction between two snapshots, or that it did not.
    fn carried(&mut self, path: &str, notes: Range<usize>, way: Direction, wanted: bool) {
        // Traffic without data: acknowledgments, handshakes, probes.
        const IDLE: u64 = 60_000;
        let (up, down) = self.between(path, notes.start, notes.end);
        let bytes = if way == Direction::Up { up } else { down };
        if (bytes > IDLE) != wanted {
            let word = if wanted { "only " } else { "" };
            self.problems.push(format!("{path} carried {word}{bytes} bytes {way:?}"));
        }
    }

    /// Requires that Marline's end reports a fallback to plain TCP, or does not.
    fn require_fallback(&mut self, side: Side, wanted: bool) {
        let fallen = self.evidence.fallbacks();
        let reason = fallen.iter().find(|(at, ..)| *at == side);
        match (reason, wanted) {
            (Some((_, _, reason)), false) => {
                self.problems.push(format!("{side:?}: fell back to plain TCP: {reason}"));
            }
            (None, true) => self.problems.push(format!("{side:?}: did not fall back to plain TCP")),
            _ => {}
        }
    }
}

/// Direction: from the client, or to it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// Every case.
pub(crate) fn all() -> &'static [SpecialCase] {
    static ALL: LazyLock<Vec<SpecialCase>> = LazyLock::new(|| {
        let cases = [
            paths::cases(),
            limits::cases(),
            priority::cases(),
            servers::cases(),
            fallback::cases(),
            policies::cases(),
            extensions::cases(),
        ];
        cases.into_iter().flatten().collect()
    });
    &ALL
}

fn ipv4_address(path: usize, host: u8) -> IpAddr {
    address(Family::V4, path, host)
}

fn ipv6_address(path: usize, host: u8) -> IpAddr {
    address(Family::V6, path, host)
}

fn at(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, PORT)
}

fn endpoint(address: IpAddr, path: &str, flags: &[EndpointFlag]) -> Endpoint {
    Endpoint { address, path: Some(path.to_owned()), port: None, id: None, flags: flags.to_vec() }
}

/// Two paths with both IPv4 and IPv6, without kernel endpoints.
fn dual_stack() -> Scenario {
    let path = |(number, name): (usize, &str)| Path {
        name: name.to_owned(),
        link: LINKS[number].to_owned(),
        client: vec![ipnet(ipv4_address(number, 2), 24), ipnet(ipv6_address(number, 2), 64)],
        server: vec![ipnet(ipv4_address(number, 1), 24), ipnet(ipv6_address(number, 1), 64)],
        mtu: None,
        family: None,
        price: None,
    };
    Scenario {
        seed: 1,
        paths: [WIFI, LTE].into_iter().enumerate().map(path).collect(),
        ..Scenario::default()
    }
}

/// A case with the most common settings.
fn case(
    name: &'static str,
    client: Stack,
    server: Stack,
    check: fn(&mut CaseResults<'_>),
) -> SpecialCase {
    SpecialCase {
        name,
        client,
        server,
        scenario: dual_stack(),
        to: at(ipv4_address(0, 1)),
        paths: vec![WIFI, LTE],
        extra: Extra::default(),
        bytes: SHORT_BYTES,
        receive_buffer: None,
        before: Vec::new(),
        acts: Vec::new(),
        expected: &[],
        plain: false,
        checksum: false,
        tampered: false,
        check,
    }
}

fn announced_address(address: SocketAddr) -> AnnouncedAddress {
    AnnouncedAddress { address, advertised: None, backup: false }
}

impl SpecialCase {
    /// Runs the case in `directory`, which keeps its files.
    ///
    /// # Errors
    /// The case did not finish.
    pub(crate) fn run(&self, instance: &str, directory: &FilePath) -> anyhow::Result<CellResult> {
        let log = KernelLog::from_now();
        let net = Net::create(&self.scenario, &Options::new(instance))?;
        let mut notes = Vec::new();
        for act in &self.before {
            perform(*act, &net, &mut notes)?;
        }
        let play = Play {
            net: &net,
            directory,
            watched: if self.client == Stack::Marline { Side::Server } else { Side::Client },
            jobs: [self.job(Side::Client), self.job(Side::Server)],
            limit: CASE_TIME_LIMIT,
        };
        let mut left = self.acts.iter().peekable();
        let mut act = |elapsed: Duration| {
            while let Some((_, act)) =
                left.next_if(|(at_ms, _)| elapsed >= Duration::from_millis(*at_ms))
            {
                perform(*act, &net, &mut notes)?;
            }
            Ok(())
        };
        let evidence = play.perform(log, &mut act)?;
        ensure!(left.peek().is_none(), "the run ended before all events had occurred");
        notes.push(CountSnapshot::take(&net)?);
        self.judge(&evidence, notes)
    }

    fn judge(
        &self,
        evidence: &Evidence<'_>,
        notes: Vec<CountSnapshot>,
    ) -> anyhow::Result<CellResult> {
        let mut problems = Vec::new();
        judge::applications(evidence, &mut problems);
        judge::report_kernel_warnings(&evidence.kernel_messages, &mut problems);
        let (text, capture) = judge::captures(&evidence.captures, !self.plain, &mut problems)?;
        if self.tampered {
            problems.retain(|problem| {
                !["DSS checksums", "bytes sent again"].iter().any(|what| problem.ends_with(what))
            });
        }
        let marline = if self.client == Stack::Marline { Side::Client } else { Side::Server };
        let mut found = CaseResults { evidence, marline, notes, capture, problems };
        for (side, stack) in [(Side::Client, self.client), (Side::Server, self.server)] {
            if stack != Stack::Marline {
                let counters = found.counters(side).clone();
                judge::check_unexpected_counters(&counters, self.expected, &mut found.problems);
            }
        }
        if !self.plain {
            found.require_fallback(Side::Client, false);
            found.require_fallback(Side::Server, false);
        }
        (self.check)(&mut found);
        let kernel = if self.client == Stack::Marline { Side::Server } else { Side::Client };
        Ok(CellResult {
            counters: judge::nonzero_counters(found.counters(kernel)),
            capture: text,
            doubts: evidence.net.doubts()?,
            problems: found.problems,
            ..CellResult::default()
        })
    }

    fn job(&self, side: Side) -> Job {
        let plan = Plan {
            workload: Workload::Both,
            bytes: self.bytes,
            messages: 0,
            pause: Duration::ZERO,
            interval: Duration::ZERO,
            seed: seed(self.name),
        };
        // A kernel's server accepts joins to other addresses only if it listens there.
        let mut address = self.to;
        if side == Side::Server && self.server != Stack::Marline {
            address.set_ip(match self.to.ip() {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            });
        }
        Job {
            stack: if side == Side::Client { self.client } else { self.server },
            side,
            address,
            paths: self.paths.iter().map(|path| (*path).to_owned()).collect(),
            checksum: self.checksum,
            receive_buffer: self.receive_buffer,
            plan,
            extra: self.extra.clone(),
        }
    }
}

fn perform(act: Act, net: &Net, notes: &mut Vec<CountSnapshot>) -> anyhow::Result<()> {
    match act {
        Act::RecordCounters => notes.push(CountSnapshot::take(net)?),
        Act::Path(path, order) => net.command(path, order)?,
        Act::Run(side, line) => {
            let mut words = line.split_ascii_whitespace();
            let mut command = Command::new(words.next().context("the command line is empty")?);
            command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let output = net.spawn(side, &mut command)?.wait_with_output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "`{line}`: {}", said.trim());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_a_scenario_that_holds() {
        let mut names = std::collections::BTreeSet::new();
        for special in all() {
            assert!(names.insert(special.name), "{}", special.name);
            special.scenario.check().unwrap_or_else(|error| panic!("{}: {error:#}", special.name));
            assert!(special.acts.is_sorted_by_key(|(at_ms, _)| *at_ms), "{}", special.name);
        }
    }
}
