//! Special cases for a server and its announced addresses: backups, MP_PRIO, REMOVE_ADDR, and announcing the same
//! address again (RFC 8684, 3.3.8, 3.4).

use std::net::SocketAddr;

use marline_lab::scenario::EndpointFlag::{self, Backup, Signal};
use marline_lab::scenario::{Scenario, Side};

use super::{
    Act, CaseResults, Direction, LONG, LTE, SpecialCase, WIFI, announced_address, at, case,
    dual_stack, endpoint, ipv4_address, ipv6_address,
};
use crate::cell_setup::OTHER_PORT;
use crate::peer::Extra;
use crate::peer::Stack::{self, Kernel, Marline};

pub(super) fn cases() -> Vec<SpecialCase> {
    [backups(), priorities(), removal_cases(), announcement_cases()].into_iter().flatten().collect()
}

/// The announced address, which all data over LTE uses.
fn lte() -> SocketAddr {
    at(ipv4_address(1, 1))
}

/// A kernel's server that announces the address and refuses joins to the first address, so that LTE is used for
/// nothing else.
fn kernel_server(flags: &[EndpointFlag]) -> Scenario {
    let mut scenario = dual_stack();
    let mut endpoint = endpoint(lte().ip(), LTE, flags);
    endpoint.id = Some(5);
    scenario.server.mptcp.endpoints.push(endpoint);
    let key = "net.mptcp.allow_join_initial_addr_port".to_owned();
    scenario.server.sysctl.insert(key, "0".to_owned());
    scenario
}

/// Marline's server with the same announcement, and changes after these times in ms.
fn our_server(changes: &[(u64, &str)]) -> Extra {
    let change = |(after_ms, word): &(u64, &str)| (*after_ms, lte(), (*word).to_owned());
    Extra {
        announced: vec![announced_address(lte())],
        deny_join_id0: true,
        address_changes: changes.iter().map(change).collect(),
        ..Extra::default()
    }
}

/// Requires that LTE carried no data before WiFi was cut off, and all data afterwards.
fn require_takeover(found: &mut CaseResults<'_>) {
    for way in [Direction::Up, Direction::Down] {
        found.carried(LTE, 0..1, way, false);
        found.carried(LTE, 1..2, way, true);
    }
}

fn backups() -> Vec<SpecialCase> {
    let acts = || {
        vec![
            (1_500, Act::RecordCounters),
            (1_500, Act::Path(WIFI, "down")),
            (6_000, Act::Path(WIFI, "up")),
        ]
    };
    let ours = || {
        let mut extra = our_server(&[]);
        extra.announced[0].backup = true;
        extra
    };
    vec![
        SpecialCase {
            scenario: kernel_server(&[Signal, Backup]),
            bytes: LONG,
            acts: acts(),
            ..case("mk-server-backup", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "MPJoinAckRx", 1);
                require_takeover(found);
            })
        },
        SpecialCase {
            extra: ours(),
            bytes: LONG,
            acts: acts(),
            ..case("km-server-backup", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "MPJoinSynAckBackupRx", 1);
                require_takeover(found);
            })
        },
        SpecialCase {
            extra: ours(),
            bytes: LONG,
            acts: acts(),
            ..case("mm-server-backup", Marline, Marline, require_takeover)
        },
    ]
}

/// Requires that LTE carried data, stopped, and continued, in both directions.
fn check_paused(found: &mut CaseResults<'_>) {
    for way in [Direction::Up, Direction::Down] {
        found.carried(LTE, 0..1, way, true);
        found.carried(LTE, 2..3, way, false);
        found.carried(LTE, 3..4, way, true);
    }
}

/// Records counters before the change, after data in transit has arrived, and before the change back.
fn scheduled_commands() -> Vec<(u64, Act)> {
    vec![(1_200, Act::RecordCounters), (2_000, Act::RecordCounters), (2_500, Act::RecordCounters)]
}

fn priorities() -> Vec<SpecialCase> {
    let ours = |name, client: Stack, check| SpecialCase {
        extra: our_server(&[(1_200, "backup"), (2_700, "primary")]),
        bytes: LONG,
        acts: scheduled_commands(),
        ..case(name, client, Marline, check)
    };
    // WiFi has no route to the announced address.
    let apart = || {
        [
            "nft add table ip t",
            "nft add chain ip t in { type filter hook input priority 0 ; }",
            "nft add rule ip t in iifname wifi ip daddr 10.0.2.1 drop",
        ]
        .map(|rule| Act::Run(Side::Server, rule))
        .to_vec()
    };
    vec![
        SpecialCase {
            scenario: kernel_server(&[Signal]),
            bytes: LONG,
            // The kernel changes one of the subflows to an address, so there must be no other.
            before: apart(),
            acts: vec![
                (1_200, Act::RecordCounters),
                (1_200, Act::Run(Side::Server, "ip mptcp endpoint change id 5 backup")),
                (2_000, Act::RecordCounters),
                (2_500, Act::RecordCounters),
                (2_500, Act::Run(Side::Server, "ip mptcp endpoint change id 5 nobackup")),
            ],
            ..case("mk-server-prio", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "MPPrioTx", 2);
                check_paused(found);
            })
        },
        ours("km-server-prio", Kernel, |found| {
            found.require_at_least(Side::Client, "MPPrioRx", 2);
            check_paused(found);
        }),
        SpecialCase {
            // If our client could not join at the first address, it would switch to the announced one
            // (docs/decisions/upgrades-and-shards.md), and there would be no other subflow for the priority.
            before: apart(),
            ..ours("mm-server-prio", Marline, |found| {
                found.require_captured("MP_PRIO", 2);
                check_paused(found);
            })
        },
    ]
}

fn removal_cases() -> Vec<SpecialCase> {
    let ours = |name, client: Stack, check| SpecialCase {
        extra: our_server(&[(1_200, "down"), (2_700, "up")]),
        bytes: LONG,
        acts: scheduled_commands(),
        ..case(name, client, Marline, check)
    };
    vec![
        ours("km-server-removed", Kernel, |found| {
            found.require_at_least(Side::Client, "RmAddr", 1);
            found.require_at_least(Side::Client, "AddAddr", 2);
            found.require_at_least(Side::Client, "MPJoinSynAckRx", 2);
            check_paused(found);
        }),
        ours("mm-server-removed", Marline, |found| {
            found.require_captured("REMOVE_ADDR", 1);
            check_paused(found);
        }),
        SpecialCase {
            extra: our_server(&[]),
            bytes: LONG,
            acts: vec![
                (1_200, Act::RecordCounters),
                (1_200, Act::Run(Side::Server, "ip address del 10.0.2.1/24 dev lte")),
                (2_000, Act::RecordCounters),
                (2_500, Act::RecordCounters),
                (2_500, Act::Run(Side::Server, "ip address add 10.0.2.1/24 dev lte")),
            ],
            ..case("km-server-address-lost", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "RmAddr", 1);
                found.require_at_least(Side::Client, "AddAddr", 2);
                check_paused(found);
            })
        },
    ]
}

/// The longest announcement, between two Marline peers.
fn announcement_cases() -> Vec<SpecialCase> {
    let mut other = at(ipv6_address(1, 1));
    other.set_port(OTHER_PORT);
    vec![SpecialCase {
        extra: Extra { announced: vec![announced_address(other)], ..Extra::default() },
        to: at(ipv6_address(0, 1)),
        ..case("mm-signal-v6-port", Marline, Marline, |found| {
            found.require_captured("HMACs of ADD_ADDR", 1);
            found.require_captured("ADD_ADDR echoes", 1);
            found.carried(LTE, 0..1, Direction::Down, true);
        })
    }]
}
