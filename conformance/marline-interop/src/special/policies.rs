//! Special cases for the lab's policy sets against a kernel. They affect only the sender, so a standard peer delivers
//! every byte once. The captures show that the policies were active.
//!
//! Copies are mappings that repeat data of another mapping on another subflow. The checker of captures has compared
//! each copy with the original.

use marline_lab::experiment::Variant;
use marline_lab::scenario::{EndpointFlag, Scenario};

use super::{Act, CaseResults, Direction, LTE, SHORT_BYTES, SpecialCase, WIFI, case, dual_stack};
use crate::peer::Extra;
use crate::peer::Stack::{Kernel, Marline};

/// A window that the slow path fills, so that its late data blocks the fast path.
const SMALL_WINDOW: u32 = 128 << 10;
/// Enough loss to also affect the ends of bursts.
const LOSSY: &str = ",loss=1%";

/// The sender's settings for each policy set.
fn system(variant: &Variant) -> Extra {
    Extra { variant: variant.clone(), ..Extra::default() }
}

/// WiFi with a small delay, and a slow LTE with a large delay.
fn unequal_links() -> Scenario {
    let mut scenario = dual_stack();
    scenario.paths[1].link = "rate=5M,delay=100ms,queue=300ms".to_owned();
    scenario
}

fn lossy_scenario() -> Scenario {
    let mut scenario = dual_stack();
    scenario.paths.iter_mut().for_each(|path| path.link.push_str(LOSSY));
    scenario
}

/// The kernel as a client that joins over LTE.
fn with_join(mut scenario: Scenario) -> Scenario {
    let flags = [EndpointFlag::Subflow];
    scenario.client.mptcp.endpoints.push(super::endpoint(super::ipv4_address(1, 2), LTE, &flags));
    scenario
}

fn check_both_paths_used(found: &mut CaseResults<'_>) {
    let way = if found.is_marline_client_case() { Direction::Up } else { Direction::Down };
    found.carried(WIFI, 0..1, way, true);
    found.carried(LTE, 0..1, way, true);
}

/// Requires at least this many copies on two paths.
fn check_repeated(found: &mut CaseResults<'_>, least: u64) {
    check_both_paths_used(found);
    require_copies(found, least);
}

/// Requires at least this many copies from Marline, excluding those from the kernel.
fn require_copies(found: &mut CaseResults<'_>, least: u64) {
    let ours = found.is_marline_client_case();
    found.require_captured(
        if ours { "copies from the client" } else { "copies from the server" },
        least,
    );
}

pub(super) fn cases() -> Vec<SpecialCase> {
    let variant = |scheduler: &str| Variant::new("system").scheduler(scheduler);
    let orp = variant("lowest-rtt+orp,retransmit=paper,penalize=paper");
    let tlp = variant("lowest-rtt+tlp-mp");
    let tlp_std = variant("lowest-rtt+tlp-std");
    let redundant = variant("redundant");
    let papd = variant("papd").congestion("bbr");
    let cut = || vec![(900, Act::Path(WIFI, "down")), (3_000, Act::Path(WIFI, "up"))];
    let mut cases = Vec::new();
    for (client, server, role) in [(Marline, Kernel, "mk"), (Kernel, Marline, "km")] {
        let setup = |scenario: Scenario| match client {
            Kernel => with_join(scenario),
            _ => scenario,
        };
        let one = |name: &'static str, variant: &Variant, scenario: Scenario| SpecialCase {
            extra: system(variant),
            scenario: setup(scenario),
            ..case(name, client, server, |found| check_repeated(found, 1))
        };
        let name = |mk: &'static str, km: &'static str| if role == "mk" { mk } else { km };
        cases.extend([
            SpecialCase {
                receive_buffer: Some(SMALL_WINDOW),
                // Penalized, so the slow path carries almost nothing.
                check: |found| require_copies(found, 1),
                ..one(name("mk-policy-orp", "km-policy-orp"), &orp, unequal_links())
            },
            SpecialCase {
                acts: cut(),
                ..one(name("mk-policy-tlp-mp", "km-policy-tlp-mp"), &tlp, lossy_scenario())
            },
            SpecialCase {
                acts: cut(),
                ..one(name("mk-policy-tlp-std", "km-policy-tlp-std"), &tlp_std, lossy_scenario())
            },
            SpecialCase {
                check: |found| check_repeated(found, 300),
                ..one(name("mk-policy-redundant", "km-policy-redundant"), &redundant, dual_stack())
            },
            SpecialCase {
                check: |found| check_repeated(found, 20),
                bytes: 2 * SHORT_BYTES,
                ..one(name("mk-policy-papd", "km-policy-papd"), &papd, dual_stack())
            },
        ]);
    }
    cases
}
