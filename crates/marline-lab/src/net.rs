//! A scenario as namespaces: two hosts, a TUN interface each per path, the link model between them.
//!
//! The names carry the instance (`ml-NAME-client`), so several nets stand side by side. The links
//! run in this process: however it ends, the interfaces are gone. What may be left (namespaces and
//! processes in them) is written down in a claim before it is made; [`sweep`] removes what belongs
//! to a process that is no more. See docs/lab.md.

mod claim;
mod configure;
mod counters;
#[cfg(test)]
mod tests;

use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use marline_io::emulator::{Emulator, LinkCommand, LinkEnds, RelayReport, TunnelConfig, TunnelEnd};
use marline_io::netns;
use marline_link::DuplexSpec;
use marline_time::SeedTree;

use crate::emulation::script::{self, Order};
use crate::emulation::traces;
use crate::scenario::{Scenario, Side};
pub use claim::{Claim, Owner, claims, release, sweep};
pub use counters::{Counters, KernelLog};

/// How a net is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// What tells it from others on this machine: 1 to 20 letters, digits and `-`.
    pub instance: String,
    /// Where traces are.
    pub trace_dir: Option<std::path::PathBuf>,
    /// Spin so long before a packet is due instead of sleeping.
    pub spin: Duration,
}

impl Options {
    /// With an instance's name, else the defaults.
    #[must_use]
    pub fn new(instance: &str) -> Self {
        let spin = marline_io::emulator::DEFAULT_SPIN;
        Options { instance: instance.to_owned(), trace_dir: None, spin }
    }
}

/// A scenario that stands. Dropping it removes everything.
#[derive(Debug)]
pub struct Net {
    // In this order: the links end before the namespaces go.
    emulator: Emulator,
    claim: Claim,
    scenario: Scenario,
    specs: Mutex<Vec<DuplexSpec>>,
    options: Options,
}

impl Net {
    /// Makes the namespaces, the links, addresses, routes and what the kernel's Multipath TCP is to
    /// know. Needs root and `ip`.
    ///
    /// # Errors
    /// What could not be made, and why; nothing is left behind.
    pub fn up(scenario: &Scenario, options: &Options) -> anyhow::Result<Net> {
        scenario.check()?;
        let claim = Claim::stake(&options.instance)?;
        for side in [Side::Client, Side::Server] {
            configure::make_namespace(claim.namespace(side))?;
        }
        let seeds = SeedTree::new(scenario.seed);
        let mut links = Vec::new();
        for path in &scenario.paths {
            let mut spec = path.spec()?;
            let seeds = seeds.branch(&path.name);
            let resolve = |spec: &DuplexSpec| {
                traces::resolve(spec, options.trace_dir.as_deref(), &seeds)
                    .with_context(|| format!("path `{}`", path.name))
            };
            let link = resolve(&spec)?;
            let mut schedule = Vec::new();
            for event in scenario.events.iter().filter(|event| event.path == path.name) {
                let (at, order) = event.parse()?;
                schedule.push((at, command(order, &mut spec, &resolve)?));
            }
            let end = |side| TunnelEnd {
                namespace: Some(claim.namespace(side).to_owned()),
                interface: path.name.clone(),
            };
            let (client, server) = (end(Side::Client), end(Side::Server));
            let name = path.name.clone();
            links.push(LinkEnds::Tunnel(TunnelConfig {
                name,
                client,
                server,
                link,
                seeds,
                schedule,
            }));
        }
        let emulator = Emulator::start_links(links, options.spin)?;
        for side in [Side::Client, Side::Server] {
            configure::configure(scenario, side, claim.namespace(side))
                .with_context(|| format!("namespace {}", claim.namespace(side)))?;
        }
        let specs = scenario.paths.iter().map(|path| path.spec()).collect::<Result<_, _>>()?;
        let (scenario, options) = (scenario.clone(), options.clone());
        Ok(Net { emulator, claim, scenario, specs: Mutex::new(specs), options })
    }

    /// What it was made from.
    #[must_use]
    pub const fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// The name of a host's namespace.
    #[must_use]
    pub fn namespace(&self, side: Side) -> &str {
        self.claim.namespace(side)
    }

    /// Starts a program on a host. It is killed with the net, if not before.
    ///
    /// # Errors
    /// It could not be started.
    pub fn spawn(&self, side: Side, command: &mut Command) -> io::Result<Child> {
        netns::within(self.namespace(side), || command.spawn())
    }

    /// Tells a path what to do: `down`, `up uplink`, `set rate=1M`.
    ///
    /// # Errors
    /// No such path, or no such command.
    pub fn command(&self, path: &str, order: &str) -> anyhow::Result<()> {
        self.order(path, order.parse()?)
    }

    /// The same for an order that has been read already.
    ///
    /// # Errors
    /// No such path, or the order is for other links.
    pub fn order(&self, path: &str, order: Order) -> anyhow::Result<()> {
        let number = self.scenario.path_number(path)?;
        let mut specs = self.specs.lock().unwrap_or_else(PoisonError::into_inner);
        let seeds = SeedTree::new(self.scenario.seed).branch(path);
        let resolve =
            |spec: &DuplexSpec| traces::resolve(spec, self.options.trace_dir.as_deref(), &seeds);
        let command = command(order, &mut specs[number], &resolve)?;
        self.emulator.command(number, command)?;
        Ok(())
    }

    /// What the links did so far, in the order of the paths.
    ///
    /// # Errors
    /// The emulator is gone.
    pub fn report(&self) -> anyhow::Result<Vec<RelayReport>> {
        Ok(self.emulator.report()?)
    }

    /// Reasons not to believe what was measured here.
    ///
    /// # Errors
    /// The emulator is gone.
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

fn command(
    order: Order,
    spec: &mut DuplexSpec,
    resolve: &dyn Fn(&DuplexSpec) -> anyhow::Result<marline_link::DuplexConfig>,
) -> anyhow::Result<LinkCommand> {
    Ok(match order {
        Order::Break(side) => LinkCommand::Break(side),
        Order::Restore(side) => LinkCommand::Restore(side),
        Order::Set(items) => {
            *spec = script::amend(spec, &items)?;
            LinkCommand::Set(Box::new(resolve(spec)?))
        }
        Order::Rebind | Order::Stats | Order::Quit => {
            anyhow::bail!("a path between namespaces knows down, up and set")
        }
    })
}
