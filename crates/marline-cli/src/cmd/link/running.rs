//! A running link and whoever gives it orders.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use marline_io::emulator::{Emulator, LinkCommand, RelayConfig, RelayReport};
use marline_link::DuplexSpec;
use marline_time::SeedTree;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};

use super::{Args, control, script};
use crate::emulation::script::Order;
use crate::emulation::{report, traces};

/// Longest command in bytes.
const MAX_LINE: u64 = 4_096;

/// Control connections at the same time.
const MAX_PEERS: usize = 8;

/// A link, and the description in force from which time on.
#[derive(Debug)]
pub(super) struct Running {
    emulator: Emulator,
    started: Instant,
    specs: Mutex<Vec<(Duration, DuplexSpec)>>,
    trace_dir: Option<PathBuf>,
    seeds: SeedTree,
}

/// What an order leads to.
#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Stats(Box<RelayReport>),
    Quit,
}

impl Running {
    pub(super) fn start(args: &Args) -> anyhow::Result<Running> {
        let mut spec: DuplexSpec = args.spec.parse()?;
        for (direction, items) in [("up", &args.uplink), ("down", &args.downlink)] {
            if let Some(items) = items {
                spec = script::amend(&spec, &script::one_way(direction, items))
                    .with_context(|| format!("--{direction}link {items}"))?;
            }
        }
        let seeds = SeedTree::new(args.seed);
        let directory = args.trace_dir.as_deref();
        let link = traces::resolve(&spec, directory, &seeds)?;
        let mut specs = vec![(Duration::ZERO, spec)];
        let mut relay = RelayConfig::new(&args.name, args.listen, args.to, link);
        relay.schedule = schedule(&args.at, &mut specs, directory, &seeds)?;
        relay.seeds = seeds;
        relay.max_flows = args.max_clients as usize;
        let emulator = Emulator::start(vec![relay], Duration::from_micros(args.spin_us))?;
        Ok(Running {
            emulator,
            started: Instant::now(),
            specs: Mutex::new(specs),
            trace_dir: args.trace_dir.clone(),
            seeds,
        })
    }

    pub(super) fn local_addr(&self) -> anyhow::Result<SocketAddr> {
        self.emulator.local_addr(0).context("the link has no address")
    }

    pub(super) fn report(&self) -> anyhow::Result<RelayReport> {
        self.emulator.report()?.into_iter().next().context("the link has no report")
    }

    /// Does what it is told.
    pub(super) fn obey(&self, order: &Order) -> anyhow::Result<Answer> {
        let command = match order {
            Order::Stats => return Ok(Answer::Stats(Box::new(self.report()?))),
            Order::Quit => return Ok(Answer::Quit),
            Order::Break(side) => LinkCommand::Break(*side),
            Order::Restore(side) => LinkCommand::Restore(*side),
            Order::Rebind => LinkCommand::Rebind,
            Order::Set(items) => self.set(items)?,
        };
        self.emulator.command(0, command)?;
        Ok(Answer::Done)
    }

    /// The items amend what is in force now: of the scheduled changes, those that have happened.
    fn set(&self, items: &str) -> anyhow::Result<LinkCommand> {
        let mut specs = self.specs.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.started.elapsed();
        let past = specs.partition_point(|(at, _)| *at <= now);
        let current = past.checked_sub(1).and_then(|last| specs.get(last));
        let (_, current) = current.context("the link has no description")?;
        let spec = script::amend(current, items)?;
        let link = traces::resolve(&spec, self.trace_dir.as_deref(), &self.seeds)?;
        specs[past - 1] = (now, spec);
        Ok(LinkCommand::Set(Box::new(link)))
    }
}

/// The `--at` commands in order of time; descriptions they lead to are appended to `specs`.
fn schedule(
    texts: &[String],
    specs: &mut Vec<(Duration, DuplexSpec)>,
    trace_dir: Option<&Path>,
    seeds: &SeedTree,
) -> anyhow::Result<Vec<(Duration, LinkCommand)>> {
    let parsed = texts.iter().map(|text| script::at(text).context("--at"));
    let mut orders = parsed.collect::<anyhow::Result<Vec<_>>>()?;
    orders.sort_by_key(|(at, _)| *at);
    let mut commands = Vec::new();
    for (at, order) in orders {
        let command = match order {
            Order::Break(side) => LinkCommand::Break(side),
            Order::Restore(side) => LinkCommand::Restore(side),
            Order::Rebind => LinkCommand::Rebind,
            Order::Set(items) => {
                let (_, before) = specs.last().context("the link has no description")?;
                let spec = script::amend(before, &items)?;
                let link = traces::resolve(&spec, trace_dir, seeds)?;
                specs.push((at, spec));
                LinkCommand::Set(Box::new(link))
            }
            Order::Stats | Order::Quit => continue,
        };
        commands.push((at, command));
    }
    Ok(commands)
}

/// A control socket that goes away with this value.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Takes orders at a unix socket.
pub(super) fn serve(
    path: &Path,
    running: Arc<Running>,
    quit: Arc<Notify>,
) -> anyhow::Result<Control> {
    let listener = control::listen(path)
        .with_context(|| format!("cannot listen at --control {}", path.display()))?;
    let task = tokio::spawn(accept(listener, running, quit));
    Ok(Control { path: path.to_path_buf(), task })
}

async fn accept(listener: UnixListener, running: Arc<Running>, quit: Arc<Notify>) {
    let places = Arc::new(Semaphore::new(MAX_PEERS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: wait for some to come back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if control::is_allowed(&stream) {
            let (running, quit) = (running.clone(), quit.clone());
            tokio::spawn(async move {
                // A peer that went away is not our problem.
                let _ = converse(stream, &running, &quit).await;
                drop(place);
            });
        }
    }
}

async fn converse(stream: UnixStream, running: &Running, quit: &Notify) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = String::new();
        if (&mut reader).take(MAX_LINE).read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let answer = line.parse().and_then(|order| running.obey(&order));
        let reply: Value = match &answer {
            Ok(Answer::Stats(stats)) => json!({ "ok": report::to_json(stats) }),
            Ok(_) => json!({ "ok": true }),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        writer.write_all(format!("{reply}\n").as_bytes()).await?;
        if matches!(answer, Ok(Answer::Quit)) {
            quit.notify_one();
        }
    }
}
