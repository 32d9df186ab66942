//! Packet captures: one pcapng file per local address, which Wireshark reads as native Multipath
//! TCP.
//!
//! Each record is the segment as the core saw it, under an IP header built from the addresses known to the core.
//! Checksums that were verified, or left to hardware, are written correctly. Writing is synchronous with packet
//! processing: a capture is meant for analysis, not for measuring speed. Packets that cannot be written (for example
//! on a full disk) are counted and left out. The file stays readable and continues when there is room.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use marline_core::{Ecn, FourTuple};
use marline_wire::pcapng::{Capture, CapturedSegment, Direction, PacketInfo, SegmentChecksum};

/// Number of buffered bytes that triggers a write.
const GATHER_BYTES: usize = 64 << 10;
/// Maximum time that packets stay in the buffer while more arrive.
const GATHER_TIME: Duration = Duration::from_millis(200);
/// Delay before retrying to create a file.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Minimum time between the log lines about a write failure and about its end.
const RECOVERY_TIME: Duration = Duration::from_secs(1);
/// Maximum number of files in a set: one per local address.
const MAX_FILES: usize = 64;

/// Set of capture files in one directory.
#[derive(Debug)]
pub struct Captures {
    dir: PathBuf,
    name: String,
    reveal_keys: bool,
    sent: SegmentChecksum,
    received: SegmentChecksum,
    files: BTreeMap<IpAddr, Slot>,
}

/// Open file, or the time at which its creation failed.
#[derive(Debug)]
enum Slot {
    Open(Box<CaptureFile>),
    Failed(Instant),
}

/// Number of packets of this process that are missing from captures because they could not be written.
static MISSING: AtomicU64 = AtomicU64::new(0);

/// Returns the number of packets of this process that could not be written to its captures, for example on a full
/// disk.
#[must_use]
pub fn packets_not_captured() -> u64 {
    MISSING.load(Ordering::Relaxed)
}

#[derive(Debug)]
struct CaptureFile {
    file: File,
    capture: Capture,
    /// Header blocks of a file.
    head: Vec<u8>,
    gathered: Vec<u8>,
    /// Number of buffered packets.
    packets: u64,
    written_at: Instant,
    /// Length of the file up to the end of its last complete record, in bytes.
    whole: u64,
    trouble: WriteFailures,
}

/// Write failures, which are reported with a rate limit.
#[derive(Debug, Default)]
struct WriteFailures {
    logged_at: Option<Instant>,
    /// Packets missing since the last report.
    missing: u64,
}

impl Captures {
    /// Creates a set of captures in `dir`, which is created if necessary, in files `NAME-ADDRESS.pcapng`. With
    /// `reveal_keys`, the files contain MPTCP keys.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub fn in_dir(dir: &Path, name: &str, reveal_keys: bool) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let (dir, name) = (dir.to_owned(), name.to_owned());
        let scope = SegmentChecksum::WithoutAddresses;
        let files = BTreeMap::new();
        Ok(Captures { dir, name, reveal_keys, sent: scope, received: scope, files })
    }

    /// Marks the segments as native: their checksums cover the addresses and were verified on arrival.
    pub(crate) const fn set_native(&mut self) {
        self.sent = SegmentChecksum::WithAddresses;
        self.received = SegmentChecksum::Unknown;
    }

    pub(crate) fn sent(&mut self, path: &FourTuple, ecn: Ecn, segment: &[u8]) {
        self.write(Direction::Outbound, path, ecn, segment);
    }

    pub(crate) fn record_received(&mut self, path: &FourTuple, ecn: Ecn, segment: &[u8]) {
        self.write(Direction::Inbound, path, ecn, segment);
    }

    fn write(&mut self, direction: Direction, path: &FourTuple, ecn: Ecn, bytes: &[u8]) {
        let (local, remote) = (path.local.ip(), path.remote.ip());
        let is_to_be_opened = match self.files.get(&local) {
            Some(Slot::Open(_)) => false,
            Some(Slot::Failed(at)) => at.elapsed() >= RETRY_DELAY,
            None => self.files.len() < MAX_FILES,
        };
        if is_to_be_opened {
            let opened = self.open(local);
            self.files.insert(local, opened);
        }
        let file = match self.files.get_mut(&local) {
            Some(Slot::Open(file)) => file,
            Some(Slot::Failed(_)) => {
                MISSING.fetch_add(1, Ordering::Relaxed);
                return;
            }
            None => return,
        };
        let time_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let info = PacketInfo { interface: 0, time_ns: time_ns as u64, direction, comment: None };
        let ecn = match ecn {
            Ecn::NotEct => 0,
            Ecn::Ect1 => 1,
            Ecn::Ect0 => 2,
            Ecn::Ce => 3,
        };
        let (src, dst, checksum) = match direction {
            Direction::Outbound => (local, remote, self.sent),
            Direction::Inbound => (remote, local, self.received),
        };
        let segment = CapturedSegment { src, dst, ecn, checksum, bytes };
        if file.capture.segment(&mut file.gathered, &info, &segment).is_err() {
            return;
        }
        file.packets += 1;
        if file.gathered.len() >= GATHER_BYTES || file.written_at.elapsed() >= GATHER_TIME {
            file.flush();
        }
    }

    fn open(&self, local: IpAddr) -> Slot {
        // Colons are awkward in file names.
        let address = local.to_string().replace(':', "_");
        let path = self.dir.join(format!("{}-{address}.pcapng", self.name));
        let file = match File::create(&path) {
            Ok(file) => file,
            Err(error) => {
                if !matches!(self.files.get(&local), Some(Slot::Failed(_))) {
                    tracing::warn!(path = %path.display(), %error, "cannot create the capture file; will retry");
                }
                return Slot::Failed(Instant::now());
            }
        };
        let mut gathered = Vec::new();
        let name = local.to_string();
        let capture = Capture::begin(&mut gathered, "marline", &[&name], self.reveal_keys);
        Slot::Open(Box::new(CaptureFile {
            file,
            capture,
            head: gathered.clone(),
            gathered,
            packets: 0,
            written_at: Instant::now(),
            whole: 0,
            trouble: WriteFailures::default(),
        }))
    }
}

impl CaptureFile {
    /// Writes the buffer completely or not at all: readers stop at an incomplete record, so everything written after
    /// it would be lost, too.
    fn flush(&mut self) {
        self.written_at = Instant::now();
        let packets = core::mem::take(&mut self.packets);
        match self.file.write_all(&self.gathered) {
            Ok(()) => {
                self.whole += self.gathered.len() as u64;
                self.gathered.clear();
                self.trouble.record_success();
            }
            Err(error) => {
                // An incomplete record would also use space that other writers need.
                let cut = self.file.set_len(self.whole);
                let back = self.file.seek(io::SeekFrom::Start(self.whole));
                if let Err(error) = cut.and(back) {
                    tracing::debug!(%error, "cannot truncate the capture file; later packets may be unreadable");
                }
                self.gathered.clear();
                if self.whole == 0 {
                    self.gathered.extend_from_slice(&self.head);
                }
                self.trouble.record_failure(packets, &error);
            }
        }
    }
}

impl WriteFailures {
    fn record_failure(&mut self, packets: u64, error: &io::Error) {
        MISSING.fetch_add(packets, Ordering::Relaxed);
        self.missing += packets;
        if self.logged_at.is_none() {
            self.logged_at = Some(Instant::now());
            tracing::warn!(%error, "cannot write the capture file; packets will be missing");
        }
    }

    fn record_success(&mut self) {
        // If there is room only occasionally, not every success is logged.
        if self.logged_at.is_some_and(|at| at.elapsed() >= RECOVERY_TIME) {
            self.logged_at = None;
            let missing = core::mem::take(&mut self.missing);
            tracing::info!(missing, "capture file writable again; packets are missing");
        }
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (tempfile::TempDir, PathBuf, Box<CaptureFile>) {
        let dir = tempfile::tempdir().unwrap();
        let captures = Captures::in_dir(dir.path(), "test", false).unwrap();
        let local = IpAddr::from([192, 0, 2, 1]);
        let Slot::Open(file) = captures.open(local) else { panic!("no file") };
        let path = dir.path().join("test-192.0.2.1.pcapng");
        (dir, path, file)
    }

    /// Writes to `/dev/full` always fail, so replacing a file with it simulates a full disk.
    #[test]
    fn uncaptured_packets_are_counted_and_the_file_stays_valid() {
        let (_dir, path, mut file) = file();
        let head = file.head.clone();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let real = core::mem::replace(&mut file.file, full);
        file.gathered.extend_from_slice(b"lost");
        file.packets = 3;
        let before = packets_not_captured();
        file.flush();
        assert!(packets_not_captured() >= before + 3);
        assert_eq!(file.gathered, head, "an unwritten file starts with the usual header");
        file.file = real;
        file.gathered.extend_from_slice(b"kept");
        file.flush();
        let begun = [&head[..], b"kept"].concat();
        assert_eq!(fs::read(&path).unwrap(), begun);
        // An incomplete record, as on a full disk, is removed.
        file.file.write_all(b"half a rec").unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let real = core::mem::replace(&mut file.file, full);
        file.gathered.extend_from_slice(b"torn");
        file.flush();
        file.file = real;
        file.file.set_len(file.whole).unwrap();
        file.file.seek(io::SeekFrom::Start(file.whole)).unwrap();
        file.gathered.extend_from_slice(b" and again");
        file.flush();
        assert_eq!(fs::read(&path).unwrap(), [&begun[..], b" and again"].concat());
    }
}
