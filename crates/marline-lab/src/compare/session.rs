//! One run, and the files that runs leave.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use marline_time::{Rng, SeedTree};
use serde::{Deserialize, Serialize};

use super::contestant::Contestant;
use super::end::{Job, PathUse};
use super::row::{Fault, Row};
use super::statistics::{Logs, look};
use crate::keep;
use crate::net::{Net, Options};
use crate::scenario::{EndpointFlag, Side};
use crate::workload::{Log, now_ns};

/// The server's port.
const PORT: u16 = 7_100;
/// From making the processes to the start of what they do: connecting, also if SYNs are lost.
const LEAD: Duration = Duration::from_millis(3_500);
/// After its planned end a run is given so long.
const GRACE: Duration = Duration::from_secs(25);
/// Runs over links that were late are repeated so often.
const ATTEMPTS: u32 = 3;

/// What a run showed, by name; every value in the unit that its name ends with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Values.
    pub values: BTreeMap<String, Vec<f64>>,
    /// Bytes offered to the links, both ways, IP headers included.
    pub wire_bytes: u64,
    /// Why it should not be believed, although it was repeated.
    pub doubts: Vec<String>,
    /// Why there is nothing.
    pub error: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    program: String,
    sample: Sample,
}

/// Where runs are made and kept.
#[derive(Debug)]
pub struct Bench {
    place: PathBuf,
    program: String,
    fresh: bool,
}

impl Bench {
    /// Results in this directory; `fresh`: those that are there are not looked at.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(place: &Path, fresh: bool) -> anyhow::Result<Bench> {
        std::fs::create_dir_all(place).with_context(|| place.display().to_string())?;
        Ok(Bench { place: place.to_owned(), program: keep::program()?, fresh })
    }

    fn file(&self, row: &Row, contestant: Contestant, repeat: u32) -> PathBuf {
        self.place.join(format!("{}-{}-{repeat}.json", row.key, contestant.key()))
    }

    fn read(&self, row: &Row, contestant: Contestant, repeat: u32) -> Option<Kept> {
        let text = std::fs::read_to_string(self.file(row, contestant, repeat)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// What a run of this very program showed, or failed of; the kernel's results hold for any.
    #[must_use]
    pub fn latest(&self, row: &Row, contestant: Contestant, repeat: u32) -> Option<Sample> {
        let kept = self.read(row, contestant, repeat)?;
        let holds = !contestant.is_marline() || kept.program == self.program;
        holds.then_some(kept.sample)
    }

    /// The runs of a row that have not been made.
    #[must_use]
    pub fn missing(&self, row: &Row) -> Vec<(Contestant, u32)> {
        let all = row.contestants.iter().flat_map(|contestant| {
            (0..row.repeats_of(*contestant)).map(|repeat| (*contestant, repeat))
        });
        let good = |sample: &Sample| sample.error.is_none();
        let there = |(c, repeat): &(Contestant, u32)| {
            !self.fresh && self.latest(row, *c, *repeat).as_ref().is_some_and(good)
        };
        all.filter(|run| !there(run)).collect()
    }

    /// Makes a run and keeps it.
    ///
    /// # Errors
    /// It cannot be written down; a run that fails says so in its sample.
    pub fn run(
        &self,
        row: &Row,
        contestant: Contestant,
        repeat: u32,
        instance: &str,
    ) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for attempt in 0..ATTEMPTS {
            sample = match one(row, contestant, repeat + 1_000 * attempt, instance) {
                Ok(sample) => sample,
                Err(error) => Sample { error: Some(format!("{error:#}")), ..Sample::default() },
            };
            if sample.error.is_none() && sample.doubts.is_empty() {
                break;
            }
        }
        let kept = Kept { program: self.program.clone(), sample };
        let file = self.file(row, contestant, repeat);
        std::fs::write(&file, serde_json::to_string(&kept)?)
            .with_context(|| file.display().to_string())?;
        Ok(kept.sample)
    }
}

/// A process that does not outlive its use.
struct End {
    child: Child,
    lines: BufReader<ChildStdout>,
    name: Side,
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl End {
    fn start(net: &Net, job: &Job) -> anyhow::Result<End> {
        let side = job.side;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["lab", "end"]).arg(serde_json::to_string(job)?);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            net.spawn(side, &mut command).with_context(|| format!("cannot start the {side}"))?;
        let lines = BufReader::new(child.stdout.take().context("no output")?);
        Ok(End { child, lines, name: side })
    }

    fn complaint(&mut self) -> String {
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.take(4_096).read_to_string(&mut said);
        }
        said.trim().to_owned()
    }

    /// Waits for its end and reads its log.
    fn log(&mut self, deadline: Instant) -> anyhow::Result<Log> {
        // A log may be longer than the pipe: whoever writes it ends only when it is read.
        let (name, id) = (self.name, self.child.id());
        let (done, watch) = std::sync::mpsc::channel::<()>();
        let watchdog = std::thread::spawn(move || {
            let left = deadline.saturating_duration_since(Instant::now());
            if watch.recv_timeout(left) == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
                && let Some(pid) = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw)
            {
                // Not reaped before the channel is closed: the number is still its own.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        let mut text = String::new();
        let read = self.lines.read_to_string(&mut text);
        drop(done);
        let _ = watchdog.join();
        read?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the {name} ended with {status}: {}", self.complaint());
        }
        let line = text.lines().find(|line| line.starts_with('{')).context("no log")?;
        Ok(serde_json::from_str(line)?)
    }
}

fn one(row: &Row, contestant: Contestant, seed: u32, instance: &str) -> anyhow::Result<Sample> {
    let seed = u64::from(seed) + 1;
    let net = Net::up(&row.seeded(seed), &Options::new(instance))?;
    let start_ns = now_ns() + LEAD.as_nanos() as u64;
    let mut server = End::start(&net, &job(row, contestant, start_ns, seed, Side::Server))?;
    let mut ready = String::new();
    server.lines.read_line(&mut ready)?;
    if ready.trim() != "ready" {
        bail!("the server is not ready: {}", server.complaint());
    }
    let mut client = End::start(&net, &job(row, contestant, start_ns, seed, Side::Client))?;
    let lasts = row.workload.lasts(seed);
    let fault_ns = match (row.fault, contestant.is_reference()) {
        (Some(fault), false) => Some(strike(row, fault, &net, start_ns, seed)?),
        _ => None,
    };
    let left = Duration::from_nanos(start_ns.saturating_sub(now_ns()));
    let deadline = Instant::now() + left + lasts + GRACE;
    let client = client.log(deadline)?;
    let report = net.report()?;
    let server = server.log(deadline)?;
    let logs = Logs { client, server, start_ns, fault_ns };
    let wire_bytes =
        report.iter().map(|path| path.up.stats.offered_bytes + path.down.stats.offered_bytes).sum();
    let doubts = net.doubts()?;
    Ok(Sample { values: look(row, &logs), wire_bytes, doubts, error: None })
}

fn job(row: &Row, contestant: Contestant, start_ns: u64, seed: u64, side: Side) -> Job {
    let buffers = &row.buffers;
    let (send_buffer, receive_buffer) = if contestant.is_marline() {
        (buffers.marline_send, buffers.marline_receive)
    } else {
        let bytes = |buffer: Option<usize>| buffer.map(|bytes| bytes as u64);
        (bytes(buffers.kernel_send), bytes(buffers.kernel_receive))
    };
    let endpoints = &row.scenario.client.mptcp.endpoints;
    let path = |path: &crate::scenario::Path| {
        let address = path.client[0].addr();
        let backup = endpoints.iter().any(|endpoint| {
            endpoint.address == address && endpoint.flags.contains(&EndpointFlag::Backup)
        });
        PathUse { interface: path.name.clone(), address, backup }
    };
    Job {
        side,
        contestant,
        address: SocketAddr::new(row.scenario.paths[0].server[0].addr(), PORT),
        paths: row.scenario.paths.iter().map(path).collect(),
        workload: row.workload,
        send_buffer,
        receive_buffer,
        start_ns,
        seed,
    }
}

/// Waits for the moment and cuts the first path, both ways. Returns when that was.
fn strike(row: &Row, fault: Fault, net: &Net, start_ns: u64, seed: u64) -> anyhow::Result<u64> {
    let times = row.workload.times_ns(seed);
    let mut rng = SeedTree::new(seed).stream("fault");
    let burst = |number: usize| times.get(number).copied().context("no such burst");
    let (from_ns, to_ns) = match fault {
        Fault::Between(from_ms, to_ms) => ((from_ms * 1e6) as u64, (to_ms * 1e6) as u64),
        Fault::InBurst(number, from_ms, to_ms) => {
            let at = burst(number)?;
            (at + (from_ms * 1e6) as u64, at + (to_ms * 1e6) as u64)
        }
        Fault::AroundBurst(number) => (burst(number)?, burst(number + 1)?),
    };
    let at_ns = start_ns + from_ns + rng.below(to_ns - from_ns);
    std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
    net.command(&row.scenario.paths[0].name, "down")?;
    Ok(now_ns())
}
