//! Tunnel between two network namespaces: a TUN interface in each, the link model between them.
//!
//! The TCP stacks on both sides see an ordinary point-to-point interface. Since the descriptors have no offload
//! header, packets are segmented to the MTU and have complete checksums, as on a wire. The interfaces belong to
//! this process and disappear when it ends for any reason.

use std::fs::File;
use std::io::{self, Read, Seek};

use marline_link::DuplexConfig;
use marline_time::{Duration, Instant, SeedTree};

use crate::clock::Clock;
use crate::command::LinkCommand;
use crate::lane::{FlowKey, LinkDatagram};
use crate::lanes::Lanes;
use crate::netns;
use crate::report::{ProcessorWait, RelayReport};
use crate::tap::Tap;
use marline_io::Tun;

/// Maximum number of spare buffers.
const MAX_POOL: usize = 4_096;
/// Packets read at a time; due packets of the other side are sent in between.
const READ_BATCH: usize = 32;
/// Maximum packet size in bytes.
const LARGEST_PACKET: usize = 65_536;

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelEnd {
    /// Name of the network namespace in `ip netns`; `None`: the namespace of this process.
    pub namespace: Option<String>,
    /// Name of the interface to create, at most 15 bytes.
    pub interface: String,
}

/// A link between two namespaces.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// Name in reports.
    pub name: String,
    /// The client's end: `up` starts here.
    pub client: TunnelEnd,
    /// The server's end.
    pub server: TunnelEnd,
    /// The link; `up` is from the client.
    pub link: DuplexConfig,
    /// Seeds of the link's random numbers.
    pub seeds: SeedTree,
    /// Scheduled commands, by time after the start.
    pub schedule: Vec<(Duration, LinkCommand)>,
    /// Recorder of the packets.
    pub tap: Option<Tap>,
}

/// Identifies an end of a tunnel.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

/// An open end.
#[derive(Debug)]
struct OpenEnd {
    tun: Tun,
    interface: String,
    /// The namespace's table of interfaces, which counts the packets that the kernel dropped.
    table: Option<File>,
    /// True if the interface or its namespace was removed.
    lost: bool,
}

/// A running tunnel.
#[derive(Debug)]
pub(crate) struct Tunnel {
    name: String,
    client: OpenEnd,
    server: OpenEnd,
    lanes: Lanes,
    tap: Option<Tap>,
    pool: Vec<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Tunnel {
    pub(crate) fn new(config: TunnelConfig, start: Instant) -> io::Result<Self> {
        Ok(Tunnel {
            client: open(&config.client)?,
            server: open(&config.server)?,
            name: config.name,
            lanes: Lanes::new(config.link, &config.seeds, config.schedule, start),
            tap: config.tap,
            pool: Vec::new(),
            buffer: vec![0; LARGEST_PACKET],
        })
    }

    /// The interface at an end. `None` if it was removed, because it would then always be readable.
    pub(crate) fn tun(&self, end: End) -> Option<&Tun> {
        let end = match end {
            End::Client => &self.client,
            End::Server => &self.server,
        };
        (!end.lost).then_some(&end.tun)
    }

    /// Time of the tunnel's next event.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.lanes.next_event()
    }

    /// Reads a batch of packets from one end into the link.
    pub(crate) fn receive(&mut self, end: End, clock: &Clock) {
        let Tunnel { client, server, lanes: Lanes { up, down, .. }, tap, pool, buffer, .. } = self;
        let (open, lane, back) = match end {
            End::Client => (client, up, down),
            End::Server => (server, down, up),
        };
        for _ in 0..READ_BATCH {
            let len = match open.tun.read(buffer) {
                Ok(len) => len,
                Err(error) => {
                    // An interface that is down is silent; only a removed one fails.
                    let passes = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
                    open.lost = !passes.contains(&error.kind());
                    return;
                }
            };
            let mut bytes = pool.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(&buffer[..len]);
            // The arrival time is unknown, but a running thread reads a packet within microseconds.
            let now = clock.now();
            if let Some(tap) = tap {
                tap.on_sent(now.since(Instant::ZERO), end == End::Client, &bytes);
            }
            lane.offer(now, None, new_datagram(bytes));
            while let Some(answer) = lane.take_answer() {
                back.offer(clock.now(), None, answer);
            }
        }
    }

    /// Executes scheduled commands that are due and sends due packets.
    pub(crate) fn advance(&mut self, clock: &Clock) {
        let now = clock.now();
        while let Some((at, command)) = self.lanes.take_scheduled(now) {
            self.apply(at, command);
        }
        let Tunnel { client, server, lanes: Lanes { up, down, .. }, tap, pool, .. } = self;
        for (lane, tun, at_client) in [(up, &server.tun, false), (down, &client.tun, true)] {
            while let Some((due, parcel)) = lane.poll(now) {
                // The time is taken before the write, since the receiver may answer immediately.
                let handed = clock.now();
                match tun.write(&parcel.bytes) {
                    Ok(()) => {
                        lane.sent(due, clock.now());
                        if let Some(tap) = tap {
                            tap.on_delivered(handed.since(Instant::ZERO), at_client, &parcel.bytes);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        lane.send_blocked += 1;
                    }
                    Err(_) => lane.send_errors += 1,
                }
                recycle(pool, parcel);
            }
            while let Some(dropped) = lane.take_dropped() {
                recycle(pool, dropped);
            }
        }
    }

    pub(crate) fn apply(&mut self, now: Instant, command: LinkCommand) {
        match command {
            LinkCommand::Break(side) => self.lanes.set_up(now, side, false),
            LinkCommand::Restore(side) => self.lanes.set_up(now, side, true),
            LinkCommand::Set(config) => self.lanes.set_config(now, *config),
            // A tunnel has no ports.
            LinkCommand::Rebind => {}
        }
    }

    pub(crate) fn report(&self, age: Duration, starved: ProcessorWait) -> RelayReport {
        let ends = [&self.client, &self.server];
        let lost = ends.into_iter().filter(|end| end.lost);
        RelayReport {
            name: self.name.clone(),
            running: age,
            flows: 0,
            flows_refused: 0,
            rebinds: 0,
            kernel_drops: ends.map(OpenEnd::drops).iter().sum(),
            lost_interfaces: lost.map(|end| end.interface.clone()).collect(),
            starved,
            up: self.lanes.up.report(),
            down: self.lanes.down.report(),
            radio: self.lanes.up.radio(Instant::ZERO + age),
        }
    }
}

impl OpenEnd {
    /// Packets the kernel dropped because they were not read in time.
    fn drops(&self) -> u64 {
        let read = || {
            let mut table = self.table.as_ref()?;
            table.rewind().ok()?;
            let mut text = String::new();
            table.read_to_string(&mut text).ok()?;
            parse_drops(&text, &self.interface)
        };
        read().unwrap_or(0)
    }
}

/// Packets dropped in transmission: the 12th number after the interface's name.
fn parse_drops(table: &str, interface: &str) -> Option<u64> {
    const TRANSMIT_DROPS: usize = 11;
    let mut lines = table.lines().filter_map(|line| line.split_once(':'));
    let (_, numbers) = lines.find(|(name, _)| name.trim() == interface)?;
    numbers.split_ascii_whitespace().nth(TRANSMIT_DROPS)?.parse().ok()
}

fn new_datagram(bytes: Vec<u8>) -> LinkDatagram {
    // An IP packet includes its headers, and there is only one flow.
    LinkDatagram { flow: FlowKey { slot: 0, generation: 0 }, ecn: None, headers: 0, bytes }
}

fn recycle(pool: &mut Vec<Vec<u8>>, parcel: LinkDatagram) {
    if pool.len() < MAX_POOL {
        pool.push(parcel.bytes);
    }
}

/// Opens an end in its namespace.
fn open(end: &TunnelEnd) -> io::Result<OpenEnd> {
    let interface = end.interface.clone();
    let open = move || -> io::Result<OpenEnd> {
        let tun = Tun::open(&interface)?;
        let table = File::open("/proc/thread-self/net/dev").ok();
        Ok(OpenEnd { tun, interface, table, lost: false })
    };
    let opened = match &end.namespace {
        None => open(),
        Some(namespace) => netns::run_in(namespace, open),
    };
    opened.map_err(|error| {
        let what = format!("cannot create the interface {}: {error}", end.interface);
        io::Error::new(error.kind(), what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_those_of_transmission() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo ...\n\
                     wifi: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  lo: 0 0 0 0 0 0 0 0 0 0 0 0 0";
        assert_eq!(parse_drops(table, "wifi"), Some(12));
        assert_eq!(parse_drops(table, "lo"), Some(0));
        assert_eq!(parse_drops(table, "lte"), None);
    }
}
