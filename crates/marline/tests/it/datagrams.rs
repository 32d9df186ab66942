//! Tests of datagrams alongside a connection over loopback: all subflows are paths, including new ones, a client is
//! followed through a NAT rebinding, and foreign senders are ignored.

use std::collections::BTreeSet;
use std::time::Duration;

use super::support::*;
use marline::Stream;
use marline::datagrams::{
    Arrivals, Datagrams, FlowClass, FlowId, LaneConfig, LaneIds, PathNumbers, SendError,
};
use marline::paths::PathChange;
use marline_datagram::TestCipher;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout};

const FLOW: FlowId = FlowId(2);

fn config(policy: &str) -> LaneConfig {
    let registry = marline::algos::Registry::default();
    let policy = registry.datagram_policy(policy).unwrap();
    LaneConfig::new(policy, registry.congestion("cubic-westwood").unwrap())
}

/// Both ends of a lane, and their ids.
struct Lanes {
    near: Datagrams,
    far: Datagrams,
    ids: LaneIds,
}

impl Lanes {
    fn beside(near: &Stream, far: &Stream, policy: &str) -> Lanes {
        let [ours, peers] = [near, far].map(|stream| stream.draw_lane_id().unwrap());
        let ids = LaneIds { local: ours, peers };
        let [key, far_key] = TestCipher::pair(ids.local);
        let far = far.open_lane(
            config(policy),
            LaneIds { local: peers, peers: ours },
            far_key,
            PathNumbers::Peers,
        );
        let near = near.open_lane(config(policy), ids, key, PathNumbers::Local);
        Lanes { near: near.unwrap(), far: far.unwrap(), ids }
    }

    /// Receives for this time. Returns the payloads at the client and at the server, including copies. The server
    /// sends back what it receives. Paths are announced to the server, as an application does in its stream.
    async fn pass(&self, time: Duration) -> [Vec<Vec<u8>>; 2] {
        let until = Instant::now() + time;
        let (mut near, mut far) = (Arrivals::default(), Arrivals::default());
        let mut came = [Vec::new(), Vec::new()];
        loop {
            tokio::select! {
                got = self.near.recv(&mut near) => {
                    got.unwrap();
                    for path in near.paths() {
                        self.far.add_path(path.path, path.peer_flow);
                    }
                    came[0].extend(near.datagrams().map(|(_, payload)| payload.to_vec()));
                }
                got = self.far.recv(&mut far) => {
                    got.unwrap();
                    for (flow, payload) in far.datagrams() {
                        came[1].push(payload.to_vec());
                        // Queues are never full in this test.
                        self.far.send(flow, payload).unwrap();
                    }
                }
                () = tokio::time::sleep_until(until) => return came,
            }
        }
    }

    /// Waits until both ends have this number of paths.
    async fn paths(&self, count: usize) {
        within(async {
            while self.near.paths().len() != count || self.far.paths().len() != count {
                self.pass(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Sends this number of datagrams, each of which must arrive and return exactly once.
    async fn echo(&self, first: u32, count: u32) {
        let mut awaited: BTreeSet<Vec<u8>> = BTreeSet::new();
        for number in first..first + count {
            let payload = number.to_be_bytes();
            awaited.insert(payload.to_vec());
            self.near.send(FLOW, &payload).unwrap();
        }
        let (mut there, mut back) = (awaited.clone(), awaited);
        within(async {
            while !there.is_empty() || !back.is_empty() {
                let [near, far] = self.pass(Duration::from_millis(10)).await;
                assert!(
                    near.iter().all(|payload| back.remove(payload)),
                    "duplicate, or never sent"
                );
                assert!(
                    far.iter().all(|payload| there.remove(payload)),
                    "duplicate, or never sent"
                );
            }
        })
        .await;
    }
}

#[tokio::test]
async fn all_subflows_are_paths_and_those_that_come_and_go_are_followed() {
    let listener = server(4).await;
    let client = client(&["127.0.0.1", "127.0.0.2"]).await;
    let (near, far) = pair(&client, &listener).await;
    let lanes = Lanes::beside(&near, &far, "duplicate");
    lanes.near.set_class(FLOW, FlowClass::Sparse);
    // The second subflow is not yet established: the first is a path without an announcement.
    lanes.echo(0, 1).await;
    lanes.paths(2).await;
    lanes.echo(100, 100).await;
    let stats = lanes.near.stats();
    assert!(stats.copied_frame_bytes > 0 && lanes.far.stats().duplicates > 0, "{stats:?}");
    client.set_path("127.0.0.1", PathChange::Down).unwrap();
    lanes.paths(1).await;
    lanes.echo(300, 50).await;
    client.set_path("127.0.0.1", PathChange::Up).unwrap();
    lanes.paths(2).await;
    lanes.echo(400, 50).await;
    let (counters, others) = (listener.lane_counters(), client.lane_counters());
    assert_eq!((counters.lanes, others.lanes), (1, 1));
    assert_eq!((counters.stats.forged, others.stats.forged), (0, 0));
    drop(lanes);
    assert_eq!((listener.lane_counters().lanes, client.lane_counters().lanes), (0, 0));
    assert!(listener.lane_counters().stats.delivered_datagrams >= 201, "ended lanes still count");
}

#[tokio::test]
async fn a_client_that_a_translator_moves_is_followed() {
    let listener = server(1).await;
    let relay = Relay::to(listener.local_addr()).await;
    let path = format!("127.0.0.1={}", relay.address);
    let client = client(&[&path]).await;
    let (near, far) = pair_at(&client, &listener, relay.address).await;
    let lanes = Lanes::beside(&near, &far, "auto");
    lanes.echo(0, 20).await;
    relay.rebind();
    // As in a call, data sent before the server has the new address is lost.
    let mut gap = None;
    let moved = Instant::now();
    within(async {
        for number in 100u32.. {
            lanes.near.send(FLOW, &number.to_be_bytes()).unwrap();
            let [back, _] = lanes.pass(Duration::from_millis(20)).await;
            if !back.is_empty() {
                gap = Some(moved.elapsed());
                break;
            }
        }
    })
    .await;
    eprintln!("the server follows after {:?}", gap.unwrap());
    assert!(
        listener.lane_counters().frames_unvalidated > 0,
        "earlier frames came from the new address"
    );
    lanes.echo(100_000, 20).await;
}

#[tokio::test]
async fn a_path_that_is_cut_is_left_and_one_that_is_back_is_used() {
    let listener = server(1).await;
    let (one, two) =
        tokio::join!(Relay::to(listener.local_addr()), Relay::to(listener.local_addr()));
    let paths = [format!("127.0.0.1={}", one.address), format!("127.0.0.2={}", two.address)];
    let client = client(&[&paths[0], &paths[1]]).await;
    let (near, far) = pair_at(&client, &listener, one.address).await;
    let lanes = Lanes::beside(&near, &far, "auto");
    lanes.paths(2).await;
    let (mut sent, mut back) = (0u32, 0);
    for cut in [&one, &two] {
        cut.cut();
        let before = back;
        for _ in 0..100 {
            lanes.near.send(FLOW, &sent.to_be_bytes()).unwrap();
            sent += 1;
            back += lanes.pass(Duration::from_millis(10)).await[0].len();
        }
        assert!(back > before, "nothing came back over the other path");
        cut.restore();
        lanes.pass(Duration::from_millis(300)).await;
    }
    eprintln!("{back} of {sent} came back, each path cut for a second in turn");
}

#[tokio::test]
async fn frames_of_strangers_are_counted_and_not_read() {
    let listener = server(1).await;
    let client = client(&["127.0.0.1"]).await;
    let (near, far) = pair(&client, &listener).await;
    let lanes = Lanes::beside(&near, &far, "auto");
    lanes.echo(0, 5).await;
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let before = listener.lane_counters();
    for lane in [lanes.ids.peers, lanes.ids.peers ^ 1] {
        let mut frame = marline_datagram::Header { lane, packet_number: 1 << 40 }.bytes().to_vec();
        frame.resize(100, 0);
        stranger.send_to(&frame, listener.local_addr()).await.unwrap();
    }
    within(async {
        loop {
            let now = listener.lane_counters();
            if (now.frames_unvalidated, now.unknown)
                == (before.frames_unvalidated + 1, before.unknown + 1)
            {
                assert_eq!(now.stats.forged, before.stats.forged, "no tag was computed");
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let answer = timeout(Duration::from_millis(100), stranger.recv(&mut [0; 100])).await;
    assert!(answer.is_err(), "no answer is sent");
    lanes.echo(100, 5).await;
}

#[tokio::test]
async fn a_lane_without_its_connection_has_no_path() {
    let listener = server(1).await;
    let client = client(&["127.0.0.1"]).await;
    let (near, far) = pair(&client, &listener).await;
    let lanes = Lanes::beside(&near, &far, "auto");
    lanes.echo(0, 5).await;
    let most = lanes.near.largest();
    match lanes.near.send(FLOW, &[0; 9_000]) {
        Err(SendError::TooBig { most_bytes }) => assert_eq!(most_bytes, most),
        other => panic!("{other:?}"),
    }
    assert!(most >= 8_192, "{most}");
    near.abort();
    within(async {
        while lanes.near.send(FLOW, b"x") != Err(SendError::NoPath) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while !lanes.far.paths().is_empty() {
            lanes.pass(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(far.draw_lane_id().is_some(), "a new lane can be opened");
}
