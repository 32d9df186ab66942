//! Requests for connections: SYNs that wait for the application's decision, by addresses.

use std::collections::BTreeMap;

use marline_wire::{SeqNum, TcpHeader, TcpOptions, TcpSegment};

use crate::{Ecn, FourTuple, PacketMeta};

/// A SYN that has not been answered.
#[derive(Debug)]
pub(crate) struct Request {
    header: TcpHeader,
    options: TcpOptions,
    meta: PacketMeta,
    /// End of our sequence space in a previous connection between these addresses.
    after: Option<SeqNum>,
}

impl Request {
    pub(crate) fn new(meta: &PacketMeta, syn: &TcpSegment<'_>, after: Option<SeqNum>) -> Request {
        let TcpSegment { header, options, .. } = syn.clone();
        Request { header, options, meta: *meta, after }
    }

    /// Packet metadata of the SYN.
    pub(crate) const fn meta(&self) -> &PacketMeta {
        &self.meta
    }

    pub(crate) const fn ecn(&self) -> Ecn {
        self.meta.ecn
    }

    pub(crate) const fn expected_ack(&self) -> Option<SeqNum> {
        self.after
    }

    /// The SYN without its data, which the client sends again.
    pub(crate) fn into_segment(self) -> TcpSegment<'static> {
        TcpSegment { header: self.header, options: self.options, payload: &[], raw_options: &[] }
    }
}

/// Waiting SYNs.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    waiting: BTreeMap<FourTuple, Request>,
}

impl Requests {
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn add(&mut self, request: Request) {
        self.waiting.insert(request.meta.path, request);
    }

    /// Replaces a waiting SYN between these addresses with a newer one. Returns the new one if none waits.
    pub(crate) fn renew(&mut self, request: Request) -> Option<Request> {
        let Some(known) = self.waiting.get_mut(&request.meta.path) else { return Some(request) };
        let after = request.after.or(known.after);
        *known = Request { after, ..request };
        None
    }

    pub(crate) fn remove(&mut self, path: &FourTuple) -> Option<Request> {
        self.waiting.remove(path)
    }
}
