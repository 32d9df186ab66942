//! Named links between two namespaces, which accept commands while they run.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use marline_emulator::{
    DEFAULT_SPIN, Emulator, LinkEnds, RelayReport, Tap, TappedPackets, TunnelConfig, TunnelEnd,
};
use marline_time::SeedTree;

use super::configure;
use crate::emulation::script::ParsedCommand;
use crate::emulation::settings::Settings;
use crate::scenario::{Path, Side, path_number};

/// Options of links.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Directory of traces.
    pub trace_dir: Option<PathBuf>,
    /// Time for which the thread spins instead of sleeping before a packet is due.
    pub spin: Duration,
    /// Maximum size in bytes of the packet copies kept at each end. `None`: no copies.
    pub tap_bytes: Option<u64>,
}

impl Default for LinkOptions {
    fn default() -> Self {
        LinkOptions { seed: 1, trace_dir: None, spin: DEFAULT_SPIN, tap_bytes: None }
    }
}

/// A timed command for a path.
#[derive(Clone, Debug)]
pub struct ScheduledCommand {
    /// Time after the start.
    pub at: Duration,
    /// Path name.
    pub path: String,
    /// Command.
    pub order: ParsedCommand,
}

/// Running links. Dropping it ends the links and removes their interfaces.
#[derive(Debug)]
pub struct Links {
    emulator: Emulator,
    namespaces: [String; 2],
    paths: Vec<Path>,
    settings: Mutex<Vec<Settings>>,
    tapped: Mutex<Option<TappedPackets>>,
}

impl AsRef<Links> for Links {
    fn as_ref(&self) -> &Links {
        self
    }
}

impl Links {
    /// Creates an interface with the path's name in each namespace, and the link between them. The interfaces are
    /// down and have no addresses yet.
    ///
    /// # Errors
    /// A description or a command cannot be parsed, or the interfaces cannot be created.
    pub fn join_namespaces(
        [client, server]: [&str; 2],
        paths: &[Path],
        schedule: Vec<ScheduledCommand>,
        options: &LinkOptions,
    ) -> anyhow::Result<Links> {
        let seeds = SeedTree::new(options.seed);
        let mut orders: Vec<Vec<(Duration, ParsedCommand)>> = vec![Vec::new(); paths.len()];
        for ScheduledCommand { at, path, order } in schedule {
            refuse_rebind(&order)?;
            orders[path_number(paths, &path)?].push((at, order));
        }
        let (taps, tapped) = options.tap_bytes.map(|bytes| Tap::new(paths.len(), bytes)).unzip();
        let mut taps = taps.unwrap_or_default().into_iter();
        let (mut links, mut settings) = (Vec::new(), Vec::new());
        for (path, orders) in paths.iter().zip(orders) {
            let named = || format!("path `{}`", path.name);
            let seeds = seeds.branch(&path.name);
            let mut set = Settings::new(path.spec()?, options.trace_dir.as_deref(), seeds);
            let end = |namespace: &str| TunnelEnd {
                namespace: Some(namespace.to_owned()),
                interface: path.name.clone(),
            };
            links.push(LinkEnds::Tunnel(TunnelConfig {
                name: path.name.clone(),
                client: end(client),
                server: end(server),
                link: set.first().with_context(named)?,
                seeds: set.seeds(),
                schedule: set.schedule(orders).with_context(named)?,
                tap: taps.next(),
            }));
            settings.push(set);
        }
        let emulator = Emulator::start_links(links, options.spin)?;
        let (namespaces, paths) = ([client, server].map(str::to_owned), paths.to_vec());
        let (settings, tapped) = (Mutex::new(settings), Mutex::new(tapped));
        Ok(Links { emulator, namespaces, paths, settings, tapped })
    }

    /// Gives the interfaces their addresses and brings them up. The caller sets routes. Needs `ip`.
    ///
    /// # Errors
    /// `ip` failed. The error contains its output.
    pub fn set_up(&self) -> anyhow::Result<()> {
        for (side, namespace) in [Side::Client, Side::Server].into_iter().zip(&self.namespaces) {
            configure::set_up(namespace, side, &self.paths)
                .with_context(|| format!("namespace {namespace}"))?;
        }
        Ok(())
    }

    /// Time zero of the links.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.emulator.started()
    }

    /// The paths, in the order of the reports.
    #[must_use]
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// Sends a command to a path.
    ///
    /// # Errors
    /// The path does not exist, or the command is not for links between namespaces.
    pub fn order(&self, path: &str, order: &ParsedCommand) -> anyhow::Result<()> {
        refuse_rebind(order)?;
        let number = path_number(&self.paths, path)?;
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let command = settings[number].command(self.started().elapsed(), order)?;
        Ok(self.emulator.command(number, command)?)
    }

    /// Returns the packet copies, if they are enabled.
    #[must_use]
    pub fn take_tapped(&self) -> Option<TappedPackets> {
        self.tapped.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Reports on the links so far, in path order.
    ///
    /// # Errors
    /// The emulator has ended.
    pub fn report(&self) -> anyhow::Result<Vec<RelayReport>> {
        Ok(self.emulator.report()?)
    }
}

fn refuse_rebind(order: &ParsedCommand) -> anyhow::Result<()> {
    ensure!(*order != ParsedCommand::Rebind, "a path between namespaces has no ports to rebind");
    Ok(())
}
