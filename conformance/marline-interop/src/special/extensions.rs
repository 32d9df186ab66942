//! Special cases for Marline's extensions beyond RFC 8684, with a kernel that does not support them, and between
//! Marline peers: the first path fails, and the client switches to the one that was idle.

use marline_lab::scenario::Side;

use super::{Act, CaseResults, Direction, LONG, LTE, SpecialCase, WIFI, case};
use crate::peer::Extra;
use crate::peer::Stack::{self, Kernel, Marline};

fn path_death_case(
    name: &'static str,
    client: Stack,
    server: Stack,
    check: fn(&mut CaseResults<'_>),
) -> SpecialCase {
    SpecialCase {
        paths: vec![WIFI, "lte,backup"],
        extra: Extra { interactive: true, ..Extra::default() },
        bytes: LONG / 4,
        acts: vec![(900, Act::RecordCounters), (1_000, Act::Path(WIFI, "down"))],
        ..case(name, client, server, check)
    }
}

/// Requires that WiFi carried all data, and then LTE.
fn check_switch_to_lte(found: &mut CaseResults<'_>) {
    for way in [Direction::Up, Direction::Down] {
        found.carried(WIFI, 0..1, way, true);
        found.carried(LTE, 0..1, way, false);
        found.carried(LTE, 1..2, way, true);
    }
    // HELLO, and further options if the peer answers.
    found.require_captured("MP_EXPERIMENTAL", 1);
}

pub(super) fn cases() -> Vec<SpecialCase> {
    vec![
        path_death_case("mk-interactive", Marline, Kernel, |found| {
            check_switch_to_lte(found);
            found.require_at_least(Side::Server, "MPJoinAckRx", 1);
        }),
        path_death_case("mm-interactive", Marline, Marline, |found| {
            check_switch_to_lte(found);
            found.require_captured("HMACs of Fast JOINs", 2);
        }),
    ]
}
