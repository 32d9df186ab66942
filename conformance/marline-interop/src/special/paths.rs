//! Special cases for addresses that are announced, joined, refused and removed (RFC 8684, 3.2, 3.4).

use std::net::SocketAddr;

use marline_lab::scenario::EndpointFlag::{Fullmesh, Signal, Subflow};
use marline_lab::scenario::{Endpoint, Scenario, Side};

use super::{
    Act, Direction, LONG, LTE, SpecialCase, WIFI, announced_address, at, case, dual_stack,
    endpoint, ipv4_address, ipv6_address,
};
use crate::cell_setup::OTHER_PORT;
use crate::peer::Stack::{Kernel, Marline};
use crate::peer::{AnnouncedAddress, Extra};

pub(super) fn cases() -> Vec<SpecialCase> {
    [
        announcing_kernel(),
        announcing_marline(),
        distant_announcement_cases(),
        refusal_cases(),
        removal_cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn with_server_endpoint(endpoint: Endpoint) -> Scenario {
    let mut scenario = dual_stack();
    scenario.server.mptcp.endpoints.push(endpoint);
    scenario
}

fn with_client_endpoint(endpoint: Endpoint) -> Scenario {
    let mut scenario = dual_stack();
    scenario.client.mptcp.endpoints.push(endpoint);
    scenario
}

/// A kernel server announces an address, and our client echoes it and joins.
fn announcing_kernel() -> Vec<SpecialCase> {
    let port = |mut endpoint: Endpoint| {
        endpoint.port = Some(OTHER_PORT);
        endpoint
    };
    let lte = endpoint(ipv4_address(1, 1), LTE, &[Signal]);
    let lte6 = endpoint(ipv6_address(1, 1), LTE, &[Signal]);
    vec![
        SpecialCase {
            scenario: with_server_endpoint(lte.clone()),
            ..case("mk-signal-v4", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "AddAddrTx", 1);
                found.require_at_least(Side::Server, "EchoAdd", 1);
                // From LTE to the first address, and from each path to the second.
                found.require_at_least(Side::Server, "MPJoinAckRx", 3);
                found.require_captured("HMACs of ADD_ADDR", 1);
            })
        },
        SpecialCase {
            scenario: with_server_endpoint(lte6.clone()),
            to: at(ipv6_address(0, 1)),
            ..case("mk-signal-v6", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "EchoAdd", 1);
                found.require_at_least(Side::Server, "MPJoinAckRx", 3);
                found.require_captured("HMACs of ADD_ADDR", 1);
            })
        },
        SpecialCase {
            scenario: with_server_endpoint(port(lte.clone())),
            ..case("mk-signal-v4-port", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "EchoAdd", 1);
                found.require_at_least(Side::Server, "MPJoinPortAckRx", 1);
            })
        },
        SpecialCase {
            scenario: with_server_endpoint(port(lte6)),
            to: at(ipv6_address(0, 1)),
            ..case("mk-signal-v6-port", Marline, Kernel, |found| {
                // Address, port and HMAC do not fit together with timestamps, so this kernel never sends them.
                if found.counter(Side::Server, "AddAddrTx") > 0 {
                    found.require_at_least(Side::Server, "EchoAdd", 1);
                    found.require_at_least(Side::Server, "MPJoinPortAckRx", 1);
                }
            })
        },
        // Connected over IPv6, joined over IPv4, which the kernel supports only with IPv6 sockets. LTE has only IPv4.
        // WiFi has both families, but already has its subflow.
        SpecialCase {
            scenario: {
                let mut scenario = with_server_endpoint(lte);
                scenario.paths[1].client.retain(|net| net.addr().is_ipv4());
                scenario
            },
            to: at(ipv6_address(0, 1)),
            ..case("mk-mixed", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "EchoAdd", 1);
                found.require_at_least(Side::Server, "MPJoinAckRx", 1);
                found.carried(LTE, 0..1, Direction::Down, true);
            })
        },
    ]
}

fn announcement(address: SocketAddr) -> Extra {
    Extra { announced: vec![announced_address(address)], ..Extra::default() }
}

/// Our server announces an address, and a kernel client echoes it and joins.
fn announcing_marline() -> Vec<SpecialCase> {
    let mut other = at(ipv4_address(1, 1));
    other.set_port(OTHER_PORT);
    let mut other6 = at(ipv6_address(1, 1));
    other6.set_port(OTHER_PORT);
    vec![
        SpecialCase {
            extra: announcement(at(ipv4_address(1, 1))),
            scenario: with_client_endpoint(endpoint(ipv4_address(1, 2), LTE, &[Subflow])),
            ..case("km-signal-v4", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "AddAddr", 1);
                found.require_at_least(Side::Client, "EchoAddTx", 1);
                found.require_at_least(Side::Client, "MPJoinSynAckRx", 2);
                found.require_captured("ADD_ADDR echoes", 1);
                found.require_captured("HMACs of ADD_ADDR", 1);
            })
        },
        SpecialCase {
            extra: announcement(at(ipv6_address(1, 1))),
            scenario: with_client_endpoint(endpoint(ipv6_address(1, 2), LTE, &[Subflow])),
            to: at(ipv6_address(0, 1)),
            ..case("km-signal-v6", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "AddAddr", 1);
                found.require_at_least(Side::Client, "EchoAddTx", 1);
                found.require_at_least(Side::Client, "MPJoinSynAckRx", 2);
            })
        },
        SpecialCase {
            extra: announcement(other),
            ..case("km-signal-v4-port", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "PortAdd", 1);
                found.require_at_least(Side::Client, "MPJoinSynAckRx", 1);
            })
        },
        // With port and HMAC, there is no room for timestamps.
        SpecialCase {
            extra: announcement(other6),
            to: at(ipv6_address(0, 1)),
            ..case("km-signal-v6-port", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "PortAdd", 1);
                found.require_at_least(Side::Client, "EchoAddTx", 1);
                found.require_at_least(Side::Client, "MPJoinSynAckRx", 1);
            })
        },
    ]
}

/// Announcements with other families, full mesh and NAT.
fn distant_announcement_cases() -> Vec<SpecialCase> {
    vec![
        SpecialCase {
            extra: announcement(at(ipv4_address(1, 1))),
            to: at(ipv6_address(0, 1)),
            ..case("km-mixed", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "AddAddr", 1);
                found.require_at_least(Side::Client, "MPJoinSynAckRx", 1);
                found.carried(LTE, 0..1, Direction::Down, true);
            })
        },
        SpecialCase {
            extra: announcement(at(ipv4_address(1, 1))),
            scenario: {
                let mut scenario =
                    with_client_endpoint(endpoint(ipv4_address(0, 2), WIFI, &[Fullmesh]));
                let lte = endpoint(ipv4_address(1, 2), LTE, &[Subflow, Fullmesh]);
                scenario.client.mptcp.endpoints.push(lte);
                scenario.client.mptcp.endpoints[0].flags.push(Subflow);
                scenario
            },
            ..case("km-fullmesh", Kernel, Marline, |found| {
                // All four pairs except the first.
                found.require_at_least(Side::Client, "MPJoinSynAckRx", 3);
            })
        },
        // Behind a NAT: the announced address does not belong to the server.
        SpecialCase {
            extra: Extra {
                announced: vec![AnnouncedAddress {
                    address: at(ipv4_address(1, 1)),
                    advertised: Some(at(ipv4_address(1, 9))),
                    backup: false,
                }],
                ..Extra::default()
            },
            before: vec![
                Act::Run(Side::Server, "nft add table ip t"),
                Act::Run(
                    Side::Server,
                    "nft add chain ip t in { type nat hook prerouting priority -100 ; }",
                ),
                Act::Run(Side::Server, "nft add rule ip t in ip daddr 10.0.2.9 dnat to 10.0.2.1"),
            ],
            ..case("km-advertised", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "AddAddr", 1);
                found.require_at_least(Side::Client, "MPJoinSynAckRx", 1);
                found.carried(LTE, 0..1, Direction::Down, true);
            })
        },
    ]
}

/// Joins that are refused for all addresses, or for the first one.
fn refusal_cases() -> Vec<SpecialCase> {
    let flag_c = |mut scenario: Scenario| {
        let key = "net.mptcp.allow_join_initial_addr_port".to_owned();
        scenario.server.sysctl.insert(key, "0".to_owned());
        scenario
    };
    vec![
        SpecialCase {
            scenario: flag_c(with_server_endpoint(endpoint(ipv4_address(1, 1), LTE, &[Signal]))),
            ..case("mk-flag-c", Marline, Kernel, |found| {
                // From each path to the second address, but not from LTE to the first.
                found.require_exactly(Side::Server, "MPJoinSynRx", 2);
                found.require_at_least(Side::Server, "MPJoinAckRx", 2);
            })
        },
        SpecialCase {
            scenario: with_client_endpoint(endpoint(ipv4_address(1, 2), LTE, &[Subflow])),
            extra: Extra {
                announced: vec![announced_address(at(ipv4_address(1, 1)))],
                deny_join_id0: true,
                ..Extra::default()
            },
            ..case("km-flag-c", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "AddAddr", 1);
                found.require_exactly(Side::Client, "MPJoinSynTx", 1);
                found.require_at_least(Side::Client, "MPJoinSynAckRx", 1);
            })
        },
        SpecialCase {
            before: vec![Act::Run(Side::Server, "ip mptcp limits set subflows 0")],
            ..case("mk-refused", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "MPJoinSynRx", 1);
                found.require_exactly(Side::Server, "MPJoinAckRx", 0);
                found.carried(LTE, 0..1, Direction::Down, false);
            })
        },
        SpecialCase {
            scenario: with_client_endpoint(endpoint(ipv4_address(1, 2), LTE, &[Subflow])),
            extra: Extra { subflows: Some(1), ..Extra::default() },
            ..case("km-refused", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "MPJoinSynTx", 1);
                found.require_exactly(Side::Client, "MPJoinSynAckRx", 0);
            })
        },
    ]
}

/// Removed addresses.
fn removal_cases() -> Vec<SpecialCase> {
    let named = |mut endpoint: Endpoint| {
        endpoint.id = Some(5);
        endpoint
    };
    vec![
        SpecialCase {
            scenario: with_client_endpoint(named(endpoint(ipv4_address(1, 2), LTE, &[Subflow]))),
            bytes: LONG,
            acts: vec![
                (1_500, Act::RecordCounters),
                (1_500, Act::Run(Side::Client, "ip mptcp endpoint delete id 5")),
                (2_000, Act::RecordCounters),
            ],
            ..case("km-removed", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "RmAddrTx", 1);
                found.require_captured("REMOVE_ADDR", 1);
                found.carried(LTE, 0..1, Direction::Down, true);
                found.carried(LTE, 2..3, Direction::Down, false);
            })
        },
        SpecialCase {
            scenario: with_server_endpoint(named(endpoint(ipv4_address(1, 1), LTE, &[Signal]))),
            bytes: LONG,
            acts: vec![
                (1_500, Act::RecordCounters),
                (1_500, Act::Run(Side::Server, "ip mptcp endpoint delete id 5")),
            ],
            ..case("mk-server-removed", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "RmAddrTx", 1);
                found.require_at_least(Side::Server, "EchoAdd", 1);
            })
        },
        SpecialCase {
            bytes: LONG,
            acts: vec![
                (1_500, Act::RecordCounters),
                (1_500, Act::Run(Side::Client, "ip address del 10.0.2.2/24 dev lte")),
                (2_200, Act::RecordCounters),
            ],
            ..case("mk-address-lost", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "RmAddr", 1);
                found.carried(LTE, 0..1, Direction::Down, true);
                found.carried(LTE, 2..3, Direction::Down, false);
            })
        },
        SpecialCase {
            bytes: LONG,
            extra: Extra {
                changes: vec![(1_500, LTE.to_owned(), "down".to_owned())],
                ..Extra::default()
            },
            acts: vec![(1_400, Act::RecordCounters), (2_300, Act::RecordCounters)],
            ..case("mk-removed", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "RmAddr", 1);
                found.carried(LTE, 0..1, Direction::Down, true);
                found.carried(LTE, 2..3, Direction::Down, false);
            })
        },
    ]
}
