//! Special cases for joins beyond the subflow limit, and for joins after a subflow was closed (RFC 8684, 3.2).

use marline_lab::scenario::EndpointFlag::Subflow;
use marline_lab::scenario::{Path, Scenario, Side};

use super::{
    Act, CaseResults, Direction, LINKS, LONG, LTE, SpecialCase, WIFI, case, dual_stack, endpoint,
    ipv4_address,
};
use crate::cell_setup::ipnet;
use crate::peer::Extra;
use crate::peer::Stack::{Kernel, Marline};

/// A third path.
const THIRD_PATH: &str = "lte2";

fn scenario_with_three_paths() -> Scenario {
    let mut scenario = dual_stack();
    scenario.paths.push(Path {
        name: THIRD_PATH.to_owned(),
        link: LINKS[1].to_owned(),
        client: vec![ipnet(ipv4_address(2, 2), 24)],
        server: vec![ipnet(ipv4_address(2, 1), 24)],
        mtu: None,
        family: None,
        price: None,
    });
    scenario
}

/// Requires that only the first path to join carried data, and that the third path joined after both were closed.
fn check_third_path_joined(found: &mut CaseResults<'_>) {
    let used = [LTE, THIRD_PATH].map(|path| found.between(path, 0, 1).1 > 60_000);
    if used[0] == used[1] {
        found.problems.push(format!(
            "expected one of the two additional paths to carry data; usage was {used:?}"
        ));
    }
    found.carried(THIRD_PATH, 2..3, Direction::Down, true);
    found.carried(LTE, 2..3, Direction::Down, false);
}

pub(super) fn cases() -> Vec<SpecialCase> {
    let change = |after_ms, path: &str, word: &str| (after_ms, path.to_owned(), word.to_owned());
    let mut both = scenario_with_three_paths();
    for (number, path) in [(1, LTE), (2, THIRD_PATH)] {
        let mut endpoint = endpoint(ipv4_address(number, 2), path, &[Subflow]);
        endpoint.id = Some(number as u8 + 4);
        both.client.mptcp.endpoints.push(endpoint);
    }
    vec![
        SpecialCase {
            scenario: scenario_with_three_paths(),
            paths: vec![WIFI, LTE, THIRD_PATH],
            bytes: LONG,
            before: vec![Act::Run(Side::Server, "ip mptcp limits set subflows 1")],
            extra: Extra {
                changes: vec![
                    change(1_000, LTE, "down"),
                    change(1_000, THIRD_PATH, "down"),
                    change(1_600, THIRD_PATH, "up"),
                ],
                ..Extra::default()
            },
            acts: vec![(1_000, Act::RecordCounters), (1_800, Act::RecordCounters)],
            ..case("mk-room-again", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "MPJoinSynRx", 3);
                found.require_exactly(Side::Server, "MPJoinAckRx", 2);
                check_third_path_joined(found);
            })
        },
        SpecialCase {
            scenario: both,
            bytes: LONG,
            extra: Extra { subflows: Some(2), ..Extra::default() },
            acts: vec![
                (1_000, Act::RecordCounters),
                (1_000, Act::Run(Side::Client, "ip mptcp endpoint delete id 5")),
                (1_000, Act::Run(Side::Client, "ip mptcp endpoint delete id 6")),
                (
                    1_600,
                    Act::Run(Side::Client, "ip mptcp endpoint add 10.0.3.2 dev lte2 id 6 subflow"),
                ),
                (1_800, Act::RecordCounters),
            ],
            ..case("km-room-again", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "MPJoinSynTx", 3);
                found.require_exactly(Side::Client, "MPJoinSynAckRx", 2);
                check_third_path_joined(found);
            })
        },
    ]
}
