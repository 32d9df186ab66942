use core::net::SocketAddr;

use marline_core::FourTuple;
use marline_link::DuplexSpec;
use marline_time::Duration;

use super::*;
use crate::Packet;
use crate::node::Outbox;

/// Sends a numbered packet to `to` every `interval`, and records arrivals.
#[derive(Debug)]
struct Toy {
    path: FourTuple,
    interval: Option<Duration>,
    next: Instant,
    sent: u64,
    limit: u64,
    due: bool,
    got: Vec<(Instant, u64)>,
}

impl Toy {
    fn new(local: SocketAddr, remote: SocketAddr, interval: Option<Duration>, limit: u64) -> Self {
        let path = FourTuple { local, remote };
        Toy { path, interval, next: Instant::ZERO, sent: 0, limit, due: false, got: Vec::new() }
    }
}

impl Node for Toy {
    fn handle_packet(&mut self, now: Instant, packet: &Packet) {
        let number = u64::from_be_bytes(packet.segment[..8].try_into().unwrap());
        self.got.push((now, number));
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.due = self.next <= now;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.interval.filter(|_| self.sent < self.limit).map(|_| self.next)
    }

    fn transmit(&mut self, _now: Instant, outbox: &mut Outbox<'_>) {
        let Some(interval) = self.interval.filter(|_| self.due) else { return };
        self.due = false;
        let template = Packet::new(self.path, 20);
        let mut bytes = [0; 1_480];
        bytes[..8].copy_from_slice(&self.sent.to_be_bytes());
        outbox.push(&template, &bytes);
        self.sent += 1;
        self.next += interval;
    }
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn two_toys(seed: u64, link: &str, packets: u64) -> (World<Toy>, NodeId, NodeId, LinkId) {
    let mut world = World::new(SeedTree::new(seed));
    let config = link.parse::<DuplexSpec>().unwrap().resolve(&SeedTree::new(seed), &mut |_| None);
    let config = config.unwrap();
    let (a, b) = (SocketAddr::new(address(1), 1), SocketAddr::new(address(2), 2));
    let interval = Some(Duration::from_millis(1));
    let sender = world.add_node(Toy::new(a, b, interval, packets), &[address(1)]);
    let receiver = world.add_node(Toy::new(b, a, None, 0), &[address(2)]);
    let (there, _) = world.connect(address(1), address(2), config.up, config.down);
    (world, sender, receiver, there)
}

#[test]
fn packets_cross_at_the_links_times() {
    let (mut world, _, receiver, _) = two_toys(1, "rate=24M,delay=10ms", 3);
    assert!(world.run_to_idle(Instant::from_secs(10)));
    let at = |micros| Instant::from_micros(micros);
    assert_eq!(world.node(receiver).got, [(at(10_500), 0), (at(11_500), 1), (at(12_500), 2)]);
    assert_eq!(world.stats().delivered, 3);
}

#[test]
fn one_seed_is_one_run() {
    let run = |seed| {
        let (mut world, ..) = two_toys(seed, "rate=24M,delay=10ms,loss=5%,jitter=3ms", 2_000);
        world.run_to_idle(Instant::from_secs(10));
        world.digest()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn actions_change_links_and_addresses_on_time() {
    let (mut world, sender, receiver, there) = two_toys(1, "delay=1ms", 100);
    world.run_at(Instant::from_micros(20_500), move |w| w.set_link_up(there, false));
    world.run_at(Instant::from_micros(30_500), move |w| w.set_link_up(there, true));
    world.run_at(Instant::from_micros(40_500), move |w| w.set_address(sender, address(1), false));
    world.run_at(Instant::from_micros(50_500), move |w| w.set_address(sender, address(1), true));
    world.run_at(Instant::from_micros(60_500), move |w| w.set_address(receiver, address(2), false));
    assert!(world.run_to_idle(Instant::from_secs(10)));
    let got: Vec<u64> = world.node(receiver).got.iter().map(|g| g.1).collect();
    let expected: Vec<u64> = (0..20).chain(31..41).chain(51..60).collect();
    assert_eq!(got, expected);
    assert_eq!(world.stats().unroutable, 10);
    assert_eq!(world.stats().undeliverable, 40);
    assert_eq!(world.stats().sent, 100);
}

#[test]
fn a_run_can_stop_when_something_has_happened() {
    let (mut world, _, receiver, _) = two_toys(1, "delay=1ms", 100);
    let met = world.run_while(Instant::from_secs(1), |w| w.node(receiver).got.len() < 7);
    assert!(met && world.now() == Instant::from_millis(7));
    assert!(!world.run_while(Instant::from_secs(1), |_| true));
}

#[test]
fn there_and_back_go_over_one_radio() {
    let (mut world, sender, receiver, there) = two_toys(1, "radio=lte,rate=12M,delay=10ms", 1);
    world.run_until(Instant::from_secs(5));
    let promotion = Duration::from_micros(260_100);
    let arrives = Instant::from_millis(11) + promotion;
    assert_eq!(world.node(receiver).got, [(arrives, 0)]);
    // The radio is awake when the answer arrives, and stays awake.
    let answer = move |world: &mut World<Toy>| {
        let node = world.node_mut(receiver);
        (node.interval, node.next, node.limit) = (Some(Duration::ZERO), Instant::ZERO, 1);
    };
    world.run_at(Instant::from_secs(6), answer);
    world.run_until(Instant::from_secs(30));
    assert_eq!(world.node(sender).got, [(Instant::from_millis(6_011), 0)]);
    let energy = |world: &World<Toy>| {
        world.link(there).radio().expect("a radio").energy(Instant::from_secs(30))
    };
    let before = energy(&world);
    assert_eq!((before.promotions, before.packets), (1, 2));
    // Other settings keep the radio. A new radio starts idle, for both directions.
    let mut config = world.link(there).config().clone();
    config.delay.base = Duration::ZERO;
    world.set_link(there, config.clone());
    assert_eq!(energy(&world), before);
    config.radio = None;
    world.set_link(there, config);
    assert!(world.link(there).radio().is_none());
}
