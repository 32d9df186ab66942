//! Cost of dashboard viewers: CPU time of a server and of its client with a thousand connections, measured
//! alternately with and without viewers.

use super::*;
use crate::endurance::{echo, open_all, raise_descriptors};
use marline_testkit::free_address;

/// Number of open connections.
const CONNECTIONS: usize = 1_000;
/// Rate over all connections, so that there is something to show.
const MESSAGES_PER_S: u64 = 100;
/// Length of a measurement window: more than four samples, one of which lists connections.
const WINDOW: Duration = Duration::from_secs(5);
/// Number of windows for each number of viewers, interleaved, because other load on the machine varies.
const ROUNDS: usize = 12;
/// Numbers of viewers per program. The last one is the maximum.
const VIEWERS: [usize; 3] = [0, 1, 16];
/// Allowed cost of one viewer, and of all of them, in percent of a processor.
const ALLOWED_PERCENT: f64 = 1.0;

/// Returns the CPU time of all threads of a process.
fn processor_time(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("a process");
    let of_thread = |thread: std::fs::DirEntry| {
        // The thread may have ended in the meantime.
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_default()
    };
    Duration::from_nanos(threads.flatten().map(of_thread).sum())
}

/// A viewer of a dashboard that keeps the last values received.
struct Viewer {
    stream: TcpStream,
    /// Bytes received so far.
    bytes: Arc<AtomicU64>,
    looks: Arc<AtomicU64>,
    /// Number of open connections in the last look.
    connections: Arc<AtomicU64>,
}

impl Viewer {
    fn of(dashboard: SocketAddr) -> Viewer {
        let mut stream = TcpStream::connect(dashboard).expect("the dashboard");
        write!(stream, "GET /events HTTP/1.1\r\nHost: {dashboard}\r\n\r\n").expect("a request");
        let reader = BufReader::new(stream.try_clone().expect("a second handle"));
        let [bytes, looks, connections] = std::array::from_fn(|_| Arc::<AtomicU64>::default());
        let counts = [&bytes, &looks, &connections].map(Arc::clone);
        std::thread::spawn(move || {
            let [bytes, looks, connections] = counts;
            for line in reader.lines().map_while(Result::ok) {
                bytes.fetch_add(line.len() as u64, Ordering::Relaxed);
                let sample = line.strip_prefix("data: ").filter(|data| data.contains("\"totals\""));
                let Some(sample) = sample else { continue };
                let sample: Value = serde_json::from_str(sample).expect("a sample");
                let open = sample["totals"]["connections"].as_u64().expect("a number");
                connections.store(open, Ordering::Relaxed);
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        Viewer { stream, bytes, looks, connections }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Ends the traffic when dropped, also after a failure.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends messages over the streams in turn, and reads the echoes, until stopped. Returns the number of messages.
fn talk(mut streams: Vec<TcpStream>, ends: &AtomicBool) -> u64 {
    let pause = Duration::from_secs(1) / MESSAGES_PER_S as u32;
    let (begin, mut sent) = (Instant::now(), 0);
    while !ends.load(Ordering::Relaxed) {
        let at = sent as usize % streams.len();
        streams[at].write_all(&[7; 200]).expect("the stream continues");
        streams[at].read_exact(&mut [0; 200]).expect("the stream continues");
        sent += 1;
        std::thread::sleep((pause * sent as u32).saturating_sub(begin.elapsed()));
    }
    sent
}

/// A program with a dashboard.
struct Watched {
    name: &'static str,
    process: u32,
    dashboard: SocketAddr,
    /// Shares of a processor per window, by the number of viewers.
    shares: [Vec<f64>; VIEWERS.len()],
}

impl Watched {
    fn new(name: &'static str, process: u32, dashboard: SocketAddr) -> Watched {
        Watched { name, process, dashboard, shares: Default::default() }
    }

    /// This many viewers, each of which has received all connections (and a few spare ones, if there are any).
    fn viewers(&self, count: usize) -> Vec<Viewer> {
        let viewers: Vec<Viewer> = (0..count).map(|_| Viewer::of(self.dashboard)).collect();
        let all = |open: u64| (CONNECTIONS as u64..CONNECTIONS as u64 + 50).contains(&open);
        wait_until(|| viewers.iter().all(|viewer| all(viewer.connections.load(Ordering::Relaxed))));
        viewers
    }

    /// Returns the median cost of a window in comparison with the windows without viewers before and after it, and its
    /// standard error, estimated from the median of the deviations.
    fn cost(&self, at: usize) -> (f64, f64) {
        let without = &self.shares[0];
        let mut more: Vec<f64> = (0..ROUNDS)
            .map(|round| self.shares[at][round] - (without[round] + without[round + 1]) / 2.0)
            .collect();
        let cost = median(&mut more);
        let mut off: Vec<f64> = more.iter().map(|one| (one - cost).abs()).collect();
        (cost, 1.253 * 1.483 * median(&mut off) / (ROUNDS as f64).sqrt())
    }

    /// Prints the cost of viewers, and asserts that it is small.
    fn is_cheap(&self) {
        let unwatched = median(&mut self.shares[0].clone()) * 100.0;
        for (at, viewers) in VIEWERS.iter().enumerate().skip(1) {
            let (cost, off) = self.cost(at);
            let (cost, off) = (cost * 100.0, off * 100.0);
            let name = self.name;
            let said = format!(
                "{name}: {unwatched:.2} % of a processor, and {cost:+.2} % (+-{off:.2}) for viewers: {viewers}"
            );
            println!("{said}");
            // A measurement that cannot distinguish zero cost from too much is not a result.
            assert!(
                off < ALLOWED_PERCENT / 2.0,
                "the machine is too busy: {said}: {:?}",
                self.shares
            );
            assert!(cost < ALLOWED_PERCENT, "{said}: {:?}", self.shares);
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

/// Waits until all have received the initial data: until nothing arrives for a moment that is shorter than the
/// interval of looks.
fn settle(viewers: &[Viewer]) {
    let heard = || viewers.iter().map(|viewer| viewer.bytes.load(Ordering::Relaxed)).sum::<u64>();
    let before = std::cell::Cell::new(heard());
    wait_until(|| {
        std::thread::sleep(Duration::from_millis(150));
        let now = heard();
        before.replace(now) == now
    });
}

/// Measures one window with this many viewers of each program. Returns the smallest number of looks that all
/// viewers of a program received.
fn window(programs: &mut [Watched; 2], at: usize) -> u64 {
    // The viewers of the previous window are disconnected.
    std::thread::sleep(Duration::from_millis(300));
    let viewers: Vec<Viewer> =
        programs.iter().flat_map(|program| program.viewers(VIEWERS[at])).collect();
    settle(&viewers);
    let looks = || viewers.iter().map(|viewer| viewer.looks.load(Ordering::Relaxed));
    let seen: Vec<u64> = looks().collect();
    let ran = programs.each_ref().map(|program| processor_time(program.process));
    let begin = Instant::now();
    std::thread::sleep(WINDOW);
    for (program, ran) in programs.iter_mut().zip(ran) {
        let took = processor_time(program.process).saturating_sub(ran);
        program.shares[at].push(took.as_secs_f64() / begin.elapsed().as_secs_f64());
    }
    looks().zip(seen).map(|(now, before)| now - before).min().unwrap_or_default()
}

/// ```text
/// cargo test -p marline-cli --test it dashboard::cost:: -- --nocapture --include-ignored
/// ```
#[test]
#[ignore = "three minutes: cargo xtask nightly dashboard"]
fn a_viewer_of_a_thousand_connections_costs_less_than_a_hundredth_of_a_processor() {
    let _alone = support::lock_exclusively();
    if !raise_descriptors(4 * CONNECTIONS as u64) {
        need::skip("descriptors cannot be raised here");
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let dir = directory.path();
    let most = (CONNECTIONS + 50).to_string();
    let shown = free_address();
    let at = shown.to_string();
    let flags = ["--allow", "127.0.0.0/8", "--max-connections", &most, "--dashboard", &at];
    let server = start_server(dir, &flags);
    let paths = ["127.0.0.1", "127.0.0.2"].map(|local| format!("{local}={}", server.address));
    let flags = ["--path", &paths[0], "--path", &paths[1], "--max-connections", &most];
    let (program, url, socks) = client(dir, &server, &flags);
    let page = url.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
    let target = echo(dir);
    let streams = open_all(socks, target.address, CONNECTIONS);
    let mut programs = [
        Watched::new("server", server.process.id(), shown),
        Watched::new("client", program.id(), page),
    ];
    let ends = AtomicBool::new(false);
    let begin = Instant::now();
    let (sent, fewest) = std::thread::scope(|scope| {
        let talking = scope.spawn(|| talk(streams, &ends));
        let end = End(&ends);
        let mut fewest = u64::MAX;
        for _ in 0..ROUNDS {
            window(&mut programs, 0);
            for at in 1..VIEWERS.len() {
                fewest = fewest.min(window(&mut programs, at));
            }
        }
        window(&mut programs, 0);
        drop(end);
        (talking.join().expect("no stream is lost"), fewest)
    });
    let rate = sent as f64 / begin.elapsed().as_secs_f64();
    println!(
        "{CONNECTIONS} connections, {rate:.0} messages a second; {fewest} looks at least in a window"
    );
    assert!(rate > MESSAGES_PER_S as f64 * 0.8, "{rate:.0} messages per second are too few");
    assert!(fewest > 0, "a viewer received nothing");
    programs.iter().for_each(Watched::is_cheap);
}
