//! Control groups that limit the memory of a program under test.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use marline_testkit::need;

use super::Running;

/// A memory cgroup without swap. Dropping it removes the cgroup, after the processes in it have ended.
pub(crate) struct MemoryCgroup {
    path: PathBuf,
    version: Version,
}

#[derive(Copy, Clone, PartialEq)]
enum Version {
    V1,
    V2,
}

/// Memory that is charged to a cgroup, in bytes.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct MemoryUse {
    /// Pages of the processes.
    pub(crate) anon: u64,
    /// Socket buffers.
    pub(crate) sock: u64,
    /// Kernel objects: sockets, tasks, page tables.
    pub(crate) kernel: u64,
}

impl MemoryUse {
    /// Returns the memory that cannot be reclaimed without swap. With cgroup v1 the kernel itself does not include
    /// socket buffers.
    pub(crate) fn total(&self) -> u64 {
        self.anon + self.sock + self.kernel
    }

    /// Returns the one with the larger total.
    pub(crate) fn or_larger(&self, other: &MemoryUse) -> MemoryUse {
        if other.total() > self.total() { *other } else { *self }
    }
}

impl fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let MemoryUse { anon, sock, kernel } = *self;
        let total = mb(self.total());
        let (anon, sock, kernel) = (mb(anon), mb(sock), mb(kernel));
        write!(f, "{total:.1} MB (anon {anon:.1}, sock {sock:.1}, kernel {kernel:.1})")
    }
}

impl MemoryCgroup {
    /// Creates a cgroup with this limit. `None` and a message if this machine does not support it.
    pub(crate) fn with_limit(bytes: u64) -> Option<MemoryCgroup> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let Some((root, version)) = hierarchy("memory") else {
            need::skip("no hierarchy of cgroups has the memory controller");
            return None;
        };
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("marline-test-{}-{number}", std::process::id()));
        if let Err(error) = fs::create_dir(&path) {
            need::skip(&format!("cannot make a cgroup in {}: {error}", root.display()));
            return None;
        }
        let group = MemoryCgroup { path, version };
        let set = |file: &str, value: u64| fs::write(group.path.join(file), value.to_string());
        let limited = match version {
            Version::V2 => set("memory.max", bytes),
            Version::V1 => set("memory.limit_in_bytes", bytes),
        };
        if let Err(error) = limited {
            need::skip(&format!("cannot limit a cgroup in {}: {error}", root.display()));
            return None;
        }
        // The file is missing if the kernel does not account for swap, for example because there is none.
        let _ = match version {
            Version::V2 => set("memory.swap.max", 0),
            Version::V1 => set("memory.memsw.limit_in_bytes", bytes),
        };
        if version == Version::V1 {
            // Socket buffers are counted as soon as they have a limit, which has no other effect here.
            set("memory.kmem.tcp.limit_in_bytes", 1 << 40).expect("a limit on socket buffers");
        }
        Some(group)
    }

    /// Starts the program in the cgroup.
    pub(crate) fn start(&self, dir: &Path, args: &[&str]) -> Running {
        let name = args.first().copied().unwrap_or_default();
        Running::start_command(self.inside(&super::marline(dir, args)), name)
    }

    /// Returns the command, started by a shell that joins the cgroup before it becomes the program, so that memory and
    /// limits at the start count as well.
    fn inside(&self, command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-euc", "echo $$ > \"$0\"; exec \"$@\""]).arg(self.members());
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            shell.current_dir(dir);
        }
        shell
    }

    /// Returns the file to which a process writes its id to join.
    pub(crate) fn members(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Returns the memory that is charged now.
    pub(crate) fn memory(&self) -> MemoryUse {
        let stat = self.read("memory.stat");
        match self.version {
            Version::V2 => {
                let (anon, sock) = (field(&stat, "anon"), field(&stat, "sock"));
                MemoryUse { anon, sock, kernel: field(&stat, "kernel") }
            }
            Version::V1 => MemoryUse {
                anon: field(&stat, "rss"),
                sock: number(&self.read("memory.kmem.tcp.usage_in_bytes")),
                kernel: number(&self.read("memory.kmem.usage_in_bytes")),
            },
        }
    }

    /// Returns the number of processes that the kernel has killed in the cgroup for lack of memory.
    pub(crate) fn oom_kills(&self) -> u64 {
        let file = match self.version {
            Version::V2 => "memory.events",
            Version::V1 => "memory.oom_control",
        };
        field(&self.read(file), "oom_kill")
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path.join(file)).unwrap_or_default()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// A cgroup with a share of one processor. Dropping it removes the cgroup, after the processes in it have ended.
pub(crate) struct ProcessorCgroup {
    path: PathBuf,
}

impl ProcessorCgroup {
    /// Creates a cgroup that runs for `percent` milliseconds of every 100. `None` and a message if this machine does
    /// not support it.
    pub(crate) fn with_percent(percent: u64) -> Option<ProcessorCgroup> {
        let Some((root, version)) = hierarchy("cpu") else {
            need::skip("no hierarchy of cgroups has the cpu controller");
            return None;
        };
        let path = root.join(format!("marline-test-cpu-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&path) {
            need::skip(&format!("cannot make a cgroup in {}: {error}", root.display()));
            return None;
        }
        let group = ProcessorCgroup { path };
        let (quota_us, period_us) = (percent * 1_000, 100_000);
        let limited = match version {
            Version::V2 => group.set("cpu.max", &format!("{quota_us} {period_us}")),
            Version::V1 => group.set("cpu.cfs_quota_us", &quota_us.to_string()),
        };
        if let Err(error) = limited {
            need::skip(&format!("cannot limit a cgroup in {}: {error}", root.display()));
            return None;
        }
        Some(group)
    }

    fn set(&self, file: &str, value: &str) -> std::io::Result<()> {
        fs::write(self.path.join(file), value)
    }

    /// Moves a running process into the cgroup.
    pub(crate) fn take(&self, process: u32) {
        self.set("cgroup.procs", &process.to_string()).expect("a member");
    }
}

impl Drop for ProcessorCgroup {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes a cgroup. A process that was just killed is a member for a moment longer.
fn remove(path: &Path) {
    for _ in 0..100 {
        if fs::remove_dir(path).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    eprintln!("{} stays: there are processes in it", path.display());
}

/// Returns the directory in which cgroups with this controller can be created.
fn hierarchy(controller: &str) -> Option<(PathBuf, Version)> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (at, kind, options) = (words.next()?, words.next()?, words.next()?);
        let root = PathBuf::from(at);
        if kind == "cgroup" && options.split(',').any(|option| option == controller) {
            return Some((root, Version::V1));
        }
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        if kind != "cgroup2" || !controllers.split_whitespace().any(|name| name == controller) {
            return None;
        }
        // Controllers of the root's children. It may be enabled already.
        let _ = fs::write(root.join("cgroup.subtree_control"), format!("+{controller}"));
        Some((root, Version::V2))
    })
}

/// Returns the value of this name in a file of `NAME VALUE` lines. 0 if it is missing.
fn field(text: &str, name: &str) -> u64 {
    let value = |line: &str| number(line.strip_prefix(name)?.strip_prefix(' ')?).into();
    text.lines().find_map(value).unwrap_or_default()
}

fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or_default()
}
