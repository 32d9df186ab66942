//! Tests of sessions between a client and a server in memory.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::leased_connection::Leased;
use super::open::Open;
use super::tunnel::{Connect, Timeouts, Tunnel};
use crate::message::ErrorCode;
use crate::server::ServerLimits;
use crate::server::admission::AdmissionLimits;
use crate::session::datagram_keys::LaneEnd;
use crate::target::Target;
use crate::testing::{Bench, BenchConnector, Bound, Pipe, echo_target};
use crate::transport::{PeerState, Transport};

type SharedTunnel = Arc<Tunnel<Bound>>;

fn tunnel_to(bench: &Arc<Bench>) -> (SharedTunnel, Arc<AtomicUsize>) {
    let connects = Arc::new(AtomicUsize::new(0));
    let connect = Bound { bench: Arc::clone(bench), connects: Arc::clone(&connects) };
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    (Tunnel::new(connect, pin, token, Timeouts::default(), 0).unwrap(), connects)
}

async fn echo<C: Connect>(way: &Tunnel<C>, target: &Target) -> Leased<C::Stream> {
    let mut stream = way.open(target).await.unwrap();
    stream.write_all(b"around").await.unwrap();
    stream.flush().await.unwrap();
    let mut back = [0; 6];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"around");
    stream
}

/// Ends both directions and returns the connection.
async fn finish<S: Transport>(mut stream: Leased<S>) {
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "an orderly end");
    stream.finish();
}

#[tokio::test]
async fn the_first_connection_is_tls_and_the_others_are_its_session() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (way, connects) = tunnel_to(&bench);
    let target = echo_target().await;
    assert!(!echo(&way, &target).await.is_session());
    for _ in 0..3 {
        let mut stream = echo(&way, &target).await;
        assert!(stream.is_session());
        stream.shutdown().await.unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "an orderly end");
    }
    assert_eq!(connects.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn a_cleanly_finished_session_stream_is_reused() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (way, connects) = tunnel_to(&bench);
    let target = echo_target().await;
    finish(echo(&way, &target).await).await;
    for _ in 0..10 {
        finish(echo(&way, &target).await).await;
    }
    // A TLS connection ends with its request. The session's first connection carries all others, also to other
    // targets.
    assert_eq!(connects.load(Ordering::Relaxed), 2);
    let (other, another) = (echo_target().await, echo_target().await);
    let (one, two) = (echo(&way, &other).await, echo(&way, &another).await);
    assert_eq!(connects.load(Ordering::Relaxed), 3, "one thing at a time each");
    finish(one).await;
    finish(two).await;
    assert_eq!(bench.server.authenticated(), 2);
}

#[tokio::test]
async fn an_uncleanly_finished_stream_is_not_reused() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (way, connects) = tunnel_to(&bench);
    let target = echo_target().await;
    drop(echo(&way, &target).await);
    // Returned although only one direction has ended, or none.
    let mut half = echo(&way, &target).await;
    half.shutdown().await.unwrap();
    half.finish();
    echo(&way, &target).await.finish();
    echo(&way, &target).await.abort();
    drop(echo(&way, &target).await);
    assert_eq!(connects.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn a_used_connection_that_the_server_ended_is_not_asked() {
    let idle = Duration::from_millis(50);
    let bench = Arc::new(Bench::new(ServerLimits { idle, ..ServerLimits::default() }));
    let (way, connects) = tunnel_to(&bench);
    let target = echo_target().await;
    for _ in 0..2 {
        finish(echo(&way, &target).await).await;
    }
    while bench.server.authenticated() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    finish(echo(&way, &target).await).await;
    assert_eq!(connects.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_tunnel_that_is_closed_takes_nothing_back() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (way, _) = tunnel_to(&bench);
    let target = echo_target().await;
    drop(echo(&way, &target).await);
    let (kept, running) = (echo(&way, &target).await, echo(&way, &target).await);
    finish(kept).await;
    way.close();
    finish(running).await;
    while bench.server.authenticated() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// More handshakes than a source may have, with room for one: only one is made, and no request is refused.
#[tokio::test]
async fn five_hundred_at_once_wait_for_one_handshake() {
    let admission =
        AdmissionLimits { per_source: 1, waiting_per_source: 0, ..AdmissionLimits::default() };
    let bench = Arc::new(Bench::new(ServerLimits { admission, ..ServerLimits::default() }));
    let (way, connects) = tunnel_to(&bench);
    let target = echo_target().await;
    let one = || {
        let (way, target) = (Arc::clone(&way), target.clone());
        tokio::spawn(async move { echo(&way, &target).await.is_session() })
    };
    let all: Vec<_> = (0..500).map(|_| one()).collect();
    let mut by_session = 0;
    for each in all {
        by_session += usize::from(each.await.unwrap());
    }
    assert_eq!((by_session, connects.load(Ordering::Relaxed)), (499, 500));
}

#[tokio::test]
async fn a_forgotten_session_is_recreated_on_the_same_connection() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let other = Bench::new(ServerLimits::default());
    let (way, connects) = tunnel_to(&bench);
    let target = echo_target().await;
    drop(echo(&way, &target).await);
    // As after a restart, which leaves only the credentials.
    bench.server.forget_sessions();
    let stream = echo(&way, &target).await;
    assert!(!stream.is_session());
    assert_eq!(connects.load(Ordering::Relaxed), 2);
    assert!(echo(&way, &target).await.is_session());
    drop(other);
}

#[tokio::test]
async fn many_requests_after_a_restart_make_one_handshake() {
    let admission =
        AdmissionLimits { per_source: 1, waiting_per_source: 0, ..AdmissionLimits::default() };
    let bench = Arc::new(Bench::new(ServerLimits { admission, ..ServerLimits::default() }));
    let (way, _) = tunnel_to(&bench);
    let target = echo_target().await;
    drop(echo(&way, &target).await);
    bench.server.forget_sessions();
    let all: Vec<_> = (0..100)
        .map(|_| {
            let (way, target) = (Arc::clone(&way), target.clone());
            tokio::spawn(async move { echo(&way, &target).await.is_session() })
        })
        .collect();
    let mut by_session = 0;
    for each in all {
        by_session += usize::from(each.await.unwrap());
    }
    assert_eq!(by_session, 99);
}

#[tokio::test]
async fn a_revoked_credential_ends_its_sessions() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (way, _) = tunnel_to(&bench);
    let target = echo_target().await;
    drop(echo(&way, &target).await);
    let mut running = echo(&way, &target).await;
    assert_eq!(bench.server.known_session_count(), 1);
    bench.credentials.send_modify(|all| Arc::make_mut(all).revoke("laptop").unwrap());
    assert!(running.read(&mut [0]).await.is_err(), "broken, not finished");
    let error = way.open(&target).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotAuthorized, "{error}");
    assert_eq!(bench.server.known_session_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn sessions_end_with_their_hour_and_are_renewed_before() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (way, connects) = tunnel_to(&bench);
    // Refused by the rules: this answer from the server needs no socket, so it works with paused time.
    let ask = || async { way.open(&"10.0.0.1:80".parse().unwrap()).await.unwrap_err().code() };
    assert_eq!(ask().await, ErrorCode::NotAuthorized);
    tokio::time::sleep(Duration::from_secs(2_800)).await;
    assert_eq!(ask().await, ErrorCode::NotAuthorized);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(
        connects.load(Ordering::Relaxed),
        3,
        "the request, and the handshake of the renewal"
    );
    assert_eq!(bench.server.known_session_count(), 2);
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    assert_eq!(bench.server.known_session_count(), 1, "the first session has expired");
    assert_eq!(ask().await, ErrorCode::NotAuthorized);
    assert_eq!(connects.load(Ordering::Relaxed), 4, "the second session serves the request");
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(bench.server.known_session_count(), 0, "sessions expire without a request");
}

/// The server sees different keys than the client, as after a middlebox removed an option.
struct Unequal(Arc<Bench>);

impl Connect for Unequal {
    type Stream = Pipe;

    async fn connect(&self, _: &[SocketAddr]) -> anyhow::Result<Pipe> {
        Ok(self.0.dial_bound("192.0.2.1", Some([1; 32]), Some([2; 32])))
    }
}

#[tokio::test]
async fn an_opening_that_does_not_authenticate_goes_on_as_a_strangers() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    let unequal = Unequal(Arc::clone(&bench));
    let way = Tunnel::new(unequal, pin, token, Timeouts::default(), 0).unwrap();
    let target = echo_target().await;
    for _ in 0..3 {
        assert!(!echo(&way, &target).await.is_session());
    }
}

#[tokio::test]
async fn without_a_binding_every_connection_is_tls_and_they_take_turns() {
    let admission =
        AdmissionLimits { per_source: 8, waiting_per_source: 0, ..AdmissionLimits::default() };
    let bench = Arc::new(Bench::new(ServerLimits { admission, ..ServerLimits::default() }));
    let connect = BenchConnector { bench: Arc::clone(&bench), connects: Arc::default() };
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    let way = Tunnel::new(connect, pin, token, Timeouts::default(), 0).unwrap();
    let target = echo_target().await;
    let all: Vec<_> = (0..60)
        .map(|_| {
            let (way, target) = (Arc::clone(&way), target.clone());
            tokio::spawn(async move { echo(&way, &target).await.is_session() })
        })
        .collect();
    for each in all {
        assert!(!each.await.unwrap());
    }
}

/// Clients behind one address need more handshakes than the admission limit, and all are admitted.
#[tokio::test]
async fn many_clients_behind_one_address_all_get_in() {
    let admission =
        AdmissionLimits { per_source: 2, waiting_per_source: 4, ..AdmissionLimits::default() };
    let bench = Arc::new(Bench::new(ServerLimits { admission, ..ServerLimits::default() }));
    let target = echo_target().await;
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let (way, target) = (tunnel_to(&bench).0, target.clone());
            tokio::spawn(async move { drop(echo(&way, &target).await) })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test]
async fn a_client_beyond_its_number_of_connections_waits_for_one_to_end() {
    let bench = Arc::new(Bench::new(ServerLimits { per_client: 2, ..ServerLimits::default() }));
    let (way, _) = tunnel_to(&bench);
    let target = echo_target().await;
    let (first, second) = (echo(&way, &target).await, echo(&way, &target).await);
    let third = tokio::spawn({
        let (way, target) = (Arc::clone(&way), target.clone());
        async move { drop(echo(&way, &target).await) }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!third.is_finished());
    drop(first);
    third.await.unwrap();
    drop(second);
}

/// Connects to a bench. The path of the second connection fails as soon as that is established, with this state.
struct SecondDies(Bound, PeerState);

impl Connect for SecondDies {
    type Stream = Pipe;

    async fn connect(&self, _: &[SocketAddr]) -> anyhow::Result<Pipe> {
        let pipe = self.0.connect(&[]).await?;
        if self.0.connects.load(Ordering::Relaxed) != 2 {
            return Ok(pipe);
        }
        let (inner, far) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            let _far = far;
            std::future::pending::<()>().await;
        });
        Ok(Pipe { peer_state: self.1, ..Pipe::new(inner, pipe.binding) })
    }
}

/// Makes three requests, and checks that only the second one needs a second connection.
async fn second_request_starts_another(patience: Timeouts, state: PeerState) {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let connects = Arc::new(AtomicUsize::new(0));
    let bound = Bound { bench: Arc::clone(&bench), connects: Arc::clone(&connects) };
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    let way = Tunnel::new(SecondDies(bound, state), pin, token, patience, 0).unwrap();
    let target = echo_target().await;
    echo(&way, &target).await;
    assert!(echo(&way, &target).await.is_session());
    assert_eq!(connects.load(Ordering::Relaxed), 3);
    assert!(echo(&way, &target).await.is_session());
    assert_eq!(
        connects.load(Ordering::Relaxed),
        4,
        "an attempt that is answered in time starts no other"
    );
}

#[tokio::test]
async fn a_connection_without_an_answer_to_its_session_has_another_one_beside_it() {
    let patience = Timeouts { hedge: Duration::from_millis(50), ..Timeouts::default() };
    second_request_starts_another(patience, PeerState::default()).await;
}

#[tokio::test]
async fn a_connection_on_a_silent_path_has_another_one_beside_it_at_once() {
    let patience = Timeouts { hedge: Duration::from_secs(3_600), ..Timeouts::default() };
    let unreachable = PeerState { unreachable: true, ..PeerState::default() };
    second_request_starts_another(patience, unreachable).await;
}

/// Records the addresses of each connection attempt.
struct Noting {
    bound: Bound,
    asked: Arc<Mutex<Vec<Vec<SocketAddr>>>>,
}

impl Connect for Noting {
    type Stream = Pipe;

    async fn connect(&self, own: &[SocketAddr]) -> anyhow::Result<Pipe> {
        self.asked.lock().unwrap().push(own.to_vec());
        self.bound.connect(own).await
    }
}

/// Makes three requests at once, each on a connection of its own. Returns the addresses of each attempt.
async fn asked(bench: &Arc<Bench>) -> Vec<Vec<SocketAddr>> {
    let asked = Arc::<Mutex<Vec<_>>>::default();
    let bound = Bound { bench: Arc::clone(bench), connects: Arc::default() };
    let connect = Noting { bound, asked: Arc::clone(&asked) };
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    let way = Tunnel::new(connect, pin, token, Timeouts::default(), 0).unwrap();
    let target = echo_target().await;
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(echo(&way, &target).await);
    }
    drop(open);
    std::mem::take(&mut asked.lock().unwrap())
}

#[tokio::test]
async fn further_connections_go_where_the_server_is_itself_reached() {
    let own: Vec<SocketAddr> = vec!["198.51.100.7:7777".parse().unwrap()];
    let bench = Arc::new(Bench::advertising(own.clone()));
    assert_eq!(asked(&bench).await, [vec![], own.clone(), own]);
}

#[tokio::test]
async fn a_connection_without_datagram_support_is_refused_a_lane() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (way, _) = tunnel_to(&bench);
    let end = LaneEnd { generation: [1; 16], lane: 1 };
    // The server does not offer datagrams, ...
    let refused = way.datagrams(|_| Ok(end)).await.err().unwrap().to_string();
    assert!(refused.contains("does not support datagrams"), "{refused}");
    // ... or the connection is not a multipath stream over UDP.
    bench.server.offer_datagrams(crate::testing::lane_config(), Default::default());
    let refused = way.datagrams(|_| Ok(end)).await.err().unwrap().to_string();
    assert!(refused.contains("carrier cannot carry datagrams"), "{refused}");
    echo(&way, &echo_target().await).await;
}
