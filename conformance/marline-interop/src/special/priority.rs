//! Special cases for backups, and for MP_PRIO in both directions (RFC 8684, 3.3.8).

use marline_lab::scenario::EndpointFlag::{Backup, Subflow};
use marline_lab::scenario::{Scenario, Side};

use super::{
    Act, CaseResults, Direction, LONG, LTE, SpecialCase, WIFI, case, dual_stack, endpoint,
    ipv4_address,
};
use crate::peer::Extra;
use crate::peer::Stack::{Kernel, Marline};

fn lte(backup: bool) -> Scenario {
    let flags = if backup { &[Subflow, Backup][..] } else { &[Subflow] };
    let mut scenario = dual_stack();
    let mut endpoint = endpoint(ipv4_address(1, 2), LTE, flags);
    endpoint.id = Some(5);
    scenario.client.mptcp.endpoints.push(endpoint);
    scenario
}

/// Records the counters, cuts WiFi off, and restores it later.
fn cut() -> Vec<(u64, Act)> {
    vec![
        (1_500, Act::RecordCounters),
        (1_500, Act::Path(WIFI, "down")),
        (6_000, Act::Path(WIFI, "up")),
    ]
}

/// Requires that the backup carried no data before the cut, and all data afterwards.
fn require_takeover(found: &mut CaseResults<'_>) {
    for way in [Direction::Up, Direction::Down] {
        found.carried(LTE, 0..1, way, false);
        found.carried(LTE, 1..2, way, true);
    }
}

/// LTE becomes a backup after 1.2 s and primary again after 2.4 s.
fn backup_then_primary() -> Extra {
    let change = |at_ms, word: &str| (at_ms, LTE.to_owned(), word.to_owned());
    let changes = vec![change(1_200, "backup"), change(2_400, "primary")];
    Extra { changes, ..Extra::default() }
}

pub(super) fn cases() -> Vec<SpecialCase> {
    let records = Vec::from([1_300, 2_000, 2_400].map(|at_ms| (at_ms, Act::RecordCounters)));
    vec![
        SpecialCase {
            paths: vec![WIFI, "lte,backup"],
            bytes: LONG,
            acts: cut(),
            ..case("mk-backup", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "MPJoinSynBackupRx", 1);
                require_takeover(found);
            })
        },
        SpecialCase {
            scenario: lte(true),
            bytes: LONG,
            acts: cut(),
            ..case("km-backup", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "MPJoinSynAckRx", 1);
                require_takeover(found);
            })
        },
        SpecialCase {
            paths: vec![WIFI, "lte,backup"],
            bytes: LONG,
            acts: cut(),
            ..case("mm-backup", Marline, Marline, require_takeover)
        },
        // From Marline to the kernel's server: the subflow stops and continues.
        SpecialCase {
            bytes: LONG,
            extra: backup_then_primary(),
            acts: records.clone(),
            ..case("mk-prio", Marline, Kernel, |found| {
                found.require_at_least(Side::Server, "MPPrioRx", 2);
                found.carried(LTE, 0..1, Direction::Down, true);
                found.carried(LTE, 2..3, Direction::Down, false);
                found.carried(LTE, 3..4, Direction::Down, true);
            })
        },
        SpecialCase {
            bytes: LONG,
            extra: backup_then_primary(),
            acts: records,
            ..case("mm-prio", Marline, Marline, |found| {
                found.require_captured("MP_PRIO", 2);
                found.carried(LTE, 2..3, Direction::Down, false);
                found.carried(LTE, 3..4, Direction::Down, true);
            })
        },
        // From the kernel's client to Marline's server.
        SpecialCase {
            scenario: lte(false),
            bytes: LONG,
            acts: vec![
                (1_200, Act::RecordCounters),
                (1_200, Act::Run(Side::Client, "ip mptcp endpoint change id 5 backup")),
                (1_900, Act::RecordCounters),
                (2_500, Act::RecordCounters),
                (2_500, Act::Run(Side::Client, "ip mptcp endpoint change id 5 nobackup")),
            ],
            ..case("km-prio", Kernel, Marline, |found| {
                found.require_at_least(Side::Client, "MPPrioTx", 2);
                found.carried(LTE, 0..1, Direction::Down, true);
                found.carried(LTE, 2..3, Direction::Down, false);
                found.carried(LTE, 3..4, Direction::Down, true);
            })
        },
    ]
}
