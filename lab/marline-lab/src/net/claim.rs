//! Ownership of namespaces, which distinguishes the remains of a crash from namespaces in use.
//!
//! A claim is a file that names the owner by process id and start time (ids are reused). It is written before
//! anything is created. If the owner is dead, any process may remove everything that the claim names.

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

/// Directory of claims.
const CLAIM_DIRECTORY: &str = "/run/marline-lab";
/// Maximum length of an instance name in bytes.
const MAX_INSTANCE: usize = 20;
/// Time to wait for killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// A process, identified by its id and start time.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    /// Start time, in the kernel's ticks since boot.
    pub started: u64,
}

impl Owner {
    /// The calling process.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn current_process() -> io::Result<Owner> {
        let pid = std::process::id();
        Ok(Owner { pid, started: started(pid)? })
    }

    /// Returns true if the process is running.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        started(self.pid).is_ok_and(|since| since == self.started)
    }
}

/// The 22nd field of /proc/PID/stat. The second one is in parentheses and may contain anything.
fn started(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = rest.split_ascii_whitespace().nth(19);
    field.and_then(|text| text.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Contents of a claim's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    instance: String,
    owner: Owner,
}

/// Ownership of an instance name. Dropping it kills the processes in its namespaces and removes them.
#[derive(Debug)]
pub struct Claim {
    file: PathBuf,
    namespaces: [String; 2],
}

impl Claim {
    /// Claims the name, after removing the remains of a dead owner.
    ///
    /// # Errors
    /// The name is invalid or in use by a living process, or the file cannot be written.
    pub fn claim_instance(instance: &str) -> anyhow::Result<Claim> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let fits = (1..=MAX_INSTANCE).contains(&instance.len()) && instance.chars().all(plain);
        ensure!(
            fits,
            "`{instance}` is not a valid network name: 1 to {MAX_INSTANCE} letters, digits and -"
        );
        ensure!(rustix::process::geteuid().is_root(), "creating network namespaces needs root");
        fs::create_dir_all(CLAIM_DIRECTORY)
            .with_context(|| format!("cannot create {CLAIM_DIRECTORY}"))?;
        let file = Path::new(CLAIM_DIRECTORY).join(format!("{instance}.json"));
        if let Some(found) = read(&file) {
            let pid = found.owner.pid;
            ensure!(!found.owner.is_alive(), "the network `{instance}` belongs to process {pid}");
            remove(instance);
            let _ = fs::remove_file(&file);
        }
        let record = Record { instance: instance.to_owned(), owner: Owner::current_process()? };
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

/// Writes a new claim atomically, because a partial claim would not name its owner and would block the name
/// permanently.
fn publish(file: &Path, record: &Record) -> io::Result<()> {
    let draft = file.with_extension(format!("{}.draft", record.owner.pid));
    let _ = fs::remove_file(&draft);
    let mut options = fs::OpenOptions::new();
    let mut opened = options.write(true).create_new(true).mode(0o600).open(&draft)?;
    opened.write_all(serde_json::to_string(record)?.as_bytes())?;
    // Unlike a rename, this does not replace a claim that another process has made meanwhile.
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

/// The networks of this machine and their owners.
#[must_use]
pub fn claims() -> Vec<(String, Owner)> {
    let entries = fs::read_dir(CLAIM_DIRECTORY).into_iter().flatten().flatten();
    let mut found: Vec<(String, Owner)> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter_map(|path| read(&path))
        .map(|record| (record.instance, record.owner))
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Removes the remains of dead owners, and returns their names. Namespaces in use are not touched.
#[must_use]
pub fn remove_remains() -> Vec<String> {
    let mut swept = Vec::new();
    for (instance, owner) in claims() {
        if !owner.is_alive() {
            remove(&instance);
            let _ = fs::remove_file(Path::new(CLAIM_DIRECTORY).join(format!("{instance}.json")));
            swept.push(instance);
        }
    }
    swept
}

/// Ends a network: terminates its owner, or removes the remains if the owner is dead.
///
/// # Errors
/// There is no such network, or its owner does not exit within 10 s.
pub fn release(instance: &str) -> anyhow::Result<()> {
    const OWNER_TIMEOUT: Duration = Duration::from_secs(10);
    let (_, owner) = claims()
        .into_iter()
        .find(|(name, _)| name == instance)
        .with_context(|| format!("no network `{instance}`; `marline-lab net status` lists all"))?;
    let held = || claims().iter().any(|(name, by)| name == instance && *by == owner);
    if owner.is_alive() {
        let pid = Pid::from_raw(i32::try_from(owner.pid)?).context("process id 0 is never used")?;
        // A process that has ended meanwhile is not an error.
        let _ = kill_process(pid, Signal::TERM);
    }
    let start = Instant::now();
    while owner.is_alive() && held() {
        let pid = owner.pid;
        ensure!(
            start.elapsed() < OWNER_TIMEOUT,
            "process {pid} does not exit; kill it, then run `sweep`"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    if held() {
        remove(instance);
        let _ = fs::remove_file(Path::new(CLAIM_DIRECTORY).join(format!("{instance}.json")));
    }
    Ok(())
}

fn remove(instance: &str) {
    namespaces(instance).iter().for_each(|namespace| remove_namespace(namespace));
}

/// Kills the processes in a namespace and deletes it.
fn remove_namespace(namespace: &str) {
    let start = Instant::now();
    loop {
        let running = processes(namespace);
        if running.is_empty() || start.elapsed() > KILL_TIMEOUT {
            break;
        }
        for pid in running {
            // A process that has ended meanwhile is not an error.
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut ip = Command::new("ip");
    // An incomplete network may lack this namespace.
    let _ = ip.args(["netns", "del", namespace]).stderr(Stdio::null()).status();
}

/// Processes in a namespace, without zombies and this process (one of its threads may be in the namespace).
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
