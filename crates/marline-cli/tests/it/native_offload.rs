//! Tests of segments that leave `marline serve` as one packet (segmentation offload), with the kernel's Multipath
//! TCP as the client, over two networks between namespaces. Needs root and tcpdump.

use super::support;
use super::support::native::{start_nginx, testbed};
use super::support::testbed::{Testbed, Until};

/// Filter for frames that hold more than one segment at an MTU of 1,500 bytes.
const JOINED: &str = "greater 3000";
const PROGRAMS: [&str; 4] = ["curl", "nginx", "tcpdump", "python3"];

/// A front with a web server behind it, and captures of its packets on each interface, by their first 128 bytes.
struct Front {
    testbed: Testbed,
    captures: Vec<usize>,
}

impl Front {
    fn start(mut testbed: Testbed, interfaces: &[&str]) -> Front {
        start_nginx(&mut testbed, "", "127.0.0.1:8080", 8080);
        let serve = "marline serve --listen 0.0.0.0:80 --listen [::]:80 --to 127.0.0.1:8080 \
                     --signal 10.91.2.1 --signal fd91:2::1";
        testbed.start("server", serve, Until::Says("listening on [::]:80"));
        let capture = |name: &&str| {
            let said = format!("listening on {name}");
            let command = format!("tcpdump -i {name} -s 128 -U -w {name}.pcap tcp src port 80");
            testbed.start("server", &command, Until::Says(&said))
        };
        let captures = interfaces.iter().map(capture).collect();
        Front { testbed, captures }
    }

    /// Fetches 32 MB and compares.
    fn fetch(&self, role: &str, host: &str) {
        let text = self.testbed.run(
            role,
            &format!(
                "mptcpize run curl -sS --fail -m 50 -o large http://{host}/large
                curl -sS --fail -o sums http://{host}/sums
                sha256sum --check --ignore-missing sums"
            ),
        );
        assert!(text.contains("large: OK"), "{host}: {text}");
    }

    /// Ends the captures.
    fn stop(&mut self) {
        for capture in std::mem::take(&mut self.captures) {
            self.testbed.signal(capture, "INT");
            assert!(self.testbed.wait(capture), "{}", self.testbed.log(capture));
        }
    }

    /// Returns the number of frames of a capture that match the filter.
    fn count(&self, interface: &str, filter: &str) -> usize {
        let command = format!("tcpdump -n -r {interface}.pcap '{filter}' 2> /dev/null | wc -l");
        self.testbed.run("server", &command).trim().parse().expect("a number")
    }
}

#[test]
fn runs_of_segments_leave_as_one_packet_and_arrive() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(testbed) = testbed(dir.path(), &PROGRAMS) else { return };
    let mut front = Front::start(testbed, &["eth1", "eth2", "lo"]);
    for host in ["four.example", "six.example"] {
        front.fetch("client", host);
    }
    front.fetch("server", "10.91.1.1");
    front.stop();
    for (interfaces, family) in
        [(&["eth1", "eth2"][..], "ip"), (&["eth1", "eth2"], "ip6"), (&["lo"], "ip")]
    {
        let of = |name: &&str| front.count(name, &format!("{family} and {JOINED}"));
        let joined: Vec<usize> = interfaces.iter().map(of).collect();
        println!("{interfaces:?}, {family}: {joined:?} frames of several segments");
        assert!(joined.iter().sum::<usize>() > 100, "{interfaces:?}, {family}: {joined:?}");
    }
    for name in ["DSSCorruptionFallback", "DSSCorruptionReset", "DSSNoMatchTCP"] {
        assert_eq!(front.testbed.counter("client", &format!("MPTcpExt{name}")), 0, "{name}");
    }
}

/// Disables the offloads of a network card (ETHTOOL_STSO, STXCSUM), so that the kernel does the work.
const NO_OFFLOADS: &str = "
import array, fcntl, socket, struct, sys
for command in (0x1f, 0x17):
    value = array.array('I', [command, 0])
    request = struct.pack('16sQ16x', sys.argv[1].encode(), value.buffer_info()[0])
    fcntl.ioctl(socket.socket(), 0x8946, request)
";

#[test]
fn without_a_card_that_does_it_the_kernel_cuts_whole_segments_with_right_checksums() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(testbed) = testbed(dir.path(), &[&PROGRAMS[..], &["tshark"]].concat()) else { return };
    std::fs::write(testbed.dir.join("server/off.py"), NO_OFFLOADS).unwrap();
    for interface in ["eth1", "eth2"] {
        testbed.run("server", &format!("python3 off.py {interface}"));
    }
    let mut front = Front::start(testbed, &[]);
    for interface in ["eth1", "eth2"] {
        let command =
            format!("tcpdump -i {interface} -c 5000 -w whole-{interface}.pcap tcp src port 80");
        let said = format!("listening on {interface}");
        let capture = front.testbed.start("server", &command, Until::Says(&said));
        front.captures.push(capture);
    }
    front.fetch("client", "four.example");
    front.stop();
    for interface in ["eth1", "eth2"] {
        let count = |filter: &str| {
            let tshark = format!(
                "tshark --disable-protocol http -o tcp.check_checksum:TRUE -o ip.check_checksum:TRUE \
                 -r whole-{interface}.pcap -Y '{filter}' | wc -l"
            );
            front.testbed.run("server", &tshark).trim().parse::<usize>().unwrap()
        };
        // A mapping that is larger than its segment belongs to a joined packet.
        let cut = count("tcp.len > 1300 && tcp.options.mptcp.datalvllen > 12000");
        println!("{interface}: {cut} segments of large mappings of {}", count("tcp"));
        assert!(cut > 50, "{cut}");
        assert_eq!(count("frame.len > 1514"), 0);
        assert_eq!(count("tcp.checksum.status == \"Bad\" || ip.checksum.status == \"Bad\""), 0);
        assert_eq!(count("_ws.malformed"), 0);
    }
}

#[test]
fn where_the_firewall_follows_connections_nothing_goes_around_it() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(testbed) = testbed(dir.path(), &[&PROGRAMS[..], &["nft"]].concat()) else { return };
    let rules = "table inet t {
        chain input {
            type filter hook input priority 0; policy drop;
            iifname lo accept
            ct state invalid drop
            ct state established,related accept
            meta l4proto { icmp, icmpv6 } accept
            tcp dport 80 accept
        }
    }";
    std::fs::write(testbed.dir.join("server/rules"), rules).unwrap();
    testbed.run("server", "nft -f rules");
    let mut front = Front::start(testbed, &["eth1", "eth2"]);
    front.fetch("client", "four.example");
    front.stop();
    for interface in ["eth1", "eth2"] {
        assert_eq!(front.count(interface, JOINED), 0, "{interface}");
        assert!(front.count(interface, "ip") > 1_000, "{interface}");
    }
}

/// The neighbor's address changes, and then one network goes down, each in mid-transfer.
#[test]
fn a_neighbor_that_changes_and_an_interface_that_goes_lose_nothing() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(testbed) = testbed(dir.path(), &PROGRAMS) else { return };
    testbed
        .run("client", "sysctl -qw net.ipv4.conf.all.arp_notify=1 net.ipv4.conf.net1.arp_notify=1");
    let mut front = Front::start(testbed, &["eth1"]);
    let slow = "mptcpize run curl -sS --fail -m 50 -o large 'http://four.example/large?rate=10m'";
    let slow = front.testbed.start("client", slow, Until::Says(""));
    let large = front.testbed.dir.join("client/large");
    support::under_way(&large, 1, 8_000_000);
    front.testbed.run("client", "ip link set net1 address 02:00:00:00:00:77");
    support::under_way(&large, 8_000_000, 20_000_000);
    front.testbed.run("server", "ip link del eth2");
    assert!(front.testbed.wait(slow), "{}", front.testbed.log(slow));
    let text = front.testbed.run(
        "client",
        "curl -sS --fail -o sums http://four.example/sums
        sha256sum --check --ignore-missing sums",
    );
    assert!(text.contains("large: OK"), "{text}");
    front.stop();
    let joined = |to: &str| front.count("eth1", &format!("{JOINED} and ether dst {to}"));
    assert!(joined("02:00:00:00:00:77") > 20, "{}", joined("02:00:00:00:00:77"));
}
