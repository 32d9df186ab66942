use marline_io::{DeliveryError, DeliveryErrorKind, LocalEnd, UnansweredPackets};

use super::super::PathRestriction;
use super::*;

const LOCAL: [&str; 2] = ["192.168.1.2", "fd00::2"];
const V4: &str = "9.9.9.1:7777";
const V6: &str = "[fd09::1]:7777";

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

/// Table with one path that has these addresses.
fn table(addresses: &[&str]) -> PathTable {
    let mut table = PathTable::new(&["wlan0".parse().unwrap()]);
    table.entries[0].ends = addresses
        .iter()
        .map(|address| LocalEnd {
            address: address.parse().unwrap(),
            bound: address.parse().unwrap(),
            interface: ("wlan0".to_owned(), 3),
            loopback: false,
            behind_tun: false,
            mark: 0,
        })
        .collect();
    table
}

fn contact(local: &str, remote: &str) -> Contact {
    let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
    Contact { local, remote, question: None, heard_at: None, delivery_error: None }
}

fn asked(since_ms: u64, tries: u32) -> Contact {
    let since = at(since_ms);
    let question = Some(UnansweredPackets { since, last_at: since, tries });
    Contact { question, ..contact(LOCAL[0], V4) }
}

fn refused(since_ms: u64) -> Contact {
    let (since, kind) = (at(since_ms), DeliveryErrorKind::PortClosed);
    let by = Some(V4.parse::<SocketAddr>().unwrap().ip());
    let delivery_error = Some(DeliveryError { since, last_at: since, by, kind });
    Contact { delivery_error, ..asked(since_ms, 1) }
}

fn heard(at_ms: u64) -> Contact {
    Contact { heard_at: Some(at(at_ms)), ..contact(LOCAL[0], V4) }
}

/// Evidence one minute after the start.
struct World<'a> {
    contacts: &'a [Contact],
    servers: &'a [&'a str],
    rejection: Option<&'a str>,
    impaired: bool,
    tcp: (bool, Option<&'a str>),
}

const QUIET: World<'_> =
    World { contacts: &[], servers: &[], rejection: None, impaired: false, tcp: (false, None) };

/// Health of the only path, in words.
fn health_text(table: &PathTable, world: &World<'_>) -> String {
    let servers: Vec<SocketAddr> = world.servers.iter().map(|s| s.parse().unwrap()).collect();
    let impaired = [FlowEnds { local: LOCAL[0].parse().unwrap(), remote: V4.parse().unwrap() }];
    let tcp = |_, _| (world.tcp.0, world.tcp.1.map(str::to_owned));
    let status = table.status(&Evidence {
        now: at(60_000),
        contacts: world.contacts,
        transport: "UDP",
        servers: &servers,
        rejection: world.rejection,
        impaired: if world.impaired { &impaired } else { &[] },
        rates: &[],
        tcp: &tcp,
    });
    let cause = status[0].cause.as_deref().map(|cause| format!(": {cause}"));
    format!("{}{}", status[0].health, cause.unwrap_or_default())
}

#[test]
fn a_path_is_usable_on_evidence_only() {
    let both = table(&LOCAL);
    let by =
        |contacts: &[Contact]| health_text(&both, &World { contacts, servers: &[V4], ..QUIET });
    assert_eq!(health_text(&both, &QUIET), "untried: not tried yet");
    assert_eq!(by(&[]), "untried: not tried yet");
    assert_eq!(by(&[asked(59_000, 1)]), "untried: first tried 1 s ago, no answer yet");
    assert_eq!(by(&[heard(59_000)]), "usable");
    let silent = "unreachable: 9.9.9.1:7777: no answer for 10 s (tried 3 times)";
    assert_eq!(by(&[asked(50_000, 3)]), silent);
    let closed = "unreachable: 9.9.9.1:7777: refused by the server: nothing listens on this port";
    assert_eq!(by(&[refused(59_000)]), closed);
    // An idle server is not a failed one.
    let hours = [Contact { heard_at: Some(Instant::ZERO), ..contact(LOCAL[0], V4) }];
    assert_eq!(by(&hours), "usable");
    // The server was killed after it had answered.
    let killed = [Contact { heard_at: Some(at(10_000)), ..refused(59_000) }];
    assert_eq!(by(&killed), closed);
    let with_tcp = World {
        contacts: &[asked(50_000, 3)],
        tcp: (false, Some("no answer over TCP either")),
        ..QUIET
    };
    assert_eq!(health_text(&both, &with_tcp), format!("{silent}; no answer over TCP either"));
}

#[test]
fn a_family_mismatch_is_reported() {
    let (v4, v6, both) = (table(&LOCAL[..1]), table(&LOCAL[1..]), table(&LOCAL));
    let of = |table: &PathTable, servers: &[&str]| health_text(table, &World { servers, ..QUIET });
    assert_eq!(
        of(&v6, &[V4]),
        "unreachable: no IPv6 address of the server (9.9.9.1:7777), and this path has no IPv4 address and no NAT64 \
         prefix"
    );
    assert_eq!(
        of(&v4, &[V6]),
        "unreachable: no IPv4 address of the server ([fd09::1]:7777), and this path has no IPv6 address"
    );
    for table in [&v4, &v6, &both] {
        assert_eq!(of(table, &[V4, V6]), "untried: not tried yet");
    }
    // An address that the server has announced still answers.
    let announced = [Contact { heard_at: Some(at(59_000)), ..contact(LOCAL[1], V6) }];
    let world = World { contacts: &announced, servers: &[V4], ..QUIET };
    assert_eq!(health_text(&v6, &world), "usable");
    let mut translated = v6;
    translated.entries[0].spec.nat64 = Some("64:ff9b::/96".parse().unwrap());
    assert_eq!(of(&translated, &[V4]), "untried: not tried yet");
}

#[test]
fn a_server_that_rejects_the_client_leaves_no_path_usable() {
    let both = table(&LOCAL);
    let reason = "refused by the server: unknown credential";
    let by = |contacts: &[Contact]| {
        let world = World { contacts, servers: &[V4], rejection: Some(reason), ..QUIET };
        health_text(&both, &world)
    };
    assert_eq!(by(&[heard(59_000)]), format!("unreachable: {reason}"));
    assert_eq!(by(&[]), format!("unreachable: {reason}"));
    // The more specific problem comes first.
    assert!(by(&[refused(59_000)]).contains("nothing listens"), "{}", by(&[refused(59_000)]));
}

#[test]
fn degraded_fading_and_missing_paths_report_their_cause() {
    let mut both = table(&LOCAL);
    let heard = [heard(59_000)];
    let world = World { contacts: &heard, impaired: true, ..QUIET };
    assert_eq!(health_text(&both, &world), "degraded: answers are overdue");
    both.entries[0].fading = true;
    assert_eq!(health_text(&both, &world), "degraded: its signal is fading");
    both.entries[0].restriction = PathRestriction::Unusable("its quota is used up".to_owned());
    assert_eq!(health_text(&both, &world), "unreachable: its quota is used up");
    both.entries[0].restriction = PathRestriction::None;
    both.entries[0].is_disabled = true;
    assert_eq!(health_text(&both, &world), "unreachable: disabled by hand");
    both.entries[0].ends.clear();
    both.entries[0].error = Some("the interface is down".to_owned());
    assert_eq!(health_text(&both, &world), "unreachable: the interface is down");
}
