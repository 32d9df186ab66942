//! Mobile worlds: WiFi that comes and goes, with or without notification of the phone, cellular paths that sleep,
//! middleboxes on any path, and MultiMob's parts in all combinations, on both sides or only one.
//!
//! SYNs are rare, so that the usual losses hardly ever affect one. Cellular paths may therefore lose a third of all
//! packets, and duplicate or delay half of them.
//!
//! Allowed errors: a connection on a path where a middlebox removes the mappings, from some time on or from the start.
//! In mid-stream no fallback can be signaled (RFC 8684 section 3.7), and plain TCP ends with its address. Both
//! applications must get the error, and the bytes that they read must be correct.

use core::net::IpAddr;

use marline_algos::Registry;
use marline_core::{Extensions, LoneKeepalive, ReceiveTimer};
use marline_link::radio::{RadioKind, RadioParameters};
use marline_link::{
    Direction, DuplexConfig, MiddleboxConfig, OptionRule, RadioConfig, Rebind, Renumber, Reorder,
    Segments, Split, SplitOptions, TcpOption,
};
use marline_policy::PathHealthConfig;
use marline_sim::{Paths, RandomPlan, UDP_CAPABILITIES};
use marline_time::{Duration, PcgRng, Rng, SeedTree};

use super::plan::{OutageKind, Plan, between, often, random_link};

/// Schedulers of the client.
const CLIENT: [&str; 5] = ["min-rtt", "min-rtt", "lowest-rtt", "round-robin", "redundant"];
/// Schedulers of the server, with or without a request by the client.
const SERVER: [&str; 5] = [
    "min-rtt",
    "follow-client",
    "follow-client,spill=on",
    "follow-client,spill=on,reinject=rto",
    "lowest-rtt",
];
/// Path managers of the client.
const MANAGERS: [&str; 7] = [
    "break-before-make",
    "break-before-make",
    "break-before-make,patience=0ms,probe=20ms,settle=50ms,quiet=100ms",
    "break-before-make,patience=1s,close=off",
    "multimob",
    "full-mesh",
    "backup",
];
const TIMERS: [Option<&str>; 5] = [
    None,
    Some("probing"),
    Some("multimob"),
    Some("probing,after=5ms,wait=5ms,count=1,floor=20ms,refresh=50ms"),
    Some("multimob,floor=20ms,ceiling=300ms,unknown-rto=200ms"),
];
const KEEPALIVES: [Option<&str>; 3] = [None, None, Some("idle=300ms,interval=100ms,count=2")];

const EXPERIMENTAL: TcpOption = TcpOption::Mptcp(0xf);
const JOIN: TcpOption = TcpOption::Mptcp(0x1);
const DSS: TcpOption = TcpOption::Mptcp(0x2);
const ANY_MPTCP: TcpOption = TcpOption::Kind(30);

fn pick<T: Copy>(rng: &mut PcgRng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

fn ms(rng: &mut PcgRng, low: u64, high: u64) -> Duration {
    Duration::from_millis(between(rng, low, high))
}

/// About half of the elements, or all, or none.
fn some_extensions(rng: &mut PcgRng) -> Extensions {
    let all = [
        Extensions::FAST_JOIN,
        Extensions::IDLE,
        Extensions::RTO,
        Extensions::FOLLOW_CLIENT,
        Extensions::REPAIR,
    ];
    let share = pick(rng, &[0.0, 0.5, 0.8, 1.0]);
    let chosen = all.into_iter().filter(|_| rng.chance(share));
    chosen.fold(Extensions::NONE, Extensions::union)
}

impl Plan {
    /// Turns the world of a seed into a mobile one.
    pub(super) fn make_mobile(&mut self, seed: u64) {
        let mut rng = SeedTree::new(seed).stream("mobile");
        if self.paths.links.len() == 1 {
            let link = DuplexConfig { up: random_link(&mut rng), down: random_link(&mut rng) };
            self.paths.links.push(link);
        }
        self.paths.backup = (0..self.paths.links.len()).map(|path| path > 0).collect();
        if rng.chance(0.1) {
            self.paths.backup[0] = true;
        }
        if self.paths.links.len() > 2 && rng.chance(0.5) {
            self.paths.backup[2] = false;
        }
        for outage in &mut self.outages {
            if outage.kind == OutageKind::Told && rng.chance(0.3) {
                outage.kind = OutageKind::Renumbered;
            }
        }
        for path in 1..self.paths.links.len() {
            make_cellular(&mut rng, &mut self.paths.links[path]);
        }
        self.draw_parts(&mut rng);
        // The UDP carrier hides TCP from middleboxes.
        if rng.chance(0.3) {
            self.paths.capabilities = UDP_CAPABILITIES;
            self.paths.carrier_overhead = 17;
        } else if rng.chance(0.4) {
            let path = rng.below(self.paths.links.len() as u64) as usize;
            put_box(&mut rng, &mut self.paths.links[path]);
        }
        // Later connections could not start from an address that another path had.
        self.connections = if rng.chance(0.3) && !self.renumbers_first() { 3 } else { 1 };
        // Two SYNs of a join may be lost, which costs one second and then two more.
        self.grace = Duration::from_secs(3);
        let reserves = self.paths.backup.iter().filter(|backup| **backup).count();
        let one_by_one = [", break-before-make", ", multimob, "];
        if reserves > 1 && one_by_one.iter().any(|manager| self.policies.contains(manager)) {
            // All three SYNs of a join from the first reserve path may be lost before the next path is tried.
            self.grace = Duration::from_secs(8);
        }
        if self.tears() || self.may_be_cut() {
            // Bytes whose mapping was lost are TCP-acknowledged. They are retransmitted two round trips later, and by
            // the data-level timer if the retransmission loses its mapping again.
            self.grace = self.grace.max(Duration::from_secs(10));
        }
        if self.may_be_cut() && self.policies.contains(", multimob, ") {
            // The authors' parameters leave a path only when data waits for another one.
            self.judges_stalls[1] = false;
        }
        if self.rebinds() {
            self.connections = 1;
            // An end that only receives behind a NAT with lost translations receives nothing until it sends.
            self.judges_stalls = [false; 2];
            self.paths.client.keepalive = Some(Duration::from_secs(5));
        }
        // It must last until the first outage.
        self.apps = [0, 1].map(|_| {
            let size = 1 << between(&mut rng, 5, 14);
            RandomPlan {
                write_bytes: size * between(&mut rng, 2, 60),
                write_bytes_max: size,
                write_pause_max: ms(&mut rng, 50, 900),
                ..self.apps[0]
            }
        });
    }

    /// MultiMob's parts, each drawn independently.
    fn draw_parts(&mut self, rng: &mut PcgRng) {
        let registry = Registry::default();
        let (ours, theirs, manager) =
            (pick(rng, &CLIENT), pick(rng, &SERVER), pick(rng, &MANAGERS));
        let set = |scheduler, manager| {
            let set = registry.policy_set(scheduler, manager, "cubic", "rack-tlp");
            set.expect("built-in specs")
        };
        let checksum = rng.chance(0.3);
        let (timer, keepalive) = (pick(rng, &TIMERS), pick(rng, &KEEPALIVES));
        let choices = [None, Some(PathHealthConfig::prompt()), Some(PathHealthConfig::multimob())];
        self.path_health = [pick(rng, &choices), pick(rng, &[choices[0], choices[0], choices[1]])];
        let (client, server) = (&mut self.paths.client, &mut self.paths.server);
        client.policies = set(ours, manager);
        client.dss_checksum = checksum;
        client.receive_timer =
            timer.map(|spec| spec.parse::<ReceiveTimer>().expect("a receive timer"));
        client.lone_keepalive =
            keepalive.map(|spec| spec.parse::<LoneKeepalive>().expect("a keepalive"));
        client.extensions = some_extensions(rng);
        server.policies = set(theirs, "full-mesh");
        server.dss_checksum = checksum && rng.chance(0.5);
        server.allow_extensions = some_extensions(rng);
        if rng.chance(0.7) {
            server.follow_client = registry.scheduler("follow-client").ok();
        }
        let asked = (client.extensions, server.allow_extensions);
        // With repairs only by the retransmission timer, a stall lasts as long as the timer, which does not know the
        // path's round trip if the third ACK was lost.
        let prompt = |spec: &str| !spec.contains("reinject=rto") && !spec.contains("lowest-rtt");
        self.judges_stalls = [prompt(ours), prompt(theirs)];
        self.policies = format!("{ours}, {manager}, {timer:?}, {keepalive:?}, {theirs}, {asked:?}");
    }

    /// Adds a middlebox that loses its translations.
    pub(super) fn rebinds(&self) -> bool {
        self.paths.links.iter().any(|link| link.up.middlebox.rebind.is_some())
    }

    /// Removes the first path's address permanently.
    fn renumbers_first(&self) -> bool {
        self.outages.iter().any(|o| o.path == 0 && o.kind == OutageKind::Renumbered)
    }

    /// Permanently removes this address of the client, or the first path's.
    pub(super) fn renumbers(&self, address: Option<IpAddr>) -> bool {
        let gone = self.outages.iter().filter(|o| o.kind == OutageKind::Renumbered);
        gone.into_iter().any(|o| o.path == 0 || address.is_some_and(|from| is_of(from, o.path)))
    }

    /// Notifies the client that this address, or the first path's, disappears for some time or permanently.
    pub(super) fn loses(&self, address: Option<IpAddr>) -> bool {
        let gone = self.outages.iter().filter(|o| o.kind != OutageKind::Silent);
        gone.into_iter().any(|o| o.path == 0 || address.is_some_and(|from| is_of(from, o.path)))
    }

    /// Adds a middlebox that merges segments and keeps the mapping of one.
    fn tears(&self) -> bool {
        let links = self.paths.links.iter().flat_map(|link| [&link.up, &link.down]);
        links.into_iter().any(|link| link.middlebox.coalesce.is_some())
    }

    /// True if a middlebox may end a connection.
    pub(super) fn may_be_cut(&self) -> bool {
        let links = self.paths.links.iter().flat_map(|link| [&link.up, &link.down]);
        let cuts = |rule: &OptionRule| matches!(rule.option, ANY_MPTCP | DSS);
        links.into_iter().any(|link| link.middlebox.strip.iter().any(cuts))
    }
}

/// A sleeping radio, and more faults than usual.
fn make_cellular(rng: &mut PcgRng, link: &mut DuplexConfig) {
    let radio = |direction| {
        let parameters = RadioParameters::published(RadioKind::Lte);
        Some(RadioConfig { parameters, direction, waits: true })
    };
    if rng.chance(0.7) {
        (link.up.radio, link.down.radio) = (radio(Direction::Up), radio(Direction::Down));
    }
    for config in [&mut link.up, &mut link.down] {
        config.loss.random = config.loss.random.max(often(rng, 0.2, 0.3));
        config.faults.duplicate = config.faults.duplicate.max(often(rng, 0.2, 0.5));
        let probability = often(rng, 0.2, 0.5);
        if probability > 0.0 {
            let extra = ms(rng, 1, 400);
            config.faults.reorder = Some(Reorder { probability, extra });
        }
    }
}

/// Adds a middlebox between the phone and its server.
fn put_box(rng: &mut PcgRng, link: &mut DuplexConfig) {
    let (up, down) = (&mut link.up.middlebox, &mut link.down.middlebox);
    let in_mid_stream = ms(rng, 500, 8_000);
    let from = pick(rng, &[Duration::ZERO, in_mid_stream, in_mid_stream]);
    let rule = |option, segments, from| vec![OptionRule { option, segments, from }];
    let at_once = Duration::ZERO;
    let shaken = pick(rng, &[Segments::Syn, Segments::SynAck]);
    // Directions: options are removed wherever they pass.
    let sides: &mut [&mut MiddleboxConfig] = &mut [up, down];
    match rng.below(12) {
        0 => sides.iter_mut().for_each(|b| b.strip = rule(EXPERIMENTAL, shaken, at_once)),
        1 => sides.iter_mut().for_each(|b| b.mangle = rule(EXPERIMENTAL, shaken, at_once)),
        2 => sides.iter_mut().for_each(|b| b.block = rule(EXPERIMENTAL, shaken, at_once)),
        3 => sides.iter_mut().for_each(|b| b.strip = rule(EXPERIMENTAL, Segments::Rest, from)),
        4 => sides.iter_mut().for_each(|b| b.strip = rule(JOIN, shaken, from)),
        5 => sides.iter_mut().for_each(|b| b.block = rule(JOIN, shaken, from)),
        6 => {
            let option = pick(rng, &[ANY_MPTCP, DSS]);
            let which = rng.below(3) as usize;
            for (side, config) in sides.iter_mut().enumerate() {
                if which != side {
                    config.strip = rule(option, Segments::Rest, from);
                }
            }
        }
        7 | 8 => {
            sides[0].rebind = Some(Rebind { at: in_mid_stream, from_client: true });
            sides[1].rebind = Some(Rebind { at: in_mid_stream, from_client: false });
        }
        9 => {
            let kind = pick(rng, &[Renumber::All, Renumber::NotSack]);
            sides.iter_mut().for_each(|b| b.renumber = Some(kind));
        }
        10 => {
            let options = pick(rng, &[SplitOptions::All, SplitOptions::First]);
            let split = Split { bytes: between(rng, 40, 900) as u16, options };
            sides.iter_mut().for_each(|b| b.split = Some(split));
        }
        _ => {
            let wait = ms(rng, 1, 5);
            let thin = between(rng, 2, 10) as u32;
            for config in sides.iter_mut() {
                config.coalesce = rng.chance(0.5).then_some(wait);
                config.thin = rng.chance(0.5).then_some(thin);
            }
        }
    }
}

/// One of the successive addresses of the client on this path.
pub(super) fn is_of(address: IpAddr, path: usize) -> bool {
    (0..8).any(|number| Paths::address(path, number) == address)
}
