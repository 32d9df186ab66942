use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::shutdown::Stopper;
use crate::testing::echo_target;

struct Bench {
    front: Arc<ServiceFront>,
    stopper: Stopper,
}

const PEER: &str = "192.0.2.7:5000";
const LOCAL: &str = "198.51.100.1:443";

impl Bench {
    fn new(backend: Backend, header: Option<HeaderVersion>, limits: FrontLimits) -> Bench {
        let stopper = Stopper::default();
        let front = ServiceFront::new(backend, header, limits, stopper.listen());
        Bench { front: Arc::new(front), stopper }
    }

    /// Returns a client's connection.
    fn dial(&self, peer: &str) -> DuplexStream {
        let (near, far) = duplex(64 * 1024);
        let (front, peer) = (Arc::clone(&self.front), peer.parse().unwrap());
        tokio::spawn(async move { front.serve(far, peer, LOCAL.parse().unwrap()).await });
        near
    }
}

async fn echoed(stream: &mut DuplexStream, text: &[u8]) {
    stream.write_all(text).await.unwrap();
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(back, text);
}

#[tokio::test]
async fn bytes_and_ends_of_directions_pass() {
    let backend = Backend::Tcp(echo_target().await);
    let bench = Bench::new(backend, None, FrontLimits::default());
    let mut stream = bench.dial(PEER);
    echoed(&mut stream, b"through the front").await;
    assert_eq!(bench.front.count(), 1);
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn the_service_gets_the_client_address_before_the_first_byte() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = Backend::Tcp(listener.local_addr().unwrap().into());
    for version in [HeaderVersion::V1, HeaderVersion::V2] {
        let bench = Bench::new(backend.clone(), Some(version), FrontLimits::default());
        let mut stream = bench.dial(PEER);
        stream.write_all(b"GET").await.unwrap();
        let (mut service, _) = listener.accept().await.unwrap();
        let mut expected = version.header(PEER.parse().unwrap(), LOCAL.parse().unwrap());
        expected.extend(b"GET");
        let mut heard = vec![0; expected.len()];
        service.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, expected);
    }
}

#[tokio::test]
async fn a_unix_socket_is_a_service_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("service");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let backend = format!("unix:{}", path.display()).parse().unwrap();
    let bench = Bench::new(backend, None, FrontLimits::default());
    let mut stream = bench.dial(PEER);
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    let (mut service, _) = listener.accept().await.unwrap();
    let mut heard = String::new();
    service.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "hello");
}

#[tokio::test]
async fn limits_hold_and_a_dead_service_ends_the_connection() {
    let limits = FrontLimits { per_source: 1, total: 2, ..FrontLimits::default() };
    let bench = Bench::new(Backend::Tcp(echo_target().await), None, limits);
    let mut first = bench.dial(PEER);
    echoed(&mut first, b"x").await;
    let mut refused = bench.dial("192.0.2.7:5001");
    assert_eq!(refused.read(&mut [0]).await.unwrap(), 0, "reset before any data");
    let mut other = bench.dial("192.0.2.8:5000");
    echoed(&mut other, b"y").await;
    assert_eq!(bench.dial("192.0.2.9:5000").read(&mut [0]).await.unwrap(), 0);
    echoed(&mut first, b"still there").await;

    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let bench = Bench::new(Backend::Tcp(closed.into()), None, FrontLimits::default());
    assert_eq!(bench.dial(PEER).read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn silent_connections_of_one_source_neither_refuse_a_newcomer_nor_end_another_source() {
    let limits = FrontLimits { per_source: 4, total: 6, ..FrontLimits::default() };
    let bench = Bench::new(Backend::Tcp(echo_target().await), None, limits);
    let mut honest = bench.dial("192.0.2.8:5000");
    let mut busy = bench.dial("192.0.2.7:4000");
    echoed(&mut busy, b"x").await;
    let silent: Vec<_> = (0..20).map(|n| bench.dial(&format!("192.0.2.7:{}", 5_000 + n))).collect();
    while bench.front.count() < 5 {
        sleep(Duration::from_millis(5)).await;
    }
    let mut newcomers = Vec::new();
    for n in 0..3 {
        let mut newcomer = bench.dial(&format!("192.0.2.{}:5000", 20 + n));
        timeout(Duration::from_secs(5), echoed(&mut newcomer, b"newcomer")).await.unwrap();
        newcomers.push(newcomer);
    }
    echoed(&mut honest, b"still there").await;
    echoed(&mut busy, b"it has sent something").await;
    assert_eq!(bench.front.count(), 6);
    drop(silent);
}

/// Returns a service that accepted one connection.
async fn accepted(limits: FrontLimits) -> (Bench, DuplexStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = Backend::Tcp(listener.local_addr().unwrap().into());
    let bench = Bench::new(backend, None, limits);
    let stream = bench.dial(PEER);
    let (service, _) = listener.accept().await.unwrap();
    (bench, stream, service)
}

#[tokio::test]
async fn silence_ends_a_connection_by_a_reset_and_traffic_keeps_it() {
    let limits = FrontLimits { idle: Some(Duration::from_millis(400)), ..FrontLimits::default() };
    let (_bench, mut stream, mut service) = accepted(limits).await;
    let mut byte = [0];
    for _ in 0..12 {
        stream.write_all(b"x").await.unwrap();
        service.read_exact(&mut byte).await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }
    let error = service.read(&mut byte).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(stream.read(&mut byte).await.unwrap(), 0);
}

#[tokio::test]
async fn the_end_of_a_drain_resets_open_connections() {
    let (bench, _stream, mut service) = accepted(FrontLimits::default()).await;
    bench.stopper.drain();
    let mut byte = [0];
    let still = timeout(Duration::from_millis(50), service.read(&mut byte)).await;
    assert!(still.is_err(), "a drain does not end it");
    bench.stopper.end();
    let error = service.read(&mut byte).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_reader_that_is_slow_stops_the_writer() {
    const MOST: usize = 16 << 20;
    let (_bench, mut stream, mut service) = accepted(FrontLimits::default()).await;
    let block = vec![7; 64 * 1024];
    let mut written = 0;
    // The service reads nothing, so the amount written is bounded by the sockets and one buffer.
    while timeout(Duration::from_millis(200), stream.write_all(&block)).await.is_ok() {
        written += block.len();
        assert!(written < MOST, "the writer is never blocked");
    }
    let mut seen = 0;
    let mut buf = vec![0; 64 * 1024];
    while seen < written {
        seen += service.read(&mut buf).await.unwrap();
    }
}
