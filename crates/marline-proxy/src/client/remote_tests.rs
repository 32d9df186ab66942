use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use marline_testkit::free_address;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::current::Current;
use super::remote::RemoteForward;
use super::socks_listener::SocksListener;
use super::tunnel::{Timeouts, Tunnel};
use crate::remote_rules::RemoteRule;
use crate::server::ServerLimits;
use crate::shutdown::Stopper;
use crate::target::Target;
use crate::testing::{Bench, Bound, echo_target};

const LIMIT: Duration = Duration::from_secs(20);

struct Client {
    way: Arc<Current<Tunnel<Bound>>>,
    stopper: Stopper,
    /// Addresses at which the server reported to listen.
    listening: mpsc::UnboundedReceiver<SocketAddr>,
    running: tokio::task::JoinHandle<()>,
}

fn bench(rules: &[&str]) -> Arc<Bench> {
    let bench = Bench::new(ServerLimits::default());
    bench.server.allow_remote(parsed(rules));
    Arc::new(bench)
}

fn parsed(rules: &[&str]) -> Vec<RemoteRule> {
    rules.iter().map(|rule| rule.parse().unwrap()).collect()
}

fn tunnel(bench: &Arc<Bench>) -> Arc<Tunnel<Bound>> {
    let connect = Bound { bench: Arc::clone(bench), connects: Arc::default() };
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    Tunnel::new(connect, pin, token, Timeouts::default(), 0).unwrap()
}

/// Returns a client with a remote forward at `listen`.
fn client(bench: &Arc<Bench>, listen: &str, target: Target, places: usize) -> Client {
    let way = Arc::new(Current::new(tunnel(bench)));
    let stopper = Stopper::default();
    let front = SocksListener::new(
        Arc::clone(&way),
        places,
        stopper.listen(),
        Default::default(),
        Default::default(),
    );
    let forward = RemoteForward { listen: listen.parse().unwrap(), target };
    let (tell, listening) = mpsc::unbounded_channel();
    let announce = move |address| {
        // The receiver is gone if the test has ended.
        let _ = tell.send(address);
    };
    let running = tokio::spawn(front.remote(forward, announce));
    Client { way, stopper, listening, running }
}

impl Client {
    async fn listens(&mut self) -> SocketAddr {
        timeout(LIMIT, self.listening.recv()).await.expect("in time").expect("an address")
    }

    async fn listens_not(&mut self) {
        let early = timeout(Duration::from_millis(300), self.listening.recv()).await;
        assert!(early.is_err(), "the server listens: {early:?}");
    }
}

async fn echo(address: SocketAddr, text: &[u8]) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(text).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut back = Vec::new();
    timeout(LIMIT, socket.read_to_end(&mut back)).await.expect("in time").unwrap();
    assert!(back == text, "{} of {} bytes", back.len(), text.len());
}

async fn is_reset(mut socket: TcpStream) -> bool {
    let read = timeout(LIMIT, socket.read(&mut [0])).await.expect("an end");
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

#[tokio::test]
async fn visitors_reach_the_target_side_by_side_and_half_closes_pass() {
    let bench = bench(&["127.0.0.1:0"]);
    let mut client = client(&bench, "127.0.0.1:0", echo_target().await, 64);
    let address = client.listens().await;
    let large = vec![7; 1 << 20];
    let all = (0..20).map(|n| echo(address, &large[..n * 50_000]));
    let all: Vec<_> = all.collect();
    for each in all {
        each.await;
    }
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(b"x").await.unwrap();
    assert_eq!(first.read_u8().await.unwrap(), b'x');
    echo(address, b"during it").await;
}

#[tokio::test]
async fn resets_pass_in_both_directions_and_a_closed_target_is_one() {
    let bench = bench(&["127.0.0.1:0"]);
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = client(&bench, "127.0.0.1:0", target.local_addr().unwrap().into(), 8);
    let address = client.listens().await;
    let visitor = TcpStream::connect(address).await.unwrap();
    let (there, _) = target.accept().await.unwrap();
    there.set_zero_linger().unwrap();
    drop(there);
    assert!(is_reset(visitor).await);
    let visitor = TcpStream::connect(address).await.unwrap();
    let (there, _) = target.accept().await.unwrap();
    visitor.set_zero_linger().unwrap();
    drop(visitor);
    assert!(is_reset(there).await);
    drop(target);
    assert!(is_reset(TcpStream::connect(address).await.unwrap()).await);
}

#[tokio::test]
async fn remote_listening_needs_a_rule_that_still_applies() {
    let bench = bench(&[]);
    let free = free_address();
    let mut client = client(&bench, &free.to_string(), echo_target().await, 8);
    client.listens_not().await;
    assert!(TcpStream::connect(free).await.is_err());
    let way = client.way.now();
    let refused = way.listen(free).await.err().unwrap().to_string();
    assert!(refused.contains(&format!("--allow-remote {free}")), "{refused}");
    let other = format!("somebody@{free}");
    bench.server.allow_remote(parsed(&[&other]));
    assert!(way.listen(free).await.is_err());
    let ours = format!("laptop@{free}");
    bench.server.allow_remote(parsed(&[&ours]));
    let (_control, address) = way.listen(free).await.unwrap();
    echo_is_accepted(address).await;
    bench.server.allow_remote(Vec::new());
    while TcpStream::connect(free).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn echo_is_accepted(address: SocketAddr) {
    TcpStream::connect(address).await.expect("the server listens");
}

#[tokio::test]
async fn a_client_that_comes_back_takes_its_address_over() {
    let bench = bench(&["127.0.0.1:1024-65535"]);
    let free = free_address().to_string();
    let mut first = client(&bench, &free, echo_target().await, 8);
    let address = first.listens().await;
    // As after a crash, without an orderly end.
    let mut second = client(&bench, &free, echo_target().await, 8);
    assert_eq!(second.listens().await, address);
    echo(address, b"over the second one").await;
    first.listens_not().await;
    second.stopper.drain();
    timeout(LIMIT, second.running).await.expect("in time").unwrap();
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn another_credential_does_not_take_it_over() {
    let bench = bench(&["127.0.0.1:1024-65535"]);
    let free = free_address();
    let mut client = client(&bench, &free.to_string(), echo_target().await, 8);
    client.listens().await;
    let token = {
        let mut token = None;
        bench.credentials.send_modify(|all| token = Arc::make_mut(all).add("phone").ok());
        token.unwrap()
    };
    let connect = Bound { bench: Arc::clone(&bench), connects: Arc::default() };
    let other = Tunnel::new(connect, bench.key.pin(), token, Timeouts::default(), 0).unwrap();
    let refused = other.listen(free).await.err().unwrap().to_string();
    assert!(refused.contains("cannot listen"), "{refused}");
    echo(free, b"as before").await;
}

#[tokio::test]
async fn a_replaced_way_is_followed_and_a_drain_ends_the_listener() {
    let (one, two) = (bench(&["127.0.0.1:0"]), bench(&["127.0.0.1:0"]));
    let mut client = client(&one, "127.0.0.1:0", echo_target().await, 8);
    let before = client.listens().await;
    client.way.replace(tunnel(&two)).close();
    let after = client.listens().await;
    echo(after, b"through the other server").await;
    while TcpStream::connect(before).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A draining server releases the address immediately.
    two.stopper.drain();
    while TcpStream::connect(after).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn more_visitors_than_places_are_sent_away() {
    let bench = bench(&["127.0.0.1:0"]);
    let mut client = client(&bench, "127.0.0.1:0", echo_target().await, 1);
    let address = client.listens().await;
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(b"x").await.unwrap();
    assert_eq!(first.read_u8().await.unwrap(), b'x');
    assert!(is_reset(TcpStream::connect(address).await.unwrap()).await);
    drop(first);
}

#[tokio::test]
async fn listeners_of_a_client_are_bounded() {
    let bench = bench(&["127.0.0.1:0"]);
    let way = tunnel(&bench);
    let mut held = Vec::new();
    for _ in 0..16 {
        held.push(way.listen("127.0.0.1:0".parse().unwrap()).await.unwrap());
    }
    let refused = way.listen("127.0.0.1:0".parse().unwrap()).await.err().unwrap().to_string();
    assert!(refused.contains("at most 16 per client"), "{refused}");
    drop(held.pop());
    let again = async {
        while way.listen("127.0.0.1:0".parse().unwrap()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, again).await.expect("there is room again");
}

#[tokio::test(start_paused = true)]
async fn a_silent_listener_and_an_unaccepted_visitor_time_out() {
    let bench = bench(&["127.0.0.1:0"]);
    let way = tunnel(&bench);
    // The client behind it sends no keepalive and accepts no visitor.
    let (_control, address) = way.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let mut visitor = TcpStream::connect(address).await.unwrap();
    let early = timeout(Duration::from_secs(25), visitor.read(&mut [0])).await;
    assert!(early.is_err(), "sent away too early");
    assert!(is_reset(visitor).await);
    tokio::time::sleep(Duration::from_secs(80)).await;
    echo_is_accepted(address).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(TcpStream::connect(address).await.is_err(), "still there after two minutes");
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_sends_keepalives_keeps_its_address() {
    let bench = bench(&["127.0.0.1:0"]);
    let mut client = client(&bench, "127.0.0.1:0", echo_target().await, 8);
    let address = client.listens().await;
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    echo_is_accepted(address).await;
    client.listens_not().await;
}
