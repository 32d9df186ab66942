use super::*;

fn end(address: &str, interface: u32) -> LocalEnd {
    let address = address.parse().unwrap();
    LocalEnd {
        address,
        bound: address,
        interface: (format!("if{interface}"), interface),
        loopback: false,
        behind_tun: false,
        mark: 0,
    }
}

/// Table of these paths, each with its local addresses.
fn table(paths: &[(&str, &[&str])]) -> PathTable {
    let specs: Vec<PathSpec> = paths.iter().map(|(spec, _)| spec.parse().unwrap()).collect();
    let mut table = PathTable::new(&specs);
    for (number, (entry, (_, ends))) in table.entries.iter_mut().zip(paths).enumerate() {
        entry.ends = ends.iter().map(|address| end(address, number as u32)).collect();
    }
    table
}

fn order(table: &PathTable, servers: &[&str], winner: Option<(&str, &str)>) -> Vec<String> {
    let servers: Vec<SocketAddr> = servers.iter().map(|server| server.parse().unwrap()).collect();
    let winner = winner.map(|(local, remote)| (local.parse().unwrap(), remote.parse().unwrap()));
    let candidates = table.candidates(&servers, winner);
    candidates.iter().map(|c| format!("{} {}", c.end.address, c.remote)).collect()
}

#[test]
fn paths_and_servers_take_turns() {
    let table = table(&[("if0", &["10.0.0.2", "fd00::2"]), ("if1", &["10.1.0.2"])]);
    let servers = ["[fd00::1]:80", "192.0.2.1:80", "192.0.2.2:80"];
    let expected = [
        "fd00::2 [fd00::1]:80",
        "10.1.0.2 192.0.2.1:80",
        "10.0.0.2 192.0.2.1:80",
        "10.1.0.2 192.0.2.2:80",
        "10.0.0.2 192.0.2.2:80",
    ];
    assert_eq!(order(&table, &servers, None), expected);
}

#[test]
fn families_take_turns_on_each_path() {
    let table = table(&[("if0", &["10.0.0.2", "fd00::2"]), ("if1", &["10.1.0.2", "fd01::2"])]);
    let servers = ["[fd09::1]:80", "[fd09::2]:80", "192.0.2.1:80"];
    let expected = [
        "fd00::2 [fd09::1]:80",
        "fd01::2 [fd09::1]:80",
        "10.0.0.2 192.0.2.1:80",
        "10.1.0.2 192.0.2.1:80",
        "fd00::2 [fd09::2]:80",
        "fd01::2 [fd09::2]:80",
    ];
    assert_eq!(order(&table, &servers, None), expected);
    let ipv4_first = ["192.0.2.1:80", "192.0.2.2:80", "[fd09::1]:80"];
    let begun = order(&table, &ipv4_first, None);
    assert_eq!(
        begun[..3],
        ["10.0.0.2 192.0.2.1:80", "10.1.0.2 192.0.2.1:80", "fd00::2 [fd09::1]:80"]
    );
}

#[test]
fn the_winning_path_is_first_for_every_server() {
    let table = table(&[("if0", &["10.0.0.2"]), ("if1", &["10.1.0.2"])]);
    let won = Some(("10.1.0.2", "192.0.2.1:80"));
    let again = order(&table, &["192.0.2.1:80"], won);
    assert_eq!(again, ["10.1.0.2 192.0.2.1:80", "10.0.0.2 192.0.2.1:80"]);
    let other = order(&table, &["192.0.2.9:443"], won);
    assert_eq!(other, ["10.1.0.2 192.0.2.9:443", "10.0.0.2 192.0.2.9:443"]);
}

#[test]
fn backups_come_last_and_a_pinned_server_is_the_only_one() {
    let table = table(&[("if0,backup", &["10.0.0.2"]), ("if1=198.51.100.7:99", &["10.1.0.2"])]);
    let expected = ["10.1.0.2 198.51.100.7:99", "10.0.0.2 192.0.2.1:80"];
    assert_eq!(order(&table, &["192.0.2.1:80"], None), expected);
}

#[test]
fn a_network_with_only_ipv6_reaches_an_ipv4_server_below_its_prefix() {
    let mut table = table(&[("if0", &["10.0.0.2"]), ("if1", &["fd01::2"]), ("if2", &["fd02::2"])]);
    table.prefixes.insert(1, Prefix64::WELL_KNOWN);
    let expected = ["10.0.0.2 192.0.2.1:80", "fd01::2 [64:ff9b::c000:201]:80"];
    assert_eq!(order(&table, &["192.0.2.1:80"], None), expected);
    // The DNS64 address of this server is not a second server, and is useless in other networks.
    let both = ["[64:ff9b::192.0.2.1]:80", "192.0.2.1:80"];
    assert_eq!(order(&table, &both, None), expected);
    assert_eq!(order(&table, &both[..1], None), expected);
    let asked: Vec<u32> = table.nat64_lookup_ends().iter().map(|end| end.interface.1).collect();
    assert_eq!(asked, [1, 2], "also a known prefix, because its answer may expire");
}

#[test]
fn a_configured_prefix_outranks_the_network_and_ipv4_both() {
    let given = "if0,nat64=2001:db8:64::/96";
    let mut table = table(&[(given, &["fd00::2"]), ("if1", &["10.1.0.2", "fd01::2"])]);
    for interface in [0, 1] {
        table.prefixes.insert(interface, Prefix64::WELL_KNOWN);
    }
    let expected = ["fd00::2 [2001:db8:64::c000:201]:80", "10.1.0.2 192.0.2.1:80"];
    assert_eq!(order(&table, &["192.0.2.1:80"], None), expected);
    assert!(table.nat64_lookup_ends().is_empty(), "no prefix needs discovery");
}

#[test]
fn addresses_of_an_interface_share_a_line_unless_configured_separately() {
    let link = |spec: &str| Entry::new(spec.parse().unwrap()).link(&end("10.0.0.2", 7));
    assert_eq!(link("if7"), 7);
    assert_eq!(link("10.0.0.2"), 0);
    assert_eq!(link("if7=192.0.2.1:7777"), 0);
}

#[test]
fn a_connection_learns_of_the_servers_other_family() {
    let table = table(&[("if0", &["10.0.0.2", "fd00::2"])]);
    let servers = ["[fd09::1]:80", "[fd09::2]:80", "192.0.2.1:80", "192.0.2.2:80"];
    let servers = servers.map(|server| server.parse::<SocketAddr>().unwrap());
    assert_eq!(table.other_family_server(&servers, servers[1]), Some(servers[2]));
    assert_eq!(table.other_family_server(&servers, servers[3]), Some(servers[0]));
    assert_eq!(table.other_family_server(&servers[..2], servers[1]), None);
}

/// Returns the entry of a path whose address is on this interface of a machine with or without a battery.
fn entry_on(spec: &str, interface: &str, battery: bool) -> Entry {
    let mut entry = Entry::new(spec.parse().unwrap());
    let mut end = end("10.0.0.2", 7);
    end.interface.0 = interface.to_owned();
    entry.set_ends_on(vec![end], || battery);
    entry
}

#[test]
fn a_modem_beside_a_battery_may_sleep_unless_its_radio_is_configured() {
    let sleeps = |spec: &str, interface: &str, battery: bool| {
        let entry = entry_on(spec, interface, battery);
        assert_eq!(entry.is_reserve(), entry.cost().tail_ms > 0);
        entry.is_reserve()
    };
    assert!(sleeps("wwan0", "wwan0", true) && sleeps("usb0,radio=lte", "usb0", false));
    assert!(!sleeps("wwan0", "wwan0", false) && !sleeps("wlan0", "wlan0", true));
    assert!(!sleeps("wwan0,radio=wifi", "wwan0", true));
}

#[test]
fn mobile_data_is_limited_unless_the_user_or_a_configured_radio_says_otherwise() {
    let limited = |spec: &str, interface: &str, reported: bool| {
        let mut entry = entry_on(spec, interface, false);
        entry.reported_limited = reported;
        entry.cost().limited
    };
    assert!(limited("wwan0", "wwan0", false) && limited("10.0.0.2", "rmnet0", false));
    assert!(limited("wlan0", "wlan0", true), "a phone's hotspot");
    assert!(limited("usb0,limited", "usb0", false) && limited("usb0,radio=lte", "usb0", false));
    assert!(!limited("wlan0", "wlan0", false) && !limited("wwan0,radio=wifi", "wwan0", false));
    for reported in [false, true] {
        assert!(!limited("wwan0,unmetered", "wwan0", reported));
    }
}
