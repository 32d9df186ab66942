//! Runs one cell: namespaces, capture, both ends, faults; then judges.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use marline_lab::net::{KernelLog, Net, Options};
use marline_lab::scenario::Side;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, Condition};
use crate::exchange::{Outcome, Role};
use crate::judge;
use crate::peer::{Job, Stack};
use crate::stage::{Scale, Stage};

/// Packets captured per path: enough for what begins and ends, not gigabytes.
const CAPTURED_PACKETS: &str = "15000";
/// A program that was started gets this long to be ready.
const READY: Duration = Duration::from_secs(20);
/// How often files are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// What to run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) cell: Cell,
    pub(crate) scale: Scale,
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.cell)?;
        if self.scale == Scale::Huge { f.write_str("-1g") } else { Ok(()) }
    }
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) task: Task,
    /// Everything that is not as it must be; empty: green.
    pub(crate) problems: Vec<String>,
    pub(crate) seconds: f64,
    /// The kernel's counters that are not zero.
    pub(crate) counters: Vec<(String, u64)>,
    /// What captures were found to hold.
    pub(crate) capture: String,
    /// Reasons to doubt the links' timing: nothing here depends on it.
    pub(crate) doubts: Vec<String>,
}

/// What the judge gets to see.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) task: Task,
    pub(crate) stage: &'a Stage,
    pub(crate) client: Vec<Outcome>,
    pub(crate) server: Vec<Outcome>,
    pub(crate) net: &'a Net,
    pub(crate) captures: Vec<PathBuf>,
    pub(crate) kernel_said: Vec<String>,
}

/// A process that does not outlive its use.
struct Running {
    child: Child,
    name: &'static str,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a cell in `directory`, which keeps what it leaves.
pub(crate) fn run(task: Task, instance: &str, directory: &Path) -> Verdict {
    let started = Instant::now();
    let result = attempt(task, instance, directory);
    let seconds = started.elapsed().as_secs_f64();
    match result {
        Ok(verdict) => Verdict { seconds, ..verdict },
        Err(error) => Verdict {
            task,
            problems: vec![format!("{error:#}")],
            seconds,
            counters: Vec::new(),
            capture: String::new(),
            doubts: Vec::new(),
        },
    }
}

fn attempt(task: Task, instance: &str, directory: &Path) -> anyhow::Result<Verdict> {
    let cell = task.cell;
    std::fs::create_dir_all(directory)?;
    let seed = cell.to_string().bytes().fold(7u64, |h, b| h.wrapping_mul(31) ^ u64::from(b));
    let stage = Stage::of(&cell, task.scale, seed);
    let mut log = KernelLog::from_now();
    let net = Net::up(&stage.scenario, &Options::new(instance))?;
    let watched = if cell.pair.kernel_client() { Side::Client } else { Side::Server };
    let (mut captures, mut sniffers) = (Vec::new(), Vec::new());
    for path in &stage.scenario.paths {
        let file = directory.join(format!("{}.pcap", path.name));
        sniffers.push(sniff(&net, watched, &path.name, &file)?);
        captures.push(file);
    }
    if cell.condition == Condition::FirstDead {
        net.command(&stage.scenario.paths[0].name, "down")?;
    }
    let mut server = start(&net, Side::Server, &job(&cell, &stage, Role::Server), directory)?;
    await_line(&directory.join("server.out"), "ready", &mut server)?;
    let mut client = start(&net, Side::Client, &job(&cell, &stage, Role::Client), directory)?;
    wait(&net, &stage, [&mut client, &mut server], directory)?;
    let outcomes = |name: &str| outcomes(&directory.join(name));
    let (client, server) = (outcomes("client.out")?, outcomes("server.out")?);
    for sniffer in &mut sniffers {
        stop(sniffer);
    }
    let kernel_said = log.complaints();
    let evidence =
        Evidence { task, stage: &stage, client, server, net: &net, captures, kernel_said };
    judge::judge(&evidence)
}

fn job(cell: &Cell, stage: &Stage, role: Role) -> Job {
    let kernel = match role {
        Role::Client => cell.pair.kernel_client(),
        Role::Server => cell.pair.kernel_server(),
    };
    Job {
        stack: if kernel { Stack::Kernel } else { Stack::Marline },
        role,
        address: stage.server,
        paths: stage.scenario.paths.iter().map(|path| path.name.clone()).collect(),
        checksum: cell.checksum == crate::cell::Checksum::On,
        receive_buffer: stage.receive_buffer,
        plan: stage.plan.clone(),
    }
}

/// Starts one end; its words go to files.
fn start(net: &Net, side: Side, job: &Job, directory: &Path) -> anyhow::Result<Running> {
    let name = if side == Side::Client { "client" } else { "server" };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("peer").arg(serde_json::to_string(job)?).stdin(Stdio::null());
    command.stdout(File::create(directory.join(format!("{name}.out")))?);
    command.stderr(File::create(directory.join(format!("{name}.err")))?);
    let child = net.spawn(side, &mut command).with_context(|| format!("cannot start {name}"))?;
    Ok(Running { child, name })
}

/// Starts a capture of one interface, and waits until it sees packets.
fn sniff(net: &Net, side: Side, interface: &str, file: &Path) -> anyhow::Result<Running> {
    let said = file.with_extension("pcap.err");
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-n", "-i", interface, "-s", "0", "-B", "16384", "-Z", "root"]);
    tcpdump.args(["-c", CAPTURED_PACKETS, "-w"]).arg(file).arg("tcp");
    tcpdump.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
    let child = net.spawn(side, &mut tcpdump).context("cannot run tcpdump")?;
    let mut running = Running { child, name: "tcpdump" };
    await_line(&said, "listening on", &mut running)?;
    Ok(running)
}

/// Waits until a file has a line with this text.
fn await_line(file: &Path, text: &str, from: &mut Running) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        if std::fs::read_to_string(file).unwrap_or_default().contains(text) {
            return Ok(());
        }
        let ended = from.child.try_wait()?;
        if ended.is_some() || start.elapsed() > READY {
            let errors = std::fs::read_to_string(file.with_extension("err")).unwrap_or_default();
            bail!("{} is not ready ({ended:?}): {}", from.name, errors.trim());
        }
        std::thread::sleep(LOOK);
    }
}

/// Waits for both ends, and breaks and mends the first path when it is time.
fn wait(
    net: &Net,
    stage: &Stage,
    mut running: [&mut Running; 2],
    directory: &Path,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let first = &stage.scenario.paths[0].name;
    let mut faults: Vec<(Duration, &str)> = stage
        .fault
        .iter()
        .flat_map(|fault| [(fault.after + fault.lasts, "up"), (fault.after, "down")])
        .collect();
    loop {
        if faults.last().is_some_and(|(at, _)| start.elapsed() >= *at)
            && let Some((_, order)) = faults.pop()
        {
            net.command(first, order)?;
        }
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
        if start.elapsed() > stage.limit {
            let waits = |end: &mut &mut Running| {
                matches!(end.child.try_wait(), Ok(None)).then_some(end.name)
            };
            let names: Vec<&str> = running.iter_mut().filter_map(waits).collect();
            bail!("after {:?} still running: {}", stage.limit, names.join(", "));
        }
        std::thread::sleep(LOOK);
    }
}

/// Lets a capture write what it has.
fn stop(sniffer: &mut Running) {
    let pid = i32::try_from(sniffer.child.id()).ok().and_then(Pid::from_raw);
    let _ = pid.map(|pid| kill_process(pid, Signal::INT));
    let start = Instant::now();
    while matches!(sniffer.child.try_wait(), Ok(None)) && start.elapsed() < READY {
        std::thread::sleep(LOOK);
    }
}

fn outcomes(file: &Path) -> io::Result<Vec<Outcome>> {
    let text = std::fs::read_to_string(file)?;
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).map_err(io::Error::other)).collect()
}
