//! Test bench of two ends, each with a subflow, an application and a wire to the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use marline_policy::{CongestionSignal, Dsn, Eligibility, RttConfig, Ssn};
use marline_time::{Duration, Instant};
use marline_wire::{SeqNum, TcpFlags, TcpHeader, TcpOptions, TcpSegment};

use super::doubles::{Recovery, Reno, Signals};
use crate::subflow::{
    Egress, HeaderFor, Ingress, InitialValues, PayloadRoom, Subflow, SubflowConfig, SubflowEvent,
    SynRetries,
};
use crate::{Ecn, FourTuple};

/// Room for retransmissions without special constraints.
pub(super) const ROOM: PayloadRoom = PayloadRoom { mapped: 1_000, plain: 1_000 };

/// A segment in flight.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) to: usize,
    pub(super) header: TcpHeader,
    pub(super) options: TcpOptions,
    pub(super) payload: Vec<u8>,
    pub(super) ecn: Ecn,
    /// Position of its first octet.
    pub(super) ssn: u64,
}

impl Packet {
    pub(super) fn has(&self, flag: TcpFlags) -> bool {
        self.header.flags.contains(flag)
    }

    /// Length on the wire in bytes, with padded options.
    pub(super) fn size(&self) -> usize {
        let timestamps = if self.options.timestamps.is_some() { 12 } else { 0 };
        20 + timestamps + DSS + self.payload.len()
    }
}

/// Option bytes assumed for each segment besides timestamps.
pub(super) const DSS: usize = 20;

/// Effect of the wire on a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum WireEffect {
    Pass,
    Drop,
    /// Arrives this much later.
    Late(Duration),
    /// Arrives twice, the second time this much later.
    Twice(Duration),
    /// Arrives marked CE.
    Mark,
}

/// One end: a subflow and the actions of a connection.
pub(super) struct End {
    pub(super) tcp: Subflow,
    /// Number of bytes that the application has written.
    pub(super) written: u64,
    /// Number of bytes passed to the subflow.
    pub(super) pushed: u64,
    /// Number of bytes received in order. Each was checked.
    pub(super) received: u64,
    pub(super) events: Vec<SubflowEvent>,
    /// Offered window.
    pub(super) window: u64,
    pub(super) signals: Signals,
    /// Close once everything written is pushed.
    pub(super) close_after: bool,
    pub(super) answer_probes_with_data: bool,
}

impl End {
    pub(super) fn saw(&self, event: SubflowEvent) -> bool {
        self.events.contains(&event)
    }

    pub(super) fn has_silence_ended(&self) -> bool {
        self.events.iter().any(|event| matches!(event, SubflowEvent::SilenceEnded(_)))
    }

    pub(super) fn signals(&self) -> Vec<CongestionSignal> {
        self.signals.lock().unwrap().clone()
    }

    /// Episodes that reduced the window.
    pub(super) fn reductions(&self) -> usize {
        let reduces = |s: &&CongestionSignal| {
            matches!(
                s,
                CongestionSignal::Loss { .. }
                    | CongestionSignal::Rto { first: true, .. }
                    | CongestionSignal::Ecn { .. }
            )
        };
        self.signals.lock().unwrap().iter().filter(reduces).count()
    }
}

type Filter = Box<dyn FnMut(Instant, &Packet) -> WireEffect>;

pub(super) struct Pair {
    pub(super) now: Instant,
    /// The client, and the server once a SYN reached it.
    pub(super) client: End,
    pub(super) server: Option<End>,
    pub(super) delay: Duration,
    wire: BTreeMap<(Instant, u64), Packet>,
    order: u64,
    /// Decides on each packet; 0 is the direction to the client, 1 to the server.
    pub(super) filter: Filter,
    pub(super) config: SubflowConfig,
    server_isn: SeqNum,
    /// All packets sent, with their times.
    pub(super) log: Vec<(Instant, Packet)>,
    pub(super) logging: bool,
    pub(super) sent: [u64; 2],
}

/// The byte at a position of either stream.
pub(super) fn byte_at(position: u64) -> u8 {
    (position ^ (position >> 8) ^ (position >> 16)) as u8
}

pub(super) fn config() -> SubflowConfig {
    SubflowConfig {
        max_segment: 1_452,
        base_segment: 1_452,
        rtt: Arc::new(RttConfig::default()),
        radio_rtt: None,
        initial_window: 10,
        ack_delay: Duration::from_millis(40),
        syn: SynRetries { most: 6, linear: 0 },
        retries: 8,
        keepalive: None,
        ecn: false,
        pacing: true,
        time_wait: Duration::from_secs(60),
        window_scale: 7,
        out_of_order_ranges: 4_096,
        outstanding_bytes: 8 << 20,
        outstanding_segments: 65_536,
        timestamps: true,
        score_forecasts: false,
    }
}

const fn start(isn: SeqNum) -> InitialValues {
    InitialValues { isn, ts_offset: 12_345 }
}

fn path() -> FourTuple {
    FourTuple {
        local: "192.0.2.1:40000".parse().unwrap(),
        remote: "198.51.100.1:443".parse().unwrap(),
    }
}

fn end(tcp: Subflow, signals: Signals) -> End {
    End {
        tcp,
        written: 0,
        pushed: 0,
        received: 0,
        events: Vec::new(),
        window: 4 << 20,
        signals,
        close_after: false,
        answer_probes_with_data: true,
    }
}

pub(super) fn new_client(config: SubflowConfig, isn: SeqNum, now: Instant) -> End {
    let reno = Reno::default();
    let signals = reno.signals.clone();
    end(Subflow::connect(now, Arc::new(config), path(), start(isn), &reno, &Recovery), signals)
}

impl Pair {
    /// A client that is about to send its SYN, 10 ms away from a server.
    pub(super) fn new(config: SubflowConfig) -> Pair {
        Self::with_isns(config, SeqNum(1_000), SeqNum(0x8000_0000))
    }

    pub(super) fn with_isns(config: SubflowConfig, client: SeqNum, server: SeqNum) -> Pair {
        let now = Instant::from_secs(100);
        Pair {
            now,
            client: new_client(config.clone(), client, now),
            server: None,
            delay: Duration::from_millis(10),
            wire: BTreeMap::new(),
            order: 0,
            filter: Box::new(|_, _| WireEffect::Pass),
            config,
            server_isn: server,
            log: Vec::new(),
            logging: false,
            sent: [0; 2],
        }
    }

    /// A pair after the handshake.
    pub(super) fn established(config: SubflowConfig) -> Pair {
        let mut pair = Pair::new(config);
        pair.run_for(Duration::from_millis(50));
        assert!(pair.client.tcp.is_established() && pair.server().tcp.is_established());
        pair
    }

    pub(super) fn server(&mut self) -> &mut End {
        self.server.as_mut().expect("a server")
    }

    pub(super) fn set_filter(
        &mut self,
        filter: impl FnMut(Instant, &Packet) -> WireEffect + 'static,
    ) {
        self.filter = Box::new(filter);
    }

    fn end(&mut self, who: usize) -> Option<&mut End> {
        if who == 0 { Some(&mut self.client) } else { self.server.as_mut() }
    }

    /// Runs until `until`, or until there is no further event.
    pub(super) fn run_until(&mut self, until: Instant) {
        let mut steps = 0_u64;
        let mut stuck = (self.now, 0);
        loop {
            self.transmit();
            let arrival = self.wire.first_key_value().map(|((at, _), _)| *at);
            let timers = [0, 1].map(|who| self.end(who).and_then(|end| end.tcp.next_timeout()));
            let next = timers.into_iter().chain([arrival]).flatten().min();
            let Some(next) = next.filter(|at| *at <= until) else { break };
            self.now = self.now.max(next);
            stuck = if stuck.0 == self.now { (self.now, stuck.1 + 1) } else { (self.now, 0) };
            assert!(stuck.1 < 100_000, "time stands still at {:?}", self.now);
            steps += 1;
            assert!(steps < 50_000_000, "no end");
            if arrival == Some(next) {
                let (_, packet) = self.wire.pop_first().unwrap();
                self.arrive(packet);
            } else {
                let now = self.now;
                for who in [0, 1] {
                    if let Some(end) =
                        self.end(who).filter(|end| end.tcp.next_timeout() <= Some(now))
                    {
                        end.tcp.on_timeout(now);
                    }
                }
            }
            self.drain_events();
        }
        self.now = self.now.max(until);
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    fn drain_events(&mut self) {
        let now = self.now;
        for who in [0, 1] {
            let Some(end) = self.end(who) else { continue };
            while let Some(event) = end.tcp.poll_event() {
                // A connection does this as well, unless its scheduler leaves it to the timer.
                if matches!(event, SubflowEvent::ProbeTimeout) {
                    end.tcp.health_mut().on_probe_timeout(now, Duration::ZERO);
                }
                if let SubflowEvent::SilenceEnded(silence) = event {
                    end.tcp.retry_soon(now, silence.silence);
                }
                end.events.push(event);
            }
            end.tcp.released().clear();
        }
    }

    /// Sends all segments that both ends may send now.
    pub(super) fn transmit(&mut self) {
        for who in [0, 1] {
            loop {
                let now = self.now;
                let Some(end) = self.end(who) else { break };
                let Some(packet) = end.next_packet(now, 1 - who) else { break };
                self.put(packet);
            }
        }
        self.drain_events();
    }

    /// Puts a packet on the wire.
    pub(super) fn put(&mut self, packet: Packet) {
        self.sent[1 - packet.to] += 1;
        if self.logging {
            self.log.push((self.now, packet.clone()));
        }
        let at = self.now + self.delay;
        match (self.filter)(self.now, &packet) {
            WireEffect::Pass => self.schedule(at, packet),
            WireEffect::Drop => {}
            WireEffect::Late(by) => self.schedule(at + by, packet),
            WireEffect::Twice(by) => {
                self.schedule(at, packet.clone());
                self.schedule(at + by, packet);
            }
            WireEffect::Mark => {
                let ecn = if packet.ecn == Ecn::NotEct { Ecn::NotEct } else { Ecn::Ce };
                self.schedule(at, Packet { ecn, ..packet });
            }
        }
    }

    fn schedule(&mut self, at: Instant, packet: Packet) {
        self.order += 1;
        self.wire.insert((at, self.order), packet);
    }

    fn arrive(&mut self, packet: Packet) {
        let segment = TcpSegment {
            header: packet.header,
            options: packet.options.clone(),
            payload: &packet.payload,
            raw_options: &[],
        };
        if packet.to == 1 && self.server.is_none() {
            assert!(packet.has(TcpFlags::SYN));
            let (reno, now) = (Reno::default(), self.now);
            let signals = reno.signals.clone();
            let config = Arc::new(self.config.clone());
            let tcp = Subflow::accept(
                now,
                config,
                path(),
                start(self.server_isn),
                &segment,
                packet.ecn,
                &reno,
                &Recovery,
            );
            self.server = Some(end(tcp, signals));
            return;
        }
        let now = self.now;
        if let Some(end) = self.end(packet.to) {
            end.on_segment(now, &segment, packet.ecn);
        }
    }

    /// Delivers a segment to one end immediately, as if it came from the other.
    pub(super) fn inject(&mut self, to: usize, header: TcpHeader, payload: &[u8]) -> Ingress {
        let now = self.now;
        let mut options = TcpOptions::default();
        let from = if to == 0 { self.server.as_ref() } else { Some(&self.client) };
        if from.is_some_and(|from| from.tcp.uses_timestamps()) {
            options.timestamps = from.map(|from| from.tcp.timestamps.option(now, true));
        }
        let segment = TcpSegment { header, options, payload, raw_options: &[] };
        let end = self.end(to).expect("an end");
        end.on_segment(now, &segment, Ecn::NotEct)
    }

    /// Header that `from` would put on a pure ACK now.
    pub(super) fn header_of(&mut self, from: usize) -> TcpHeader {
        let tcp = &self.end(from).expect("an end").tcp;
        TcpHeader {
            seq: tcp.to_wire(tcp.snd_nxt()),
            ack: tcp.irs.add(tcp.rcv_nxt().0 as u32),
            flags: TcpFlags::ACK,
            window: 1_000,
            ..TcpHeader::default()
        }
    }
}

impl End {
    fn next_packet(&mut self, now: Instant, to: usize) -> Option<Packet> {
        if self.tcp.wants_new_data_probe() {
            if self.pushed < self.written && self.answer_probes_with_data {
                return Some(self.push(now, to));
            }
            self.tcp.repeat_last_as_probe();
        }
        let timestamps = if self.tcp.uses_timestamps() { 12 } else { 0 };
        let mapped = self.tcp.settled_segment() - 20 - timestamps - DSS;
        let room = PayloadRoom { mapped, plain: mapped };
        if let Some(egress) = self.tcp.next_egress_without_ack(now, room) {
            return Some(self.build(now, to, HeaderFor::Egress(&egress)));
        }
        if self.pushed < self.written
            && matches!(self.tcp.eligibility(now), Eligibility::Ready { room } if room > 0)
        {
            return Some(self.push(now, to));
        }
        if self.pushed == self.written {
            self.tcp.set_app_limited(true);
            if core::mem::take(&mut self.close_after) {
                self.tcp.close();
                return self.next_packet(now, to);
            }
        }
        let egress = self.tcp.next_egress(now, room)?;
        Some(self.build(now, to, HeaderFor::Egress(&egress)))
    }

    fn push(&mut self, now: Instant, to: usize) -> Packet {
        let timestamps = if self.tcp.uses_timestamps() { 12 } else { 0 };
        let room = (self.tcp.max_segment() - 20 - timestamps - DSS) as u64;
        let len = room.min(self.written - self.pushed);
        let segment = self.tcp.push_data(now, Dsn(self.pushed), len as u16, 0);
        self.pushed += len;
        if self.pushed == self.written {
            self.tcp.mark_message_end();
        }
        self.build(now, to, HeaderFor::Data(&segment))
    }

    fn build(&mut self, now: Instant, to: usize, what: HeaderFor<'_>) -> Packet {
        let mut options = TcpOptions::default();
        let sent = match what {
            HeaderFor::Data(segment) | HeaderFor::Egress(Egress::Retransmit(segment)) => {
                Some(*segment)
            }
            _ => None,
        };
        let (header, ecn) = self.tcp.fill_header(now, what, self.window, &mut options);
        if self.tcp.has_sack_blocks() && !header.flags.contains(TcpFlags::SYN) {
            self.tcp.fill_sack(&mut options, 28);
        }
        let payload = sent.map_or_else(Vec::new, |segment| {
            assert_eq!(segment.dsn.0, segment.start.0 - 1);
            (segment.dsn.0..segment.dsn.0 + segment.payload_len()).map(byte_at).collect()
        });
        let ssn = sent.map_or(0, |segment| segment.start.0);
        Packet { to, header, options, payload, ecn, ssn }
    }

    fn on_segment(&mut self, now: Instant, segment: &TcpSegment<'_>, ecn: Ecn) -> Ingress {
        let ingress = self.tcp.on_segment(now, segment, ecn, self.window);
        if let Some((ssn, range)) = ingress.in_order.clone() {
            self.take(ssn, &segment.payload[range]);
        }
        while let Some((ssn, bytes)) = self.tcp.pop_reassembled() {
            self.take(ssn, &bytes);
            self.tcp.recycle(bytes);
        }
        ingress
    }

    fn take(&mut self, ssn: Ssn, bytes: &[u8]) {
        assert_eq!(ssn.0, self.received + 1, "out of order");
        assert!(!bytes.is_empty());
        for (i, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte, byte_at(self.received + i as u64), "wrong byte");
        }
        self.received += bytes.len() as u64;
    }
}
