//! Test of `--carrier tcp` over a link that loses 2% below it, compared with plain TCP over the same link: TCP within
//! TCP must not retransmit data that the outer one retransmits. Prints an application's results with both. Needs root.
//!
//! ```text
//! sudo cargo test -p marline-cli --test it tcp_carrier -- --nocapture --include-ignored
//! ```

use super::support;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};
use marline_lab::scenario::Side;
use marline_time::{PcgRng, Rng as _};

const ECHO_PORT: u16 = 7_001;
const SOURCE_PORT: u16 = 7_002;
const MESSAGE: usize = 200;
const GAP: Duration = Duration::from_millis(30);

fn number(variable: &str) -> u64 {
    std::env::var(variable).expect("a variable").parse().expect("a number")
}

/// The service: echoes messages on one port, and sends a requested number of bytes on the other.
#[test]
fn host() {
    if !two_uplinks::plays(host) {
        return;
    }
    let echo = TcpListener::bind(("0.0.0.0", ECHO_PORT)).expect("bind");
    let source = TcpListener::bind(("0.0.0.0", SOURCE_PORT)).expect("bind");
    println!("ready");
    std::thread::spawn(move || {
        for mut stream in source.incoming().flatten() {
            std::thread::spawn(move || {
                let mut wanted = [0; 8];
                let _ = stream.read_exact(&mut wanted);
                let _ = stream.write_all(&vec![7; u64::from_be_bytes(wanted) as usize]);
            });
        }
    });
    for mut stream in echo.incoming().flatten() {
        std::thread::spawn(move || {
            let _ = stream.set_nodelay(true);
            let mut message = [0; MESSAGE];
            while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok() {}
        });
    }
}

/// The application: echoes in an open loop, then bytes as fast as they arrive.
#[test]
fn asker() {
    if !two_uplinks::plays(asker) {
        return;
    }
    let target = std::env::var("TARGET").expect("a variable");
    let (echoes, bytes) = (number("ECHOES"), number("BYTES"));
    let connect = |port: u16| {
        let stream = TcpStream::connect(format!("{target}:{port}")).expect("connect");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        stream
    };
    let (mut writer, begun) = (connect(ECHO_PORT), Instant::now());
    let mut reader = writer.try_clone().expect("a handle");
    let due = move |number: u64| begun + GAP * u32::try_from(number).expect("few");
    let reading = std::thread::spawn(move || {
        let mut message = [0; MESSAGE];
        let mut late: Vec<Duration> = Vec::new();
        for number in 0..echoes {
            reader.read_exact(&mut message).expect("an echo");
            late.push(due(number).elapsed());
        }
        late
    });
    for number in 0..echoes {
        std::thread::sleep(due(number).saturating_duration_since(Instant::now()));
        writer.write_all(&[1; MESSAGE]).expect("sent");
    }
    let mut late = reading.join().expect("no panic");
    if let Ok(file) = std::env::var("TIMES") {
        let lines: Vec<String> = late.iter().map(|time| time.as_micros().to_string()).collect();
        std::fs::write(file, lines.join("\n")).expect("write");
    }
    late.sort_unstable();
    let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let mut bulk = connect(SOURCE_PORT);
    bulk.write_all(&bytes.to_be_bytes()).expect("sent");
    let (begun, mut came, mut buffer) = (Instant::now(), 0, vec![0; 1 << 16]);
    while let Ok(length @ 1..) = bulk.read(&mut buffer) {
        came += length as u64;
    }
    assert_eq!(came, bytes);
    let rate = came as f64 * 8e-6 / begun.elapsed().as_secs_f64();
    println!("sum p50 {:.1} ms, p99 {:.1} ms, {rate:.2} Mbit/s", at(0.5), at(0.99));
    // Runs until it is stopped, because only existing connections are reported.
    loop {
        std::thread::park();
    }
}

/// Segment bytes sent by the process with this control socket, and retransmitted ones among them.
fn repeated(hosts: &TwoUplinks, side: Side, control: &str) -> (u64, u64) {
    let table = format!("marline monitor --table --once --json --control {control}");
    let (mut sent, mut again) = (0, 0);
    for subflow in support::subflows(&hosts.shell(side, &table)) {
        sent += subflow["bytes_sent"].as_u64().unwrap_or(0);
        again += subflow["bytes_retransmitted"].as_u64().unwrap_or(0);
    }
    (sent, again)
}

/// Two hosts with a link that loses 2%, with this congestion control of the kernel and this seed, the service, and a
/// client and a server with the TCP carrier.
fn start(congestion: &str, seed: u64, dir: &Path) -> TwoUplinks {
    let scenario = format!(
        "seed = {seed}\n[[path]]\nname = \"wifi\"\n\
         link = \"rate=20M,delay=10ms,queue=80ms,loss=2%\"\n\
         client = [\"10.0.1.2/24\"]\nserver = [\"10.0.1.1/24\"]\n"
    );
    let mut hosts = TwoUplinks::set(&scenario, "outer", dir);
    for side in [Side::Client, Side::Server] {
        let set = format!("sysctl -qw net.ipv4.tcp_congestion_control={congestion}");
        hosts.shell(side, &set);
    }
    hear(&hosts.role(Side::Server, "", host), "ready");
    hosts.shell(
        Side::Server,
        "umask 077; marline server --init --config marline.toml --listen 10.0.1.1:7777 \
         --public 10.0.1.1:7777 > invite 2> /dev/null",
    );
    let server = "marline server --config marline.toml --allow 127.0.0.0/8 --control s.sock";
    hear(&hosts.program(Side::Server, server), "listening on");
    let client = format!(
        "marline client --invite-file invite --carrier tcp --path wifi --warm 0 --control c.sock \
         -L {ECHO_PORT}:127.0.0.1:{ECHO_PORT} -L {SOURCE_PORT}:127.0.0.1:{SOURCE_PORT}"
    );
    hear(&hosts.program(Side::Client, &client), "listening on");
    hosts
}

/// Starts the application in one of two ways: plain TCP to the other host, or through the client's ports.
fn ask(hosts: &mut TwoUplinks, target: &str, echoes: u64, bytes: u64) -> Receiver<String> {
    let wrapper = format!("env TARGET={target} ECHOES={echoes} BYTES={bytes} TIMES={target}");
    hosts.role(Side::Client, &wrapper, asker)
}

/// Returns the result of the application.
fn sum_of(lines: &Receiver<String>, echoes: u64) -> String {
    let until = Instant::now() + GAP * u32::try_from(echoes).expect("few") + 4 * PATIENCE;
    while Instant::now() < until {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) if line.contains("sum ") => {
                return line.split_once("sum ").expect("the result").1.to_owned();
            }
            _ => {}
        }
    }
    panic!("no sum");
}

/// Runs plain TCP and the TCP carrier over one link, one after the other.
fn compare(congestion: &str, seed: u64, echoes: u64, bytes: u64) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut hosts = start(congestion, seed, dir.path());
    let [plain, carried] = ["10.0.1.1", "127.0.0.1"].map(|target| {
        let lines = ask(&mut hosts, target, echoes, bytes);
        sum_of(&lines, echoes)
    });
    println!("{congestion}, seed {seed}: plain TCP: {plain}; --carrier tcp: {carried}");
    for (side, control) in [(Side::Server, "s.sock"), (Side::Client, "c.sock")] {
        let (sent, again) = repeated(&hosts, side, control);
        println!("    {again} of {sent} bytes of segments sent again by {control}");
        assert!(sent > echoes * MESSAGE as u64 / 2, "{sent}");
        assert!(again * 1_000 <= sent, "{again} of {sent} bytes were sent again above TCP");
    }
}

#[test]
fn nothing_is_repeated_above_a_tcp_that_repeats() {
    let _others = support::among_others();
    if two_uplinks::possible(&["sysctl"]) {
        compare("cubic", 5, 200, 2_000_000);
    }
}

/// Measures the numbers in docs/results.md.
#[test]
#[ignore = "takes minutes, and the whole machine"]
fn figures() {
    let _alone = support::lock_exclusively();
    if two_uplinks::possible(&["sysctl"]) {
        for (congestion, seed) in [("cubic", 21), ("bbr", 21), ("bbr", 22)] {
            compare(congestion, seed, 1_000, 5_000_000);
        }
    }
}

/// Worlds of the comparison of tails, echoes per world, and concurrent worlds.
const WORLDS: u64 = 9;
const ECHOES: u64 = 4_000;
const CONCURRENT_TRANSFERS: usize = 3;

/// Returns the times of echoes in one world, in microseconds: over plain TCP, and with the TCP carrier over the same
/// link at the same time.
fn times(congestion: &str, seed: u64) -> [Vec<u64>; 2] {
    let dir = tempfile::tempdir().expect("a folder");
    let mut hosts = start(congestion, seed, dir.path());
    let ways = ["10.0.1.1", "127.0.0.1"];
    let asked = ways.map(|target| ask(&mut hosts, target, ECHOES, 1));
    for lines in &asked {
        sum_of(lines, ECHOES);
    }
    ways.map(|target| {
        let text = std::fs::read_to_string(dir.path().join(target)).expect("its times");
        text.lines().map(|line| line.parse().expect("a number")).collect()
    })
}

fn quantile(worlds: &[&Vec<u64>], share: f64) -> f64 {
    let mut all: Vec<u64> = worlds.iter().flat_map(|world| world.iter().copied()).collect();
    all.sort_unstable();
    all[((all.len() - 1) as f64 * share) as usize] as f64
}

/// Tail of the echoes, which depends on a few lost retransmissions. Therefore it is measured over many worlds, with the
/// 95 % interval of the ratio over them (bootstrap, with the two ways drawn separately).
#[test]
#[ignore = "a quarter of an hour"]
fn tails() {
    let _alone = support::lock_exclusively();
    if !two_uplinks::possible(&["sysctl"]) {
        return;
    }
    for congestion in ["cubic", "bbr"] {
        let seeds: Vec<u64> = (51..51 + WORLDS).collect();
        let mut all: Vec<[Vec<u64>; 2]> = Vec::new();
        for some in seeds.chunks(CONCURRENT_TRANSFERS) {
            std::thread::scope(|scope| {
                let started: Vec<_> =
                    some.iter().map(|seed| scope.spawn(|| times(congestion, *seed))).collect();
                all.extend(started.into_iter().map(|thread| thread.join().expect("no panic")));
            });
        }
        for share in [0.5, 0.98, 0.99] {
            let [plain, carried]: [Vec<&Vec<u64>>; 2] =
                [0, 1].map(|way| all.iter().map(|world| &world[way]).collect());
            let mut random = PcgRng::new(1, 0);
            let mut draw = |worlds: &[&Vec<u64>]| -> f64 {
                let mut one = || worlds[random.below(WORLDS) as usize];
                let drawn: Vec<&Vec<u64>> = worlds.iter().map(|_| one()).collect();
                quantile(&drawn, share)
            };
            let mut ratios: Vec<f64> = (0..400).map(|_| draw(&carried) / draw(&plain)).collect();
            ratios.sort_by(f64::total_cmp);
            let (plain, carried) = (quantile(&plain, share), quantile(&carried, share));
            println!(
                "{congestion}, {} echoes each: p{:.0} {:.1} ms, carried {:.1} ms, {:.2} [{:.2}, {:.2}]",
                WORLDS * ECHOES,
                share * 100.0,
                plain / 1e3,
                carried / 1e3,
                carried / plain,
                ratios[10],
                ratios[389]
            );
        }
    }
}
