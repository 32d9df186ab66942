//! Special cases for peers and paths without Multipath TCP: plain TCP, and every byte delivered (RFC 8684, 3.7).

use marline_lab::scenario::EndpointFlag::Subflow;
use marline_lab::scenario::Side;

use super::{
    Act, CaseResults, Direction, LTE, SpecialCase, WIFI, case, dual_stack, endpoint, ipv4_address,
};
use crate::peer::Stack::{self, Kernel, Marline, Tcp};

/// Counters of the kernel for fallbacks to plain TCP.
const FALLBACKS: &[&str] = &[
    "MPCapableFallbackACK",
    "MPCapableFallbackSYNACK",
    "MPFallbackTokenInit",
    "MPCapableDataFallback",
    "DssFallback",
];

fn plain_tcp_case(
    name: &'static str,
    client: Stack,
    server: Stack,
    box_on_the_way: Option<&'static str>,
    check: fn(&mut CaseResults<'_>),
) -> SpecialCase {
    SpecialCase {
        before: box_on_the_way.map(|order| Act::Path(WIFI, order)).into_iter().collect(),
        expected: FALLBACKS,
        plain: true,
        ..case(name, client, server, check)
    }
}

fn client_fell_back(found: &mut CaseResults<'_>) {
    found.require_fallback(Side::Client, true);
    found.carried(LTE, 0..1, Direction::Down, false);
}

fn server_fell_back(found: &mut CaseResults<'_>) {
    found.require_fallback(Side::Server, true);
    found.carried(LTE, 0..1, Direction::Down, false);
}

fn require_fallback_of_both(found: &mut CaseResults<'_>) {
    client_fell_back(found);
    server_fell_back(found);
}

/// A gateway on the second path changes the payload and repairs TCP's checksum, so that only the mapping's checksum
/// detects it. The subflow ends, the connection continues, and no wrong byte is delivered.
fn rewritten(
    name: &'static str,
    client: Stack,
    server: Stack,
    order: &'static str,
    check: fn(&mut CaseResults<'_>),
) -> SpecialCase {
    let mut scenario = dual_stack();
    scenario.client.mptcp.endpoints.push(endpoint(ipv4_address(1, 2), LTE, &[Subflow]));
    scenario.client.mptcp.checksum = true;
    scenario.server.mptcp.checksum = true;
    SpecialCase {
        scenario,
        before: vec![Act::Path(LTE, order)],
        expected: &["DataCsumErr", "MPFailTx", "MPFailRx", "DSSCorruptionReset"],
        checksum: true,
        tampered: true,
        ..case(name, client, server, check)
    }
}

fn check_only_wifi_used(found: &mut CaseResults<'_>) {
    found.require_captured("MP_FAIL", 1);
    found.carried(WIFI, 0..1, Direction::Up, true);
    found.carried(WIFI, 0..1, Direction::Down, true);
}

pub(super) fn cases() -> Vec<SpecialCase> {
    let (syn, synack, rest) =
        ("set strip=mptcp:syn", "set strip=mptcp:synack", "set strip=mptcp:rest");
    let mut cases = vec![
        plain_tcp_case("mk-plain-server", Marline, Tcp, None, client_fell_back),
        plain_tcp_case("km-plain-client", Tcp, Marline, None, server_fell_back),
        SpecialCase {
            before: vec![Act::Run(Side::Server, "sysctl -q -w net.mptcp.enabled=0")],
            ..plain_tcp_case("mk-disabled", Marline, Tcp, None, client_fell_back)
        },
        plain_tcp_case("mk-strip-syn", Marline, Kernel, Some(syn), client_fell_back),
        plain_tcp_case("mk-strip-synack", Marline, Kernel, Some(synack), client_fell_back),
        plain_tcp_case("mk-strip-data", Marline, Kernel, Some(rest), client_fell_back),
        plain_tcp_case("km-strip-syn", Kernel, Marline, Some(syn), server_fell_back),
        plain_tcp_case("km-strip-synack", Kernel, Marline, Some(synack), server_fell_back),
        plain_tcp_case("km-strip-data", Kernel, Marline, Some(rest), server_fell_back),
        plain_tcp_case("mm-strip-syn", Marline, Marline, Some(syn), require_fallback_of_both),
        plain_tcp_case("mm-strip-synack", Marline, Marline, Some(synack), require_fallback_of_both),
        plain_tcp_case("mm-strip-data", Marline, Marline, Some(rest), require_fallback_of_both),
    ];
    cases.extend([
        rewritten("mk-rewrite-down", Marline, Kernel, "set down.rewrite=100%", |found| {
            found.require_at_least(Side::Server, "MPFailRx", 1);
            check_only_wifi_used(found);
        }),
        rewritten("mk-rewrite-up", Marline, Kernel, "set up.rewrite=100%", |found| {
            found.require_at_least(Side::Server, "DataCsumErr", 1);
            check_only_wifi_used(found);
        }),
        rewritten("km-rewrite-down", Kernel, Marline, "set down.rewrite=100%", |found| {
            found.require_at_least(Side::Client, "DataCsumErr", 1);
            check_only_wifi_used(found);
        }),
        rewritten("km-rewrite-up", Kernel, Marline, "set up.rewrite=100%", |found| {
            found.require_at_least(Side::Client, "MPFailRx", 1);
            check_only_wifi_used(found);
        }),
    ]);
    cases.extend(one_direction());
    // A path with a middlebox that blocks joins is not used, and the connection is not affected.
    cases.extend([("mk-strip-join", Kernel), ("mm-strip-join", Marline)].map(|(name, server)| {
        SpecialCase {
            before: vec![Act::Path(LTE, "set strip=mptcp")],
            ..case(name, Marline, server, |found| {
                found.carried(LTE, 0..1, Direction::Down, false);
            })
        }
    }));
    cases
}

/// Middleboxes that remove the options in one direction only.
fn one_direction() -> Vec<SpecialCase> {
    let (up, down) = ("set up.strip=mptcp:rest", "set down.strip=mptcp:rest");
    vec![
        plain_tcp_case("mk-strip-data-up", Marline, Kernel, Some(up), client_fell_back),
        plain_tcp_case("km-strip-data-up", Kernel, Marline, Some(up), server_fell_back),
        plain_tcp_case("km-strip-data-down", Kernel, Marline, Some(down), server_fell_back),
    ]
}
