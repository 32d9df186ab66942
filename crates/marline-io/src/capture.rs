//! Packet captures: one pcapng file per local address, which Wireshark reads as native Multipath
//! TCP.
//!
//! Each record is the segment as the core saw it, under an IP header built from the addresses known
//! to the core. Checksums that were verified, or left to hardware, are written correctly. Writing
//! is synchronous with packet processing: a capture is meant for examining behaviour, not for
//! measuring speed.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use marline_core::{Ecn, FourTuple};
use marline_wire::pcapng::{Capture, CapturedSegment, Direction, PacketInfo, SegmentChecksum};

/// Bytes gathered before they are written.
const GATHER_BYTES: usize = 64 << 10;
/// Longest time that packets stay unwritten while more come.
const GATHER_TIME: Duration = Duration::from_millis(200);
/// Files of one set: one per local address.
const MAX_FILES: usize = 64;

/// A set of capture files in one directory.
#[derive(Debug)]
pub struct Captures {
    dir: PathBuf,
    name: String,
    reveal_keys: bool,
    sent: SegmentChecksum,
    received: SegmentChecksum,
    files: BTreeMap<IpAddr, Option<CaptureFile>>,
}

#[derive(Debug)]
struct CaptureFile {
    file: File,
    capture: Capture,
    gathered: Vec<u8>,
    written_at: Instant,
}

impl Captures {
    /// Captures in `dir`, which is created if necessary, in files `NAME-ADDRESS.pcapng`.
    /// `reveal_keys` leaves MPTCP keys in them.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn in_dir(dir: &Path, name: &str, reveal_keys: bool) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let (dir, name) = (dir.to_owned(), name.to_owned());
        let scope = SegmentChecksum::WithoutAddresses;
        let files = BTreeMap::new();
        Ok(Captures { dir, name, reveal_keys, sent: scope, received: scope, files })
    }

    /// The segments are native ones: their checksums cover addresses, and were verified on arrival.
    pub(crate) const fn set_native(&mut self) {
        self.sent = SegmentChecksum::WithAddresses;
        self.received = SegmentChecksum::Unknown;
    }

    pub(crate) fn sent(&mut self, path: &FourTuple, ecn: Ecn, segment: &[u8]) {
        let ends = (path.local.ip(), path.remote.ip());
        self.write(path.local.ip(), Direction::Outbound, ends, ecn, segment);
    }

    pub(crate) fn received(&mut self, path: &FourTuple, ecn: Ecn, segment: &[u8]) {
        let ends = (path.remote.ip(), path.local.ip());
        self.write(path.local.ip(), Direction::Inbound, ends, ecn, segment);
    }

    fn write(
        &mut self,
        local: IpAddr,
        direction: Direction,
        (src, dst): (IpAddr, IpAddr),
        ecn: Ecn,
        bytes: &[u8],
    ) {
        if !self.files.contains_key(&local) {
            if self.files.len() >= MAX_FILES {
                return;
            }
            let opened = self.open(local);
            self.files.insert(local, opened);
        }
        let Some(Some(file)) = self.files.get_mut(&local) else { return };
        let time_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let info = PacketInfo { interface: 0, time_ns: time_ns as u64, direction, comment: None };
        let ecn = match ecn {
            Ecn::NotEct => 0,
            Ecn::Ect1 => 1,
            Ecn::Ect0 => 2,
            Ecn::Ce => 3,
        };
        let checksum = match direction {
            Direction::Outbound => self.sent,
            Direction::Inbound => self.received,
        };
        let segment = CapturedSegment { src, dst, ecn, checksum, bytes };
        if file.capture.segment(&mut file.gathered, &info, &segment).is_err() {
            return;
        }
        if file.gathered.len() >= GATHER_BYTES || file.written_at.elapsed() >= GATHER_TIME {
            file.flush();
        }
    }

    fn open(&self, local: IpAddr) -> Option<CaptureFile> {
        // A colon would be awkward in file names.
        let address = local.to_string().replace(':', "_");
        let path = self.dir.join(format!("{}-{address}.pcapng", self.name));
        let file = match File::create(&path) {
            Ok(file) => file,
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "cannot write the capture");
                return None;
            }
        };
        let mut gathered = Vec::new();
        let name = local.to_string();
        let capture = Capture::begin(&mut gathered, "marline", &[&name], self.reveal_keys);
        Some(CaptureFile { file, capture, gathered, written_at: Instant::now() })
    }
}

impl CaptureFile {
    fn flush(&mut self) {
        if let Err(error) = self.file.write_all(&self.gathered) {
            tracing::error!(%error, "cannot write the capture");
        }
        self.gathered.clear();
        self.written_at = Instant::now();
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        self.flush();
    }
}
