use std::path::Path;
use std::process::{Command, Stdio};

use marline_testkit::need;

use super::*;

fn scenario() -> Scenario {
    Scenario::from_toml(
        "[[path]]\nname = 'wifi'\nlink = 'rate=50M,delay=5ms'\nclient = ['10.0.1.2/24', \
         'fd00:1::2/64']\nserver = ['10.0.1.1/24', 'fd00:1::1/64']\n[[path]]\nname = 'lte'\n\
         link = 'rate=20M,delay=20ms'\nclient = ['10.0.2.2/24']\nserver = ['10.0.2.1/24']\n\
         [client.mptcp]\nendpoints = [{ address = '10.0.2.2', path = 'lte', flags = ['subflow'] }]",
    )
    .expect("a scenario")
}

fn instance(name: &str) -> Options {
    Options::new(&format!("t{}-{name}", std::process::id()))
}

fn namespaces() -> String {
    let output = Command::new("ip").args(["netns", "list"]).output().expect("ip");
    String::from_utf8(output.stdout).expect("text")
}

/// Sends bytes from the client to the server over the kernel's Multipath TCP; each read is answered by a byte.
fn upload(net: &Net, bytes: u32) {
    upload_to(net, "10.0.1.1", bytes);
}

fn upload_to(net: &Net, address: &str, bytes: u32) {
    // AF_INET6 or AF_INET.
    let family = if address.contains(':') { 10 } else { 2 };
    let server = format!(
        "import socket\ns=socket.socket({family},1,262)\ns.setsockopt(1,2,1)\n\
         s.bind(('{address}',5000))\ns.listen()\n\
         print('ready',flush=True)\nc,_=s.accept()\nn=0\n\
         while n<{bytes}:\n n+=len(c.recv(65536))\n c.send(b'x')"
    );
    let client = format!(
        "import socket\ns=socket.socket({family},1,262)\ns.connect(('{address}',5000))\n\
         s.sendall(b'y');s.recv(1)\ns.sendall(bytes({}))\nwhile s.recv(65536): pass",
        bytes - 1
    );
    let python = |code: &str| {
        let mut python = Command::new("python3");
        python.args(["-c", code]).stdin(Stdio::null()).stdout(Stdio::piped());
        python
    };
    let mut server = net.spawn(Side::Server, &mut python(&server)).expect("server");
    let mut first = [0; 6];
    std::io::Read::read_exact(server.stdout.as_mut().expect("piped"), &mut first).expect("ready");
    let mut client = net.spawn(Side::Client, &mut python(&client)).expect("client");
    assert!(server.wait().expect("server").success());
    assert!(client.wait().expect("client").success());
}

#[test]
fn a_net_carries_the_kernels_own_multipath_tcp_and_leaves_nothing() {
    if !need::root() || need::program("ip").is_none() || need::program("python3").is_none() {
        return;
    }
    let options = instance("mptcp");
    let net = Net::create(&scenario(), &options).expect("up");
    upload(&net, 4_000_000);
    let counters = net.counters(Side::Server).expect("counters");
    let joined = (counters.get("MPCapableACKRX"), counters.get("MPJoinAckRx"));
    assert_eq!(joined, (1, 1), "{:?}", counters.nonzero("MP").collect::<Vec<_>>());
    let reports = net.report().expect("report");
    assert!(reports.iter().all(|report| report.up.stats.delivered_bytes > 100_000));
    net.command("lte", "down").expect("command");
    net.command("lte", "set rate=1M").expect("command");
    assert!(net.command("umts", "down").expect_err("no such path").to_string().contains("lte"));
    assert!(!net.report().expect("report")[1].up.up);
    // A process without a waiting parent ends with the network.
    let mut sleeper = net.spawn(Side::Client, Command::new("sleep").arg("600")).expect("sleep");
    drop(net);
    assert!(!sleeper.wait().expect("killed").success());
    assert!(!namespaces().contains(&options.instance));
}

#[test]
fn nets_of_dead_owners_are_swept_and_live_ones_kept() {
    if !need::root() || need::program("ip").is_none() {
        return;
    }
    let (live, dead) = (instance("live"), instance("dead"));
    let net = Net::create(&scenario(), &live).expect("up");
    // The state after a kill: claimed by a process that has ended, and incomplete.
    let claim = Claim::claim_instance(&dead.instance).expect("claim");
    configure::make_namespace(claim.namespace(Side::Client)).expect("namespace");
    std::mem::forget(claim);
    let file = format!("/run/marline-lab/{}.json", dead.instance);
    let text = std::fs::read_to_string(&file).expect("claim");
    let mine = format!("\"started\":{}", Owner::current_process().expect("owner").started);
    std::fs::write(&file, text.replace(&mine, "\"started\":1")).expect("write");
    Claim::claim_instance(&live.instance).expect_err("in use");
    assert!(remove_remains().contains(&dead.instance));
    let left = namespaces();
    assert!(!left.contains(&dead.instance) && left.contains(&live.instance), "{left}");
    drop(net);
    assert!(!namespaces().contains(&live.instance));
}

#[test]
fn boxes_that_strip_options_turn_the_kernel_to_plain_tcp() {
    if !need::root() || need::program("ip").is_none() || need::program("python3").is_none() {
        return;
    }
    let net = Net::create(&scenario(), &instance("strip")).expect("up");
    // The client counts a missing option of the SYN/ACK, the server that of the third segment.
    const SYNACK: &str = "MPCapableFallbackSYNACK";
    const ACK: &str = "MPCapableFallbackACK";
    for (rule, fallbacks) in [
        ("strip=mptcp:syn", [1, 0]),
        ("strip=mptcp:synack", [1, 1]),
        ("strip=mptcp:rest", [0, 1]),
        ("strip=mptcp", [1, 0]),
        ("strip=none", [0, 0]),
    ] {
        let counters = || [Side::Client, Side::Server].map(|s| net.counters(s).expect("counters"));
        let before = counters();
        net.command("wifi", &format!("set {rule}")).expect("command");
        upload(&net, 20_000);
        let after = counters();
        let count = |of: &[Counters; 2], name| of.iter().map(|c| c.get(name)).sum::<u64>();
        let grown = [SYNACK, ACK].map(|name| count(&after, name) - count(&before, name));
        assert_eq!(grown, fallbacks, "{rule}");
    }
    let wifi = &net.report().expect("report")[0];
    assert!(wifi.up.stats.stripped > 0 && wifi.down.stats.stripped > 0);
}

#[test]
fn the_kernel_joins_over_all_paths_of_the_repositorys_scenarios() {
    if !need::root() || need::program("ip").is_none() || need::program("python3").is_none() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    for (file, address, joins) in [
        ("wifi-lte", "10.0.1.1", 1),
        ("backup", "10.0.1.1", 1),
        ("dual-stack", "10.0.1.1", 1),
        ("dual-stack", "fd00:1::1", 1),
        ("four-paths", "10.0.1.1", 3),
    ] {
        let scenario = Scenario::from_file(&folder.join(file).with_extension("toml"));
        let net = Net::create(&scenario.expect(file), &instance("all")).expect("up");
        let mut seen = 0;
        // A join takes two round trips of up to half a second, so one upload may end earlier.
        for _ in 0..10 {
            upload_to(&net, address, 1_500_000);
            seen = net.counters(Side::Server).expect("counters").get("MPJoinAckRx");
            if seen >= joins {
                break;
            }
        }
        assert!(seen >= joins, "{file} at {address}: {seen} joins");
    }
}

#[test]
fn a_rewritten_payload_is_noticed_by_the_kernels_own_checksum() {
    if !need::root() || need::program("ip").is_none() || need::program("python3").is_none() {
        return;
    }
    let mut scenario = scenario();
    (scenario.client.mptcp.checksum, scenario.server.mptcp.checksum) = (true, true);
    scenario.client.mptcp.endpoints.clear();
    let net = Net::create(&scenario, &instance("rewrite")).expect("up");
    net.command("wifi", "set up.rewrite=100%").expect("command");
    upload(&net, 20_000);
    let counters = net.counters(Side::Server).expect("counters");
    let seen = counters.nonzero("").filter(|(name, _)| name.contains("DataCsumErr"));
    assert_eq!(seen.count(), 1, "{:?}", counters.nonzero("MP").collect::<Vec<_>>());
    assert!(net.report().expect("report")[0].up.stats.rewritten > 0);
}
