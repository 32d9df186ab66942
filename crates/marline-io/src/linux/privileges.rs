//! Drops capabilities once the sockets are open.
//!
//! Linux keeps capabilities per thread. A thread inherits them from the one that starts it, so they must be dropped
//! after the sockets are open and before the runtime starts its threads. It is an error if any thread still has
//! capabilities.

use std::io;
use std::path::Path;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

use crate::edge::capabilities::KeptCapabilities;

impl KeptCapabilities {
    const fn set(self) -> CapabilitySet {
        match self {
            KeptCapabilities::Nothing => CapabilitySet::empty(),
            KeptCapabilities::NetAdmin => CapabilitySet::NET_ADMIN,
            KeptCapabilities::LowPorts => CapabilitySet::NET_BIND_SERVICE,
            KeptCapabilities::Diagnosis => CapabilitySet::NET_ADMIN
                .union(CapabilitySet::NET_RAW)
                .union(CapabilitySet::NET_BIND_SERVICE),
        }
    }
}

/// Permanently drops all capabilities of this process except these.
///
/// # Errors
/// Fails if the kernel refuses, or if another thread has more capabilities.
pub fn keep_capabilities(kept: KeptCapabilities) -> io::Result<()> {
    set_no_new_privs(true)?;
    let kept = capabilities(None)?.permitted & kept.set();
    shrink_bounding_set(kept);
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })?;
    match privileged_thread(Path::new("/proc/self/task"), kept)? {
        None => Ok(()),
        Some(thread) => Err(io::Error::other(format!(
            "thread {thread} still has capabilities; drop them before starting threads"
        ))),
    }
}

/// Returns true if the calling thread may change the network configuration, and false if this is unknown.
#[must_use]
pub fn has_net_admin() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// Removes all other capabilities from the bounding set, which limits the capabilities that a program can gain. That
/// needs CAP_SETPCAP. A process without it cannot gain any capabilities, because "no new privileges" is set.
fn shrink_bounding_set(kept: CapabilitySet) {
    for bit in (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        match capability_is_in_bounding_set(bit) {
            Ok(true) if !kept.contains(bit) => {
                if remove_capability_from_bounding_set(bit).is_err() {
                    return;
                }
            }
            Ok(_) => {}
            // The number is higher than the kernel's last capability.
            Err(_) => return,
        }
    }
}

/// Finds a thread of the process that has other capabilities.
fn privileged_thread(tasks: &Path, kept: CapabilitySet) -> io::Result<Option<String>> {
    for task in std::fs::read_dir(tasks)? {
        let task = task?;
        let status = match std::fs::read_to_string(task.path().join("status")) {
            Ok(status) => status,
            // The thread has ended in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
            Err(error) => return Err(error),
        };
        if has_capabilities(&status, kept) {
            return Ok(Some(task.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// Returns true if a `/proc/PID/status` contains permitted or effective capabilities other than these.
fn has_capabilities(status: &str, kept: CapabilitySet) -> bool {
    status.lines().any(|line| {
        let set = line.strip_prefix("CapPrm:").or_else(|| line.strip_prefix("CapEff:"));
        // An unreadable value counts as all capabilities.
        let bits = set.map(|set| u64::from_str_radix(set.trim(), 16).unwrap_or(u64::MAX));
        bits.is_some_and(|bits| bits & !kept.bits() != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_capabilities_is_noticed() {
        let none = "Name:\tx\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n\
                    CapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\n";
        let nothing = CapabilitySet::empty();
        assert!(!has_capabilities(none, nothing));
        for set in ["CapPrm:\t00000", "CapEff:\t00000"] {
            let more = none.replace(set, &set.replace("\t00000", "\t00002"));
            assert!(has_capabilities(&more, nothing));
            assert!(has_capabilities(&more, CapabilitySet::NET_ADMIN));
        }
        let net_admin = none.replace("CapEff:\t0000000000000000", "CapEff:\t0000000000001000");
        assert!(has_capabilities(&net_admin, nothing));
        assert!(!has_capabilities(&net_admin, CapabilitySet::NET_ADMIN));
    }

    #[test]
    fn other_threads_are_looked_at() {
        // Other threads drop their capabilities one by one; this one keeps its own.
        let dropped =
            std::thread::spawn(|| keep_capabilities(KeptCapabilities::Nothing)).join().unwrap();
        let ours = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert_eq!(
            dropped.is_err(),
            has_capabilities(&ours, CapabilitySet::empty()),
            "{dropped:?}"
        );
    }
}
