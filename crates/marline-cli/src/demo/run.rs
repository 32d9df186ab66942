//! Run of the demo: starts all processes, makes WiFi fail and return, and ends all processes.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use marline_emulator::{DEFAULT_SPIN, Emulator, LinkCommand, RelayConfig, RelayReport, Side};
use marline_time::SeedTree;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::application::{self, Download, EchoPlan, EchoResult, LiveProgress};
use super::child::{self, Process};
use super::content::Content;
use super::origin::{File, OriginServers};
use super::outcome::Outcome;
use super::plan::{DemoPlan, SETUPS, Setup};
use super::progress::Progress;
use marline_emulator::traces;

/// Pause between the last preparation and the first message.
const START_PAUSE: Duration = Duration::from_millis(200);

/// Time limit for a connection through SOCKS5, generous for a loaded machine.
const OPEN_TIMEOUT: Duration = Duration::from_secs(8);

/// Processes and links of one variant.
#[derive(Debug)]
struct RunningVariant {
    way: Setup,
    server: Process,
    client: Process,
    socks5: SocketAddr,
}

/// A relay of the emulator.
#[derive(Copy, Clone, Debug)]
struct Link {
    relay: usize,
    address: SocketAddr,
}

/// Links of one variant.
#[derive(Copy, Clone, Debug)]
struct Links {
    wifi: Option<Link>,
    lte: Option<Link>,
}

/// Performs the demo.
///
/// # Errors
/// A process could not be started or has died.
pub async fn run_demo(plan: &DemoPlan) -> anyhow::Result<(Vec<Outcome>, Vec<RelayReport>)> {
    let progress = Progress::new();
    let directory = tempfile::Builder::new().prefix("marline-demo-").tempdir()?;
    let file = File { seed: plan.seed, length: plan.file_bytes, pace: plan.pace };
    let origin =
        OriginServers::start(file).await.context("cannot start the HTTP and echo servers")?;
    progress.print_line("starting servers, links and clients");
    let ports = server_ports()?;
    let (emulator, links) = start_links(plan, &ports)?;
    let mut running = start_variants(&ports, &links, directory.path(), plan).await?;
    let shown = running.iter().find(|way| plan.dashboard.is_some() && way.way.shows_dashboard());
    if let Some(way) = shown
        && let Some(address) = way.client.find_output_after("dashboard at ").await
    {
        progress.print_line(&format!("Marline's client, live: {address}"));
    }
    let wifi = links.iter().filter_map(|links| links.wifi).map(|link| link.relay).collect();
    let director = FailureController { emulator: &emulator, wifi, progress: &progress };
    let results = run_applications(plan, &running, &origin, &director).await;
    progress.finish();
    for process in running.iter_mut().flat_map(|way| [&mut way.server, &mut way.client]) {
        if let Some(words) = process.exit_error() {
            anyhow::bail!(words);
        }
    }
    let reports = emulator.report()?;
    let outcomes =
        results?.into_iter().zip(&running).zip(&links).map(|(((echo, file), way), links)| {
            let delivered = |link: &Option<Link>| {
                let report = link.as_ref().and_then(|link| reports.get(link.relay));
                report.map_or(0, |r| r.up.stats.delivered_bytes + r.down.stats.delivered_bytes)
            };
            let (wifi_bytes, lte_bytes) = (delivered(&links.wifi), delivered(&links.lte));
            Outcome { way: way.way, echo, file, wifi_bytes, lte_bytes }
        });
    let outcomes: Vec<Outcome> = outcomes.collect();
    let ends = running.into_iter().flat_map(|way| [way.client, way.server]);
    let ending: Vec<JoinHandle<()>> = ends.map(|process| tokio::spawn(process.end())).collect();
    for end in ending {
        end.await?;
    }
    Ok((outcomes, reports))
}

/// Returns ports for the servers. They must be known before a server starts, because its invite contains them. The
/// system assigns them, and they are freed and used immediately.
fn server_ports() -> anyhow::Result<Vec<SocketAddr>> {
    let sockets: Vec<UdpSocket> = SETUPS
        .iter()
        .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<std::io::Result<_>>()
        .context("cannot bind a UDP port on loopback")?;
    Ok(sockets.iter().map(UdpSocket::local_addr).collect::<std::io::Result<_>>()?)
}

/// Returns all links on one emulator. Links of one kind have the same seed, so they lose packets with the same
/// numbers, and they fail at the same moment.
fn start_links(plan: &DemoPlan, ports: &[SocketAddr]) -> anyhow::Result<(Emulator, Vec<Links>)> {
    let seeds = SeedTree::new(plan.seed);
    let directory = plan.trace_dir.as_deref();
    let mut relays = Vec::new();
    let mut numbers = Vec::new();
    for (way, port) in SETUPS.iter().zip(ports) {
        let mut add = |has: bool, kind: &str, spec| -> anyhow::Result<Option<usize>> {
            if !has {
                return Ok(None);
            }
            let seeds = seeds.branch(kind);
            let link = traces::resolve(spec, directory, &seeds)?;
            let listen = (Ipv4Addr::LOCALHOST, 0).into();
            let name = format!("{kind} of {}", way.name);
            let mut relay = RelayConfig::new(&name, listen, *port, link);
            relay.seeds = seeds;
            relays.push(relay);
            Ok(Some(relays.len() - 1))
        };
        numbers.push((add(way.wifi, "WiFi", &plan.wifi)?, add(way.lte, "LTE", &plan.lte)?));
    }
    let emulator = Emulator::start(relays, DEFAULT_SPIN)?;
    let link = |relay: Option<usize>| {
        let relay = relay?;
        Some(Link { relay, address: emulator.local_addr(relay)? })
    };
    let links = numbers.into_iter().map(|(wifi, lte)| Links { wifi: link(wifi), lte: link(lte) });
    let links = links.collect();
    Ok((emulator, links))
}

/// Starts server and client of every variant concurrently.
async fn start_variants(
    ports: &[SocketAddr],
    links: &[Links],
    directory: &Path,
    plan: &DemoPlan,
) -> anyhow::Result<Vec<RunningVariant>> {
    let mut starting = Vec::new();
    for ((way, port), links) in SETUPS.iter().zip(ports).zip(links) {
        let place = directory.join(way.name.replace(' ', "-"));
        std::fs::create_dir(&place)?;
        let path = |link: Option<Link>, name: &str| {
            link.map(|link| format!(" --path 127.0.0.1={},name={name}", link.address))
        };
        let mut client: String =
            [path(links.wifi, "WiFi"), path(links.lte, "LTE")].into_iter().flatten().collect();
        if let Some(address) = plan.dashboard.filter(|_| way.shows_dashboard()) {
            client.push_str(&format!(" --dashboard {address}"));
        }
        let (way, port) = (*way, *port);
        let traces = plan.qlog.clone().filter(|_| way.shows_dashboard());
        let traces = traces.map(|directory| ["--qlog".to_owned(), directory.display().to_string()]);
        let start = async move { start_variant(way, port, &client, traces, &place).await };
        starting.push(tokio::spawn(start));
    }
    let mut running = Vec::new();
    for started in starting {
        running.push(started.await??);
    }
    Ok(running)
}

/// Follows the steps of a user: create a server, start it, start a client with its invite.
async fn start_variant(
    way: Setup,
    port: SocketAddr,
    options: &str,
    traces: Option<[String; 2]>,
    place: &Path,
) -> anyhow::Result<RunningVariant> {
    let file = |name: &str| place.join(name).display().to_string();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
    let config = file("server.toml");
    let (scheduler, control) = (way.scheduler, file("server.sock"));
    let init = format!("server --init --config {config} --listen {port} --allow 127.0.0.0/8");
    let invite = child::output("marline server --init", &words(&init)).await?;
    let invite_file = place.join("invite");
    write_private(&invite_file, invite.trim())?;
    let serve = format!("server --config {config} --scheduler {scheduler} --control {control}");
    let name = format!("server for \"{}\"", way.name);
    let with_traces =
        |text: &str| [words(text), traces.iter().flatten().cloned().collect()].concat();
    let (server, _) = Process::start(&name, &with_traces(&serve), "listening on ").await?;
    let (invite, control) = (invite_file.display(), file("client.sock"));
    let connect = format!(
        "client --invite-file {invite} --socks5 127.0.0.1:0 --scheduler {scheduler} \
         --control {control}{options}"
    );
    let name = format!("the client of {}", way.name);
    let (client, socks5) =
        Process::start(&name, &with_traces(&connect), "socks5 listening on ").await?;
    Ok(RunningVariant { way, server, client, socks5 })
}

/// Writes a file that only its owner can read, for secrets.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{text}")
}

/// Runs the echo and the download of every variant while WiFi fails and returns.
async fn run_applications(
    plan: &DemoPlan,
    running: &[RunningVariant],
    origin: &OriginServers,
    director: &FailureController<'_>,
) -> anyhow::Result<Vec<(EchoResult, Download)>> {
    let expected = Content::new(plan.seed, plan.file_bytes).hash();
    let mut streams = Vec::new();
    for way in running {
        let open = |target| application::connect(way.socks5, target);
        let both = async { anyhow::Ok((open(origin.echo).await?, open(origin.http).await?)) };
        let opened = tokio::time::timeout(OPEN_TIMEOUT, both)
            .await
            .context("cannot connect within the time limit");
        let opened = opened.and_then(|result| result);
        streams.push(opened.with_context(|| {
            let (name, words) = (way.way.name, way.client.last_output_lines());
            format!("{name}: cannot connect through SOCKS5; output of its client:\n{words}")
        })?);
    }
    let start = Instant::now() + START_PAUSE;
    let deadline = start + plan.run + DemoPlan::GRACE;
    let echo_plan = EchoPlan {
        start,
        interval: Duration::from_secs(1) / DemoPlan::ECHOES_PER_S,
        count: plan.echoes(),
        deadline,
    };
    let mut live = Vec::new();
    let mut tasks = Vec::new();
    for (echo, http) in streams {
        let shown = Arc::new(LiveProgress::default());
        live.push(shown.clone());
        let echo = tokio::spawn(application::echo(echo, echo_plan, shown.clone()));
        let (length, seed) = (plan.file_bytes, expected);
        let file = tokio::spawn(application::download(http, length, seed, deadline, shown));
        tasks.push((echo, file));
    }
    let results = async {
        let mut results = Vec::new();
        for (echo, file) in tasks {
            results.push((echo.await?, file.await?));
        }
        anyhow::Ok(results)
    };
    tokio::select! {
        results = results => results,
        error = director.direct(plan, start) => Err(error),
        () = director.progress.update_display(plan, start, &live) => anyhow::bail!("the progress display stopped"),
    }
}

/// Controls the failure of WiFi.
#[derive(Debug)]
struct FailureController<'a> {
    emulator: &'a Emulator,
    /// Relays of the WiFi-like links.
    wifi: Vec<usize>,
    progress: &'a Progress,
}

impl FailureController<'_> {
    /// Makes WiFi fail and return. Returns only with an error.
    async fn direct(&self, plan: &DemoPlan, start: Instant) -> anyhow::Error {
        let acts = [
            (plan.failure_time(), LinkCommand::Break(Side::Both), "WiFi dies"),
            (plan.return_time(), LinkCommand::Restore(Side::Both), "WiFi is back"),
        ];
        for (after, command, text) in acts {
            tokio::time::sleep_until(start + after).await;
            for relay in &self.wifi {
                if let Err(error) = self.emulator.command(*relay, command.clone()) {
                    return error.into();
                }
            }
            self.progress.print_line(&format!("{:5.1} s: {text}", after.as_secs_f64()));
        }
        std::future::pending().await
    }
}
