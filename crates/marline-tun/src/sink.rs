//! Sink of the interface's packets other than TCP: answers some itself and passes the others on.

use std::sync::Arc;
use std::time::Instant;

use marline_io::{PacketSink, Tun};
use marline_proxy::udp::DNS_PORT;
use tokio::sync::mpsc;

use crate::addresses::GatewayQueries;
use crate::datagram::{DatagramOutcome, DatagramWriter, Datagrams};
use crate::dns::Query;
use crate::exceptions::Destinations;
use crate::fragments::{FragmentOutcome, Fragments, may_be_fragment};
use crate::icmp::Unreachable;
use crate::responder::{PacketResult, Responder};

/// Sink of one interface.
pub(crate) struct Sink {
    responder: Responder,
    destinations: Destinations,
    tun: Arc<Tun>,
    queries: mpsc::Sender<Query>,
    datagrams: Box<dyn Datagrams>,
    writer: DatagramWriter,
    fragments: Fragments,
    answer: Vec<u8>,
}

impl Sink {
    pub(crate) fn new(
        responder: Responder,
        destinations: Destinations,
        tun: Arc<Tun>,
        queries: mpsc::Sender<Query>,
        datagrams: Box<dyn Datagrams>,
    ) -> Sink {
        let writer = DatagramWriter::new(Arc::clone(&tun));
        Sink {
            responder,
            destinations,
            tun,
            queries,
            datagrams,
            writer,
            fragments: Fragments::default(),
            answer: Vec::new(),
        }
    }
}

impl PacketSink for Sink {
    fn on_packet(&mut self, packet: &[u8]) {
        if !may_be_fragment(packet) {
            return self.on_whole_packet(packet);
        }
        match self.fragments.add_packet(packet, Instant::now()) {
            None => self.on_whole_packet(packet),
            Some(FragmentOutcome::Completed(whole)) => self.on_whole_packet(&whole),
            Some(FragmentOutcome::Kept) => {}
            Some(FragmentOutcome::Refused) => self.responder.on_refused_fragment(),
        }
    }
}

impl Sink {
    fn on_whole_packet(&mut self, packet: &[u8]) {
        let mut taken = self.responder.process_packet(packet, &mut self.answer);
        match taken {
            PacketResult::Query(datagram) => {
                // Queries beyond the limit are dropped. Programs retry.
                let _ = self.queries.try_send(Query::from_datagram(&datagram));
            }
            PacketResult::Datagram(datagram)
                if self.destinations.exceptions.blocks(datagram.destination.ip()) =>
            {
                let answer = &mut self.answer;
                taken = self.responder.refuse(packet, Unreachable::Prohibited, answer);
            }
            PacketResult::Datagram(datagram) => {
                let answer = &mut self.answer;
                match self.datagrams.on_datagram(&datagram, &self.writer) {
                    DatagramOutcome::Carried => {}
                    // Without a lane, DNS queries to other resolvers are also answered here, by the gateway's resolver.
                    DatagramOutcome::Refused
                        if self.destinations.queries != GatewayQueries::Own
                            && datagram.destination.port() == DNS_PORT =>
                    {
                        let _ = self.queries.try_send(Query::from_datagram(&datagram));
                    }
                    DatagramOutcome::Refused => {
                        taken = self.responder.refuse(packet, Unreachable::Port, answer)
                    }
                    DatagramOutcome::TooBig(most) => {
                        taken = self.responder.too_big(packet, most, answer)
                    }
                }
            }
            PacketResult::Echo(echo) => {
                let answer = &mut self.answer;
                let fate = match self.destinations.exceptions.blocks(echo.destination) {
                    true => DatagramOutcome::Refused,
                    false => self.datagrams.on_echo(&echo, &self.writer),
                };
                match fate {
                    DatagramOutcome::Carried => {}
                    DatagramOutcome::Refused => {
                        taken = self.responder.refuse(packet, Unreachable::Prohibited, answer);
                    }
                    DatagramOutcome::TooBig(most) => {
                        taken = self.responder.too_big(packet, most, answer)
                    }
                }
            }
            PacketResult::Answered | PacketResult::Dropped => {}
        }
        if taken == PacketResult::Answered {
            // If the interface no longer exists, no response is needed.
            let _ = self.tun.write(&self.answer);
        }
    }
}
