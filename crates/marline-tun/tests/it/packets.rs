//! A million malformed packets: random bytes, and valid packets with damage. There must be no panic, and no memory
//! that grows with their number. The test run by `cargo xtask nightly packets` uses a hundred million packets, or
//! the number in `MARLINE_PACKETS`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use marline_core::{ConnectionConfig, Endpoint, EndpointConfig, Event, Limits, TransmitBuf};
use marline_proxy::client::open::OpenError;
use marline_proxy::message::{ErrorCode, Failure};
use marline_testkit::timeline::plain;
use marline_testkit::{Seg, endpoint_config};
use marline_time::{Instant, PcgRng, Rng, SeedTree};
use marline_tun::addresses::{Addresses, GatewayQueries};
use marline_tun::datagram::NoDatagrams;
use marline_tun::icmp::Unreachable;
use marline_tun::responder::{PacketResult, Responder};
use marline_wire::{Checksum, IpPacket, PROTOCOL_TCP, SeqNum, TcpFlags};

use super::support::{World, in_ip, meta_of, path, tcp, udp};

/// Allocator that counts the bytes allocated and not freed, per thread. Each test is one thread.
struct Counting;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that ends may free memory after its counter was destroyed. The counter is no longer needed then.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: every call is passed on unchanged to the system allocator, which fulfills the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's guarantee for `layout` is the one that `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: `memory` was allocated by `alloc` above, and so by `System`, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of packets. Four of eleven are random.
const PACKETS: u64 = 1_100_000;
const MANY: u64 = 100_000_000;
/// Number of packets before the first memory measurement, after which all structures have reached their final size.
const WARM: u64 = 200_000;
/// Maximum further allocation until the end, in bytes.
const GROWTH: i64 = 1 << 20;

/// The gateway's processing of a packet, without the interface.
struct Inside {
    responder: Responder,
    endpoint: Endpoint,
    out: TransmitBuf,
    answer: Vec<u8>,
    now: Instant,
    rng: PcgRng,
    answered: u64,
    admitted: u64,
}

impl Inside {
    fn new() -> Inside {
        let accept = ConnectionConfig { withhold_syn_ack: true, ..plain() };
        let limits =
            Limits { connections: 200, syn_queue: 64, time_wait: 500, ..Limits::default() };
        let config = EndpointConfig { limits, ..endpoint_config(Some(accept)) };
        Inside {
            responder: Responder::new(Addresses::default(), GatewayQueries::Own),
            endpoint: Endpoint::new(config, Box::new(SeedTree::new(3).stream("endpoint"))),
            out: TransmitBuf::new(40, 16),
            answer: Vec::new(),
            now: Instant::from_secs(1),
            rng: PcgRng::new(17, 2),
            answered: 0,
            admitted: 0,
        }
    }

    fn take(&mut self, packet: &[u8]) {
        self.now += Duration::from_micros(50);
        let ip = IpPacket::parse(packet).ok();
        match ip.filter(|ip| {
            ip.protocol == PROTOCOL_TCP && ip.fragment.is_none() && ip.payload.len() >= 4
        }) {
            Some(ip) => self.take_tcp(&ip),
            None => self.take_other(packet),
        }
    }

    fn take_tcp(&mut self, ip: &IpPacket<'_>) {
        self.endpoint.handle_packet(self.now, &meta_of(ip), ip.payload);
        if self.endpoint.poll_timeout().is_some_and(|at| at <= self.now) {
            self.endpoint.handle_timeout(self.now);
        }
        while self.endpoint.poll_transmit(self.now, &mut self.out).is_some() {}
        while let Some(event) = self.endpoint.poll_event() {
            self.on_event(&event);
        }
    }

    fn on_event(&mut self, event: &Event) {
        match event {
            Event::Requested(path) => match self.rng.below(4) {
                0 => drop(self.endpoint.refuse(self.now, path)),
                1 => drop(self.endpoint.forget_request(path)),
                // Some requests are never answered, so that they fill the table.
                2 if self.endpoint.requests() < 60 => {}
                _ => self.admitted += u64::from(self.endpoint.admit(self.now, path).is_some()),
            },
            Event::Incoming(id) | Event::Readable(id) => {
                let mut out = [0; 4_096];
                while let Ok(1..) = self.endpoint.read(self.now, *id, &mut out) {}
                self.endpoint.release(self.now, *id);
            }
            Event::Closed { connection, .. } => self.endpoint.release(self.now, *connection),
            _ => {}
        }
        while self.endpoint.poll_transmit(self.now, &mut self.out).is_some() {}
    }

    fn take_other(&mut self, packet: &[u8]) {
        let mut taken = self.responder.process_packet(packet, &mut self.answer);
        if let PacketResult::Datagram(datagram) = taken {
            assert!(datagram.payload.len() < packet.len());
            taken = self.responder.refuse(packet, Unreachable::Port, &mut self.answer);
        }
        if let PacketResult::Echo(echo) = taken {
            assert!(echo.payload.len() < packet.len() && echo.hops > 0);
            taken = self.responder.refuse(packet, Unreachable::Prohibited, &mut self.answer);
        }
        if taken == PacketResult::Answered {
            self.answered += 1;
            let answer = IpPacket::parse(&self.answer).expect("every packet sent parses");
            assert!(self.answer.len() <= 1_500.max(packet.len() + 48));
            let asked = IpPacket::parse(packet).expect("only packets are answered");
            assert_eq!(answer.dst, asked.src);
        }
    }
}

/// Creates valid packets, which are then damaged.
fn sound(rng: &mut PcgRng) -> Vec<u8> {
    let targets = ["192.0.2.80:443", "[2001:db8::80]:443", "198.18.0.1:53"];
    let target = targets[rng.below(3) as usize];
    let path = path(target, 1_000 + rng.below(500) as u16);
    let number = SeqNum(rng.next_u32() % 5_000);
    match rng.below(8) {
        0..=2 => tcp(path, Seg::syn().at(number).mss(1_400).window_scale(7).sack_permitted()),
        3 => tcp(path, Seg::ack().at(number).acking(SeqNum(rng.next_u32())).payload(b"data")),
        4 => {
            let seg = Seg::ack().flag(TcpFlags::FIN).at(number).acking(SeqNum(rng.next_u32()));
            tcp(path, seg)
        }
        5 => tcp(path, Seg::rst().at(number)),
        6 => udp(path.local, path.remote, &[5; 40]),
        _ => {
            let ends = (path.local.ip(), path.remote.ip());
            let (kind, protocol) = if ends.0.is_ipv4() { (8, 1) } else { (128, 58) };
            let mut message = [kind, 0, 0, 0, 1, 2, 3, 4, 5, 6];
            let mut sum = Checksum::new();
            if ends.0.is_ipv6() {
                sum.add_pseudo_header(ends.0, ends.1, protocol, message.len() as u32);
            }
            sum.add_bytes(&message);
            message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
            in_ip(ends.0, ends.1, protocol, &message)
        }
    }
}

fn damage(rng: &mut PcgRng, packet: &mut Vec<u8>) {
    for _ in 0..rng.below(4) {
        let at = rng.below(packet.len() as u64) as usize;
        packet[at] = rng.next_u32() as u8;
    }
    match rng.below(10) {
        0 => packet.truncate(rng.below(packet.len() as u64 + 1) as usize),
        1 => packet.extend([0; 13]),
        // A fragment's header, and a header with options.
        2 if packet.len() > 20 => packet[6] = 0x20,
        3 if packet.len() > 24 => packet[0] = 0x46,
        _ => {}
    }
    if rng.below(2) == 0 {
        mend(packet);
    }
}

/// Corrects the checksum of an IPv4 header, so that the checks after it are reached.
fn mend(packet: &mut [u8]) {
    let header = packet.first().map_or(0, |first| usize::from(first & 15) * 4);
    if packet.first().is_some_and(|first| first >> 4 == 4) && (20..=packet.len()).contains(&header)
    {
        packet[10..12].fill(0);
        let sum = Checksum::of(&packet[..header]).finish();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

#[test]
fn a_million_packets_do_no_harm_and_take_no_memory() {
    flood(PACKETS, 99);
}

#[test]
#[ignore = "more than a minute: cargo xtask nightly packets"]
fn a_hundred_million_packets_do_no_harm_and_take_no_memory() {
    let wanted = std::env::var("MARLINE_PACKETS").ok();
    let packets = wanted.map_or(MANY, |text| text.parse().expect("MARLINE_PACKETS: a number"));
    assert!(packets >= PACKETS, "the short test has {PACKETS}");
    let begun = std::time::Instant::now();
    flood(packets, 100);
    let rate = packets as f64 / begun.elapsed().as_secs_f64();
    println!("{packets} packets, {rate:.0} a second");
}

fn flood(packets: u64, seed: u64) {
    let mut inside = Inside::new();
    let mut rng = PcgRng::new(seed, 1);
    let mut packet = Vec::new();
    let mut before = 0;
    for number in 0..packets {
        if number % 11 < 4 {
            packet.resize(rng.below(200) as usize, 0);
            packet.fill_with(|| rng.next_u32() as u8);
            // Half of them start like packets.
            if let Some(first) = packet.first_mut().filter(|_| number % 2 == 0) {
                *first = if number % 4 == 0 { 0x45 } else { 0x60 };
            }
        } else {
            packet = sound(&mut rng);
            if rng.below(3) > 0 {
                damage(&mut rng, &mut packet);
            }
        }
        inside.take(&packet);
        if number == WARM {
            before = LIVE.with(Cell::get);
        }
    }
    let growth = LIVE.with(Cell::get) - before;
    let counters = inside.responder.counters();
    println!(
        "{} answered, {} admitted, {} connections, {} requests; {growth} bytes more; {counters:?}",
        inside.answered,
        inside.admitted,
        inside.endpoint.connections().len(),
        inside.endpoint.requests()
    );
    assert!(growth < GROWTH, "{growth} bytes more");
    // The packets had effects.
    assert!(inside.answered > 1_000 && inside.admitted > 1_000);
    for counter in [&counters.fragments, &counters.malformed, &counters.ignored, &counters.queries]
    {
        assert!(counter.load(std::sync::atomic::Ordering::Relaxed) > 100, "{counters:?}");
    }
    assert!(inside.endpoint.connections().len() <= 200 && inside.endpoint.requests() <= 64);
}

/// Sends damaged packets through the driver. Afterwards the gateway works as before.
#[tokio::test]
async fn a_gateway_serves_after_nonsense_as_before() {
    let mut world = World::new(None, Box::new(NoDatagrams));
    let mut rng = PcgRng::new(7, 1);
    for _ in 0..50_000 {
        let mut packet = sound(&mut rng);
        damage(&mut rng, &mut packet);
        if !packet.is_empty() {
            world.send(&packet).await;
        }
        while let Ok((_, answer)) = world.asked.try_recv() {
            drop(answer.send(Err(refused())));
        }
        let mut buffer = [0; 2_000];
        while world.wire.try_recv(&mut buffer).is_ok() {}
    }
    let target = "192.0.2.200:80";
    world.send(&tcp(path(target, 1), Seg::syn().at(SeqNum(1)).mss(1_000))).await;
    loop {
        let (asked, answer) = world.asked().await;
        drop(answer.send(Err(refused())));
        if asked.to_string() == target {
            return;
        }
    }
}

fn refused() -> OpenError {
    OpenError::Refused(Failure::new(ErrorCode::ConnectionReset, "no"))
}
