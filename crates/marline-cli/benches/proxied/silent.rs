//! Silent streams: what they take at each end, and whether all of very many work.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use marline_testkit::need;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::beside::Echo;
use crate::support::{Running, ServerSide, resident_kib, start_server};

/// Clients, if there are more streams than one is to have.
const CLIENTS: usize = 4;
/// So many connections from one address to one other: less than there are ports for.
const PER_TARGET: usize = 12_500;
/// Streams that are being opened at the same time.
const AT_ONCE: usize = 32;

/// Opens a stream by a forward, and waits for its first echo: a forward says nothing by itself when it stands.
pub(crate) async fn open(forward: SocketAddr, number: u64) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(forward).await?;
    stream.set_nodelay(true)?;
    say(&mut stream, number).await?;
    Ok(stream)
}

/// A message that no other stream has, there and back.
async fn say(stream: &mut TcpStream, number: u64) -> io::Result<()> {
    stream.write_all(&number.to_be_bytes()).await?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).await?;
    if answer == number.to_be_bytes() {
        return Ok(());
    }
    Err(io::Error::other("another stream's bytes"))
}

struct Setup {
    server: ServerSide,
    clients: Vec<Running>,
    /// Of all clients.
    forwards: Vec<SocketAddr>,
}

impl Setup {
    fn start(dir: &Path, count: usize, targets: &[SocketAddr]) -> Setup {
        let most = (count + 200).to_string();
        let limit = ["--max-connections", most.as_str()];
        let server = start_server(dir, &["--allow", "127.0.0.0/8", limit[0], limit[1]]);
        let clients = targets.len().min(CLIENTS);
        let mut setup = Setup { server, clients: Vec::new(), forwards: Vec::new() };
        for some in targets.chunks(targets.len().div_ceil(clients)) {
            let path = format!("127.0.0.1={}", setup.server.address);
            let invite = setup.server.invite_file.to_str().expect("text").to_owned();
            let mut args = vec!["client", "--invite-file", &invite, "--path", &path];
            args.extend(limit);
            let forwards: Vec<String> = some.iter().map(|target| format!("0:{target}")).collect();
            for forward in &forwards {
                args.extend(["-L", forward]);
            }
            let mut client = Running::start(dir, &args);
            for _ in &forwards {
                setup.forwards.push(client.address_after("forward listening on "));
            }
            setup.clients.push(client);
        }
        setup
    }

    /// Of the server, and of all clients together.
    fn held_kib(&self) -> [u64; 2] {
        let clients = self.clients.iter().map(|client| resident_kib(client.id())).sum();
        [resident_kib(self.server.process.id()), clients]
    }
}

/// Opens them all; what did not open is counted.
async fn open_all(forwards: &[SocketAddr], count: usize) -> (Vec<TcpStream>, usize) {
    let (mut open, mut lost) = (Vec::with_capacity(count), 0);
    let mut opening = tokio::task::JoinSet::new();
    for number in 0..count {
        let forward = forwards[number % forwards.len()];
        opening.spawn(self::open(forward, number as u64));
        while opening.len() >= AT_ONCE || (number + 1 == count && !opening.is_empty()) {
            match opening.join_next().await.expect("some").expect("no panic") {
                Ok(stream) => open.push(stream),
                Err(error) => {
                    eprintln!("a stream did not open: {error}");
                    lost += 1;
                }
            }
        }
    }
    (open, lost)
}

pub(crate) fn measure(count: usize) {
    let descriptors = count as u64 + 500;
    let limit = Rlimit { current: Some(descriptors), maximum: Some(descriptors) };
    let enough = getrlimit(Resource::Nofile).current.is_none_or(|current| current >= descriptors);
    if !enough && setrlimit(Resource::Nofile, limit).is_err() {
        return need::skip("descriptors cannot be raised here");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let echoes: Vec<Echo> = (0..count.div_ceil(PER_TARGET)).map(|_| Echo::start()).collect();
        let targets: Vec<SocketAddr> = echoes.iter().map(|echo| echo.address).collect();
        let setup = Setup::start(dir.path(), count, &targets);
        drop(open(setup.forwards[0], 1).await.expect("a first stream"));
        let begin = setup.held_kib();
        println!("silent streams: {count}; server, clients at the start {begin:?} KiB");
        let mut most = [0; 2];
        for round in 1..=3 {
            let begun = Instant::now();
            let (mut open, mut lost) = open_all(&setup.forwards, count).await;
            let opened_s = begun.elapsed().as_secs_f64();
            let begun = Instant::now();
            for (number, stream) in open.iter_mut().enumerate() {
                if let Err(error) = say(stream, (round << 32 | number) as u64).await {
                    eprintln!("stream {number}: {error}");
                    lost += 1;
                }
            }
            let echoed_s = begun.elapsed().as_secs_f64();
            // What is kept for the message under way is given back after a while.
            tokio::time::sleep(Duration::from_secs(12)).await;
            let held = setup.held_kib();
            let each = [0, 1].map(|end| held[end].saturating_sub(begin[end]) * 1_024 / count as u64);
            drop(open);
            // TIME-WAIT's minute, and some until free pages are given back.
            tokio::time::sleep(Duration::from_secs(90)).await;
            let end = setup.held_kib();
            println!(
                "    round {round}: opened in {opened_s:.1} s, echoed one after the other in \
                 {echoed_s:.1} s, lost {lost}; open {held:?} KiB, {each:?} bytes each; closed {end:?} KiB"
            );
            for (most, each) in most.iter_mut().zip(each) {
                *most = each.max(*most);
            }
        }
        println!("figure silent-server {}\nfigure silent-client {}", most[0], most[1]);
    });
}
