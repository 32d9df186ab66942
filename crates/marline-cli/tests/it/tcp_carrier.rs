//! Test of `--carrier tcp` over a link that loses 2 % beneath it, beside plain TCP over the same link: TCP within TCP
//! must not repeat what the outer one repeats. Prints what an application gets of both. Needs root.
//!
//! ```text
//! sudo cargo test -p marline-cli --test it tcp_carrier -- --nocapture --include-ignored
//! ```

use super::support;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};
use marline_lab::scenario::Side;

const ECHO_PORT: u16 = 7_001;
const SOURCE_PORT: u16 = 7_002;
const MESSAGE: usize = 200;
const GAP: Duration = Duration::from_millis(30);

fn number(variable: &str) -> u64 {
    std::env::var(variable).expect("a variable").parse().expect("a number")
}

/// What is asked: sends messages back on one port, and on the other as many bytes as it is asked for.
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

/// Who asks: echoes in an open loop, then bytes as fast as they come.
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
        late.sort_unstable();
        late
    });
    for number in 0..echoes {
        std::thread::sleep(due(number).saturating_duration_since(Instant::now()));
        writer.write_all(&[1; MESSAGE]).expect("sent");
    }
    let late = reading.join().expect("no panic");
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
}

/// Bytes of segments that the process with this control socket sent, and of these again.
fn repeated(hosts: &TwoUplinks, side: Side, control: &str) -> (u64, u64) {
    let table = format!("marline monitor --table --once --json --control {control}");
    let said = hosts.shell(side, &table);
    let connections: serde_json::Value =
        serde_json::from_str(said.lines().next().expect("a line")).expect("JSON");
    let (mut sent, mut again) = (0, 0);
    for connection in connections.as_array().expect("a list") {
        for subflow in ["subflows", "gone"].iter().filter_map(|key| connection[key].as_array()) {
            for subflow in subflow {
                sent += subflow["bytes_sent"].as_u64().unwrap_or(0);
                again += subflow["bytes_retransmitted"].as_u64().unwrap_or(0);
            }
        }
    }
    (sent, again)
}

/// Both ways over one link, under this congestion control of the kernel and this seed.
fn compare(congestion: &str, seed: u64, echoes: u64, bytes: u64) {
    let scenario = format!(
        "seed = {seed}\n[[path]]\nname = \"wifi\"\n\
         link = \"rate=20M,delay=10ms,queue=80ms,loss=2%\"\n\
         client = [\"10.0.1.2/24\"]\nserver = [\"10.0.1.1/24\"]\n"
    );
    let dir = tempfile::tempdir().expect("a folder");
    let mut hosts = TwoUplinks::set(&scenario, "outer", dir.path());
    for side in [Side::Client, Side::Server] {
        let set = format!("sysctl -qw net.ipv4.tcp_congestion_control={congestion}");
        hosts.shell(side, &set);
    }
    hear(&hosts.role(Side::Server, "", host), "ready");
    let ask = |hosts: &mut TwoUplinks, target: &str| {
        let wrapper = format!("env TARGET={target} ECHOES={echoes} BYTES={bytes}");
        let lines = hosts.role(Side::Client, &wrapper, asker);
        let until = Instant::now() + GAP * u32::try_from(echoes).expect("few") + 4 * PATIENCE;
        while Instant::now() < until {
            match lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains("sum ") => {
                    return line.split_once("sum ").expect("it is there").1.to_owned();
                }
                _ => {}
            }
        }
        panic!("no sum");
    };
    let plain = ask(&mut hosts, "10.0.1.1");
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
    let carried = ask(&mut hosts, "127.0.0.1");
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

/// The figures of docs/results.md.
#[test]
#[ignore = "takes minutes, and all of the machine"]
fn figures() {
    let _alone = support::alone();
    if two_uplinks::possible(&["sysctl"]) {
        for (congestion, seed) in [("cubic", 21), ("bbr", 21), ("bbr", 22)] {
            compare(congestion, seed, 1_000, 5_000_000);
        }
    }
}
