//! Outbox of one end: items passed to the lane together, so that they are sent in batches.

use marline::datagrams::{Datagrams, FlowId, SendError};

use super::{Item, MAX_APPLICATION_DATAGRAM, UdpCounters, count};
use crate::target::Target;

/// Items to send.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    items: Vec<(FlowId, usize)>,
    /// Largest item that the lane accepts, in bytes.
    largest: usize,
}

impl Outbox {
    /// Sets the largest item that the lane accepts now, in bytes.
    pub(crate) const fn set_largest(&mut self, largest: usize) {
        self.largest = largest;
    }

    /// Returns the largest datagram whose item the lane accepts, in bytes, if there is one. An item is one byte
    /// longer.
    pub(crate) fn max_datagram(&self) -> Option<usize> {
        self.largest.checked_sub(1).map(|most| most.min(MAX_APPLICATION_DATAGRAM))
    }

    /// Adds an item of a flow.
    pub(crate) fn push(&mut self, flow: u64, item: &Item<'_>) {
        item.encode(&mut self.bytes);
        self.items.push((FlowId(flow), self.bytes.len()));
    }

    /// Adds a datagram together with the key of its flow. If both do not fit, the key precedes it in an item of its
    /// own.
    pub(crate) fn describe(&mut self, flow: u64, socket: u32, peer: &Target, payload: &[u8]) {
        let start = self.bytes.len();
        let peer = peer.clone();
        let whole = Item::Open { socket, peer, payload };
        self.push(flow, &whole);
        let fits_alone = payload.len() < self.largest;
        if self.bytes.len() - start > self.largest && fits_alone {
            let Item::Open { peer, .. } = whole else { return };
            self.bytes.truncate(start);
            self.items.pop();
            self.push(flow, &Item::Announce { socket, peer });
            self.push(flow, &Item::Data(payload));
        }
    }

    /// Passes everything to the lane. Items that the lane refuses are lost, as datagrams may be, and counted.
    pub(crate) fn flush(&mut self, lane: &Datagrams, counters: &UdpCounters) {
        if self.items.is_empty() {
            return;
        }
        let mut start = 0;
        let items = self.items.iter().map(|(flow, end)| {
            let item = &self.bytes[std::mem::replace(&mut start, *end)..*end];
            (*flow, item)
        });
        lane.send_each(items, |_, result| match result {
            Ok(()) => {}
            Err(SendError::TooBig { .. }) => count(&counters.too_big),
            Err(_) => count(&counters.dropped),
        });
        self.bytes.clear();
        self.items.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(outbox: &Outbox) -> Vec<(u64, Item<'_>)> {
        let mut start = 0;
        let read = |(flow, end): &(FlowId, usize)| {
            let bytes = &outbox.bytes[std::mem::replace(&mut start, *end)..*end];
            (flow.0, Item::decode(bytes).unwrap())
        };
        outbox.items.iter().map(read).collect()
    }

    #[test]
    fn a_datagram_that_does_not_fit_with_its_flow_key_follows_it() {
        let peer: Target = "192.0.2.1:443".parse().unwrap();
        let mut outbox = Outbox::default();
        outbox.set_largest(1_210);
        let payload = [7; 1_200];
        outbox.describe(4, 1, &peer, &payload);
        let whole = Item::Open { socket: 1, peer: peer.clone(), payload: &payload };
        assert_eq!(items(&outbox), [(4, whole)]);
        outbox = Outbox::default();
        outbox.set_largest(1_205);
        outbox.describe(4, 1, &peer, &payload);
        let announced = Item::Announce { socket: 1, peer };
        assert_eq!(items(&outbox), [(4, announced), (4, Item::Data(&payload))]);
    }
}
