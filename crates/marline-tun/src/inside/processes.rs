//! Processes of a network namespace.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A network namespace, identified by one of its own files in /proc, and the processes in it.
///
/// `/proc/PID/ns/net` would identify it too, but is only readable by a process with every capability of the other
/// one. The process that carries a program's traffic for root has none.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct NamespaceProcesses {
    device: u64,
    inode: u64,
}

impl NamespaceProcesses {
    pub(super) const BYTES: usize = 16;

    /// Returns the calling thread's namespace.
    pub(super) fn for_this_thread() -> io::Result<NamespaceProcesses> {
        Self::from_process(Path::new("/proc/thread-self"))
    }

    fn from_process(process: &Path) -> io::Result<NamespaceProcesses> {
        let found = std::fs::metadata(process.join("net/dev"))?;
        Ok(NamespaceProcesses { device: found.dev(), inode: found.ino() })
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.device.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.inode.to_ne_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> NamespaceProcesses {
        let half = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        NamespaceProcesses { device: half(0), inode: half(8) }
    }

    /// Returns true if the namespace contains processes that this process may see. Reads /proc once.
    pub(super) fn has_any(&self) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return false };
        let numbered =
            |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        let mut processes = processes.flatten().filter(|entry| numbered(&entry.file_name()));
        // A process that has just ended no longer has a namespace, nor does a zombie.
        processes.any(|entry| Self::from_process(&entry.path()).is_ok_and(|theirs| theirs == *self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_with_a_process_in_it_is_occupied_and_an_unknown_one_is_not() {
        let ours = NamespaceProcesses::for_this_thread().unwrap();
        assert!(ours.has_any());
        assert_eq!(NamespaceProcesses::from_bytes(ours.to_bytes()), ours);
        assert!(!NamespaceProcesses { inode: ours.inode ^ 1 << 40, ..ours }.has_any());
    }
}
