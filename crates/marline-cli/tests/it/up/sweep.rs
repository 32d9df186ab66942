//! Tests of `kill -9` at every moment while `marline up` runs and programs send without a pause: not one packet
//! bypasses the tunnel. A few moments here, every 50 ms by `cargo xtask nightly kill-switch`.

use std::process::Child;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::kill_switch::world;
use super::{World, hear, page, support};
use rustix::process::{Pid, Signal, kill_process};

/// Sends packets of each kind every few milliseconds until the file `stop-sending` exists, and stores their number
/// in `sent`.
const SENDER: &str = r#"
import os, socket, struct, time
query = bytes.fromhex("123401000001000000000000027634076578616d706c6504746573740000010001")
link = socket.if_nametoindex("wifi")
hosts = [("203.0.113.5", 9010), ("2001:db8:7::5", 9010)]
resolvers = [("10.0.1.1", 53), ("9.9.9.9", 53), ("2620:fe::fe", 53), ("fe80::1", 53, 0, link)]
def family(to): return socket.AF_INET6 if ":" in to[0] else socket.AF_INET
def connected(to):
    s = socket.socket(family(to), socket.SOCK_DGRAM)
    s.setblocking(False)
    s.connect(to)
    return s
# Those that were there before, which have a route of their own; from the link's address, and bound to the link.
kept = [connected(to) for to in hosts + resolvers[:3]]
bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
bound.bind(("10.0.1.2", 0))
held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
held.setsockopt(socket.SOL_SOCKET, 25, b"wifi\0")
icmp = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
echo = struct.pack("!BBHHH", 8, 0, 0xf7ff, 0, 0)
sent = 0
def attempt(send):
    global sent
    sent += 1
    try: send()
    except OSError: pass
def udp(to, payload):
    with socket.socket(family(to), socket.SOCK_DGRAM) as s:
        s.setblocking(False)
        s.sendto(payload, to)
def tcp(to):
    with socket.socket(family(to)) as s:
        s.setblocking(False)
        s.connect_ex(to)
while not os.path.exists("stop-sending"):
    for to in hosts:
        attempt(lambda: udp(to, b"?"))
        attempt(lambda: tcp((to[0], 8080)))
    for to in resolvers:
        attempt(lambda: udp(to, query))
        attempt(lambda: tcp(to))
    for s in kept: attempt(lambda: s.send(query))
    attempt(lambda: bound.sendto(b"?", hosts[0]))
    attempt(lambda: held.sendto(query, resolvers[0]))
    attempt(lambda: held.sendto(query, resolvers[1]))
    attempt(lambda: icmp.sendto(echo, hosts[0]))
    time.sleep(0.004)
open("sent", "w").write(str(sent))
"#;

/// Writes a line into `leaks` for each packet that leaves over a link and belongs neither to Marline nor to the link:
/// the kernel's time in nanoseconds of the system's clock, and its contents.
const CAPTURE: &str = r#"
import socket, struct, sys, select
def reader(link):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    s.setsockopt(socket.SOL_SOCKET, 35, 1)   # SO_TIMESTAMPNS
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    s.bind((link, 3))
    return s
readers = {reader(link): link for link in ["wifi", "lte"]}
servers = ["10.0.1.1", "10.0.2.1"]
def what(p):
    if p[0] >> 4 == 4:
        proto, to, rest = p[9], socket.inet_ntop(socket.AF_INET, p[16:20]), p[(p[0] & 15) * 4:]
    elif p[0] >> 4 == 6:
        proto, to, rest = p[6], socket.inet_ntop(socket.AF_INET6, p[24:40]), p[40:]
    else:
        return None
    # Packets of the kernel itself: IGMP, MLD and neighbor discovery on the link, and ICMP errors to the server.
    if proto in (2, 0) or proto == 58 and rest[0] in (130, 131, 132, 133, 134, 135, 136, 137, 143):
        return None
    if proto == 1 and to in servers and rest[0] == 3:
        return None
    if proto in (6, 17):
        port = struct.unpack("!H", rest[2:4])[0]
        if to in servers and port == 7777:
            return None
        return f"{'tcp' if proto == 6 else 'udp'} {to} {port}"
    return f"protocol {proto} {to}"
out = open("leaks", "w", buffering=1)
print("capturing", flush=True)
while True:
    for s in select.select(list(readers), [], [])[0]:
        packet, extra, _, sender = s.recvmsg(4096, 128)
        if sender[2] != 4:   # PACKET_OUTGOING
            continue
        leak = what(packet)
        if leak:
            at = struct.unpack("qq", extra[0][2][:16])
            out.write(f"{at[0] * 10**9 + at[1]} {readers[s]} {leak}\n")
"#;

/// A series of kills of `marline up` with these options.
struct Sweep {
    world: World,
    sender: Child,
    capture: Child,
    options: &'static str,
    kills: u32,
    leaks: Vec<String>,
}

/// Time of the system's clock in nanoseconds.
type Moment = u128;

fn now() -> Moment {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos()
}

/// A running `marline up`.
struct Running {
    pid: u32,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Sweep {
    fn of(name: &str, options: &'static str) -> Option<Sweep> {
        let world = world(name)?;
        for (name, text) in [("sender.py", SENDER), ("capture.py", CAPTURE)] {
            super::super::run::write_script(&world.dir().join(name), text);
        }
        std::fs::write(world.dir().join("up.toml"), "path = ['wifi', 'lte']\n").expect("write");
        let capture = world.spawn("exec python3 capture.py > capturing");
        let file = world.dir().join("capturing");
        world.wait_until("the capture", || {
            std::fs::read_to_string(&file).is_ok_and(|text| text.contains("capturing"))
        });
        let sender = world.spawn("exec python3 sender.py");
        let sweep = Sweep { world, sender, capture, options, kills: 0, leaks: Vec::new() };
        // Check that the capture would see a leak of each kind.
        sweep.world.wait_until("packets of every kind", || {
            let seen = sweep.seen(0, Moment::MAX).join("\n");
            [
                "udp 203.0.113.5 9010",
                "tcp 203.0.113.5 8080",
                "udp 2001:db8:7::5 9010",
                "tcp 2001:db8:7::5 8080",
            ]
            .iter()
            .chain(&[
                "udp 10.0.1.1 53",
                "udp 9.9.9.9 53",
                "udp fe80::1 53",
                "tcp fe80::1 53",
                "protocol 1",
            ])
            .all(|kind| seen.contains(kind))
        });
        Some(sweep)
    }

    /// Returns the packets that left between two moments.
    fn seen(&self, from: Moment, to: Moment) -> Vec<String> {
        let text = std::fs::read_to_string(self.world.dir().join("leaks")).unwrap_or_default();
        let within = |line: &&str| {
            let at = line.split(' ').next().and_then(|at| at.parse::<Moment>().ok());
            at.is_some_and(|at| (from..to).contains(&at))
        };
        text.lines().filter(within).map(str::to_owned).collect()
    }

    fn start(&mut self) -> Running {
        let options = format!("--config up.toml {}", self.options);
        let (lines, pid) = self.world.start(&options);
        Running { pid, lines }
    }

    /// Kills `marline up`, in every second case together with the process that would undo its changes.
    fn kill(&mut self, running: &Running) {
        self.kills += 1;
        let pid = running.pid;
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let mut pids = vec![pid];
        if self.kills.is_multiple_of(2) {
            let children = children.unwrap_or_default();
            pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        for pid in pids {
            if let Some(pid) = Pid::from_raw(pid as i32) {
                // The process may have ended.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Returns true if a kill switch is engaged for both families.
    fn holds(&self) -> bool {
        let rules = |family: &str| self.world.run(&format!("ip {family} rule show"));
        let last = |rules: &str| {
            rules
                .lines()
                .any(|line| line.contains("from all unreachable") && line.contains("proto 109"))
        };
        last(&rules("-4")) && last(&rules("-6"))
    }

    /// Kills `marline up` after each of these times from its start. Each start finds the remains of the previous one.
    fn at_start(&mut self, after: &[u64]) {
        for ms in after {
            let running = self.start();
            std::thread::sleep(Duration::from_millis(*ms));
            self.kill(&running);
        }
    }

    /// Kills `marline up` after each of these times from the moment at which traffic uses the tunnel, optionally after
    /// a signal.
    fn after_up(&mut self, signal: Option<Signal>, after: &[u64]) {
        for ms in after {
            let running = self.start();
            hear(&running.lines, "goes through the server");
            if let Some(signal) = signal {
                let pid = Pid::from_raw(running.pid as i32).expect("a process id");
                let _ = kill_process(pid, signal);
            }
            std::thread::sleep(Duration::from_millis(*ms));
            self.kill(&running);
        }
    }

    /// Records packets since a moment as leaks.
    fn note(&mut self, from: Moment) {
        // Earlier packets have reached the capture by then.
        std::thread::sleep(Duration::from_millis(300));
        let leaks = self.seen(from, Moment::MAX);
        self.leaks.extend(leaks);
    }

    /// Starts `marline up` again, ends it with `marline down`, and prints the leaks.
    fn end(mut self, what: &str) {
        let running = self.start();
        hear(&running.lines, "goes through the server");
        std::fs::write(self.world.dir().join("stop-sending"), "").expect("write");
        self.sender.wait().expect("the sender");
        // The sender's requests occupy the tunnel for a while.
        self.world.wait_until("a page", || self.world.fetches(&page("www.example.test", 100)));
        self.world.run("marline down");
        assert_eq!(self.world.left(), "");
        assert!(self.world.goes_directly());
        let _ = self.capture.kill();
        let _ = self.capture.wait();
        let sent =
            std::fs::read_to_string(self.world.dir().join("sent")).expect("the sender's count");
        let (kills, leaks) = (self.kills, &self.leaks);
        println!(
            "{what}: {kills} kills, {sent} packets sent, {} left around the tunnel",
            leaks.len()
        );
        assert!(leaks.is_empty(), "{:#?}", &leaks[..leaks.len().min(40)]);
    }
}

/// Times of the kills.
struct Moments {
    start: Vec<u64>,
    steady: Vec<u64>,
    reload: Vec<u64>,
    stop: Vec<u64>,
}

impl Moments {
    fn few() -> Moments {
        Moments {
            start: vec![0, 120, 250, 500],
            steady: vec![0, 300],
            reload: vec![0, 50],
            stop: vec![0, 40, 200],
        }
    }

    fn every_50_ms() -> Moments {
        let until = |ms: u64| (0..=ms).step_by(50).collect();
        Moments {
            start: until(1_500),
            steady: until(1_000),
            reload: until(500),
            stop: until(1_000),
        }
    }
}

fn lockdown(name: &str, moments: &Moments) {
    let Some(mut sweep) = Sweep::of(name, "--lockdown") else { return };
    sweep.world.run("marline up --lockdown-only --lockdown");
    let locked = now();
    sweep.at_start(&moments.start);
    sweep.after_up(None, &moments.steady);
    sweep.after_up(Some(Signal::HUP), &moments.reload);
    // Stopping the service removes nothing.
    sweep.after_up(Some(Signal::TERM), &moments.stop);
    sweep.note(locked);
    sweep.end("lockdown");
}

fn kill_switch(name: &str, moments: &Moments) {
    let Some(mut sweep) = Sweep::of(name, "--kill-switch") else { return };
    // From a clean state: only packets after the kill switch is engaged count.
    for ms in &moments.start {
        sweep.world.run("marline down");
        let running = sweep.start();
        let until = Instant::now() + Duration::from_millis(*ms);
        let mut held = None;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let Ok(line) = running.lines.recv_timeout(left) else { break };
            if held.is_none() && line.contains("kill switch on: all traffic") {
                held = Some(now());
            }
        }
        sweep.kill(&running);
        if held.is_none() && sweep.holds() {
            held = Some(now());
        }
        if let Some(held) = held {
            std::thread::sleep(Duration::from_millis(700));
            assert!(sweep.holds(), "killed after {ms} ms");
            sweep.note(held);
        }
    }
    // From now on, it is engaged all the time.
    let running = sweep.start();
    hear(&running.lines, "goes through the server");
    let held = now();
    sweep.kill(&running);
    sweep.at_start(&moments.start);
    sweep.after_up(None, &moments.steady);
    sweep.after_up(Some(Signal::HUP), &moments.reload);
    sweep.note(held);
    // The user requests the end: nothing leaves until then, and afterwards the machine is either open or closed.
    for ms in &moments.stop {
        let running = sweep.start();
        hear(&running.lines, "goes through the server");
        let held = now();
        std::thread::sleep(Duration::from_millis(100));
        let asked = now();
        let pid = Pid::from_raw(running.pid as i32).expect("a process id");
        let _ = kill_process(pid, Signal::TERM);
        std::thread::sleep(Duration::from_millis(*ms));
        sweep.kill(&running);
        std::thread::sleep(Duration::from_millis(300));
        let leaks = sweep.seen(held, asked);
        sweep.leaks.extend(leaks);
        sweep.world.wait_until("open or closed", || sweep.holds() || sweep.world.left().is_empty());
    }
    sweep.end("kill switch");
}

#[test]
fn nothing_leaves_a_locked_machine_whenever_it_is_killed() {
    let _others = support::among_others();
    lockdown("up-sweep-l", &Moments::few());
}

#[test]
fn nothing_passes_a_kill_switch_whenever_it_is_killed() {
    let _others = support::among_others();
    kill_switch("up-sweep-k", &Moments::few());
}

#[test]
#[ignore = "minutes: cargo xtask nightly kill-switch"]
fn nothing_leaves_whenever_it_is_killed_every_50_ms() {
    let _others = support::among_others();
    lockdown("up-sweep-L", &Moments::every_50_ms());
    kill_switch("up-sweep-K", &Moments::every_50_ms());
}
