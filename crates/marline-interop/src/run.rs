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
use crate::exchange::{Outcome, Plan};
use crate::judge;
use crate::peer::{Extra, Job, Stack};
use crate::special::Special;
use crate::stage::{Scale, Stage};

/// Packets captured per path: enough for what begins and ends, not gigabytes.
const CAPTURED_PACKETS: &str = "15000";
/// A program that was started gets this long to be ready.
const READY: Duration = Duration::from_secs(20);
/// How often files are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// What to run.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Task {
    /// A cell of the matrix.
    Cell(Cell, Scale),
    /// A case of its own.
    Special(&'static Special),
}

impl Task {
    /// How much is sent.
    pub(crate) const fn scale(&self) -> Scale {
        match self {
            Task::Cell(_, scale) => *scale,
            Task::Special(_) => Scale::Small,
        }
    }
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Task::Cell(cell, Scale::Huge) => write!(f, "{cell}-1g"),
            Task::Cell(cell, _) => cell.fmt(f),
            Task::Special(special) => f.write_str(special.name),
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Verdict {
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
    pub(crate) plan: &'a Plan,
    pub(crate) client: Vec<Outcome>,
    pub(crate) server: Vec<Outcome>,
    pub(crate) net: &'a Net,
    pub(crate) captures: Vec<PathBuf>,
    pub(crate) kernel_said: Vec<String>,
}

impl Evidence<'_> {
    /// Connections that run as plain TCP, as far as the ends know.
    pub(crate) fn fallbacks(&self) -> Vec<(Side, usize, String)> {
        let ends = [(Side::Client, &self.client), (Side::Server, &self.server)];
        let named = |(side, outcomes): (Side, &Vec<Outcome>)| {
            let numbered = outcomes.iter().enumerate();
            let fallen = numbered.filter_map(move |(n, o)| Some((side, n, o.fallback.clone()?)));
            fallen.collect::<Vec<_>>()
        };
        ends.into_iter().flat_map(named).collect()
    }
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

/// Runs something in `directory`, which keeps what it leaves.
pub(crate) fn run(task: Task, instance: &str, directory: &Path) -> Verdict {
    let started = Instant::now();
    let made = std::fs::create_dir_all(directory).context("its directory");
    let result = made.and_then(|()| match task {
        Task::Cell(cell, scale) => attempt(cell, scale, instance, directory),
        Task::Special(special) => special.run(instance, directory),
    });
    let seconds = started.elapsed().as_secs_f64();
    match result {
        Ok(verdict) => Verdict { seconds, ..verdict },
        Err(error) => {
            Verdict { problems: vec![format!("{error:#}")], seconds, ..Verdict::default() }
        }
    }
}

fn attempt(cell: Cell, scale: Scale, instance: &str, directory: &Path) -> anyhow::Result<Verdict> {
    let stage = Stage::of(&cell, scale, seed(&cell.to_string()));
    let log = KernelLog::from_now();
    let net = Net::up(&stage.scenario, &Options::new(instance))?;
    let first = &stage.scenario.paths[0].name;
    if cell.condition == Condition::FirstDead {
        net.command(first, "down")?;
    }
    let mut faults: Vec<(Duration, &str)> = stage
        .fault
        .iter()
        .flat_map(|fault| [(fault.after + fault.lasts, "up"), (fault.after, "down")])
        .collect();
    let mut act = |elapsed: Duration| {
        if faults.last().is_some_and(|(at, _)| elapsed >= *at)
            && let Some((_, order)) = faults.pop()
        {
            net.command(first, order)?;
        }
        Ok(())
    };
    let play = Play {
        net: &net,
        directory,
        watched: if cell.pair.kernel_client() { Side::Client } else { Side::Server },
        jobs: [job(&cell, &stage, Side::Client), job(&cell, &stage, Side::Server)],
        limit: stage.limit,
    };
    let evidence = play.perform(log, &mut act)?;
    judge::judge(cell, &evidence)
}

/// A number of a name.
pub(crate) fn seed(name: &str) -> u64 {
    name.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31) ^ u64::from(byte))
}

/// Two ends on a net, and what is captured.
pub(crate) struct Play<'a> {
    pub(crate) net: &'a Net,
    pub(crate) directory: &'a Path,
    /// Where captures are taken.
    pub(crate) watched: Side,
    /// The client's and the server's.
    pub(crate) jobs: [Job; 2],
    pub(crate) limit: Duration,
}

impl<'a> Play<'a> {
    /// Runs both ends to their end. `act` is asked again and again what is to be done, with the time
    /// since the client was started.
    pub(crate) fn perform(
        &'a self,
        mut log: KernelLog,
        act: &mut dyn FnMut(Duration) -> anyhow::Result<()>,
    ) -> anyhow::Result<Evidence<'a>> {
        let (net, directory) = (self.net, self.directory);
        let (mut captures, mut sniffers) = (Vec::new(), Vec::new());
        for path in &net.scenario().paths {
            let file = directory.join(format!("{}.pcap", path.name));
            sniffers.push(sniff(net, self.watched, &path.name, &file)?);
            captures.push(file);
        }
        let [client_job, server_job] = &self.jobs;
        let mut server = start(net, server_job, directory)?;
        await_line(&directory.join("server.out"), "ready", &mut server)?;
        let mut client = start(net, client_job, directory)?;
        wait(self.limit, [&mut client, &mut server], directory, act)?;
        let read = |name: &str| outcomes(&directory.join(name));
        let (client, server) = (read("client.out")?, read("server.out")?);
        for sniffer in &mut sniffers {
            stop(sniffer);
        }
        let kernel_said = log.complaints();
        Ok(Evidence { plan: &client_job.plan, client, server, net, captures, kernel_said })
    }
}

fn job(cell: &Cell, stage: &Stage, side: Side) -> Job {
    let kernel = match side {
        Side::Client => cell.pair.kernel_client(),
        Side::Server => cell.pair.kernel_server(),
    };
    Job {
        stack: if kernel { Stack::Kernel } else { Stack::Marline },
        side,
        address: stage.server,
        paths: stage.scenario.paths.iter().map(|path| path.name.clone()).collect(),
        checksum: cell.checksum == crate::cell::Checksum::On,
        receive_buffer: stage.receive_buffer,
        plan: stage.plan.clone(),
        extra: Extra::default(),
    }
}

/// Starts one end; its words go to files.
fn start(net: &Net, job: &Job, directory: &Path) -> anyhow::Result<Running> {
    let name = if job.side == Side::Client { "client" } else { "server" };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("peer").arg(serde_json::to_string(job)?).stdin(Stdio::null());
    command.stdout(File::create(directory.join(format!("{name}.out")))?);
    command.stderr(File::create(directory.join(format!("{name}.err")))?);
    let child =
        net.spawn(job.side, &mut command).with_context(|| format!("cannot start {name}"))?;
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

/// Waits for both ends, and does what is to be done meanwhile.
fn wait(
    limit: Duration,
    mut running: [&mut Running; 2],
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
            let waits = |end: &mut &mut Running| {
                matches!(end.child.try_wait(), Ok(None)).then_some(end.name)
            };
            let names: Vec<&str> = running.iter_mut().filter_map(waits).collect();
            bail!("after {limit:?} still running: {}", names.join(", "));
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
