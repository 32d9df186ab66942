//! Tests of the reasons that `auto` gives: each decision follows from its logged line, no decision lacks a reason, and
//! observers change nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use marline_algos::schedulers::{Auto, AutoConfig, BudgetConfig};
use marline_core::{BufferTuning, ConnectionConfig, MonitorKind};
use marline_policy::{
    Decision, PathCost, Reason, Reinjection, Rule, Scheduler, SchedulerAction, SchedulerContext,
    SchedulerEvent, SchedulerFactory,
};
use marline_sim::{
    Amount, Bulk, Echo, EchoServer, ExchangeSizes, Paths, PathsConfig, RequestResponse,
};
use marline_sim::{Listen, NodeId, ResponseServer};
use marline_time::{Duration, Instant, Rate, SeedTree};

use crate::cases::{self, traced_link};

/// Number of decisions about data, and number of those without a reason.
#[derive(Debug, Default)]
struct Count {
    made: AtomicUsize,
    unexplained: AtomicUsize,
}

impl Count {
    /// Records a decision with these reasons.
    fn decided(&self, decision: Decision, reasons: &[Reason]) {
        self.made.fetch_add(1, Relaxed);
        let explained = matches!(reasons, [reason] if reason.decision == decision);
        self.unexplained.fetch_add(usize::from(!explained), Relaxed);
    }
}

/// `auto` with an observer.
#[derive(Debug)]
struct Watched {
    auto: Auto,
    count: Arc<Count>,
}

impl Scheduler for Watched {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        let decision = self.auto.next_send(cx);
        self.count.decided(decision, &[]);
        decision
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        let decision = self.auto.next_reinjection(item, cx);
        self.count.decided(decision, &[]);
        decision
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        let before = out.len();
        self.auto.on_event(event, cx, out);
        if let Some(first) = repeats(&out[before..]) {
            self.count.decided(first, &[]);
        }
    }

    fn explain_send(&mut self, cx: &SchedulerContext<'_>, reasons: &mut Vec<Reason>) -> Decision {
        let before = reasons.len();
        let decision = self.auto.explain_send(cx, reasons);
        self.count.decided(decision, &reasons[before..]);
        decision
    }

    fn explain_reinjection(
        &mut self,
        item: &Reinjection,
        cx: &SchedulerContext<'_>,
        reasons: &mut Vec<Reason>,
    ) -> Decision {
        let before = reasons.len();
        let decision = self.auto.explain_reinjection(item, cx, reasons);
        self.count.decided(decision, &reasons[before..]);
        decision
    }

    fn explain_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
        reasons: &mut Vec<Reason>,
    ) {
        let (actions, before) = (out.len(), reasons.len());
        self.auto.explain_event(event, cx, out, reasons);
        match repeats(&out[actions..]) {
            Some(first) => self.count.decided(first, &reasons[before..]),
            None => assert_eq!(reasons.len(), before, "a reason without a decision"),
        }
    }

    fn probe_patience(&self) -> Option<Duration> {
        self.auto.probe_patience()
    }
}

/// First range to be sent again.
fn repeats(actions: &[SchedulerAction]) -> Option<Decision> {
    actions.iter().find_map(|action| match *action {
        SchedulerAction::Reinject { range, on } => Some(Decision::Send { subflow: on, range }),
        _ => None,
    })
}

/// Creates such schedulers.
#[derive(Debug)]
struct Watching {
    config: AutoConfig,
    count: Arc<Count>,
}

impl SchedulerFactory for Watching {
    fn name(&self) -> &str {
        "watched"
    }

    fn build(&self) -> Box<dyn Scheduler> {
        Box::new(Watched { auto: Auto::new(self.config), count: Arc::clone(&self.count) })
    }
}

/// Traffic of the two sides.
#[derive(Copy, Clone, Debug)]
enum Work {
    /// This many bytes to the client.
    Download(u64),
    /// This many small echoed messages.
    Echoes(u64),
    /// This many answers of 100 kB.
    Bursts(u64),
}

/// A scene and its events.
#[derive(Clone, Debug)]
struct Case {
    name: &'static str,
    links: Vec<String>,
    backup: Vec<bool>,
    costs: Vec<PathCost>,
    /// True if the peers agree on repairs.
    repairs: bool,
    work: Work,
    budget: BudgetConfig,
    /// Size of the receive buffers; `None`: the default.
    window: Option<u64>,
    /// Seconds for which the first path is down.
    dead_s: Option<(u64, u64)>,
}

impl Case {
    fn new(name: &'static str, links: &[&str], work: Work) -> Self {
        let links = links.iter().map(|text| (*text).to_owned()).collect();
        let (budget, backup, costs) = (BudgetConfig::default(), Vec::new(), Vec::new());
        Case {
            name,
            links,
            backup,
            costs,
            repairs: false,
            work,
            budget,
            window: None,
            dead_s: None,
        }
    }

    fn listen(&self) -> Listen {
        match self.work {
            Work::Download(bytes) => {
                Box::new(move |_| Box::new(Bulk::new(Amount::Bytes(bytes), 1, 2)))
            }
            Work::Echoes(_) => Box::new(|_| Box::new(EchoServer::new(3))),
            Work::Bursts(_) => Box::new(|_| Box::new(ResponseServer::new(SIZES, 5, 6))),
        }
    }

    /// Runs the scene, and returns it with the counts.
    fn run(&self, listening: bool) -> (Paths, Arc<Count>) {
        let count = Arc::new(Count::default());
        let mut policies = marline_algos::default_policies();
        let config = AutoConfig { budget: self.budget, ..AutoConfig::default() };
        policies.scheduler = Arc::new(Watching { config, count: Arc::clone(&count) });
        let mut connection = ConnectionConfig::new(policies);
        if self.repairs {
            connection.extensions = marline_wire::mptcp::Extensions::REPAIR;
        }
        if let Some(window) = self.window {
            connection.receive_buffer = window;
            connection.buffer_tuning = BufferTuning::Fixed;
        }
        let recorded = self.links.iter().any(|text| text.contains("trace="));
        let dir = if recorded { marline_testkit::need::trace_dir() } else { None };
        let seeds = SeedTree::new(9);
        let links = self.links.iter().map(|text| traced_link(text, &seeds, dir.as_deref()));
        let mut scene = PathsConfig::new(links.collect(), connection);
        scene.backup.clone_from(&self.backup);
        scene.costs.clone_from(&self.costs);
        let mut paths = Paths::new(&scene, SeedTree::new(11));
        for node in [paths.client, paths.server] {
            paths.world.node_mut(node).endpoint_mut().report_decisions(listening);
        }
        paths.listen(self.listen());
        match self.work {
            Work::Download(_) => paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))),
            Work::Echoes(count) => {
                paths.connect(0, Box::new(Echo::new(300, Duration::from_millis(20), count, 3)))
            }
            Work::Bursts(count) => {
                let pause = Duration::from_millis(150);
                let app = RequestResponse::new(count, SIZES, pause, 6, 5);
                paths.connect(0, Box::new(app))
            }
        }
        .expect("a connection");
        if let Some((from_s, to_s)) = self.dead_s {
            paths.schedule_path_change(Instant::from_secs(from_s), 0, false);
            paths.schedule_path_change(Instant::from_secs(to_s), 0, true);
        }
        paths.world.run_until(Instant::from_secs(15));
        (paths, count)
    }
}

/// Logged lines of a host, and their events.
fn logged(paths: &Paths, node: NodeId) -> Vec<(String, Arc<Reason>)> {
    let told = paths.world.node(node).monitor().iter().filter_map(|event| match &event.kind {
        MonitorKind::Decided { reason, missed } => {
            assert_eq!(*missed, 0);
            assert_eq!(event.at, reason.inputs.now);
            Some((reason.record(), Arc::clone(reason)))
        }
        _ => None,
    });
    told.collect()
}

const SIZES: ExchangeSizes = ExchangeSizes { request_bytes: 200, answer_bytes: 100_000 };
const CHANGING: &str = "rate=0s:20M+2s:2M+4s:12M/6s,delay=10ms,queue=150ms,jitter=4ms";
const STEADY: &str = "rate=8M,delay=35ms,queue=80ms";

fn cases() -> Vec<Case> {
    const COLLAPSING: &str = "rate=0s:20M+1s:100k+3s:20M/4s,delay=10ms,queue=400ms";
    let steady = STEADY;
    let mut cases = vec![
        Case::new("changing", &[CHANGING, steady], Work::Download(6_000_000)),
        Case::new("echoes", &["walkout,delay=8ms", steady], Work::Echoes(400)),
        Case::new("loss", &["rate=20M,delay=10ms,ge=1s:100ms:50%:0.2%", steady], Work::Bursts(60)),
        Case {
            dead_s: Some((2, 7)),
            ..Case::new("death", &["rate=20M,delay=10ms", steady], Work::Download(8_000_000))
        },
        Case {
            window: Some(60_000),
            ..Case::new(
                "window",
                &["rate=20M,delay=5ms", "rate=1M,delay=150ms,loss=1%"],
                Work::Download(9_000_000),
            )
        },
        Case {
            backup: vec![false, false, true],
            budget: BudgetConfig::UNLIMITED,
            dead_s: Some((3, 5)),
            ..Case::new(
                "backup",
                &[CHANGING, "rate=5M,delay=60ms,loss=2%", steady],
                Work::Bursts(60),
            )
        },
        Case {
            window: Some(80_000),
            budget: BudgetConfig { share: 0.0, rate: Rate::ZERO },
            ..Case::new("collapse", &["rate=20M,delay=5ms", COLLAPSING], Work::Download(20_000_000))
        },
        Case {
            dead_s: Some((2, 4)),
            ..Case::new("alone", &["rate=5M,delay=20ms,loss=1%"], Work::Echoes(200))
        },
    ];
    cases.extend(cases_that_cost());
    if marline_testkit::need::trace_dir().is_some() {
        let recorded =
            cases::pairs::TRACES.map(|(_, text)| format!("{text},delay=25ms,queue=200ms"));
        let [att, tmobile, umts, verizon] = &recorded;
        cases.push(Case::new("recorded bursts", &[att, tmobile], Work::Bursts(40)));
        cases.push(Case::new("recorded bulk", &[verizon, umts], Work::Download(4_000_000)));
    }
    cases
}

/// Paths that cost more than time, and backups alone.
fn cases_that_cost() -> Vec<Case> {
    let (free, metered) = (PathCost::NONE, PathCost { metered: true, ..PathCost::NONE });
    let radio = PathCost { tail_ms: 2_000, ..PathCost::NONE };
    vec![
        Case {
            costs: vec![free, metered],
            dead_s: Some((4, 8)),
            ..Case::new("metered", &[CHANGING, "rate=8M,delay=8ms"], Work::Download(6_000_000))
        },
        Case {
            costs: vec![free, metered, radio],
            budget: BudgetConfig::UNLIMITED,
            ..Case::new(
                "costs",
                &["rate=20M,delay=10ms,ge=1s:100ms:50%:0.2%", STEADY, STEADY],
                Work::Bursts(60),
            )
        },
        Case {
            repairs: true,
            ..Case::new(
                "repairs",
                &["rate=20M,delay=20ms,loss=2%", "rate=10M,delay=35ms,loss=1%"],
                Work::Bursts(60),
            )
        },
        Case {
            costs: vec![free, radio],
            dead_s: Some((5, 9)),
            ..Case::new("radio", &["walkout,delay=8ms", "rate=8M,delay=6ms"], Work::Echoes(400))
        },
        Case {
            backup: vec![true, true],
            ..Case::new("backups", &["rate=8M,delay=30ms,loss=1%", STEADY], Work::Echoes(300))
        },
    ]
}

#[test]
fn each_decision_follows_from_the_line_that_is_logged_with_it() {
    let mut rules: Vec<(Rule, usize)> = Vec::new();
    for case in cases() {
        let (paths, count) = case.run(true);
        let lines = [logged(&paths, paths.client), logged(&paths, paths.server)].concat();
        let (made, unexplained) = (count.made.load(Relaxed), count.unexplained.load(Relaxed));
        println!("{}: {made} decisions", case.name);
        assert_eq!(unexplained, 0, "{}: decisions without a reason", case.name);
        assert_eq!(lines.len(), made, "{}: decisions match their reasons", case.name);
        for (line, told) in &lines {
            let read = Reason::parse(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert_eq!(read, **told, "{}: {line}", case.name);
            // From the question and the inputs only.
            let again = Auto::recompute(&read.question, &read.inputs);
            assert_eq!(again.as_ref(), Some(&read), "{}: {line}", case.name);
            assert!(!read.text(&|id| id.to_string()).contains("unknown time"), "{line}");
            match rules.iter_mut().find(|(rule, _)| *rule == read.grounds.rule) {
                Some((_, times)) => *times += 1,
                None => rules.push((read.grounds.rule, 1)),
            }
        }
    }
    println!("{rules:?}");
    // All rules except `NoPath`, which needs no decision, and `Unblock`: the first two rules for waiting leave hardly
    // anything to unblock. A unit test of `auto` covers it.
    let wanted = [
        Rule::First,
        Rule::LastReceived,
        Rule::NoRoom,
        Rule::FullPathFaster,
        Rule::WouldBlock,
        Rule::Late,
        Rule::End,
        Rule::Repair,
        Rule::Spared,
        Rule::Explore,
        Rule::Recheck,
        Rule::Nothing,
        Rule::Rescue,
        Rule::RescueWaits,
    ];
    for rule in wanted {
        assert!(rules.iter().any(|(seen, _)| *seen == rule), "no decision by {rule:?}: {rules:?}");
    }
}

#[test]
fn listening_to_decisions_changes_nothing() {
    for case in cases() {
        let ((told, _), (quiet, count)) = (case.run(true), case.run(false));
        assert_eq!(told.world.digest(), quiet.world.digest(), "{}", case.name);
        assert_eq!(logged(&quiet, quiet.client).len(), 0, "{}", case.name);
        // The others have no reasons, as expected.
        let (made, unexplained) = (count.made.load(Relaxed), count.unexplained.load(Relaxed));
        assert!(made > 0 && made == unexplained, "{}: {made}, {unexplained}", case.name);
    }
}

/// Budgets that span many decisions are in the record of each.
#[test]
fn the_record_contains_the_spent_budget() {
    let budget = BudgetConfig { share: 0.05, rate: Rate::from_bits_per_s(8_000) };
    let links = ["rate=20M,delay=10ms,ge=500ms:100ms:50%", "rate=20M,delay=20ms"];
    let case = Case { budget, ..Case::new("little", &links, Work::Bursts(60)) };
    let (paths, _) = case.run(true);
    let spent = |(_, reason): (String, Arc<Reason>)| reason.inputs.spending.spent;
    let most = logged(&paths, paths.server).into_iter().map(spent).fold(0.0, f32::max);
    assert!(most > 0.9, "{most}");
}
