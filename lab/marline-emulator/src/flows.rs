//! Client addresses of a relay, each with its own socket towards the target: limited in number, removed when idle.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use marline_time::{Duration, Instant};

use crate::lane::FlowKey;
use crate::socket::{DatagramSocket, kernel_drops};

/// Time since a client last sent data within which it is not replaced by a new one.
const PROTECTION_TIME: Duration = Duration::from_secs(5);

/// One client address.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) client: SocketAddr,
    /// Local address that the client sent to, which is the source of answers.
    pub(crate) reply_from: Option<IpAddr>,
    /// Socket connected to the target.
    pub(crate) upstream: DatagramSocket,
    last_rx_at: Instant,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    flow: Option<Flow>,
}

/// Table of flows.
#[derive(Debug)]
pub(crate) struct Flows {
    to: SocketAddr,
    slots: Vec<Slot>,
    by_client: BTreeMap<SocketAddr, u32>,
    max: usize,
    idle: Duration,
    /// Datagrams from clients that were refused because the table was full.
    pub(crate) refused: u64,
    pub(crate) rebinds: u64,
    /// Datagrams that the kernel dropped on sockets that are now closed.
    closed_drops: u64,
}

impl Flows {
    pub(crate) fn new(to: SocketAddr, max: usize, idle: Duration) -> Self {
        Flows {
            to,
            slots: Vec::new(),
            by_client: BTreeMap::new(),
            max: max.max(1),
            idle,
            refused: 0,
            rebinds: 0,
            closed_drops: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_client.len()
    }

    /// Returns the flow of a client that sent a datagram, and creates it if necessary. `None` if the table is full or
    /// a socket cannot be created.
    pub(crate) fn find_or_create_flow(
        &mut self,
        client: SocketAddr,
        reply_from: Option<IpAddr>,
        now: Instant,
    ) -> Option<FlowKey> {
        if let Some(&slot) = self.by_client.get(&client) {
            let entry = &mut self.slots[slot as usize];
            if let Some(flow) = &mut entry.flow {
                flow.last_rx_at = now;
            }
            return Some(FlowKey { slot, generation: entry.generation });
        }
        let made = self.make_room(now).and_then(|()| DatagramSocket::connected(self.to).ok());
        let Some(upstream) = made else {
            self.refused += 1;
            return None;
        };
        let free = self.slots.iter().position(|slot| slot.flow.is_none());
        let slot = free.unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let entry = &mut self.slots[slot];
        entry.generation = entry.generation.wrapping_add(1);
        entry.flow = Some(Flow { client, reply_from, upstream, last_rx_at: now });
        self.by_client.insert(client, slot as u32);
        Some(FlowKey { slot: slot as u32, generation: entry.generation })
    }

    fn make_room(&mut self, now: Instant) -> Option<()> {
        if self.len() < self.max {
            return Some(());
        }
        let oldest = self.iter().min_by_key(|(_, flow)| flow.last_rx_at);
        let (slot, flow) = oldest?;
        if now.since(flow.last_rx_at) < PROTECTION_TIME {
            return None;
        }
        self.remove(slot);
        Some(())
    }

    /// The flow with this key, unless a later flow uses its slot.
    pub(crate) fn get(&self, key: FlowKey) -> Option<&Flow> {
        let slot = self.slots.get(key.slot as usize)?;
        slot.flow.as_ref().filter(|_| slot.generation == key.generation)
    }

    /// The flow in a slot, with its key.
    pub(crate) fn flow_in_slot(&self, slot: u32) -> Option<(FlowKey, &Flow)> {
        let entry = self.slots.get(slot as usize)?;
        Some((FlowKey { slot, generation: entry.generation }, entry.flow.as_ref()?))
    }

    /// All flows with their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Flow)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, entry)| Some((slot as u32, entry.flow.as_ref()?)))
    }

    /// Records that the target answered this flow.
    pub(crate) fn answered(&mut self, slot: u32, now: Instant) {
        if let Some(flow) = self.slots.get_mut(slot as usize).and_then(|s| s.flow.as_mut()) {
            flow.last_rx_at = now;
        }
    }

    /// Removes flows that were silent for too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        let is_idle = |flow: &Flow| now.since(flow.last_rx_at) >= self.idle;
        let idle: Vec<u32> = self.iter().filter(|(_, f)| is_idle(f)).map(|(s, _)| s).collect();
        for slot in idle {
            self.remove(slot);
        }
    }

    /// Moves every flow to another local port. The new socket is bound before the old one is closed, so the ports
    /// differ.
    pub(crate) fn rebind(&mut self) -> io::Result<()> {
        for entry in &mut self.slots {
            let Some(flow) = &mut entry.flow else { continue };
            let fresh = DatagramSocket::connected(self.to)?;
            let old = std::mem::replace(&mut flow.upstream, fresh);
            self.closed_drops += kernel_drops(&old).unwrap_or(0);
            self.rebinds += 1;
        }
        Ok(())
    }

    /// Number of datagrams that the kernel dropped on the upstream sockets.
    pub(crate) fn kernel_drops(&self) -> u64 {
        let open: u64 = self.iter().filter_map(|(_, flow)| kernel_drops(&flow.upstream)).sum();
        self.closed_drops + open
    }

    fn remove(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return };
        if let Some(flow) = entry.flow.take() {
            self.closed_drops += kernel_drops(&flow.upstream).unwrap_or(0);
            self.by_client.remove(&flow.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn only_silent_clients_are_replaced_in_a_full_table() {
        let mut flows = Flows::new(client(9), 2, Duration::from_secs(60));
        let at = Instant::from_secs;
        let first = flows.find_or_create_flow(client(1), None, at(0)).expect("room");
        let second = flows.find_or_create_flow(client(2), None, at(3)).expect("room");
        assert_eq!(flows.find_or_create_flow(client(3), None, at(4)), None);
        assert_eq!((flows.len(), flows.refused), (2, 1));
        let third =
            flows.find_or_create_flow(client(3), None, at(6)).expect("the first flow is silent");
        assert_eq!(third.slot, first.slot);
        assert!(flows.get(first).is_none() && flows.get(second).is_some());
        assert_eq!(flows.find_or_create_flow(client(2), None, at(60)), Some(second));
        flows.expire(at(70));
        assert_eq!(flows.len(), 1);
        assert!(flows.get(third).is_none() && flows.get(second).is_some());
    }

    #[test]
    fn rebinding_changes_every_port() {
        let mut flows = Flows::new(client(9), 4, Duration::from_secs(60));
        for port in 1..4 {
            flows.find_or_create_flow(client(port), None, Instant::ZERO).expect("room");
        }
        let ports = |flows: &Flows| -> Vec<u16> {
            let port = |(_, f): (u32, &Flow)| f.upstream.local_addr().expect("bound").port();
            flows.iter().map(port).collect()
        };
        let before = ports(&flows);
        flows.rebind().expect("rebind");
        let after = ports(&flows);
        assert!(before.iter().zip(&after).all(|(a, b)| a != b), "{before:?} {after:?}");
        assert_eq!(flows.rebinds, 3);
    }
}
