//! Benchmark of many simultaneous connections over two long paths, with and without a concurrent
//! SYN flood.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use marline_emulator::netns;
use marline_testkit::fixtures::first_packet;
use marline_testkit::{capable, need};
use marline_wire::mptcp::MpCapableForm;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::spread::Spread;
use crate::support::{run_ok, write_private};

const CONCURRENT_OPENINGS: usize = 500;
const ROUNDS: usize = 5;
/// Round-trip time of both paths.
const RTT_MS: f64 = 60.0;
const PATIENCE: Duration = Duration::from_secs(30);
/// SYNs per second from other hosts: few, and a flood.
const SYNS_PER_S: [u64; 2] = [10_000, 50_000];
/// Number of source addresses of the flood, which has its own link, so that it loads only the server.
const STRANGERS: u8 = 64;
const SERVER_FOR_STRANGERS: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const PORT: u16 = 7777;
const SOCKS: u16 = 1080;
const GREETER: u16 = 2525;

/// A process in a namespace. Dropping this ends the process.
struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().expect("ip");
    assert!(status.success(), "ip {words}");
}

/// Two namespaces with two paths between them, and a link of the flood to the server.
struct Testbed {
    near: String,
    far: String,
    crowd: String,
    _links: Option<Beside>,
}

impl Testbed {
    fn make(dir: &Path) -> Testbed {
        let name = |end: &str| format!("ml-burst-{}-{end}", std::process::id());
        let mut testbed =
            Testbed { near: name("c"), far: name("s"), crowd: name("x"), _links: None };
        for end in [&testbed.near, &testbed.far, &testbed.crowd] {
            ip(&format!("netns add {end}"));
            ip(&format!("-n {end} link set lo up"));
        }
        let (near, far) = (&testbed.near, &testbed.far);
        let paths = [
            "fast,10.0.1.2/24,10.0.1.1/24,rate=1G,delay=30ms,queue=50ms",
            "slow,10.0.2.2/24,10.0.2.1/24,rate=1G,delay=30ms,queue=50ms",
        ];
        let mut link = crate::support::marline_lab(dir, &["link", "--between", near, far]);
        for path in paths {
            link.args(["--path", path]);
        }
        link.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let links = Beside(link.spawn().expect("the links"));
        wait_for("the links", || {
            let shown = Command::new("ip").args(["-n", far, "link", "show", "slow"]).output();
            shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).contains(",UP"))
        });
        let crowd = &testbed.crowd;
        ip(&format!("-n {crowd} link add crowd type veth peer name crowd netns {far}"));
        ip(&format!("-n {far} address add {SERVER_FOR_STRANGERS}/24 dev crowd"));
        for stranger in 0..STRANGERS {
            ip(&format!("-n {crowd} address add 10.0.9.{}/24 dev crowd", 100 + stranger));
        }
        for end in [far, crowd] {
            ip(&format!("-n {end} link set crowd up"));
        }
        testbed._links = Some(links);
        testbed
    }

    fn start(&self, namespace: &str, dir: &Path, words: &[&str]) -> Beside {
        let program = env!("CARGO_BIN_EXE_marline");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, program]).args(words).current_dir(dir);
        command.env("XDG_RUNTIME_DIR", dir.join(words[0])).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Beside(command.spawn().expect("marline"))
    }

    fn connectable(&self, address: SocketAddr) -> bool {
        let connect = || std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1));
        netns::run_in(&self.near, connect).is_ok()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self._links = None;
        for end in [&self.near, &self.far, &self.crowd] {
            let _ = Command::new("ip").args(["netns", "del", end]).status();
        }
    }
}

fn wait_for(what: &str, ready: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !ready() {
        assert!(Instant::now() < until, "{what}: not ready");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Sends a greeting to every client.
async fn greet(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            if stream.write_all(b"220 hello\r\n").await.is_ok() {
                // Until the other side closes.
                let _ = stream.read_u8().await;
            }
        });
    }
}

/// Time until the first byte, and the connection. Each stays open until all have their first byte, so that all are in
/// use concurrently.
type Came = (Duration, TcpStream);

/// Returns the time until the target's first byte, over a direct connection.
async fn straight(socket: TcpSocket, to: SocketAddr, begin: Instant) -> io::Result<Came> {
    let mut stream = socket.connect(to).await?;
    stream.read_u8().await?;
    Ok((begin.elapsed(), stream))
}

/// Returns the time until the target's first byte, over a connection to the proxy that has negotiated no
/// authentication.
async fn through(mut stream: TcpStream, to: SocketAddr, begin: Instant) -> io::Result<Came> {
    let SocketAddr::V4(to) = to else { return Err(io::ErrorKind::Unsupported.into()) };
    let mut request = vec![5, 1, 0, 1];
    request.extend(to.ip().octets());
    request.extend(to.port().to_be_bytes());
    stream.write_all(&request).await?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).await?;
    if reply[1] != 0 {
        return Err(io::Error::other(format!("SOCKS reply {}", reply[1])));
    }
    stream.read_u8().await?;
    Ok((begin.elapsed(), stream))
}

fn sockets(namespace: &str) -> Vec<TcpSocket> {
    let make = || (0..CONCURRENT_OPENINGS).map(|_| TcpSocket::new_v4()).collect();
    netns::run_in(namespace, make).expect("sockets")
}

/// Returns the times of the successful connections in ms, sorted.
async fn gather(mut running: JoinSet<io::Result<Came>>) -> Vec<f64> {
    let (mut came, mut held) = (Vec::new(), Vec::new());
    let all = async {
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok(Ok((took, stream))) => {
                    came.push(took.as_secs_f64() * 1e3);
                    held.push(stream);
                }
                other => eprintln!("failed: {other:?}"),
            }
        }
    };
    let _ = tokio::time::timeout(PATIENCE, all).await;
    came.sort_by(f64::total_cmp);
    came
}

async fn direct_round(testbed: &Testbed, to: SocketAddr) -> Vec<f64> {
    let mut running = JoinSet::new();
    let (sockets, begin) = (sockets(&testbed.near), Instant::now());
    for socket in sockets {
        running.spawn(straight(socket, to, begin));
    }
    gather(running).await
}

async fn proxied_round(testbed: &Testbed, to: SocketAddr) -> Vec<f64> {
    let proxy = SocketAddr::from((Ipv4Addr::LOCALHOST, SOCKS));
    let mut greeted = Vec::new();
    for socket in sockets(&testbed.near) {
        let mut stream = socket.connect(proxy).await.expect("the proxy");
        stream.write_all(&[5, 1, 0]).await.expect("greeting");
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).await.expect("the target's answer");
        greeted.push(stream);
    }
    let mut running = JoinSet::new();
    let begin = Instant::now();
    for stream in greeted {
        running.spawn(through(stream, to, begin));
    }
    gather(running).await
}

/// First SYNs of flows that never continue, from many addresses, in frames of docs/spec/udp-carrier.md.
struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Flood {
    fn start(testbed: &Testbed, syns_per_s: u64) -> Flood {
        let server = SocketAddr::from((SERVER_FOR_STRANGERS, PORT));
        let bind = || {
            let strangers = (0..STRANGERS).map(|n| Ipv4Addr::new(10, 0, 9, 100 + n));
            strangers.map(|stranger| std::net::UdpSocket::bind((stranger, 0))).collect()
        };
        let sockets: Vec<std::net::UdpSocket> =
            netns::run_in(&testbed.crowd, bind).expect("sockets");
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let flood = move || {
            let begin = Instant::now();
            let mut n = 0_u64;
            while !stopped.load(Ordering::Relaxed) {
                let due = begin.elapsed().as_micros() as u64 * syns_per_s / 1_000_000;
                while n < due {
                    n += 1;
                    let socket = &sockets[n as usize % sockets.len()];
                    let _ = socket.send_to(&first_syn(n), server);
                }
                counted.store(n, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        Flood { stop, sent, thread: Some(std::thread::spawn(flood)) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        println!("  {} SYNs from strangers", self.sent.load(Ordering::Relaxed));
    }
}

fn first_syn(n: u64) -> Vec<u8> {
    first_packet(n << 32 | 5, n as u16, capable(MpCapableForm::Syn))
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

async fn rounds(testbed: &Testbed, title: &str) -> f64 {
    let to: SocketAddr = (SERVER, GREETER).into();
    let mut all: [[Vec<f64>; 2]; 2] = Default::default();
    let mut failed = [0, 0];
    for _ in 0..ROUNDS {
        for way in [0, 1] {
            let came = match way {
                0 => direct_round(testbed, to).await,
                _ => proxied_round(testbed, to).await,
            };
            failed[way] += CONCURRENT_OPENINGS - came.len();
            all[way][0].push(percentile(&came, 0.5));
            all[way][1].push(percentile(&came, 0.99));
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
    println!(
        "{title}: {CONCURRENT_OPENINGS} concurrent connections, ms to the first byte (median of {ROUNDS} rounds)"
    );
    let mut p99 = [0.0; 2];
    for (way, name) in ["direct", "through"].into_iter().enumerate() {
        let [half, most] = all[way].clone().map(Spread::of);
        p99[way] = most.median;
        println!("  {name:>8} p50 {:.1} p99 {most:.1}, {} failed", half.median, failed[way]);
    }
    println!("  p99 {:+.2} RTT compared with direct TCP", (p99[1] - p99[0]) / RTT_MS);
    p99[1]
}

/// Prints the time that concurrent connections take.
pub(crate) fn measure() {
    if !need::root() || need::program("ip").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let testbed = Testbed::make(dir.path());
    let listen = format!("{SERVER}:{PORT}");
    let (config, invite) = ("server.toml", dir.path().join("invite"));
    let all = format!("0.0.0.0:{PORT}");
    let init = ["server", "--init", "--config", config, "--listen", &all];
    let word = run_ok(dir.path(), &[&init[..], &["--public", &listen]].concat());
    write_private(&invite, &word);
    for role in ["server", "client"] {
        std::fs::create_dir_all(dir.path().join(role)).expect("a folder");
    }
    let server = ["server", "--config", config, "--allow", "10.0.0.0/8"];
    let _server = testbed.start(&testbed.far, dir.path(), &server);
    let socks = format!("127.0.0.1:{SOCKS}");
    let slow = format!("slow=10.0.2.1:{PORT}");
    let paths = ["--path", "fast", "--path", &slow, "--socks5", &socks];
    let client = [&["client", "--invite-file", "invite"][..], &paths].concat();
    let _client = testbed.start(&testbed.near, dir.path(), &client);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let socket = netns::run_in(&testbed.far, TcpSocket::new_v4).expect("a socket");
        socket.bind((SERVER, GREETER).into()).expect("a port");
        // All of them fit in the queue of connections that wait to be accepted.
        tokio::spawn(greet(socket.listen(4_096).expect("a listener")));
        let front = SocketAddr::from((Ipv4Addr::LOCALHOST, SOCKS));
        wait_for("the proxy", || testbed.connectable(front));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let calm = rounds(&testbed, "alone").await;
        for syns_per_s in SYNS_PER_S {
            let flood = Flood::start(&testbed, syns_per_s);
            let beside = rounds(&testbed, &format!("with {syns_per_s} SYNs per second")).await;
            drop(flood);
            println!("  p99 with strangers relative to alone: {:.2}", beside / calm);
        }
    });
}
