//! Packet capture as a pcapng file, so that other programs can verify checksums and MPTCP keys.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use marline_time::Instant;
use marline_wire::pcapng::{Direction, PacketInfo, interface, packet, write_section_header};

/// A capture file to which packets are appended.
#[derive(Debug)]
pub(crate) struct Capture {
    file: File,
    block: Vec<u8>,
}

impl Capture {
    /// Creates a file.
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        let mut file = File::create(path)?;
        let mut block = Vec::new();
        write_section_header(&mut block, "packetdrill-adapter");
        interface(&mut block, "packetdrill");
        file.write_all(&block)?;
        Ok(Capture { file, block })
    }

    /// Appends an IP packet. A write error, such as a full disk, does not fail the test.
    pub(crate) fn packet(&mut self, at: Instant, direction: Direction, bytes: &[u8]) {
        self.block.clear();
        let info = PacketInfo { interface: 0, time_ns: at.as_nanos(), direction, comment: None };
        packet(&mut self.block, &info, bytes, bytes.len());
        if let Err(error) = self.file.write_all(&self.block) {
            eprintln!("packetdrill-adapter: capture: {error}");
        }
    }
}
