//! Small requests and answers through the proxy, compared with two chained stream proxies of nginx, and directly.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use marline_testkit::need;
use tungstenite::Message;

use crate::beside::{chained, front};
use crate::relay::Proxied;
use crate::spread::{Spread, ratios};
use crate::support::nginx::page;
use crate::support::{Beside, Running, listens};
use crate::{ROUNDS, percentile};
use marline_testkit::free_address;

/// Measurement of a program, in units per second, with the name of the metric. Higher is better.
type Rate<'a> = (&'a str, Box<dyn Fn(SocketAddr) -> f64 + 'a>);

/// Measures direct connections, nginx and the proxy alternately.
fn by_turns(name: &str, nginx: &Path, target: SocketAddr, rates: &[Rate<'_>]) {
    let dir = tempfile::tempdir().expect("a folder");
    let Some((_proxies, anchor)) = chained(nginx, dir.path(), name, target) else { return };
    let ours = Proxied::to(dir.path(), target);
    for (figure, rate) in rates {
        rate(ours.address);
        let [mut direct, mut through, mut beside] = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            direct.push(rate(target));
            through.push(rate(ours.address));
            beside.push(rate(anchor));
        }
        let (ratio, of_direct) = (ratios(&through, &beside), ratios(&through, &direct));
        println!(
            "{figure}, per second: proxy {:.0}, two nginx proxies {:.0}, direct {:.0}",
            Spread::of(through),
            Spread::of(beside),
            Spread::of(direct)
        );
        println!("    relative to nginx {ratio}, relative to direct {of_direct}");
        println!("figure {figure} {:.2}", ratio.median);
    }
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().expect("the program");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{error}");
    text
}

/// Returns the requests per second, measured by wrk.
fn wrk(program: &Path, address: SocketAddr, clients: usize, keep_alive: bool) -> f64 {
    let mut command = Command::new(program);
    command.args(["-t1", &format!("-c{clients}"), "-d2s"]);
    if !keep_alive {
        command.args(["-H", "Connection: close"]);
    }
    requests_per_second(command.arg(format!("http://{address}/")))
}

/// Returns the requests per second in wrk's output.
fn requests_per_second(command: &mut Command) -> f64 {
    let text = output_of(command);
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    let rate = line.and_then(|rate| rate.trim().parse().ok()).unwrap_or_else(|| panic!("{text}"));
    assert!(!text.contains("Non-2xx"), "{text}");
    rate
}

fn http(nginx_program: &Path) {
    let Some(program) = need::program("wrk") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let (_web, address) = page(nginx_program, dir.path(), "hello");
    let program = program.as_path();
    let rates: [Rate<'_>; 3] = [
        ("wrk-keep-alive", Box::new(move |at| wrk(program, at, 25, true))),
        ("wrk-close", Box::new(move |at| wrk(program, at, 25, false))),
        ("wrk-close-one", Box::new(move |at| wrk(program, at, 1, false))),
    ];
    by_turns("http", nginx_program, address, &rates);
}

/// Returns a program that starts nginx with Multipath TCP sockets.
fn multipath(nginx: &Path, mptcpize: &Path, dir: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let script = dir.join("nginx-by-mptcpize");
    let text = format!("#!/bin/sh\nexec {} run {} \"$@\"\n", mptcpize.display(), nginx.display());
    std::fs::write(&script, text).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("its owner may run it");
    script
}

/// A front for Multipath TCP before a web server, compared with two fronts of nginx, one of them with Multipath TCP.
/// The client is the kernel, with a connection for each request. With the other nginx, connections fall back to TCP.
fn churn(nginx_program: &Path) {
    let (Some(wrk), Some(mptcpize)) = (need::program("wrk"), need::program("mptcpize")) else {
        return;
    };
    if !need::root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (web, address) = page(nginx_program, dir.path(), "hello");
    let Some((_front, anchor)) = front(nginx_program, dir.path(), "churn", address) else { return };
    let alike = multipath(nginx_program, &mptcpize, dir.path());
    let Some((_alike, alike)) = front(&alike, dir.path(), "churn-alike", address) else { return };
    let (listen, to) = (free_address().to_string(), address.to_string());
    let words = ["serve", "--listen", &listen, "--to", &to, "--max-per-source", "20000"];
    let mut serve = Running::start(dir.path(), &words);
    let ours = serve.address_after("listening on ");
    let rate = |at: SocketAddr| {
        let mut command = Command::new(&mptcpize);
        command.arg("run").arg(&wrk).args(["-t1", "-c16", "-d2s", "-H", "Connection: close"]);
        requests_per_second(command.arg(format!("http://{at}/")))
    };
    rate(ours);
    let [mut through, mut beside, mut like, mut direct] = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        through.push(rate(ours));
        beside.push(rate(anchor));
        like.push(rate(alike));
        direct.push(rate(address));
    }
    drop(web);
    let (ratio, of_like) = (ratios(&through, &beside), ratios(&through, &like));
    println!(
        "churn, connections per second: serve {:.0}, nginx {:.0}, nginx over Multipath TCP {:.0}, direct {:.0}",
        Spread::of(through),
        Spread::of(beside),
        Spread::of(like),
        Spread::of(direct)
    );
    println!("    relative to nginx {ratio}, relative to nginx over Multipath TCP {of_like}");
    println!("figure churn {:.2}", ratio.median);
    println!("figure churn-alike {:.2}", of_like.median);
}

/// Returns the GETs per second, measured by redis-benchmark.
fn gets(program: &Path, address: SocketAddr, clients: usize, count: usize) -> f64 {
    let mut command = Command::new(program);
    command.args(["-h", "127.0.0.1", "-p", &address.port().to_string(), "-t", "get", "--csv"]);
    let text = output_of(command.args(["-c", &clients.to_string(), "-n", &count.to_string()]));
    let line =
        text.lines().find(|line| line.starts_with("\"GET\"")).unwrap_or_else(|| panic!("{text}"));
    line.split(',').nth(1).and_then(|field| field.trim_matches('"').parse().ok()).expect("a rate")
}

fn redis(nginx_program: &Path) {
    let (Some(server), Some(benchmark)) =
        (need::program("redis-server"), need::program("redis-benchmark"))
    else {
        return;
    };
    let dir = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut command = Command::new(server);
    command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
    let command = command.current_dir(dir.path()).stdout(std::process::Stdio::null());
    let _redis = Beside::start(command);
    listens(address);
    let benchmark = benchmark.as_path();
    let rates: [Rate<'_>; 2] = [
        ("redis-one", Box::new(move |at| gets(benchmark, at, 1, 10_000))),
        ("redis-fifty", Box::new(move |at| gets(benchmark, at, 50, 60_000))),
    ];
    by_turns("redis", nginx_program, address, &rates);
}

/// Echoes messages, one connection after the other.
fn websocket_echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = stream.set_nodelay(true);
            let Ok(mut socket) = tungstenite::accept(stream) else { continue };
            while let Ok(message) = socket.read() {
                if socket.send(message).is_err() {
                    break;
                }
            }
        }
    });
    address
}

/// Returns the round trips per second, from the median time of messages of 200 bytes.
fn websocket(address: SocketAddr) -> f64 {
    const COUNT: usize = 3_000;
    let stream = TcpStream::connect(address).expect("a connection");
    let _ = stream.set_nodelay(true);
    let (mut socket, _) =
        tungstenite::client(format!("ws://{address}/"), stream).expect("upgraded");
    let mut times = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        let begun = Instant::now();
        socket.send(Message::binary(vec![7; 200])).expect("sent");
        let answer = socket.read().expect("an answer");
        assert_eq!(answer.len(), 200);
        times.push(begun.elapsed().as_secs_f64());
    }
    let _ = socket.close(None);
    times.sort_by(f64::total_cmp);
    1.0 / percentile(&times, 50)
}

/// Measures connections through a front.
pub(crate) fn measure_churn() {
    let Some(nginx) = need::program("nginx") else { return };
    churn(&nginx);
}

pub(crate) fn measure() {
    let Some(nginx) = need::program("nginx") else { return };
    redis(&nginx);
    let rates: [Rate<'_>; 1] = [("websocket-round-trip", Box::new(websocket))];
    by_turns("websocket", &nginx, websocket_echo(), &rates);
    http(&nginx);
}
