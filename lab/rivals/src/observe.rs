//! A neutral client under observation, and the resource usage of processes.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::systems::Programs;
use crate::world::{Process, Side, World};

/// Events so far: kind and values.
type Events = Arc<Mutex<Vec<(String, Vec<u64>)>>>;

/// A running neutral client.
pub struct Client {
    process: Process,
    events: Events,
}

impl Client {
    /// Starts `rivals client ARGUMENTS`.
    ///
    /// # Errors
    /// The client cannot be started.
    pub fn start(world: &World, programs: &Programs, arguments: &[&str]) -> anyhow::Result<Client> {
        let program = [&[programs.rivals.as_str(), "client"], arguments].concat();
        let mut command = world.command(Side::Client, &program);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(world.dir.join("client.log"))?;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let out = child.stdout.take().context("cannot read the client's standard output")?;
        let events = Events::default();
        let seen = events.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let mut words = line.split(' ');
                let kind = words.next().unwrap_or_default().to_owned();
                let values = words.flat_map(str::parse).collect();
                seen.lock().unwrap_or_else(PoisonError::into_inner).push((kind, values));
            }
        });
        Ok(Client { process: Process { child }, events })
    }

    /// Id of the process.
    pub fn id(&self) -> u32 {
        self.process.child.id()
    }

    /// Values of all events of a kind so far.
    pub fn events(&self, kind: &str) -> Vec<Vec<u64>> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().filter(|(other, _)| other == kind).map(|(_, values)| values.clone()).collect()
    }

    /// Waits for this many events of a kind.
    ///
    /// # Errors
    /// They did not arrive in time, or the client ended.
    pub fn await_events(
        &mut self,
        kind: &str,
        count: usize,
        within: Duration,
    ) -> anyhow::Result<Vec<Vec<u64>>> {
        let start = Instant::now();
        loop {
            let ended = self.process.child.try_wait()?;
            let events = self.events(kind);
            if events.len() >= count {
                return Ok(events);
            }
            if let Some(status) = ended {
                // Its last lines may still be in the pipe.
                std::thread::sleep(Duration::from_millis(50));
                match self.events(kind) {
                    events if events.len() >= count => return Ok(events),
                    _ => bail!("the client ended ({status}) before `{kind}`"),
                }
            }
            if start.elapsed() > within {
                bail!("the client did not report `{kind}` within {within:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Ids of a world's processes without its links: system and neutral server.
pub fn processes(world: &World) -> Vec<u32> {
    let children = world.system.iter().chain(&world.neutral).map(|process| process.child.id());
    children.collect()
}

/// CPU time of these processes so far, in seconds.
///
/// # Errors
/// A process has ended.
pub fn processor_seconds(processes: &[u32]) -> anyhow::Result<f64> {
    let mut nanoseconds = 0.0;
    for process in processes {
        let tasks =
            std::fs::read_dir(format!("/proc/{process}/task")).context("the process has ended")?;
        for task in tasks {
            let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            nanoseconds += text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
        }
    }
    Ok(nanoseconds / 1e9)
}

/// Anonymous memory of these processes in RAM, in megabytes.
///
/// # Errors
/// A process has ended.
pub fn memory_megabytes(processes: &[u32]) -> anyhow::Result<f64> {
    let mut kilobytes = 0.0;
    for process in processes {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))
            .context("the process has ended")?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kilobytes += number.unwrap_or(0.0) * 1.024;
    }
    Ok(kilobytes / 1e3)
}
