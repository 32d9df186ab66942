//! A host with a lane, behind the `Node` trait.

use core::net::{IpAddr, SocketAddr};

use marline_core::FourTuple;
use marline_datagram::{Event, Lane, PathId};
use marline_time::{Instant, ProcessClock};

use super::app::DatagramApp;
use crate::{Digest, Node, Outbox, Packet};

/// Size of the headers around a frame to this address in bytes: IP and UDP.
const fn header_bytes(remote: SocketAddr) -> u16 {
    const UDP: u16 = 8;
    Packet::ip_header_bytes(remote.ip()) + UDP
}

/// A host whose datagrams use a lane. Paths are identified by the addresses at both ends, as in a driver after the
/// session's subflows have authenticated them.
#[derive(Debug)]
pub struct LaneHost {
    lane: Lane,
    paths: Vec<(PathId, FourTuple)>,
    apps: Vec<Box<dyn DatagramApp>>,
    frame: Vec<u8>,
    arrived: Vec<u8>,
    digest: Digest,
    clock: ProcessClock,
}

impl LaneHost {
    /// Creates a host with these paths.
    #[must_use]
    pub fn new(mut lane: Lane, paths: Vec<(PathId, FourTuple)>, now: Instant) -> Self {
        for (id, _) in &paths {
            lane.add_path(*id, now);
        }
        let (frame, arrived) = (Vec::new(), Vec::new());
        let (digest, clock) = Default::default();
        LaneHost { lane, paths, apps: Vec::new(), frame, arrived, digest, clock }
    }

    /// Adds an application, which receives all datagrams of its flow.
    pub fn add_app(&mut self, app: Box<dyn DatagramApp>) {
        self.apps.push(app);
    }

    /// The lane.
    #[must_use]
    pub const fn lane(&self) -> &Lane {
        &self.lane
    }

    /// The lane, for commands.
    pub const fn lane_mut(&mut self) -> &mut Lane {
        &mut self.lane
    }

    /// An application.
    #[must_use]
    pub fn app(&self, index: usize) -> Option<&dyn DatagramApp> {
        self.apps.get(index).map(|app| &**app)
    }

    fn find_path(&self, remote: SocketAddr, local: SocketAddr) -> Option<PathId> {
        let same = |(_, path): &&(PathId, FourTuple)| {
            path.remote.ip() == remote.ip() && path.local.ip() == local.ip()
        };
        self.paths.iter().find(same).map(|(id, _)| *id)
    }

    fn due(&self) -> Option<Instant> {
        let apps = self.apps.iter().filter_map(|app| app.wakes_at());
        apps.chain(self.lane.poll_timeout()).min()
    }

    /// The process's clock.
    fn read_clock(&mut self, now: Instant) -> Instant {
        let mut clock = self.clock;
        let now = clock.read(now, || self.due());
        if clock.pauses() > self.clock.pauses() {
            self.lane.record_pause();
        }
        self.clock = clock;
        now
    }

    /// Delivers arrived datagrams and lets applications send.
    fn run_apps(&mut self, now: Instant) {
        while let Some(event) = self.lane.poll_event() {
            let Event::Datagram { flow, payload } = event else { continue };
            self.digest.time(now);
            self.digest.number(flow.0);
            self.digest.bytes(payload);
            if let Some(app) = self.apps.iter_mut().find(|app| app.flow() == flow) {
                app.on_datagram(now, payload);
            }
        }
        for app in &mut self.apps {
            app.run(now, &mut self.lane);
        }
    }
}

impl Node for LaneHost {
    fn handle_packet(&mut self, now: Instant, packet: &Packet) {
        let now = self.read_clock(now);
        let Some(path) = self.find_path(packet.path.local, packet.path.remote) else { return };
        self.arrived.clear();
        self.arrived.extend_from_slice(&packet.segment);
        self.lane.handle(now, path, &mut self.arrived);
        self.run_apps(now);
    }

    fn handle_too_big(&mut self, now: Instant, quoted: &Packet, mtu_bytes: u32) {
        let now = self.read_clock(now);
        if let Some(path) = self.find_path(quoted.path.local, quoted.path.remote) {
            let headers = header_bytes(quoted.path.remote);
            let frame_bytes = mtu_bytes.saturating_sub(headers.into()).min(u16::MAX.into());
            self.lane.set_path_mtu(path, frame_bytes as u16, now);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        let now = self.read_clock(now);
        if self.lane.poll_timeout().is_some_and(|at| at <= now) {
            self.lane.handle_timeout(now);
        }
        self.run_apps(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due().map(|due| self.clock.system_time(due))
    }

    fn transmit(&mut self, now: Instant, outbox: &mut Outbox<'_>) {
        let now = self.read_clock(now);
        while let Some(transmit) = self.lane.poll_transmit(now, &mut self.frame) {
            let Some((_, path)) = self.paths.iter().find(|(id, _)| *id == transmit.path) else {
                continue;
            };
            // These ports are not part of a TCP header.
            let template = Packet { flow: 1, ..Packet::new(*path, header_bytes(path.remote)) };
            outbox.push(&template, &self.frame);
        }
    }

    fn set_address(&mut self, now: Instant, address: IpAddr, up: bool) {
        let now = self.read_clock(now);
        for (id, path) in &self.paths {
            if path.local.ip() == address && !up {
                self.lane.set_path_unreachable(*id, now);
            }
        }
    }

    fn digest(&self) -> u64 {
        self.digest.value()
    }
}
