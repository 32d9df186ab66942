//! Execution of one exchange: both ends on a prepared network, with capture, until they exit.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::kernel_log::KernelLog;
use anyhow::{Context, bail};
use marline_lab::net::Net;
use marline_lab::scenario::Side;
use rustix::process::{Pid, Signal, kill_process};

use crate::cell_result::Evidence;
use crate::exchange::Outcome;
use crate::peer::Job;

/// Maximum number of packets captured per path, to avoid gigabytes.
const MAX_CAPTURED_PACKETS: &str = "15000";
/// Time limit for a started program to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between checks of files.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A process that is killed on drop.
struct ChildProcess {
    child: Child,
    name: &'static str,
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Derives a seed from a name.
pub(crate) fn seed(name: &str) -> u64 {
    name.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31) ^ u64::from(byte))
}

/// Two ends on a network, and their captures.
pub(crate) struct Play<'a> {
    pub(crate) net: &'a Net,
    pub(crate) directory: &'a Path,
    /// Side on which packets are captured.
    pub(crate) watched: Side,
    /// Jobs of the client and of the server.
    pub(crate) jobs: [Job; 2],
    pub(crate) limit: Duration,
}

impl<'a> Play<'a> {
    /// Runs both ends until they exit. `act` is called repeatedly with the time since the client's start, to perform
    /// due actions.
    pub(crate) fn perform(
        &'a self,
        mut log: KernelLog,
        act: &mut dyn FnMut(Duration) -> anyhow::Result<()>,
    ) -> anyhow::Result<Evidence<'a>> {
        let (net, directory) = (self.net, self.directory);
        let (mut captures, mut sniffers) = (Vec::new(), Vec::new());
        for path in &net.scenario().paths {
            let file = directory.join(format!("{}.pcap", path.name));
            sniffers.push(start_tcpdump(net, self.watched, &path.name, &file)?);
            captures.push(file);
        }
        let [client_job, server_job] = &self.jobs;
        let mut server = start(net, server_job, directory)?;
        wait_for_line(&directory.join("server.out"), "ready", &mut server)?;
        let mut client = start(net, client_job, directory)?;
        wait(self.limit, [&mut client, &mut server], directory, act)?;
        let read = |name: &str| outcomes(&directory.join(name));
        let (client, server) = (read("client.out")?, read("server.out")?);
        for sniffer in &mut sniffers {
            stop(sniffer);
        }
        let kernel_messages = log.kernel_warnings();
        Ok(Evidence { plan: &client_job.plan, client, server, net, captures, kernel_messages })
    }
}

/// Starts one end, with its output in files.
fn start(net: &Net, job: &Job, directory: &Path) -> anyhow::Result<ChildProcess> {
    let name = if job.side == Side::Client { "client" } else { "server" };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("peer").arg(serde_json::to_string(job)?).stdin(Stdio::null());
    command.stdout(File::create(directory.join(format!("{name}.out")))?);
    command.stderr(File::create(directory.join(format!("{name}.err")))?);
    let child =
        net.spawn(job.side, &mut command).with_context(|| format!("cannot start {name}"))?;
    Ok(ChildProcess { child, name })
}

/// Starts a capture of one interface, and waits until it is active.
fn start_tcpdump(
    net: &Net,
    side: Side,
    interface: &str,
    file: &Path,
) -> anyhow::Result<ChildProcess> {
    let said = file.with_extension("pcap.err");
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-n", "-i", interface, "-s", "0", "-B", "16384", "-Z", "root"]);
    tcpdump.args(["-c", MAX_CAPTURED_PACKETS, "-w"]).arg(file).arg("tcp");
    tcpdump.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
    let child = net.spawn(side, &mut tcpdump).context("cannot run tcpdump")?;
    let mut running = ChildProcess { child, name: "tcpdump" };
    wait_for_line(&said, "listening on", &mut running)?;
    Ok(running)
}

/// Waits until a file contains a line with this text.
fn wait_for_line(file: &Path, text: &str, from: &mut ChildProcess) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        if std::fs::read_to_string(file).unwrap_or_default().contains(text) {
            return Ok(());
        }
        let ended = from.child.try_wait()?;
        if ended.is_some() || start.elapsed() > READY_TIMEOUT {
            let errors = std::fs::read_to_string(file.with_extension("err")).unwrap_or_default();
            bail!("{} did not become ready ({ended:?}): {}", from.name, errors.trim());
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Waits until both ends exit, and performs actions when they are due.
fn wait(
    limit: Duration,
    mut running: [&mut ChildProcess; 2],
    directory: &Path,
    act: &mut dyn FnMut(Duration) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        act(start.elapsed())?;
        let mut ended: Vec<ExitStatus> = Vec::new();
        for end in &mut running {
            if let Some(status) = end.child.try_wait()? {
                if !status.success() {
                    let said = directory.join(format!("{}.err", end.name));
                    let said = std::fs::read_to_string(said).unwrap_or_default();
                    bail!("the {} ended with {status}: {}", end.name, said.trim());
                }
                ended.push(status);
            }
        }
        if ended.len() == running.len() {
            return Ok(());
        }
        if start.elapsed() > limit {
            let waits = |end: &mut &mut ChildProcess| {
                matches!(end.child.try_wait(), Ok(None)).then_some(end.name)
            };
            let names: Vec<&str> = running.iter_mut().filter_map(waits).collect();
            bail!("still running after {limit:?}: {}", names.join(", "));
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Stops a capture after it has written its packets.
fn stop(sniffer: &mut ChildProcess) {
    let pid = i32::try_from(sniffer.child.id()).ok().and_then(Pid::from_raw);
    let _ = pid.map(|pid| kill_process(pid, Signal::INT));
    let start = Instant::now();
    while matches!(sniffer.child.try_wait(), Ok(None)) && start.elapsed() < READY_TIMEOUT {
        std::thread::sleep(CHECK_INTERVAL);
    }
}

fn outcomes(file: &Path) -> io::Result<Vec<Outcome>> {
    let text = std::fs::read_to_string(file)?;
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).map_err(io::Error::other)).collect()
}
