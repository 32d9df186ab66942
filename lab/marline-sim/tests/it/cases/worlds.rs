//! Random worlds: all faults of links, paths that appear and disappear, and applications that write, read and close at
//! random. After a while the faults stop, and then every stream must end: first safety, then progress.

mod heard;
mod mobile;
mod plan;

use core::net::IpAddr;

use marline_core::{CloseReason, MonitorEvent, MonitorKind, PathHealthMonitor};
use marline_link::{LinkConfig, MiddleboxConfig};
use marline_sim::{Amount, App, Bulk, Capture, Paths, Report};
use marline_time::{Duration, Instant, SeedTree};

use self::heard::Heard;
use self::mobile::is_of;
use self::plan::{Outage, OutageKind, Plan};
use crate::cases::oracle::{Conservation, Liveness, StreamState, Windows, stream};

/// Faults happen only before this time.
const FAULTS_END: Instant = Instant::from_secs(15);
/// A world that is not finished by this time counts as hanging.
const LIMIT: Instant = Instant::from_secs(300);
/// Time within which a client that has lost its address and cannot join from another one gives up: after two timeouts
/// of its data, or two SYNs of a join with timeouts of one and two seconds.
const GIVES_UP_WITHIN: Duration = Duration::from_millis(3_500);
/// Interval between checks for stalls.
const SAMPLING: Duration = Duration::from_millis(10);

/// Description and outcome of a world.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Seed of the world.
    pub seed: u64,
    /// Description of the world, for a failure message.
    pub plan: String,
    /// Longest stall of any direction.
    pub stall: Duration,
    /// Time at which all streams were finished.
    pub finished: Instant,
    /// Digest of the run.
    pub digest: u64,
    /// True if it ended with an error on both sides, which is correct if a middlebox passes Multipath TCP only at
    /// first.
    pub cut: bool,
    /// Error, if any.
    pub complaint: Option<String>,
}

/// Family of worlds, by their policies.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Family {
    /// The shipped policies: the default with the budget of each mode ([`MARLINE_DEFAULT`]).
    Shipped,
    /// Policies of plain Multipath TCP stacks, with three schedulers.
    Plain,
    /// Any specs of [`ANY`].
    Any,
    /// Repairs by coding in both directions, over the schedulers of [`CODED`].
    Coded,
    /// The schedulers of [`PUBLISHED`].
    Published,
    /// The scheduler [`AUTO`] over two congestion controls.
    Auto,
    /// A phone that walks: MultiMob's parts in all combinations (`mobile.rs`).
    Mobile,
}

/// Ends the faults of the links. Middleboxes continue to translate.
fn heal(config: &LinkConfig) -> LinkConfig {
    let mut healed = config.clone();
    healed.loss = Default::default();
    healed.faults = Default::default();
    let MiddleboxConfig { renumber, rebind, .. } = config.middlebox;
    healed.middlebox = MiddleboxConfig { renumber, rebind, ..MiddleboxConfig::default() };
    healed
}

/// Runs the world of a seed. A panic becomes its error, so that the seed is known.
pub fn run(seed: u64, family: Family) -> Outcome {
    std::panic::catch_unwind(|| run_unguarded(seed, family)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let words = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Outcome {
            seed,
            plan: Plan::draw(seed, family).name(),
            stall: Duration::ZERO,
            finished: Instant::ZERO,
            digest: 0,
            cut: false,
            complaint: Some(format!("panicked: {}", words.unwrap_or_default())),
        }
    })
}

/// The first seconds of a world as the client's packets, for Wireshark.
pub fn capture(seed: u64, family: Family, length: Duration) -> Vec<u8> {
    let (mut paths, _) = build(seed, family);
    let addresses: Vec<_> = (0..paths.up.len()).map(|path| Paths::address(path, 0)).collect();
    paths.world.observe(Box::new(Capture::new(paths.client, &addresses, 256 << 20)));
    paths.world.run_until(Instant::ZERO + length);
    paths.world.observer::<Capture>().map(|capture| capture.bytes().to_vec()).unwrap_or_default()
}

/// The world of a seed before its first event, and the error of connecting.
pub fn build(seed: u64, family: Family) -> (Paths, Option<String>) {
    let plan = Plan::draw(seed, family);
    let mut paths = set_up_hosts(&plan, seed);
    // Before the paths change, because later they may have other addresses.
    let complaint = call(&mut paths, &plan, seed, 0).err();
    schedule(&mut paths, &plan);
    (paths, complaint)
}

/// Streams of the applications of a connection.
fn app_seeds(seed: u64, connection: usize) -> SeedTree {
    let seeds = SeedTree::new(seed);
    if connection == 0 { seeds } else { seeds.branch(&format!("connection/{connection}")) }
}

/// Hosts and links.
fn set_up_hosts(plan: &Plan, seed: u64) -> Paths {
    let mut paths = Paths::new(&plan.paths, SeedTree::new(seed));
    if plan.connections == 1 {
        paths.world.observe(Box::new(Windows::new()));
        paths.world.observe(Box::new(Heard::new(paths.client)));
    }
    if !plan.has_boxes() {
        paths.world.observe(Box::new(Conservation::new()));
    }
    let hosts = [paths.client, paths.server].into_iter().zip(plan.path_health);
    for (host, health) in hosts.filter_map(|(host, health)| Some((host, health?))) {
        paths
            .world
            .node_mut(host)
            .endpoint_mut()
            .set_path_health_monitor(PathHealthMonitor::new(health));
    }
    let mut apps: Vec<Box<dyn App>> = Vec::new();
    for connection in (0..plan.connections).rev() {
        let [_, server] = plan.apps(&app_seeds(seed, connection));
        apps.push(server);
    }
    paths.listen(Box::new(move |_| {
        // A client connects once; another connection would be a bug of the stack.
        apps.pop().unwrap_or_else(|| Box::new(Bulk::new(Amount::Nothing, 0, 0)))
    }));
    paths
}

/// Planned events of the links.
fn schedule(paths: &mut Paths, plan: &Plan) {
    for Outage { path, from, to, kind } in plan.outages.iter().copied() {
        paths.schedule_path_change(from, path, false);
        paths.schedule_path_change(to, path, true);
        if kind != OutageKind::Silent {
            paths.schedule_address_change(from, path, false);
        }
        match kind {
            OutageKind::Silent => {}
            OutageKind::Told => paths.schedule_address_change(to, path, true),
            OutageKind::Renumbered => paths.schedule_renumbering(to, path),
        }
    }
    for (path, link) in plan.paths.links.iter().enumerate() {
        let (up, down) = (paths.up[path], paths.down[path]);
        let (up_config, down_config) = (heal(&link.up), heal(&link.down));
        paths.world.run_at(FAULTS_END, move |world| {
            world.set_link(up, up_config);
            world.set_link(down, down_config);
        });
    }
}

/// Opens connection number `index` of the client.
fn call(paths: &mut Paths, plan: &Plan, seed: u64, index: usize) -> Result<(), String> {
    let [app, _] = plan.apps(&app_seeds(seed, index));
    paths.connect(0, app).map(|_| ()).map_err(|error| format!("connect: {error}"))
}

/// Reports of the applications at both ends of each connection.
pub fn reports(seed: u64, family: Family) -> Vec<[Report; 2]> {
    let plan = Plan::draw(seed, family);
    let (mut paths, _) = build(seed, family);
    watch(&mut paths, &plan, seed, &mut [Liveness::new(plan.longest_outage(), plan.grace); 2]);
    let of = |index| [paths.client_report(index), server_report(&paths, &plan, index)];
    (0..plan.connections).map(|index| of(index).map(|r| r.cloned().unwrap_or_default())).collect()
}

fn run_unguarded(seed: u64, family: Family) -> Outcome {
    let plan = Plan::draw(seed, family);
    let (mut paths, mut complaint) = build(seed, family);
    let oracle = Liveness::new(plan.longest_outage(), plan.grace);
    let mut directions = [oracle; 2];
    let finished = watch(&mut paths, &plan, seed, &mut directions);
    let stall = directions.map(|oracle| oracle.longest().length).into_iter().max();
    let cut = is_cut(&paths, &plan, 0);
    complaint = complaint.or_else(|| judge(&paths, &plan, finished));
    let judged = directions.iter().zip(plan.judges_stalls).filter(|(_, judged)| *judged);
    let worst = judged.filter_map(|(direction, _)| direction.worst()).next();
    if let Some(worst) = worst.filter(|_| !cut) {
        complaint.get_or_insert(format!("stalled {:?} from {}", worst.length, worst.from));
    }
    Outcome {
        seed,
        plan: plan.name(),
        stall: stall.unwrap_or_default(),
        finished: paths.world.now(),
        digest: paths.world.digest(),
        cut: (0..plan.connections).any(|index| is_cut(&paths, &plan, index)),
        complaint,
    }
}

/// Runs to the end of all streams and checks the first connection for stalls. Returns true if all ended. The others
/// start once the first is established, so that it is also the server's first.
fn watch(paths: &mut Paths, plan: &Plan, seed: u64, directions: &mut [Liveness; 2]) -> bool {
    let (mut called, mut events, mut plain) = (1, 0, false);
    // The last fault on the first path while only that path could be used.
    let mut alone_until = Instant::ZERO;
    while paths.world.now() < LIMIT {
        let next = paths.world.now() + SAMPLING;
        paths.world.run_until(next);
        let ends = paths.client_report(0).zip(server_report(paths, plan, 0));
        if ends.is_none() && !is_over(paths, plan, 0) {
            continue;
        }
        let states = ends.map(|(client, server)| {
            [StreamState::between(client, server), StreamState::between(server, client)]
        });
        if called < plan.connections {
            while called < plan.connections && call(paths, plan, seed, called).is_ok() {
                called += 1;
            }
        } else if (0..called).all(|index| is_over(paths, plan, index)) {
            return true;
        }
        let news = &paths.world.node(paths.client).monitor()[events..];
        plain |= news.iter().any(|event| matches!(event.kind, MonitorKind::Fallback(_)));
        events += news.len();
        if let Some(states) = states.filter(|_| !is_over(paths, plan, 0)) {
            let [upload, download] = states;
            let lone = lone_path(paths, plan, states);
            let heard = paths.world.observer::<Heard>();
            // Until the client knows that the server supports Multipath TCP, it must not join.
            let first_only = plain || heard.is_some_and(|heard| !heard.confirmed());
            if first_only {
                alone_until = last_fault(paths, true, None);
            }
            let fault = |lone| last_fault(paths, first_only, lone).max(alone_until);
            let [up, down] = directions.each_mut();
            up.sample(next, upload, fault(None));
            down.sample(next, download, fault(lone));
        }
    }
    false
}

/// Returns true if both ends of a connection have seen the end of the peer's stream or of the connection. A connection
/// that never reached the server has no end there.
fn is_over(paths: &Paths, plan: &Plan, index: usize) -> bool {
    let Some(client) = paths.client_report(index) else { return false };
    let Some(server) = server_report(paths, plan, index) else { return client.closed.is_some() };
    let eof = client.eof_at.is_some() && server.eof_at.is_some();
    eof || client.closed.is_some() && server.closed.is_some()
}

/// The server's end of a connection of the client. The server has them in the order of arrival, which may differ from
/// the order of opening, and some may never arrive. They are matched by addresses and ports.
fn server_report<'a>(paths: &'a Paths, plan: &Plan, index: usize) -> Option<&'a Report> {
    if plan.connections == 1 {
        return paths.server_report(index);
    }
    let (client, server) = (paths.world.node(paths.client), paths.world.node(paths.server));
    let (ours, _) = client.connections().nth(index)?;
    let first_path = |event: &MonitorEvent| match event.kind {
        MonitorKind::Created(path) | MonitorKind::Established(path) => Some(path),
        _ => None,
    };
    let of_ours = |event: &&MonitorEvent| event.connection == ours;
    let from: Vec<_> = client.monitor().iter().filter(of_ours).filter_map(first_path).collect();
    let is_same = |event: &MonitorEvent| {
        let path = first_path(event);
        path.is_some_and(|path| from.iter().any(|ours| ours.local == path.remote))
    };
    // A SYN of an earlier attempt may have left a connection at the server that no application accepted.
    let at = server.connections().position(|(theirs, _)| {
        server.monitor().iter().any(|event| event.connection == theirs && is_same(event))
    })?;
    paths.server_report(at)
}

/// Time of the last fault on the path whose last fault is the oldest. Plain TCP has only the first path; a client that
/// cannot know that it needs another path has only the `lone` one.
fn last_fault(paths: &Paths, first_only: bool, lone: Option<usize>) -> Instant {
    let at = |link| paths.world.link(link).stats().last_fault_at.unwrap_or_default();
    let links = paths.up.iter().zip(&paths.down).enumerate();
    let links = links.take(if first_only { 1 } else { usize::MAX });
    let links = links.filter(|(path, _)| lone.is_none_or(|lone| lone == *path));
    links.map(|(_, (up, down))| at(*up).max(at(*down))).min().unwrap_or_default()
}

/// The only path of a client without a reason to open another one: it has all data announced by the server, none of
/// its own data is in flight, and it sends no keepalives.
fn lone_path(paths: &Paths, plan: &Plan, [upload, download]: [StreamState; 2]) -> Option<usize> {
    let config = &plan.paths.client;
    let busy = upload.written > upload.read || upload.end_outstanding;
    if busy || config.keepalive.is_some() || config.lone_keepalive.is_some() {
        return None;
    }
    let link = paths.world.observer::<Heard>()?.promised_silence_on(download.read)?;
    let open = paths.world.node(paths.client).monitor().iter().fold(0, |open, event| {
        open + match event.kind {
            MonitorKind::Established(_) | MonitorKind::SubflowEstablished { .. } => 1,
            MonitorKind::SubflowClosed { .. } => -1,
            _ => 0,
        }
    });
    paths.down.iter().position(|down| *down == link).filter(|_| open == 1)
}

/// Error at the end of a run. Each connection is judged separately: an allowed error of one does not excuse another.
fn judge(paths: &Paths, plan: &Plan, finished: bool) -> Option<String> {
    for index in 0..plan.connections {
        let Some(client) = paths.client_report(index) else {
            return Some(format!("connection {index} never began"));
        };
        let cut = is_cut(paths, plan, index);
        let Some(server) = server_report(paths, plan, index) else {
            if cut || is_lost(paths, plan, index) {
                continue;
            }
            return Some(format!(
                "connection {index} never reached the server: {:?}",
                client.closed
            ));
        };
        let one = |name, from: &Report, to: &Report| {
            let judged = if cut { stream::prefix(from, to) } else { stream::complete(from, to) };
            judged.map_err(|words| format!("connection {index}, {name}: {words}"))
        };
        if let Err(words) = one("upload", client, server).and(one("download", server, client)) {
            return Some(words);
        }
        if !(finished || cut || is_over(paths, plan, index)) {
            return Some(format!("connection {index} not finished in time"));
        }
    }
    paths.world.verdict().and(conserved(paths)).err()
}

/// The client's address at the start of a connection, and the start time. The SYN/ACK may have arrived on another path
/// than the first SYN used.
fn first_address(paths: &Paths, index: usize) -> Option<(Instant, IpAddr)> {
    let client = paths.world.node(paths.client);
    let (id, _) = client.connections().nth(index)?;
    let mut first = client.monitor().iter().filter_map(|event| match event.kind {
        MonitorKind::Created(path) | MonitorKind::Established(path) if event.connection == id => {
            Some((event.at, path.local.ip()))
        }
        _ => None,
    });
    first.next_back()
}

/// A connection never reached the server because the keys were lost with the client's address, which cannot be
/// repaired. The client knows that the address is gone and has another one, so it must give up soon and its
/// application can reconnect. Without another address it waits for this one.
fn is_lost(paths: &Paths, plan: &Plan, index: usize) -> bool {
    let closed = paths.client_report(index).and_then(|report| report.closed);
    let Some((at, CloseReason::Unreachable)) = closed else { return false };
    let Some((begun_at, from)) = first_address(paths, index) else { return false };
    let told = || plan.outages.iter().filter(|outage| outage.kind != OutageKind::Silent);
    let gone_at = |path: usize| told().any(|o| o.path == path && (o.from..o.to).contains(&at));
    let is_from = |path: usize| is_of(from, path);
    let went = told().filter(|o| is_from(o.path) && o.from >= begun_at && o.from <= at);
    let went = went.map(|outage| outage.from).max();
    let other = (0..plan.paths.links.len()).any(|path| !is_from(path) && !gone_at(path));
    other && went.is_some_and(|went| at <= went + GIVES_UP_WITHIN)
}

/// A connection ended with an allowed error. If a middlebox removes mappings, both applications know. Plain TCP ends
/// with its address or NAT translation, and then the server may not notice. The same applies to a connection whose
/// client does not know that the server supports Multipath TCP, because it must not join.
fn is_cut(paths: &Paths, plan: &Plan, index: usize) -> bool {
    let told = |report: Option<&Report>| {
        report.and_then(|report| report.closed).is_some_and(|(_, why)| why != CloseReason::Finished)
    };
    let client = paths.world.node(paths.client);
    let id = client.connections().nth(index).map(|(id, _)| id);
    let fell_back = client.monitor().iter().any(|event| {
        Some(event.connection) == id && matches!(event.kind, MonitorKind::Fallback(_))
    });
    let (ours, server) = (paths.client_report(index), server_report(paths, plan, index));
    let here = told(ours);
    // Before the server has answered, it is like plain TCP.
    let plain = fell_back || server.is_none();
    // An end that only receives at a removed address gets no more data and no error.
    let from = first_address(paths, index).map(|(_, from)| from);
    let silenced = plan.renumbers(from) && plain;
    let gone = (plan.rebinds() || plan.renumbers(from)) && plain && here;
    // Its address returned too late, and another one was up: both ends are notified.
    let unreachable =
        matches!(ours.and_then(|ours| ours.closed), Some((_, CloseReason::Unreachable)));
    let left = plan.loses(from) && fell_back && unreachable && told(server);
    // The client never learned that its keys arrived, and a middlebox on the other path removes options that a join
    // needs.
    let stranded = plan.has_boxes() && is_lost(paths, plan, index) && told(server);
    let heard = paths.world.observer::<Heard>();
    let young = plan.rebinds() && heard.is_some_and(|heard| !heard.confirmed()) && here;
    plan.may_be_cut() && here && told(server) || gone || left || stranded || young || silenced
}

/// Links delivered only packets that were sent.
fn conserved(paths: &Paths) -> Result<(), String> {
    let Some(oracle) = paths.world.observer::<Conservation>() else { return Ok(()) };
    let stats = || paths.up.iter().chain(&paths.down).map(|link| paths.world.link(*link).stats());
    let corrupted = stats().map(|stats| stats.corrupted).sum();
    oracle.check(corrupted, stats().map(|stats| stats.duplicated).sum())
}

/// Description of everything that a seed draws, for replays.
pub fn describe(seed: u64, family: Family) -> String {
    format!("{:#?}", Plan::draw(seed, family))
}
