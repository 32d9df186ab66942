//! Tests of the login page of a captive portal while the machine is behind the tunnel with its kill switch on: only
//! the named program reaches the page, with that network's own resolver.

use std::time::Instant;

use marline_lab::scenario::Side;
use rustix::process::{Pid, Signal, kill_process};

use super::super::support;
use super::super::support::two_uplinks::{PATIENCE, hear};
use super::{TARGET_V4, World, page};

/// The portal: answers for every name and every page, and drops the rest, until a user has logged in.
const PORTAL: &str = r#"
import http.server, os, socket, struct, threading
open_ = threading.Event()
def names():
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port.bind(("10.0.1.1", 53))
    while True:
        query, sender = port.recvfrom(2048)
        end = query.index(b"\0", 12) + 5
        kind, = struct.unpack("!H", query[end - 4:end - 2])
        reply = query[:2] + struct.pack("!HHHHH", 0x8180, 1, kind == 1, 0, 0) + query[12:end]
        if kind == 1:
            reply += struct.pack("!HHHIH", 0xc00c, 1, 1, 5, 4) + bytes([10, 0, 1, 1])
        port.sendto(reply, sender)
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/login":
            open_.set()
            os.system("nft delete table ip portal")
        if open_.is_set() and self.path == "/generate_204":
            self.send_response(204)
        elif self.path in ("/welcome", "/login"):
            self.send_response(200)
        else:
            self.send_response(302)
            self.send_header("Location", "http://portal.test/welcome")
        body = b"welcome" if self.path == "/welcome" else b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
threading.Thread(target=names, daemon=True).start()
server = http.server.ThreadingHTTPServer(("10.0.1.1", 80), Page)
print("portal ready", flush=True)
server.serve_forever()
"#;

/// Drops packets from WiFi except those for names and pages.
const CLOSED: &str = "nft add table ip portal
    nft 'add chain ip portal in { type filter hook input priority 0; }'
    nft 'add rule ip portal in ip saddr 10.0.1.2 udp dport != 53 drop'
    nft 'add rule ip portal in ip saddr 10.0.1.2 tcp dport != 80 drop'
    nft 'add chain ip portal way { type nat hook prerouting priority -100; }'
    nft 'add rule ip portal way ip saddr 10.0.1.2 tcp dport 80 redirect'";
const PROBE: &str = "--probe http://check.test/generate_204";

/// Returns the machine behind the tunnel, with these options, and a WiFi that requires a login.
fn behind_a_portal(name: &str, options: &str) -> Option<World> {
    let mut world = World::set(name, &["nft", "setpriv"])?;
    std::fs::write(world.dir().join("portal.py"), PORTAL).expect("a file");
    let lines = world.hosts.program(Side::Server, "python3 portal.py");
    hear(&lines, "portal ready");
    world.up(options);
    world.hosts.shell(Side::Server, CLOSED);
    Some(world)
}

/// Returns the tunnel processes in this world.
fn carriers(world: &World) -> Vec<Pid> {
    let here = |process: &std::path::Path| {
        let read = |name| std::fs::read(process.join(name)).unwrap_or_default();
        let is = read("cmdline").starts_with(b"marline\0portal\0");
        is && std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == world.dir())
    };
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    let numbers = processes.filter(|process| here(process));
    let number = |path: std::path::PathBuf| path.file_name()?.to_str()?.parse().ok();
    numbers.filter_map(number).filter_map(Pid::from_raw).collect()
}

#[test]
fn only_the_portal_browser_bypasses_the_kill_switch() {
    let _others = support::among_others();
    let Some(world) = behind_a_portal("portal", "--kill-switch") else { return };
    // The portal would answer for every address, but the machine's own routing does not lead there.
    let usual = "curl -s -m 2 -o /dev/null -w %{http_code} http://203.0.113.200/";
    assert_eq!(support::texts(&world.output(usual)).0, "000", "around the kill switch");
    let look = world.output(&format!("marline portal wifi {PROBE}"));
    let (said, _) = support::texts(&look);
    assert!(said.contains("wifi: login required: http://portal.test/welcome"), "{said}");
    assert!(!look.status.success());
    let rules = world.left();
    let browser = "marline portal wifi PROBE -- bash -euc '
        curl -s -m 10 -o /dev/null -w \"%{http_code}\\n\" http://203.0.113.200/
        curl -sfL -m 10 \"$0\"; echo
        curl -sf -m 10 http://portal.test/login; echo logged in
        while curl -s -m 3 -o /dev/null http://portal.test/welcome; do sleep 0.5; done
        echo network lost' %u";
    let output = world.output(&browser.replace("PROBE", PROBE));
    let (said, warned) = support::texts(&output);
    assert_eq!(said, "302\nwelcome\nlogged in\nnetwork lost\n", "{warned}");
    assert!(warned.contains("wifi: logged in"), "{warned}");
    assert_eq!(world.left(), rules, "nothing was changed, so nothing is left");
    let again = world.output(&format!("marline portal wifi {PROBE}"));
    assert!(again.status.success(), "{:?}", support::texts(&again));
    let refused = world.output(&format!("marline portal wifi {PROBE} -- echo ran"));
    let (said, why) = support::texts(&refused);
    assert_eq!((said.as_str(), refused.status.code()), ("", Some(125)));
    assert!(why.contains("no login required"), "{why}");
    assert!(world.fetches(&page(TARGET_V4, 10_000)), "the tunnel still works");
}

#[test]
fn killed_outright_it_leaves_its_program_without_a_network() {
    let _others = support::among_others();
    let Some(world) = behind_a_portal("portalkill", "--kill-switch") else { return };
    let script = "marline portal wifi PROBE -- bash -c '
        curl -sf -m 10 http://portal.test/welcome > seen; touch ready
        until test -e killed; do sleep 0.1; done
        curl -s -m 3 http://portal.test/welcome || echo no network'";
    let rules = world.left();
    let program = world.spawn(&script.replace("PROBE", PROBE));
    world.wait_until("the page was fetched", || world.dir().join("ready").exists());
    assert_eq!(std::fs::read_to_string(world.dir().join("seen")).unwrap(), "welcome");
    let carrying = carriers(&world);
    assert_eq!(carrying.len(), 1, "{carrying:?}");
    kill_process(carrying[0], Signal::KILL).expect("the portal process runs");
    world.wait_until("its end", || carriers(&world).is_empty());
    std::fs::write(world.dir().join("killed"), "").expect("a file");
    let begun = Instant::now();
    let output = program.wait_with_output().expect("its end");
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(support::texts(&output).0, "no network\n");
    assert_eq!(world.left(), rules);
}

#[test]
fn without_a_kill_switch_it_needs_no_root() {
    let _others = support::among_others();
    let Some(world) = behind_a_portal("portaluser", "") else { return };
    let script = "mknod tun c 10 200; chmod 666 tun; mount --bind tun /dev/net/tun; cd /
        as_user=\"setpriv --reuid 1000 --regid 1000 --clear-groups\"
        $as_user test -x \"$(command -v marline)\" || as_user=
        $as_user marline portal wifi PROBE -- curl -sfL -m 10 %u";
    assert_eq!(world.run(&script.replace("PROBE", PROBE)), "welcome");
}
