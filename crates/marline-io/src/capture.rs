//! Captures: one pcapng file per local address, which Wireshark reads as native Multipath TCP.

use marline_core::{Ecn, FourTuple};

/// Writers by local address.
#[derive(Debug)]
pub struct Captures {}

impl Captures {
    pub(crate) fn sent(&mut self, _path: &FourTuple, _ecn: Ecn, _segment: &[u8]) {}
    pub(crate) fn received(&mut self, _path: &FourTuple, _ecn: Ecn, _segment: &[u8]) {}
}
