//! Idle streams: their memory at each end, and whether a very large number of them works.
//!
//! A process needs a descriptor for each stream, and their number is limited. If one server has too few, the
//! streams are divided into shares, each with a server, a client and applications of its own. All shares work
//! concurrently, and sums are reported. Shares are processes that receive commands as lines ([`Share`]).

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::beside::{Echo, ROLE};
use crate::support::{Running, ServerSide, resident_kib, start_server};

/// Number of clients, if there are more streams than one client should carry.
const CLIENTS: usize = 4;
/// Maximum number of connections from one address to another, limited by the number of ports.
const PER_TARGET: usize = 12_500;
/// Total number of streams that are opened or closed concurrently.
pub(crate) const CONCURRENT_STREAMS: usize = 32;
/// Number of descriptors of a process in addition to those of its streams.
const OTHER_DESCRIPTORS: u64 = 500;
/// Role of a share's process.
pub(crate) const SHARE: &str = "silent";

/// Number of streams from which the total memory is judged, instead of that per stream.
const MANY: usize = 100_000;

/// Opens a stream through a forward and waits for the first echo, because a forward does not report that it is
/// connected.
pub(crate) async fn open(forward: SocketAddr, number: u64) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(forward).await?;
    stream.set_nodelay(true)?;
    say(&mut stream, number).await?;
    Ok(stream)
}

/// Sends a unique message and reads its echo.
async fn say(stream: &mut TcpStream, number: u64) -> io::Result<()> {
    stream.write_all(&number.to_be_bytes()).await?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).await?;
    if answer == number.to_be_bytes() {
        return Ok(());
    }
    Err(io::Error::other("bytes of another stream"))
}

struct Setup {
    server: ServerSide,
    clients: Vec<Running>,
    /// Forwards of all clients.
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

    /// Returns the resident memory of the server, and of all clients together, in KiB.
    fn held_kib(&self) -> [u64; 2] {
        let clients = self.clients.iter().map(|client| resident_kib(client.id())).sum();
        [resident_kib(self.server.process.id()), clients]
    }
}

/// Opens all streams, and counts failures.
pub(crate) async fn open_all(
    forwards: &[SocketAddr],
    count: usize,
    at_once: usize,
) -> (Vec<TcpStream>, usize) {
    let (mut open, mut lost) = (Vec::with_capacity(count), 0);
    let mut opening = tokio::task::JoinSet::new();
    for number in 0..count {
        let forward = forwards[number % forwards.len()];
        opening.spawn(self::open(forward, number as u64));
        while opening.len() >= at_once || (number + 1 == count && !opening.is_empty()) {
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

/// Opens, checks and closes this many streams through a server of its own, `at_once` concurrently, as commanded by
/// lines of the input: `open`, `echo ROUND`, `held` (KiB of the server and of the clients), `close`. Answers each
/// with a line, and ends with the input.
pub(crate) async fn share(count: usize, at_once: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    let echoes: Vec<Echo> = (0..count.div_ceil(PER_TARGET)).map(|_| Echo::start()).collect();
    let targets: Vec<SocketAddr> = echoes.iter().map(|echo| echo.address).collect();
    let setup = Setup::start(dir.path(), count, &targets);
    drop(open(setup.forwards[0], 1).await.expect("a first stream"));
    let mut streams = Vec::new();
    for line in io::stdin().lines() {
        let line = line.expect("a line");
        let begun = Instant::now();
        let mut words = line.split(' ');
        match (words.next(), words.next()) {
            (Some("open"), None) => {
                let lost;
                (streams, lost) = open_all(&setup.forwards, count, at_once).await;
                println!("{lost} {}", begun.elapsed().as_secs_f64());
            }
            (Some("echo"), Some(round)) => {
                let round: u64 = round.parse().expect("a number");
                let lost = echo_on_each(&mut streams, round).await;
                println!("{lost} {}", begun.elapsed().as_secs_f64());
            }
            (Some("held"), None) => {
                let [server, clients] = setup.held_kib();
                println!("{server} {clients}");
            }
            (Some("close"), None) => {
                let lost = close_all(core::mem::take(&mut streams), at_once).await;
                println!("{lost} {}", begun.elapsed().as_secs_f64());
            }
            _ => panic!("unknown command {line:?}"),
        }
    }
}

/// Closes all streams and waits until the other side closes them. Returns the number of streams that it did not close.
async fn close_all(streams: Vec<TcpStream>, at_once: usize) -> usize {
    let mut lost = 0;
    let mut closing = tokio::task::JoinSet::new();
    let mut streams = streams.into_iter();
    loop {
        let more = streams.by_ref().take(at_once - closing.len());
        more.for_each(|stream| {
            closing.spawn(close(stream));
        });
        match closing.join_next().await {
            None => return lost,
            Some(Ok(Ok(()))) => {}
            Some(other) => {
                eprintln!("a stream did not close: {other:?}");
                lost += 1;
            }
        }
    }
}

pub(crate) async fn close(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    match stream.read(&mut [0]).await? {
        0 => Ok(()),
        _ => Err(io::Error::other("more than an echo")),
    }
}

/// Sends a message on each stream in turn. Returns the number of missing echoes.
async fn echo_on_each(streams: &mut [TcpStream], round: u64) -> usize {
    let mut lost = 0;
    for (number, stream) in streams.iter_mut().enumerate() {
        if let Err(error) = say(stream, round << 32 | number as u64).await {
            eprintln!("stream {number}: {error}");
            lost += 1;
        }
    }
    lost
}

/// A share of the streams in a separate process. Dropping this ends the process.
struct Share {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Share {
    fn start(count: usize, at_once: usize) -> Share {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(ROLE, format!("{SHARE} {count} {at_once}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a child process");
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("an output"));
        Share { process, input, output }
    }

    fn tell(&mut self, what: &dyn Display) {
        let input = self.input.as_mut().expect("an input");
        writeln!(input, "{what}").expect("a share reads its input");
    }

    /// Reads an answer of two numbers.
    fn answer<A: FromStr, B: FromStr>(&mut self) -> (A, B) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        let numbers = line.trim().split_once(' ');
        let numbers = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        numbers.unwrap_or_else(|| panic!("unexpected answer from a share: {line:?}"))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // The process is not killed, because it ends its own programs at the end of its input.
        self.input = None;
        let _ = self.process.wait();
    }
}

/// All shares, which work concurrently.
struct Shares(Vec<Share>);

impl Shares {
    /// Returns the number of lost streams, and the longest time of a share in seconds.
    fn all(&mut self, what: &dyn Display) -> (usize, f64) {
        self.0.iter_mut().for_each(|share| share.tell(what));
        let answers = self.0.iter_mut().map(Share::answer::<usize, f64>);
        answers.fold((0, 0.0), |(lost, longest), (more, took)| (lost + more, longest.max(took)))
    }

    /// Returns the resident memory of the servers and of the clients, in KiB.
    fn held_kib(&mut self) -> [u64; 2] {
        self.0.iter_mut().for_each(|share| share.tell(&"held"));
        let answers = self.0.iter_mut().map(Share::answer::<u64, u64>);
        answers.fold([0; 2], |[servers, clients], (a, b)| [servers + a, clients + b])
    }
}

/// Returns the number of servers: one, if a process may have enough descriptors.
pub(crate) fn servers(count: usize) -> usize {
    let descriptors = count as u64 + OTHER_DESCRIPTORS;
    let limit = Rlimit { current: Some(descriptors), maximum: Some(descriptors) };
    let now = getrlimit(Resource::Nofile);
    let enough = now.current.is_none_or(|current| current >= descriptors);
    if enough || setrlimit(Resource::Nofile, limit).is_ok() {
        return 1;
    }
    let most = now.maximum.unwrap_or(u64::MAX).saturating_sub(OTHER_DESCRIPTORS);
    let limit = Rlimit { current: now.maximum, maximum: now.maximum };
    setrlimit(Resource::Nofile, limit).expect("a limit up to the hard one");
    count.div_ceil(PER_TARGET.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1))
}

/// `what`: number of streams, and number of rounds.
pub(crate) fn measure(what: &str) {
    let number = |word: &str| word.parse().expect("a number of streams and a number of rounds");
    let (count, rounds) = what.split_once(',').unwrap_or((what, "3"));
    let (count, rounds): (usize, usize) = (number(count), number(rounds));
    let servers = servers(count);
    let each = count.div_ceil(servers);
    let counts = (0..servers).map(|share| each.min(count - share * each));
    let at_once = CONCURRENT_STREAMS.div_ceil(servers);
    let mut shares = Shares(counts.map(|count| Share::start(count, at_once)).collect());
    let begin = shares.held_kib();
    println!(
        "silent streams: {count}, servers: {servers}; servers, clients at the start {begin:?} KiB"
    );
    let mut held_kib: Vec<[u64; 2]> = Vec::new();
    let mut lost_in_all = 0;
    let each_of = |held: [u64; 2]| {
        [0, 1].map(|end| held[end].saturating_sub(begin[end]) * 1_024 / count as u64)
    };
    for round in 1..=rounds {
        let (mut lost, opened_s) = shares.all(&"open");
        let (silent, echoed_s) = shares.all(&format_args!("echo {round}"));
        lost += silent;
        // Memory kept for the current message is released after a while.
        std::thread::sleep(Duration::from_secs(12));
        let held = shares.held_kib();
        let each = each_of(held);
        let (unclosed, closed_s) = shares.all(&"close");
        lost += unclosed;
        lost_in_all += lost;
        // A minute of TIME-WAIT, and some seconds until free pages are released.
        std::thread::sleep(Duration::from_secs(90));
        let end = shares.held_kib();
        println!(
            "    round {round}: opened in {opened_s:.1} s, echoed in turn in {echoed_s:.1} s, \
             closed in {closed_s:.1} s, lost {lost}; \
             open {held:?} KiB, {each:?} bytes each; closed {end:?} KiB"
        );
        held_kib.push(held);
    }
    // For this many streams, the goal applies to the sum, and for fewer to each stream.
    if count >= MANY {
        tell_many(&held_kib, lost_in_all);
    } else {
        let most = each_of([0, 1].map(|end| most_held(&held_kib, end)));
        println!("figure silent-server {}\nfigure silent-client {}", most[0], most[1]);
    }
}

fn most_held(held_kib: &[[u64; 2]], end: usize) -> u64 {
    held_kib.iter().map(|held| held[end]).max().unwrap_or_default()
}

/// Prints the resident memory with all streams open: the maximum, and the growth from the first round to the last.
fn tell_many(held_kib: &[[u64; 2]], lost: usize) {
    println!("figure streams-lost {lost}");
    let (Some(first), Some(last)) = (held_kib.first(), held_kib.last()) else { return };
    for (end, name) in ["servers", "clients"].into_iter().enumerate() {
        let most = most_held(held_kib, end);
        println!("figure streams-{name}-mb {:.0}", most as f64 * 1_024.0 / 1e6);
        println!("figure streams-{name}-flat {:.3}", last[end] as f64 / first[end].max(1) as f64);
    }
}
