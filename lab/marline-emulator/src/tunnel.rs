//! Tunnel between two network namespaces: a TUN interface in each, the link model between them.
//!
//! The kernels (or whatever stack) on both sides see an ordinary point-to-point interface. Since
//! the descriptors carry no offload header, packets come segmented to the MTU and with their
//! checksums done, as a wire would see them. The interfaces belong to this process and disappear
//! with it, however it ends.

use std::fs::File;
use std::io::{self, Read, Seek};

use marline_link::DuplexConfig;
use marline_time::{Duration, Instant, SeedTree};

use crate::clock::Clock;
use crate::command::LinkCommand;
use crate::lane::{FlowKey, LinkDatagram};
use crate::lanes::Lanes;
use crate::netns;
use crate::report::{RelayReport, Starved};
use crate::tap::Tap;
use marline_io::Tun;

/// Vectors kept for packets to come.
const MAX_POOL: usize = 4_096;
/// Packets read in one go, so that what is due on the other side leaves in between.
const READ_BATCH: usize = 32;
/// Largest packet that may come.
const LARGEST_PACKET: usize = 65_536;

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelEnd {
    /// Name of the network namespace (as `ip netns` knows it); `None`: that of this process.
    pub namespace: Option<String>,
    /// Name of the interface to make there, at most 15 bytes.
    pub interface: String,
}

/// A link between two namespaces.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// Its name in reports.
    pub name: String,
    /// The client's end: `up` starts here.
    pub client: TunnelEnd,
    /// The server's end.
    pub server: TunnelEnd,
    /// The link; `up` is from the client.
    pub link: DuplexConfig,
    /// Randomness of the link.
    pub seeds: SeedTree,
    /// Scheduled commands, by time after the start.
    pub schedule: Vec<(Duration, LinkCommand)>,
    /// Who is told of each packet.
    pub tap: Option<Tap>,
}

/// Which end of a tunnel is meant.
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
    /// The namespace's table of interfaces: what the kernel dropped before we could read it.
    table: Option<File>,
    /// Somebody removed the interface, or its namespace.
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

    /// The interface at an end, if it is still there: one that is gone would always be ready.
    pub(crate) fn tun(&self, end: End) -> Option<&Tun> {
        let end = match end {
            End::Client => &self.client,
            End::Server => &self.server,
        };
        (!end.lost).then_some(&end.tun)
    }

    /// When this tunnel wants to be called again.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.lanes.next_event()
    }

    /// Reads some packets of one end into the link.
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
                    // One that is down is silent; only one that does not exist any more complains.
                    let passes = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
                    open.lost = !passes.contains(&error.kind());
                    return;
                }
            };
            let mut bytes = pool.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(&buffer[..len]);
            // When a packet came in is not known; a thread that is let run reads it within microseconds.
            let now = clock.now();
            if let Some(tap) = tap {
                tap.see(now.since(Instant::ZERO), (end == End::Client, true), &bytes);
            }
            lane.offer(now, None, parcel(bytes));
            while let Some(answer) = lane.take_answer() {
                back.offer(clock.now(), None, answer);
            }
        }
    }

    /// Does what is scheduled until now and sends what is due.
    pub(crate) fn advance(&mut self, clock: &Clock) {
        let now = clock.now();
        while let Some((at, command)) = self.lanes.take_scheduled(now) {
            self.apply(at, command);
        }
        let Tunnel { client, server, lanes: Lanes { up, down, .. }, tap, pool, .. } = self;
        for (lane, tun, at_client) in [(up, &server.tun, false), (down, &client.tun, true)] {
            while let Some((due, parcel)) = lane.poll(now) {
                // Whoever is handed a packet may answer at once: what it got comes first.
                let handed = clock.now();
                match tun.write(&parcel.bytes) {
                    Ok(()) => {
                        lane.sent(due, clock.now());
                        if let Some(tap) = tap {
                            tap.see(handed.since(Instant::ZERO), (at_client, false), &parcel.bytes);
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
            // There are no ports to change.
            LinkCommand::Rebind => {}
        }
    }

    pub(crate) fn report(&self, age: Duration, starved: Starved) -> RelayReport {
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
    /// Packets the kernel dropped because nobody read them in time.
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

/// The dropped packets of transmission: the 12th number after the interface's name.
fn parse_drops(table: &str, interface: &str) -> Option<u64> {
    const TRANSMIT_DROPS: usize = 11;
    let mut lines = table.lines().filter_map(|line| line.split_once(':'));
    let (_, numbers) = lines.find(|(name, _)| name.trim() == interface)?;
    numbers.split_ascii_whitespace().nth(TRANSMIT_DROPS)?.parse().ok()
}

fn parcel(bytes: Vec<u8>) -> LinkDatagram {
    // An IP packet carries all its headers itself, and there is nobody to tell apart.
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
        Some(namespace) => netns::within(namespace, open),
    };
    opened.map_err(|error| {
        let what = format!("cannot make the interface {}: {error}", end.interface);
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
