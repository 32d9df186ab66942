//! A link between UDP sockets.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use marline_emulator::{Emulator, RelayConfig, RelayReport};
use marline_link::DuplexSpec;
use marline_time::SeedTree;

use super::Args;
use crate::link_supervisor::{Answer, Stats, SupervisedLinks};
use marline_lab::emulation::script::{self, ParsedCommand};
use marline_lab::emulation::settings::Settings;

/// A running relay.
#[derive(Debug)]
pub(crate) struct Relay {
    emulator: Emulator,
    started: Instant,
    settings: Mutex<Settings>,
}

impl Relay {
    pub(crate) fn start(args: &Args, listen: SocketAddr, to: SocketAddr) -> anyhow::Result<Relay> {
        let mut spec: DuplexSpec = args.spec.parse()?;
        for (direction, items) in [("up", &args.uplink), ("down", &args.downlink)] {
            if let Some(items) = items {
                spec = script::amend(&spec, &script::one_direction(direction, items))
                    .with_context(|| format!("--{direction}link {items}"))?;
            }
        }
        let seeds = SeedTree::new(args.seed);
        let mut settings = Settings::new(spec, args.trace_dir.as_deref(), seeds);
        let mut config = RelayConfig::new(&args.name, listen, to, settings.first()?);
        let orders = args.at.iter().map(|text| script::parse_scheduled(text));
        let orders = orders.collect::<anyhow::Result<Vec<_>>>().context("invalid --at")?;
        config.schedule = settings.schedule(orders).context("invalid --at")?;
        config.seeds = seeds;
        config.max_flows = args.max_clients as usize;
        let spin = Duration::from_micros(args.supervisor.spin_us);
        let emulator = Emulator::start(vec![config], spin)?;
        Ok(Relay { emulator, started: Instant::now(), settings: Mutex::new(settings) })
    }

    pub(crate) fn local_addr(&self) -> anyhow::Result<SocketAddr> {
        self.emulator.local_addr(0).context("the emulator did not return the link's address")
    }

    fn report(&self) -> anyhow::Result<RelayReport> {
        self.emulator
            .report()?
            .into_iter()
            .next()
            .context("the emulator did not return the link's report")
    }
}

impl SupervisedLinks for Relay {
    fn execute(&self, line: &str) -> anyhow::Result<Answer> {
        let order = match line.parse()? {
            ParsedCommand::Stats => return self.stats().map(Answer::Stats),
            ParsedCommand::Quit => return Ok(Answer::Quit),
            order => order,
        };
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let command = settings.command(self.started.elapsed(), &order)?;
        self.emulator.command(0, command)?;
        Ok(Answer::Done)
    }

    fn stats(&self) -> anyhow::Result<Stats> {
        self.report().map(|report| Stats::One(Box::new(report)))
    }
}
