//! Tests of data on a degraded address pair, segment by segment: it is sent on the other subflow, and a segment
//! received on the degraded one cancels only the data that it acknowledged.

use std::collections::BTreeMap;
use std::time::Duration;

use marline_core::{ConnectionId, PathHealthMonitor};
use marline_policy::{Health, PathHealthConfig};
use marline_testkit::fixtures::{path, serve, served};
use marline_testkit::{Peer, Script, Seg, config, endpoint_config, with_known_mtu};

const MS: fn(u64) -> Duration = Duration::from_millis;
/// Bytes in flight on the first path when it dies; more than a first window of the second.
const HELD: usize = 40_000;

/// A server with a subflow to a peer whose window has grown, and which then stops answering with `HELD` bytes in
/// flight.
struct Setup {
    script: Script,
    first: Peer,
    second: Peer,
    id: ConnectionId,
    /// DSN of the first byte in flight.
    base: u64,
    /// Data carried by the second subflow, by DSN from `base` on: bytes, and number of transmissions. Its ordinary
    /// TCP retransmissions count once.
    carried: BTreeMap<u64, (usize, u32)>,
}

impl Setup {
    fn new(monitor: Option<PathHealthConfig>) -> Setup {
        // The growth of its window, and the data in flight, assume full segments.
        let (mut script, mut first, id) =
            served(with_known_mtu(endpoint_config(Some(config()))), 1);
        if let Some(config) = monitor {
            script.endpoint.set_path_health_monitor(PathHealthMonitor::new(config));
        }
        // Round trips of 20 ms until the window is wide.
        let grow = 300_000;
        let mut written = 0;
        while script.endpoint.info(id).expect("the connection exists").bytes_acked < grow {
            let data = vec![1; (grow - written).min(60_000) as usize];
            written += script.run(|e, now| e.write(now, id, &data)).unwrap_or(0) as u64;
            script.advance(MS(20));
            first.receive_all(&mut script);
            first.acknowledge(&mut script);
        }
        // One segment alone: a round trip without the transmission time of a run.
        assert_eq!(script.run(|e, now| e.write(now, id, &[1; 1_000])), Ok(1_000));
        script.advance(MS(20));
        first.receive_all(&mut script);
        first.acknowledge(&mut script);
        let base = first.expected_dsn;
        assert_eq!(script.run(|e, now| e.write(now, id, &[2; HELD])), Ok(HELD));
        // Its segments are lost, and then there is a second path.
        let mut on_first = 0;
        while on_first < HELD {
            assert!(script.advance_to_send(MS(10)), "all of it within the window of the first");
            let sent = script.take_sent();
            on_first += sent.iter().map(|sent| sent.seg.payload.len()).sum::<usize>();
        }
        let mut second = Peer::new(path(1, 2, 40_000), 0);
        second.join(&mut script, &first, 2);
        second.expected_dsn = base;
        Setup { script, first, second, id, base, carried: BTreeMap::new() }
    }

    /// Records the data sent on the second path.
    fn hear_second(&mut self) {
        for sent in self.script.take_sent() {
            if sent.path != self.second.path || sent.seg.header.seq != self.second.expected {
                continue;
            }
            self.second.record_received(&sent);
            if let Some(mapping) = self.second.last_mapping.filter(|_| !sent.seg.payload.is_empty())
            {
                let dsn = mapping.dsn.unwrap_near(self.base).expect("of the stream");
                let ssn = sent.seg.header.seq.0.wrapping_sub(self.second.irs.0);
                let at = dsn - self.base + u64::from(ssn.wrapping_sub(mapping.ssn));
                let (bytes, times) = self.carried.entry(at).or_default();
                (*bytes, *times) = (sent.seg.payload.len(), *times + 1);
            }
        }
    }

    /// Runs until the first path is suspected (`bad`: and has a verdict).
    fn fall_silent(&mut self, bad: bool) {
        let until = self.script.now() + MS(2_000);
        while self.script.now() < until {
            self.script.advance(MS(1));
            self.hear_second();
            let monitor = self.script.endpoint.path_health_monitor();
            let (ours, theirs) = (self.first.path.local.ip(), self.first.path.remote.ip());
            let condemned = monitor.is_some_and(|monitor| monitor.is_degraded(ours, theirs));
            if condemned || (!bad && !self.carried.is_empty()) {
                return;
            }
        }
        panic!("no event occurred for two seconds");
    }

    /// The second path's peer acknowledges its data, so that its window opens. Returns the bytes sent there next.
    fn open_second(&mut self) -> usize {
        let before = self.total();
        self.second.acknowledge(&mut self.script);
        self.script.advance(MS(5));
        self.hear_second();
        self.total() - before
    }

    /// Bytes sent on the second path; none of them twice.
    fn total(&self) -> usize {
        assert!(self.carried.values().all(|(_, times)| *times == 1), "{:?}", self.carried);
        self.carried.values().map(|(bytes, _)| bytes).sum()
    }

    /// A segment is received on the first path: up to `acked` bytes of the data in flight arrived.
    fn first_is_heard(&mut self, acked: usize) {
        self.first.expected = self.first.expected.add(acked as u32);
        let seg = Seg::ack().data_ack(self.base + acked as u64);
        self.first.send(&mut self.script, seg);
    }

    fn health(&self, which: usize) -> Health {
        let info = self.script.endpoint.info(self.id).expect("the connection exists");
        info.subflows[which].health
    }
}

/// A mere suspicion ends with the first segment received: no data is repeated unnecessarily.
#[test]
fn suspected_data_stays_on_its_path_once_that_is_heard() {
    let mut setup = Setup::new(None);
    setup.fall_silent(false);
    let before = setup.total();
    setup.first_is_heard(0);
    assert!(setup.health(0).is_usable());
    assert_eq!(setup.open_second(), 0, "after {before} bytes");
}

/// Data on a degraded address pair stays suspected although segments are received there: at the edge of a cell they are
/// received all along, without data getting through.
#[test]
fn data_on_a_degraded_address_pair_moves_although_it_is_heard() {
    let mut setup = Setup::new(Some(PathHealthConfig::prompt()));
    setup.fall_silent(true);
    let before = setup.total();
    assert!(before < HELD, "the second path's window leaves some of it in the queue");
    setup.first_is_heard(0);
    assert!(setup.health(0).is_degraded(), "although a segment arrived");
    while setup.total() < HELD {
        assert!(setup.open_second() > 0, "stuck after {}", setup.total());
        setup.first_is_heard(0);
    }
    assert_eq!((setup.total(), setup.open_second()), (HELD, 0), "each byte, and once");
}

/// Data acknowledged there meanwhile is not sent again.
#[test]
fn data_delivered_by_a_degraded_address_pair_is_not_resent() {
    let mut setup = Setup::new(Some(PathHealthConfig::prompt()));
    setup.fall_silent(true);
    let before = setup.total();
    let there = before + 12_000;
    setup.first_is_heard(there);
    while setup.open_second() > 0 {}
    assert_eq!(setup.total(), before + HELD - there);
    assert!(setup.carried.keys().all(|dsn| *dsn < before as u64 || *dsn >= there as u64));
}

/// A network dies under many connections: each reports its timers to the path health monitor, which examines all
/// of them once for many reports instead of once for each.
#[test]
fn the_cost_of_timeouts_grows_linearly_with_connections() {
    const CONNECTIONS: u64 = 100;
    let mut script = Script::new(endpoint_config(Some(config())), 1);
    script.endpoint.set_path_health_monitor(PathHealthMonitor::new(PathHealthConfig::prompt()));
    let mut ids = Vec::new();
    for n in 0..CONNECTIONS {
        let mut peer = Peer::new(path(0, 2, 40_000 + n as u16), 0x1111 + n);
        ids.push(serve(&mut script, &mut peer));
    }
    // Separate timers: each writes a little later than the one before.
    for id in &ids {
        assert_eq!(script.run(|e, now| e.write(now, *id, &[1; 100])), Ok(100));
        script.advance(Duration::from_micros(200));
    }
    let before = script.endpoint.counters().connections_examined;
    script.advance(MS(600));
    let timeouts: u64 =
        ids.iter().map(|id| script.endpoint.info(*id).unwrap().subflows[0].rtos).sum();
    assert!(timeouts >= CONNECTIONS, "{timeouts} timeouts");
    let looked_at = script.endpoint.counters().connections_examined - before;
    assert!(looked_at <= 70 * CONNECTIONS, "{looked_at} examinations, {timeouts} timeouts");
    let monitor = script.endpoint.path_health_monitor().unwrap();
    assert!(monitor.is_degraded([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
}
