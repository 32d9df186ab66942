//! Simulated machine: one endpoint, its sockets, the packets in between, and a clock that advances
//! only while a caller waits.
//!
//! Time advances when packetdrill sleeps, when it waits for a packet and there is none, and by a microsecond
//! whenever it reads the clock, because it also waits by reading the clock. Every timer of the endpoint and every
//! deadline of a blocking call within that time is handled in order. Before each step all other threads must sleep
//! ([`crate::quiet`]), so that identical scripts run identically.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use libc::c_int;
use marline_core::{
    Capabilities, ChecksumScope, Ecn, Endpoint, EndpointConfig, FourTuple, Limits, NetworkError,
    PacketMeta, Shard, TransmitBuf,
};
use marline_time::{Instant, SeedTree};
use marline_wire::pcapng::Direction;
use marline_wire::{
    IpPacket, Ipv4Header, Ipv4Packet, Ipv6Header, PROTOCOL_TCP, SeqNum, TcpFlags, TcpSegment,
};

use crate::capture::Capture;
use crate::mirror::Mirror;
use crate::quiet;
use crate::sockets::Sockets;

/// Maximum virtual time that packetdrill waits for a packet that does not arrive.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum virtual time that packetdrill waits for one packet, including other packets in between.
const TOTAL_PACKET_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum virtual time for which a call may block on the main thread, which could not be ended otherwise.
const MAIN_THREAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Real time without a step after which a blocking call advances the time itself.
const STEP_TIMEOUT: Duration = Duration::from_millis(300);
/// `gettimeofday` time at the start, in seconds.
const EPOCH_S: u64 = 1_700_000_000;
/// Size of a segment in an IPv4 packet of 1,500 bytes without options.
const MAX_SEGMENT: u16 = 1_480;
/// Minimum segment size that every network must pass.
const MIN_PATH_SEGMENT: u16 = 576;
const IPV4_HEADER: u16 = 20;

/// Result of one attempt of a call.
pub(crate) enum Attempt<T> {
    /// Result of the call: a value, or an `errno`.
    Done(Result<T, c_int>),
    /// The call must wait for an event, or until this instant.
    Wait(Option<Instant>),
}

/// The machine, shared by packetdrill's threads.
pub(crate) struct Machine {
    state: Mutex<State>,
    changed: Condvar,
    main: ThreadId,
}

/// State behind one lock.
pub(crate) struct State {
    pub(crate) now: Instant,
    pub(crate) endpoint: Endpoint,
    pub(crate) sockets: Sockets,
    pub(crate) mirror: Mirror,
    buf: TransmitBuf,
    /// Sent IP packets with their times.
    out: VecDeque<(Instant, Vec<u8>)>,
    capture: Option<Capture>,
    /// Deadlines of blocking calls, by thread.
    waiting: BTreeMap<u64, Option<Instant>>,
    next_waiter: u64,
    /// Number of time steps so far.
    step_count: u64,
    /// True if a call has waited on a thread other than the main one.
    has_waiting_thread: bool,
    /// Time of packetdrill's last action other than waiting for a packet.
    acted_at: Instant,
}

impl Machine {
    /// Creates a machine with these command-line flags: `local=ADDRESS` (repeatable, the first is used for opened
    /// connections), `mtu=BYTES` (default 1,500), `state=DIRECTORY` ([`Mirror`]), `capture=FILE`.
    pub(crate) fn new(flags: &str) -> Self {
        let mut locals = Vec::new();
        let mut state_dir = None;
        let mut capture = None;
        let mut max_segment = MAX_SEGMENT;
        for flag in flags.split(',').filter(|flag| !flag.is_empty()) {
            match flag.split_once('=') {
                Some(("local", address)) => match address.parse::<IpAddr>() {
                    Ok(address) => locals.push(address),
                    Err(error) => {
                        eprintln!("packetdrill-adapter: invalid address {address}: {error}")
                    }
                },
                Some(("state", path)) => state_dir = Some(path.into()),
                Some(("capture", path)) => match Capture::create(path.as_ref()) {
                    Ok(file) => capture = Some(file),
                    Err(error) => eprintln!("packetdrill-adapter: {path}: {error}"),
                },
                Some(("mtu", bytes)) => match bytes.parse::<u16>() {
                    Ok(bytes) => {
                        max_segment = bytes.saturating_sub(IPV4_HEADER).max(MIN_PATH_SEGMENT)
                    }
                    Err(error) => eprintln!("packetdrill-adapter: invalid MTU {bytes}: {error}"),
                },
                _ => eprintln!("packetdrill-adapter: unknown flag `{flag}`"),
            }
        }
        let config = EndpointConfig {
            capabilities: Capabilities {
                // With a larger MTU, packets are IPv6 packets.
                base_segment: max_segment.min(MAX_SEGMENT),
                max_segment,
                checksum: ChecksumScope::WithAddresses,
                flow_ids: false,
                ecn: true,
            },
            limits: Limits::default(),
            shard: Shard::SINGLE,
            accept: None,
            monitor: false,
        };
        let state = State {
            now: Instant::from_secs(1),
            endpoint: Endpoint::new(config, Box::new(SeedTree::new(1).stream("packetdrill"))),
            sockets: Sockets::default(),
            mirror: Mirror::new(locals, state_dir),
            buf: TransmitBuf::new(0, 64),
            out: VecDeque::new(),
            capture,
            waiting: BTreeMap::new(),
            next_waiter: 0,
            step_count: 0,
            has_waiting_thread: false,
            acted_at: Instant::from_secs(1),
        };
        Machine { state: Mutex::new(state), changed: Condvar::new(), main: thread::current().id() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call that does not wait, and handles its effects.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        self.settle();
        let mut state = self.lock();
        state.acted_at = state.now;
        let result = call(&mut state);
        state.gather();
        self.changed.notify_all();
        result
    }

    /// Runs a call that may have to wait.
    pub(crate) fn wait<T>(
        &self,
        mut attempt: impl FnMut(&mut State) -> Attempt<T>,
    ) -> Result<T, c_int> {
        self.settle();
        let started = self.lock().now;
        loop {
            let mut state = self.lock();
            let found = attempt(&mut state);
            state.gather();
            self.changed.notify_all();
            let until = match found {
                Attempt::Done(result) => return result,
                Attempt::Wait(until) => until,
            };
            if thread::current().id() != self.main {
                state.has_waiting_thread = true;
                let ticket = state.next_waiter;
                state.next_waiter += 1;
                state.waiting.insert(ticket, until);
                let step_count = state.step_count;
                let slept = self.changed.wait_timeout(state, STEP_TIMEOUT);
                let (mut state, timeout) = slept.unwrap_or_else(PoisonError::into_inner);
                state.waiting.remove(&ticket);
                // The script has ended except for this call, so no other thread advances the time.
                let alone = timeout.timed_out() && state.step_count == step_count;
                if let Some(until) = until.filter(|_| alone) {
                    state.step(until);
                }
                continue;
            }
            // No other thread advances the time, so this one must. If the event never occurs, the script is wrong.
            drop(state);
            let limit = started + MAIN_THREAD_TIMEOUT;
            if self.lock().now >= limit {
                return Err(libc::EDEADLK);
            }
            self.step(until.unwrap_or(limit).min(limit));
        }
    }

    /// Lets threads run that were woken or are about to make a call.
    fn settle(&self) {
        if thread::current().id() == self.main {
            quiet::wait_until_threads_idle();
        }
    }

    /// Advances to the next timer or deadline, or to `end` if that is earlier. Returns `false` at `end`.
    fn step(&self, end: Instant) -> bool {
        self.settle();
        let mut state = self.lock();
        let more = state.step(end);
        self.changed.notify_all();
        more
    }

    /// Lets time pass.
    pub(crate) fn sleep(&self, for_us: u32) {
        let end = {
            let mut state = self.lock();
            state.acted_at = state.now;
            state.refresh_mirror();
            state.now + Duration::from_micros(u64::from(for_us))
        };
        while self.step(end) {}
    }

    /// Time in microseconds. It always advances, because packetdrill also waits by reading it.
    pub(crate) fn time_us(&self) -> u64 {
        if self.lock().has_waiting_thread {
            self.settle();
        }
        let mut state = self.lock();
        let end = state.now + Duration::from_micros(1);
        while state.step(end) {}
        self.changed.notify_all();
        wall_time_us(state.now)
    }

    /// Returns the next sent packet and its time. Waits for it in virtual time.
    pub(crate) fn receive(&self) -> Option<(u64, Vec<u8>)> {
        self.settle();
        let end = {
            let mut state = self.lock();
            state.refresh_mirror();
            (state.now + RECEIVE_TIMEOUT).min(state.acted_at + TOTAL_PACKET_TIMEOUT)
        };
        loop {
            if let Some((at, packet)) = self.lock().out.pop_front() {
                // packetdrill drops packets that belong to no socket of its script, and waits again.
                return (at <= end).then(|| (wall_time_us(at), packet));
            }
            let more = self.step(end);
            if !more && self.lock().out.is_empty() {
                return None;
            }
        }
    }

    /// Handles a received packet.
    pub(crate) fn send(&self, packet: &[u8]) {
        self.call(|state| {
            state.refresh_mirror();
            state.take_packet(packet);
        });
    }
}

fn wall_time_us(at: Instant) -> u64 {
    EPOCH_S * 1_000_000 + at.as_micros()
}

/// `gettimeofday` time at an instant, in nanoseconds.
pub(crate) fn wall_time_ns(at: Instant) -> u64 {
    EPOCH_S * 1_000_000_000 + at.as_nanos()
}

impl State {
    fn step(&mut self, end: Instant) -> bool {
        self.step_count += 1;
        let timer = self.endpoint.poll_timeout();
        let now = self.now;
        let deadlines = self.waiting.values().flatten().copied().filter(|at| *at > now);
        let next = timer.into_iter().chain(deadlines).min();
        let Some(at) = next.filter(|at| *at <= end) else {
            self.advance_to(end);
            return false;
        };
        self.advance_to(at);
        if timer.is_some_and(|timer| timer <= self.now) {
            self.endpoint.handle_timeout(self.now);
        }
        self.gather();
        true
    }

    fn advance_to(&mut self, until: Instant) {
        self.advance_clocks(until.since(self.now));
        self.now = self.now.max(until);
    }

    /// Removes Fast Open cookies if a script flushed the TCP metrics.
    pub(crate) fn apply_metrics_flush(&mut self) {
        if self.mirror.take_flush() {
            self.endpoint.forget_fast_open();
        }
    }

    fn refresh_mirror(&mut self) {
        self.apply_metrics_flush();
        if !self.mirror.refresh() {
            return;
        }
        for address in self.mirror.addresses() {
            self.endpoint.set_local_address(self.now, None, address);
        }
        self.gather();
    }

    /// Collects packets and events from the endpoint.
    pub(crate) fn gather(&mut self) {
        while let Some(transmit) = self.endpoint.poll_transmit(self.now, &mut self.buf) {
            let (tos, hops) = self.sockets.marks(&transmit.path);
            let segments: Vec<Vec<u8>> = self
                .buf
                .bytes()
                .chunks(transmit.stride.max(1))
                .map(|segment| ip_packet(&transmit.path, transmit.ecn, tos, hops, segment))
                .collect();
            for packet in segments {
                self.record(Direction::Outbound, &packet);
                self.out.push_back((self.now, packet));
            }
        }
        while let Some(event) = self.endpoint.poll_event() {
            self.sockets.on_event(self.now, &self.endpoint, event);
        }
        self.sockets.update_reports(self.now, &self.endpoint);
        self.detect_all_changes();
        let fallbacks = self.sockets.fallbacks;
        self.mirror.write_counters(&self.endpoint.counters(), fallbacks);
    }

    fn record(&mut self, direction: Direction, packet: &[u8]) {
        if let Some(capture) = self.capture.as_mut() {
            capture.packet(self.now, direction, packet);
        }
    }

    fn take_packet(&mut self, packet: &[u8]) {
        self.record(Direction::Inbound, packet);
        let Ok(ip) = IpPacket::parse(packet) else { return };
        if ip.protocol != PROTOCOL_TCP {
            self.take_icmp(&ip);
            return;
        }
        let Ok(segment) = TcpSegment::parse(ip.payload) else { return };
        let path = FourTuple {
            local: SocketAddr::new(ip.dst, segment.header.dst_port),
            remote: SocketAddr::new(ip.src, segment.header.src_port),
        };
        let flags = segment.header.flags;
        if !flags.contains(TcpFlags::ACK) {
            let accept = self.sockets.listener_config(&self.mirror, path.local);
            self.endpoint.accept_with(accept);
            self.use_cookie_keys(path.local);
        }
        let ecn = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce][usize::from(ip.ecn & 3)];
        let meta = PacketMeta { path, ecn, flow: 0, peer_flow: 0, checksum_verified: false };
        self.endpoint.handle_packet(self.now, &meta, ip.payload);
    }

    /// Handles ICMP's Destination Unreachable (type 3) and its equivalents in ICMPv6, which quote our segments.
    fn take_icmp(&mut self, ip: &IpPacket<'_>) {
        let &[kind, code, _, _, _, _, hi, lo, ..] = ip.payload else { return };
        let v6 = ip.src.is_ipv6();
        let quoted = &ip.payload[8..];
        let header = usize::from(if v6 { 20u16 } else { 0 });
        let too_big =
            |mtu: u16| NetworkError::TooBig { max_segment: mtu.saturating_sub(20 + header as u16) };
        let error = match (v6, kind, code) {
            (false, 3, 4) | (true, 2, _) => too_big(u16::from_be_bytes([hi, lo])),
            (false, 3, _) | (true, 1, _) => NetworkError::Unreachable,
            _ => return,
        };
        let Some((path, seq)) = find_quoted_segment(quoted, v6) else { return };
        self.endpoint.network_error(self.now, &path, seq, error);
    }
}

/// Finds the subflow and the sequence number quoted by an ICMP message. Eight bytes of the segment suffice.
fn find_quoted_segment(quoted: &[u8], v6: bool) -> Option<(FourTuple, SeqNum)> {
    let (ends, rest): ((IpAddr, IpAddr), &[u8]) = if v6 {
        let header = quoted.get(..40)?;
        let part = |from: usize| -> Option<IpAddr> {
            Some(IpAddr::from(<[u8; 16]>::try_from(header.get(from..from + 16)?).ok()?))
        };
        ((part(8)?, part(24)?), quoted.get(40..)?)
    } else {
        let length = usize::from(quoted.first()? & 15) * 4;
        let part = |from: usize| -> Option<IpAddr> {
            Some(IpAddr::from(<[u8; 4]>::try_from(quoted.get(from..from + 4)?).ok()?))
        };
        ((part(12)?, part(16)?), quoted.get(length..)?)
    };
    let &[a, b, c, d, s0, s1, s2, s3] = rest.get(..8)? else { return None };
    let path = FourTuple {
        local: SocketAddr::new(ends.0, u16::from_be_bytes([a, b])),
        remote: SocketAddr::new(ends.1, u16::from_be_bytes([c, d])),
    };
    Some((path, SeqNum(u32::from_be_bytes([s0, s1, s2, s3]))))
}

/// Puts an IP header in front of a segment.
fn ip_packet(path: &FourTuple, ecn: Ecn, tos: u8, hops: Option<u8>, segment: &[u8]) -> Vec<u8> {
    let ecn = match ecn {
        Ecn::NotEct => tos & 3,
        Ecn::Ect1 => 1,
        Ecn::Ect0 => 2,
        Ecn::Ce => 3,
    };
    let dscp = tos >> 2;
    let mut packet = vec![0; if path.local.is_ipv4() { 20 } else { 40 }];
    let written = match (path.local.ip(), path.remote.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let plain = Ipv4Header::new(src, dst, PROTOCOL_TCP);
            Ipv4Header { dscp, ecn, ttl: hops.unwrap_or(plain.ttl), ..plain }
                .emit(segment.len(), &mut packet)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let plain = Ipv6Header::new(src, dst, PROTOCOL_TCP);
            Ipv6Header { dscp, ecn, hop_limit: hops.unwrap_or(plain.hop_limit), ..plain }
                .emit(segment.len(), &mut packet)
        }
        _ => Ok(0),
    };
    debug_assert!(written.is_ok(), "{written:?}");
    packet.extend_from_slice(segment);
    debug_assert!(path.local.is_ipv6() || Ipv4Packet::parse(&packet).is_ok());
    packet
}
