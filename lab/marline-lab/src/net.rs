//! Scenario as network namespaces: two hosts, one TUN interface per path in each, and the link model between them.
//!
//! Names contain the instance (`ml-NAME-client`), so several networks can run at the same time. The links run in this
//! process, and the interfaces disappear with it. All namespaces, and thereby their processes, are recorded in a claim
//! before they are created. [`remove_remains`] removes the remains of dead processes. See docs/research/lab.md.

mod claim;
mod configure;
mod counters;
mod links;
#[cfg(test)]
mod tests;

use std::io;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::Context;
use marline_emulator::{TappedPackets, netns};

use crate::emulation::script::ParsedCommand;
use crate::scenario::{Event, Scenario, Side};
pub use claim::{Claim, Owner, claims, release, remove_remains};
pub use counters::Counters;
pub use links::{LinkOptions, Links, ScheduledCommand};
pub use marline_emulator::RelayReport;

/// Options of a network.
#[derive(Clone, Debug)]
pub struct Options {
    /// Instance name, unique on this machine: 1 to 20 letters, digits and `-`.
    pub instance: String,
    /// Directory of traces.
    pub trace_dir: Option<std::path::PathBuf>,
    /// Time for which the thread spins instead of sleeping before a packet is due.
    pub spin: Duration,
    /// Maximum size in bytes of the packet copies kept at each end of all links. `None`: no copies.
    pub tap_bytes: Option<u64>,
}

impl Options {
    /// Default options with this instance name.
    #[must_use]
    pub fn new(instance: &str) -> Self {
        let spin = marline_emulator::DEFAULT_SPIN;
        Options { instance: instance.to_owned(), trace_dir: None, spin, tap_bytes: None }
    }
}

impl AsRef<Links> for Net {
    fn as_ref(&self) -> &Links {
        &self.links
    }
}

/// A running scenario. Dropping it removes everything.
#[derive(Debug)]
pub struct Net {
    // Drop order: links end before namespaces are removed.
    links: Links,
    claim: Claim,
    scenario: Scenario,
}

impl Net {
    /// Creates the namespaces, links, addresses, routes, and the kernel's Multipath TCP endpoints. Needs root and
    /// `ip`.
    ///
    /// # Errors
    /// A part could not be created. Nothing is left behind.
    pub fn create(scenario: &Scenario, options: &Options) -> anyhow::Result<Net> {
        scenario.check()?;
        let claim = Claim::claim_instance(&options.instance)?;
        for side in [Side::Client, Side::Server] {
            configure::make_namespace(claim.namespace(side))?;
        }
        let named = |event: &Event| {
            let (at, order) = event.parse()?;
            Ok(ScheduledCommand { at, path: event.path.clone(), order })
        };
        let schedule = scenario.events.iter().map(named).collect::<anyhow::Result<Vec<_>>>()?;
        let Options { trace_dir, spin, tap_bytes, .. } = options.clone();
        let made = LinkOptions { seed: scenario.seed, trace_dir, spin, tap_bytes };
        let hosts = [Side::Client, Side::Server].map(|side| claim.namespace(side));
        let links = Links::join_namespaces(hosts, &scenario.paths, schedule, &made)?;
        for side in [Side::Client, Side::Server] {
            configure::configure(scenario, side, claim.namespace(side))
                .with_context(|| format!("namespace {}", claim.namespace(side)))?;
        }
        Ok(Net { links, claim, scenario: scenario.clone() })
    }

    /// The network's scenario.
    #[must_use]
    pub const fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// The name of a host's namespace.
    #[must_use]
    pub fn namespace(&self, side: Side) -> &str {
        self.claim.namespace(side)
    }

    /// Starts a program on a host. It is killed when the network ends.
    ///
    /// # Errors
    /// It could not be started.
    pub fn spawn(&self, side: Side, command: &mut Command) -> io::Result<Child> {
        netns::run_in(self.namespace(side), || command.spawn())
    }

    /// Sends a command to a path: `down`, `up uplink`, `set rate=1M`.
    ///
    /// # Errors
    /// The path or the command does not exist.
    pub fn command(&self, path: &str, order: &str) -> anyhow::Result<()> {
        self.order(path, &order.parse()?)
    }

    /// Sends a parsed command to a path.
    ///
    /// # Errors
    /// The path does not exist, or the command is for other kinds of links.
    pub fn order(&self, path: &str, order: &ParsedCommand) -> anyhow::Result<()> {
        self.links.order(path, order)
    }

    /// Returns the packet copies, if they are enabled.
    #[must_use]
    pub fn take_tapped(&self) -> Option<TappedPackets> {
        self.links.take_tapped()
    }

    /// Time zero of the links, from which the times of recorded rates, outages and walks count.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.links.started()
    }

    /// Reports on the links so far, in path order.
    ///
    /// # Errors
    /// The emulator has ended.
    pub fn report(&self) -> anyhow::Result<Vec<RelayReport>> {
        self.links.report()
    }

    /// Reasons why measurements on this network may be unreliable.
    ///
    /// # Errors
    /// The emulator has ended.
    pub fn doubts(&self) -> anyhow::Result<Vec<String>> {
        let named = |report: RelayReport| {
            let name = report.name.clone();
            report.doubts().into_iter().map(move |doubt| format!("{name}: {doubt}"))
        };
        Ok(self.report()?.into_iter().flat_map(named).collect())
    }

    /// The counters of a host's kernel.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn counters(&self, side: Side) -> anyhow::Result<Counters> {
        Counters::read(self.namespace(side))
    }
}
