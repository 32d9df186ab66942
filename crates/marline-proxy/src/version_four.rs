//! Compatibility tests with version 4 of the protocol, in which a server does not say where it is itself reached.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::client::tunnel::{Connect, Patience, Tunnel};
use super::server::ServerLimits;
use super::testing::{Bench, Bound, Pipe, echoed, is_served};

const ALPN: &[u8] = b"marline/4";

/// Notes to which addresses it was asked to connect.
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

/// Makes three requests at once, each on a connection of its own: what each was to be connected to.
async fn asked(bench: &Arc<Bench>) -> Vec<Vec<SocketAddr>> {
    let asked = Arc::<Mutex<Vec<_>>>::default();
    let connects = Arc::<AtomicUsize>::default();
    let bound = Bound { bench: Arc::clone(bench), connects: Arc::clone(&connects) };
    let connect = Noting { bound, asked: Arc::clone(&asked) };
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    let way = Tunnel::new(connect, pin, token, Patience::default(), 0).unwrap();
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(echoed(&*way).await);
    }
    assert_eq!(connects.load(Ordering::Relaxed), 3);
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
async fn a_server_of_version_4_is_reached_where_it_always_is() {
    let bench = Arc::new(Bench::speaking(ServerLimits::default(), Some(ALPN)));
    assert_eq!(asked(&bench).await, [vec![], vec![], vec![]]);
}

#[tokio::test]
async fn a_client_of_version_4_is_served() {
    is_served(4, &[ALPN, b"marline/3", b"marline/2", b"marline/1"]).await;
}
