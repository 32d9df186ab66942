//! Ownership of namespaces, by which the remains of a crash are told from namespaces in use.
//!
//! A claim is a file that names the owner by process id and start time (ids are reused) and is
//! written before anything is created. Any process that finds a claim of a dead owner may remove
//! what it names.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::scenario::Side;

/// Where claims are kept.
const PLACE: &str = "/run/marline-lab";
/// Bytes of an instance's name.
const MAX_INSTANCE: usize = 20;
/// Killed processes are waited for this long.
const PATIENCE: Duration = Duration::from_secs(2);

/// A process, told from later ones with its id.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    /// When it started, in the kernel's ticks since boot.
    pub started: u64,
}

impl Owner {
    /// The calling process.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn this() -> io::Result<Owner> {
        let pid = std::process::id();
        Ok(Owner { pid, started: started(pid)? })
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        started(self.pid).is_ok_and(|since| since == self.started)
    }
}

/// The 22nd field of /proc/PID/stat; the second is in parentheses and may hold anything.
fn started(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = rest.split_ascii_whitespace().nth(19);
    field.and_then(|text| text.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// What a claim's file says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    instance: String,
    owner: Owner,
}

/// The right to an instance's name. Dropping it kills what runs in its namespaces and removes them.
#[derive(Debug)]
pub struct Claim {
    file: PathBuf,
    namespaces: [String; 2],
}

impl Claim {
    /// Claims the name, after what a dead owner left under it is removed.
    ///
    /// # Errors
    /// Not such a name, in use by a living process, or the file cannot be written.
    pub fn claim_instance(instance: &str) -> anyhow::Result<Claim> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let fits = (1..=MAX_INSTANCE).contains(&instance.len()) && instance.chars().all(plain);
        ensure!(fits, "`{instance}` cannot name a net: 1 to {MAX_INSTANCE} letters, digits and -");
        ensure!(rustix::process::geteuid().is_root(), "making network namespaces needs root");
        fs::create_dir_all(PLACE).with_context(|| format!("cannot make {PLACE}"))?;
        let file = Path::new(PLACE).join(format!("{instance}.json"));
        if let Some(found) = read(&file) {
            let pid = found.owner.pid;
            ensure!(!found.owner.is_alive(), "the net `{instance}` belongs to process {pid}");
            remove(instance);
            let _ = fs::remove_file(&file);
        }
        let record = Record { instance: instance.to_owned(), owner: Owner::this()? };
        publish(&file, &record).with_context(|| format!("cannot claim {}", file.display()))?;
        Ok(Claim { file, namespaces: namespaces(instance) })
    }

    /// The name of a host's namespace.
    #[must_use]
    pub fn namespace(&self, side: Side) -> &str {
        match side {
            Side::Client => &self.namespaces[0],
            Side::Server => &self.namespaces[1],
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.namespaces.iter().for_each(|namespace| remove_namespace(namespace));
        let _ = fs::remove_file(&self.file);
    }
}

/// Writes a claim that was not there. It appears as a whole or not at all: half of one would say
/// nothing about its owner and be in the way for ever.
fn publish(file: &Path, record: &Record) -> io::Result<()> {
    let draft = file.with_extension(format!("{}.draft", record.owner.pid));
    let _ = fs::remove_file(&draft);
    let mut options = fs::OpenOptions::new();
    let mut opened = options.write(true).create_new(true).mode(0o600).open(&draft)?;
    opened.write_all(serde_json::to_string(record)?.as_bytes())?;
    // Unlike a rename this does not replace what somebody else has claimed meanwhile.
    let linked = fs::hard_link(&draft, file);
    let _ = fs::remove_file(&draft);
    linked
}

fn namespaces(instance: &str) -> [String; 2] {
    [Side::Client, Side::Server].map(|side| format!("ml-{instance}-{side}"))
}

fn read(file: &Path) -> Option<Record> {
    serde_json::from_str(&fs::read_to_string(file).ok()?).ok()
}

/// The nets of this machine, and who owns them.
#[must_use]
pub fn claims() -> Vec<(String, Owner)> {
    let entries = fs::read_dir(PLACE).into_iter().flatten().flatten();
    let mut found: Vec<(String, Owner)> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter_map(|path| read(&path))
        .map(|record| (record.instance, record.owner))
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Removes what dead owners left; returns the names. What is in use is not touched.
#[must_use]
pub fn sweep() -> Vec<String> {
    let mut swept = Vec::new();
    for (instance, owner) in claims() {
        if !owner.is_alive() {
            remove(&instance);
            let _ = fs::remove_file(Path::new(PLACE).join(format!("{instance}.json")));
            swept.push(instance);
        }
    }
    swept
}

/// Ends a net: asks its owner to, and removes what is left of one whose owner is gone.
///
/// # Errors
/// There is no such net, or its owner does not end within 10 s.
pub fn release(instance: &str) -> anyhow::Result<()> {
    const OWNER_TIMEOUT: Duration = Duration::from_secs(10);
    let (_, owner) = claims()
        .into_iter()
        .find(|(name, _)| name == instance)
        .with_context(|| format!("there is no net `{instance}`; `marline-lab net status`"))?;
    let held = || claims().iter().any(|(name, by)| name == instance && *by == owner);
    if owner.is_alive() {
        let pid = Pid::from_raw(i32::try_from(owner.pid)?).context("no process has the id 0")?;
        // Gone meanwhile is as good.
        let _ = kill_process(pid, Signal::TERM);
    }
    let start = Instant::now();
    while owner.is_alive() && held() {
        let pid = owner.pid;
        ensure!(start.elapsed() < OWNER_TIMEOUT, "process {pid} does not end; kill it and sweep");
        std::thread::sleep(Duration::from_millis(10));
    }
    if held() {
        remove(instance);
        let _ = fs::remove_file(Path::new(PLACE).join(format!("{instance}.json")));
    }
    Ok(())
}

fn remove(instance: &str) {
    namespaces(instance).iter().for_each(|namespace| remove_namespace(namespace));
}

/// Kills what runs in the namespace and deletes its name.
fn remove_namespace(namespace: &str) {
    let start = Instant::now();
    loop {
        let running = processes(namespace);
        if running.is_empty() || start.elapsed() > PATIENCE {
            break;
        }
        for pid in running {
            // Gone meanwhile is as good.
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut ip = Command::new("ip");
    // Half made, there is none.
    let _ = ip.args(["netns", "del", namespace]).stderr(Stdio::null()).status();
}

/// Processes in a namespace that are not zombies and not this one (a thread of ours may be there).
fn processes(namespace: &str) -> Vec<i32> {
    let output = Command::new("ip").args(["netns", "pids", namespace]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let own = std::process::id() as i32;
    let pids = text.unwrap_or_default();
    let pids = pids.split_ascii_whitespace().filter_map(|word| word.parse().ok());
    pids.filter(|pid| *pid != own && !is_zombie(*pid)).collect()
}

fn is_zombie(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}
