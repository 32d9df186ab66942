//! Fuzz target for a gateway: the input contains packets from the interface, each preceded by its length, for the
//! core's listener and for the responder.
#![no_main]

use std::net::SocketAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use marline_core::{
    ConnectionConfig, Ecn, Endpoint, EndpointConfig, Event, FourTuple, Limits, PacketMeta,
    TransmitBuf,
};
use marline_testkit::timeline::plain;
use marline_time::{Instant, SeedTree};
use marline_tun::addresses::{Addresses, GatewayQueries};
use marline_tun::icmp::Unreachable;
use marline_tun::responder::{PacketResult, Responder};
use marline_wire::{IpPacket, PROTOCOL_TCP};

fuzz_target!(|bytes: &[u8]| {
    let mut gateway = Gateway::new();
    let mut rest = bytes;
    while let Some((&[len, choice], behind)) = rest.split_first_chunk() {
        let (packet, behind) = behind.split_at(usize::from(len).min(behind.len()));
        gateway.take(packet, choice);
        rest = behind;
    }
});

struct Gateway {
    endpoint: Endpoint,
    responder: Responder,
    out: TransmitBuf,
    answer: Vec<u8>,
    now: Instant,
}

impl Gateway {
    fn new() -> Gateway {
        let accept = ConnectionConfig { withhold_syn_ack: true, ..plain() };
        let limits = Limits { connections: 8, syn_queue: 4, ..Limits::default() };
        let config = EndpointConfig { limits, ..marline_testkit::endpoint_config(Some(accept)) };
        Gateway {
            endpoint: Endpoint::new(config, Box::new(SeedTree::new(1).stream("fuzz"))),
            responder: Responder::new(Addresses::default(), GatewayQueries::All),
            out: TransmitBuf::new(40, 16),
            answer: Vec::new(),
            now: Instant::from_secs(1),
        }
    }

    fn take(&mut self, packet: &[u8], choice: u8) {
        self.now += Duration::from_millis(u64::from(choice));
        if self.endpoint.poll_timeout().is_some_and(|at| at <= self.now) {
            self.endpoint.handle_timeout(self.now);
        }
        let ip = IpPacket::parse(packet).ok();
        match ip.filter(|ip| {
            ip.protocol == PROTOCOL_TCP && ip.fragment.is_none() && ip.payload.len() >= 4
        }) {
            Some(ip) => self.take_tcp(&ip),
            None => self.take_other(packet),
        }
        while self.endpoint.poll_transmit(self.now, &mut self.out).is_some() {}
        while let Some(event) = self.endpoint.poll_event() {
            self.on_event(&event, choice);
        }
        assert!(self.endpoint.connections().len() <= 8 && self.endpoint.requests() <= 4);
    }

    fn take_tcp(&mut self, ip: &IpPacket<'_>) {
        let port = |at: usize| u16::from_be_bytes([ip.payload[at], ip.payload[at + 1]]);
        let path = FourTuple {
            local: SocketAddr::new(ip.dst, port(2)),
            remote: SocketAddr::new(ip.src, port(0)),
        };
        // A fuzzer does not find valid checksums.
        let meta =
            PacketMeta { path, ecn: Ecn::NotEct, flow: 0, peer_flow: 0, checksum_verified: true };
        self.endpoint.handle_packet(self.now, &meta, ip.payload);
    }

    fn take_other(&mut self, packet: &[u8]) {
        let mut result = self.responder.process_packet(packet, &mut self.answer);
        if let PacketResult::Datagram(_) = result {
            result = self.responder.refuse(packet, Unreachable::Port, &mut self.answer);
        }
        if let PacketResult::Echo(_) = result {
            result = self.responder.refuse(packet, Unreachable::Prohibited, &mut self.answer);
        }
        if result == PacketResult::Answered {
            IpPacket::parse(&self.answer).expect("every packet sent parses");
        }
    }

    fn on_event(&mut self, event: &Event, choice: u8) {
        match event {
            Event::Requested(path) => match choice % 4 {
                0 => drop(self.endpoint.refuse(self.now, path)),
                1 => drop(self.endpoint.forget_request(path)),
                2 => {}
                _ => drop(self.endpoint.admit(self.now, path)),
            },
            Event::Incoming(id) | Event::Closed { connection: id, .. } if choice % 2 == 0 => {
                self.endpoint.release(self.now, *id);
            }
            Event::Readable(id) => {
                let _ = self.endpoint.read(self.now, *id, &mut [0; 512]);
            }
            _ => {}
        }
    }
}
