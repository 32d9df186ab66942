use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::socks_listener::{Service, SocksListener, bind};
use super::tunnel::{Timeouts, Tunnel};
use crate::server::ServerLimits;
use crate::shutdown::Stopper;
use crate::target::{Host, Target};
use crate::testing::{Bench, BenchConnector, echo_target};

struct Near {
    address: SocketAddr,
    stopper: Stopper,
    done: tokio::task::JoinHandle<()>,
}

/// Returns a client with one listening port, in front of a server in memory.
async fn near(service: Service, places: usize) -> Near {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    let connect = BenchConnector { bench, connects: Arc::default() };
    let tunnel = Tunnel::new(connect, pin, token, Timeouts::default(), 0).unwrap();
    let stopper = Stopper::default();
    let front = SocksListener::new(
        tunnel,
        places,
        stopper.listen(),
        Default::default(),
        Default::default(),
    );
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let address = listener.local_addr().unwrap();
    let done = tokio::spawn(front.serve(listener, service, std::future::pending()));
    Near { address, stopper, done }
}

fn request(target: &Target) -> Vec<u8> {
    let Host::V4(address) = target.host else { panic!("tests use IPv4") };
    let mut out = vec![5, 1, 0, 5, 1, 0, 1];
    out.extend_from_slice(&address.octets());
    out.extend_from_slice(&target.port.to_be_bytes());
    out
}

/// Requests a target from a SOCKS port. Returns its two answers and the connection.
async fn ask(near: &Near, target: &Target) -> (Vec<u8>, TcpStream) {
    let mut socket = TcpStream::connect(near.address).await.unwrap();
    socket.write_all(&request(target)).await.unwrap();
    let mut answer = vec![0; 12];
    socket.read_exact(&mut answer).await.unwrap();
    (answer, socket)
}

async fn echo(socket: &mut TcpStream, text: &[u8]) {
    socket.write_all(text).await.unwrap();
    let mut back = vec![0; text.len()];
    socket.read_exact(&mut back).await.unwrap();
    assert_eq!(back, text);
}

#[tokio::test]
async fn socks_all_the_way() {
    let near = near(Service::Socks5, 8).await;
    let (answer, mut socket) = ask(&near, &echo_target().await).await;
    assert_eq!(answer, [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    echo(&mut socket, b"all the way").await;
    socket.shutdown().await.unwrap();
    assert_eq!(socket.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn socks_answers_name_the_reason() {
    let near = near(Service::Socks5, 8).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for (target, code) in [("10.0.0.1:80".parse().unwrap(), 2), (Target::from(closed), 5)] {
        let (answer, mut socket) = ask(&near, &target).await;
        assert_eq!(answer, [5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0], "{target}");
        assert_eq!(
            socket.read(&mut [0]).await.unwrap(),
            0,
            "the connection ends in an orderly way"
        );
    }
}

#[tokio::test]
async fn socks_four_all_the_way_and_refused() {
    let near = near(Service::Socks5, 8).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for (target, code) in [
        (echo_target().await, 90),
        ("10.0.0.1:80".parse().unwrap(), 91),
        (Target::from(closed), 91),
    ] {
        let Host::V4(address) = target.host else { panic!("tests use IPv4") };
        let head = [&[4, 1][..], &target.port.to_be_bytes(), &address.octets()].concat();
        let mut socket = TcpStream::connect(near.address).await.unwrap();
        socket.write_all(&[&head[..], b"ann\0"].concat()).await.unwrap();
        let mut answer = [0; 8];
        socket.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, [0, code, 0, 0, 0, 0, 0, 0], "{target}");
        if code == 90 {
            echo(&mut socket, b"all the way").await;
        } else {
            assert_eq!(
                socket.read(&mut [0]).await.unwrap(),
                0,
                "the connection ends in an orderly way"
            );
        }
    }
}

#[tokio::test]
async fn a_forward_knows_its_target_and_half_closes() {
    let near = near(Service::Forward(echo_target().await), 8).await;
    let mut socket = TcpStream::connect(near.address).await.unwrap();
    let text = vec![7; 1 << 20];
    let (mut read, mut write) = socket.split();
    let mut back = Vec::new();
    let (sent, received) = tokio::join!(
        async {
            write.write_all(&text).await?;
            write.shutdown().await
        },
        read.read_to_end(&mut back)
    );
    sent.unwrap();
    received.unwrap();
    assert!(back == text, "{} of {} bytes", back.len(), text.len());
}

#[tokio::test]
async fn a_forward_to_an_unreachable_target_resets() {
    let near = near(Service::Forward("10.0.0.1:80".parse().unwrap()), 8).await;
    let mut socket = TcpStream::connect(near.address).await.unwrap();
    assert!(socket.read(&mut [0]).await.is_err());
}

#[tokio::test]
async fn more_than_the_bound_wait_their_turn() {
    let near = near(Service::Forward(echo_target().await), 1).await;
    let mut first = TcpStream::connect(near.address).await.unwrap();
    echo(&mut first, b"first").await;
    let mut second = TcpStream::connect(near.address).await.unwrap();
    second.write_all(b"second").await.unwrap();
    let mut byte = [0];
    let early = tokio::time::timeout(Duration::from_millis(100), second.read(&mut byte)).await;
    assert!(early.is_err(), "served beyond the bound");
    drop(first);
    second.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"s");
}

#[tokio::test]
async fn applications_that_ask_for_nothing_take_no_place_from_those_that_do() {
    let near = near(Service::Socks5, 2).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(near.address).await.unwrap());
    }
    // Such applications would be disconnected only after ten seconds, two at a time.
    let target = echo_target().await;
    let asked = tokio::time::timeout(Duration::from_secs(5), ask(&near, &target)).await;
    let (answer, mut socket) = asked.expect("an immediate answer");
    assert_eq!(answer[3], 0);
    echo(&mut socket, b"not held up").await;
}

#[tokio::test]
async fn a_drain_refuses_new_applications_and_finishes_old_ones() {
    let near = near(Service::Forward(echo_target().await), 8).await;
    let mut running = TcpStream::connect(near.address).await.unwrap();
    echo(&mut running, b"before").await;
    near.stopper.drain();
    while TcpStream::connect(near.address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    echo(&mut running, b"still").await;
    running.shutdown().await.unwrap();
    assert_eq!(running.read(&mut [0]).await.unwrap(), 0);
    near.done.await.unwrap();
}
