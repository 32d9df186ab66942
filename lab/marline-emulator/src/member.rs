//! Members of the emulator's thread: relays between sockets, tunnels between namespaces.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use marline_time::{Duration, Instant};

use crate::clock::Clock;
use crate::command::LinkCommand;
use crate::config::LinkEnds;
use crate::relay::{Port, Relay};
use crate::report::{ProcessorWait, RelayReport};
use crate::socket::ReceiveBuffers;
use crate::tunnel::{End, Tunnel};

/// A link with its ends.
#[derive(Debug)]
pub(crate) enum Member {
    Relay(Box<Relay>),
    Tunnel(Box<Tunnel>),
}

/// A readable descriptor of a member.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Source {
    Port(Port),
    End(End),
}

impl Member {
    pub(crate) fn new(ends: LinkEnds, start: Instant) -> io::Result<Self> {
        Ok(match ends {
            LinkEnds::Relay(config) => Member::Relay(Box::new(Relay::new(config, start)?)),
            LinkEnds::Tunnel(config) => Member::Tunnel(Box::new(Tunnel::new(config, start)?)),
        })
    }

    pub(crate) fn local_addr(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            Member::Relay(relay) => relay.listen.local_addr().map(Some),
            Member::Tunnel(_) => Ok(None),
        }
    }

    /// Calls `each` with every descriptor to watch.
    pub(crate) fn for_each_source<'a>(&'a self, mut each: impl FnMut(Source, BorrowedFd<'a>)) {
        match self {
            Member::Relay(relay) => {
                each(Source::Port(Port::Listen), relay.listen.as_fd());
                for (slot, flow) in relay.flows.iter() {
                    each(Source::Port(Port::Upstream(slot)), flow.upstream.as_fd());
                }
            }
            Member::Tunnel(tunnel) => {
                for end in [End::Client, End::Server] {
                    if let Some(tun) = tunnel.tun(end) {
                        each(Source::End(end), tun.as_fd());
                    }
                }
            }
        }
    }

    pub(crate) fn receive(&mut self, source: Source, clock: &Clock, buffers: &mut ReceiveBuffers) {
        match (self, source) {
            (Member::Relay(relay), Source::Port(port)) => relay.receive(port, clock, buffers),
            (Member::Tunnel(tunnel), Source::End(end)) => tunnel.receive(end, clock),
            // Each kind of source belongs to one kind of member.
            _ => {}
        }
    }

    pub(crate) fn advance(&mut self, clock: &Clock) {
        match self {
            Member::Relay(relay) => relay.advance(clock),
            Member::Tunnel(tunnel) => tunnel.advance(clock),
        }
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        match self {
            Member::Relay(relay) => relay.next_event(),
            Member::Tunnel(tunnel) => tunnel.next_event(),
        }
    }

    pub(crate) fn apply(&mut self, now: Instant, command: LinkCommand) -> io::Result<()> {
        match self {
            Member::Relay(relay) => relay.apply(now, command),
            Member::Tunnel(tunnel) => {
                tunnel.apply(now, command);
                Ok(())
            }
        }
    }

    /// Removes idle clients.
    pub(crate) fn expire(&mut self, now: Instant) {
        if let Member::Relay(relay) = self {
            relay.expire(now);
        }
    }

    pub(crate) fn report(&self, age: Duration, starved: ProcessorWait) -> RelayReport {
        match self {
            Member::Relay(relay) => relay.report(age, starved),
            Member::Tunnel(tunnel) => tunnel.report(age, starved),
        }
    }
}
