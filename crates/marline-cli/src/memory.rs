//! Memory budget of this process: its limit, and its use in `status` and the dashboard.
//!
//! The default is a share of the limit of the process's control group (or of a group above it), or of the machine's
//! memory. The rest is for memory that is not counted: the program itself, stacks and tasks, free memory that the
//! allocator keeps, and tables with limits of their own.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use marline::memory::{MemoryAccount, MemoryBudget, MemoryKind, MemoryUsage};
use serde::{Deserialize, Serialize};

/// Share of a control group's limit, in percent. It is large because such a limit is usually set for this program.
const PERCENT_OF_GROUP: u64 = 75;
/// Share of the machine's memory, in percent. It is small because other programs need memory as well.
const PERCENT_OF_MACHINE: u64 = 25;

static BUDGET: OnceLock<MemoryBudget> = OnceLock::new();
static OWN_ACCOUNT: OnceLock<MemoryAccount> = OnceLock::new();

/// Returns the budget of this process. It has no limit before [`set_limit`].
pub fn budget() -> &'static MemoryBudget {
    BUDGET.get_or_init(|| MemoryBudget::new(None))
}

/// Returns the account of a process with a single user: a client, or a front of a service.
pub fn process_account() -> &'static MemoryAccount {
    OWN_ACCOUNT.get_or_init(|| budget().account(u64::MAX))
}

/// Sets the budget's limit to the configured number of bytes, or to the default.
pub fn set_limit(configured: Option<u64>) {
    budget().set_limit(Some(configured.unwrap_or_else(default_limit)));
}

/// Returns the limit in bytes if none is configured.
#[must_use]
pub fn default_limit() -> u64 {
    let machine = machine_memory().unwrap_or(u64::MAX / 2);
    let group = group_limit(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"));
    // A limit above the machine's memory means that the group has none.
    match group.filter(|bytes| *bytes < machine) {
        Some(bytes) => bytes / 100 * PERCENT_OF_GROUP,
        None => machine / 100 * PERCENT_OF_MACHINE,
    }
}

fn machine_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
}

/// Returns the smallest limit of the control groups (version 1 or 2) that contain this process, in bytes.
fn group_limit(groups: &Path, mount: &Path) -> Option<u64> {
    let text = fs::read_to_string(groups).ok()?;
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => (mount.to_owned(), "memory.max"),
            list if list.split(',').any(|name| name == "memory") => {
                (mount.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        smallest_group_limit(&root, path, file)
    };
    text.lines().filter_map(of_line).min()
}

/// Returns the smallest limit in this file along the path from the root to a group.
fn smallest_group_limit(root: &Path, path: &str, file: &str) -> Option<u64> {
    let mut at: PathBuf = root.to_owned();
    let mut limits = Vec::new();
    let names = Path::new(path).components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let read = |at: &Path| fs::read_to_string(at.join(file)).ok()?.trim().parse::<u64>().ok();
    limits.extend(read(&at));
    for name in names {
        at.push(name);
        limits.extend(read(&at));
    }
    limits.into_iter().min()
}

/// Use of the memory budget, as shown by `status` and the dashboard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Limit in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Bytes in use.
    pub used: u64,
    /// Number of times that a writer or a new stream had to wait for memory since the process started.
    pub waits: u64,
    /// Bytes in use by kind, excluding kinds that have none.
    pub by_kind: std::collections::BTreeMap<String, u64>,
}

impl From<MemoryUsage> for Memory {
    fn from(usage: MemoryUsage) -> Memory {
        let MemoryUsage { limit, used, by_kind, waits, .. } = usage;
        let kinds = MemoryKind::ALL.iter().zip(by_kind).filter(|(_, bytes)| *bytes > 0);
        let by_kind = kinds.map(|(kind, bytes)| (kind.name().to_owned(), bytes)).collect();
        Memory { limit, used, waits, by_kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn the_smallest_limit_of_all_parent_groups_applies() {
        let dir = tempfile::tempdir().expect("a directory");
        let (groups, mount) = (dir.path().join("groups"), dir.path().join("mount"));
        write(&groups, "0::/system.slice/marline.service\n");
        assert_eq!(group_limit(&groups, &mount), None);
        write(&mount.join("system.slice/memory.max"), "300\n");
        write(&mount.join("system.slice/marline.service/memory.max"), "max\n");
        assert_eq!(group_limit(&groups, &mount), Some(300));
        write(&mount.join("system.slice/marline.service/memory.max"), "200\n");
        assert_eq!(group_limit(&groups, &mount), Some(200));
        write(&groups, "9:cpu:/\n4:memory,other:/../box\n");
        write(&mount.join("memory/box/memory.limit_in_bytes"), "100\n");
        assert_eq!(group_limit(&groups, &mount), Some(100));
    }

    #[test]
    fn there_is_a_limit_on_every_machine() {
        let limit = default_limit();
        assert!((1 << 20..u64::MAX / 2).contains(&limit), "{limit}");
    }
}
