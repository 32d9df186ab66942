//! Cost of the simulator without a protocol: packets through a link, and through a world.

use core::net::{IpAddr, SocketAddr};

use marline_core::FourTuple;
use marline_sim::{Node, Outbox, Packet, World};
use marline_time::{Duration, Instant, SeedTree};

use super::link;

/// Sends a packet of 1,480 bytes every `interval`, and counts arrivals.
#[derive(Debug)]
pub struct Source {
    template: Packet,
    interval: Option<Duration>,
    next: Instant,
    due: bool,
    /// Number of packets that arrived.
    pub got: u64,
}

impl Node for Source {
    fn handle_packet(&mut self, _now: Instant, _packet: &Packet) {
        self.got += 1;
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.due = self.next <= now;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.interval.map(|_| self.next)
    }

    fn transmit(&mut self, _now: Instant, outbox: &mut Outbox<'_>) {
        let Some(interval) = self.interval.filter(|_| self.due) else { return };
        self.due = false;
        self.next += interval;
        outbox.push(&self.template, &[0x5a; 1_480]);
    }
}

/// Sends this many packets through a world of two hosts and one link. Returns how many arrived.
pub fn run(packets: u64, description: &str) -> u64 {
    let mut world = World::new(SeedTree::new(1));
    let ends = [1u8, 2].map(|last| SocketAddr::new(IpAddr::from([10, 0, 0, last]), 9));
    let interval = Duration::from_micros(120);
    let [from, to] = [0, 1].map(|end: usize| {
        let path = FourTuple { local: ends[end], remote: ends[1 - end] };
        let template = Packet::new(path, 20);
        let interval = (end == 0).then_some(interval);
        let node = Source { template, interval, next: Instant::ZERO, due: false, got: 0 };
        world.add_node(node, &[ends[end].ip()])
    });
    let config = link(description);
    world.connect(ends[0].ip(), ends[1].ip(), config.up, config.down);
    world.run_until(Instant::ZERO + interval * packets as u32);
    let _ = from;
    world.node(to).got
}
