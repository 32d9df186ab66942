//! Isolated datagrams, such as DNS queries, sent after a path has died but before this was detected, and without later
//! traffic that would show the loss.

use core::any::Any;

use marline_algos::Registry;
use marline_datagram::{FlowId, Lane, LaneConfig};
use marline_link::DuplexSpec;
use marline_sim::{DatagramApp, LanePaths, LanePathsConfig, Pulse, PulsePlan};
use marline_time::{Duration, Instant, SeedTree};

const MS: fn(u64) -> Duration = Duration::from_millis;
const FLOW: FlowId = FlowId(9);
/// Resolvers retry after seconds. With an RTT of 240 ms and only one RTT sample, each path takes most of a second.
const DNS_PATIENCE: Duration = Duration::from_millis(1_200);

/// Sends queries at these times; its counterpart, without times, answers immediately.
#[derive(Debug, Default)]
struct Query {
    asks: Vec<Instant>,
    asked: usize,
    answered: Vec<Instant>,
    to_answer: usize,
}

impl DatagramApp for Query {
    fn flow(&self) -> FlowId {
        FLOW
    }

    fn on_datagram(&mut self, now: Instant, _payload: &[u8]) {
        if self.asks.is_empty() {
            self.to_answer += 1;
        } else {
            self.answered.push(now);
        }
    }

    fn run(&mut self, now: Instant, lane: &mut Lane) {
        for _ in 0..core::mem::take(&mut self.to_answer) {
            lane.send(now, FLOW, &[2; 120]).expect("room");
        }
        while self.asks.get(self.asked).is_some_and(|at| *at <= now) {
            self.asked += 1;
            lane.send(now, FLOW, &[1; 50]).expect("room");
        }
    }

    fn wakes_at(&self) -> Option<Instant> {
        self.asks.get(self.asked).copied()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Known state of the second path.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Second {
    Regular,
    Backup,
}

/// Earlier traffic.
#[derive(Copy, Clone, Debug)]
enum Before {
    Nothing,
    Queries,
    /// A call whose copies have used up the budget.
    Call,
}

/// Sends one query, `idle` after the first path has died. Returns the time until the answer.
fn asked_after_death(
    second: Second,
    before: Before,
    links: [&str; 2],
    idle: Duration,
) -> Option<Duration> {
    let registry = Registry::default();
    let policy = || registry.datagram_policy("auto").expect("known");
    let congestion = || registry.congestion("cubic-westwood").expect("known");
    let named = [("wifi", links[0]), ("lte", links[1])].map(|(name, text)| {
        let spec: DuplexSpec = text.parse().expect("a link");
        (name.to_owned(), spec.resolve(&SeedTree::new(1), &mut |_| None).expect("resolved"))
    });
    let config = || LaneConfig::new(policy(), congestion());
    let backup = vec![false, second == Second::Backup];
    let (client, server) = (config(), config());
    let plan = LanePathsConfig { links: named.to_vec(), backup, client, server };
    let mut scene = LanePaths::new(&plan, SeedTree::new(3));
    let died = Instant::from_secs(20);
    let asks = died + idle;
    let mut times = Vec::new();
    if let Before::Queries = before {
        times.extend((1..10).map(Instant::from_secs));
    }
    let earlier = times.len();
    times.push(asks);
    let query = Query { asks: times, ..Query::default() };
    scene.add_apps(Box::new(query), Box::new(Query::default()));
    if let Before::Call = before {
        let plan = PulsePlan {
            from: Instant::from_secs(1),
            until: died,
            gap: (MS(20), MS(20)),
            group: (2, 2),
            bytes: 1_000,
        };
        let end = |name| Box::new(Pulse::new(FlowId(3), plan, SeedTree::new(7).stream(name)));
        scene.add_apps(end("client"), end("server"));
    }
    scene.schedule_path_change(died, 0, false);
    scene.world.run_until(asks + Duration::from_secs(5));
    let query = scene.client_app::<Query>(0).expect("the query");
    assert!(query.answered.len() <= earlier + 1, "no datagram arrives twice");
    query.answered.iter().find(|at| **at > asks).map(|at| at.since(asks))
}

#[test]
fn a_query_on_an_unnoticed_dead_path_is_answered() {
    let near = ["rate=30M,delay=10ms,queue=100ms", "rate=20M,delay=30ms,queue=100ms"];
    let far = ["rate=30M,delay=120ms,queue=100ms", "rate=20M,delay=150ms,queue=100ms"];
    let jittery =
        ["rate=30M,delay=10ms,queue=100ms", "rate=20M,delay=30ms,jitter=uniform:40ms,queue=100ms"];
    let mut wrong = Vec::new();
    for second in [Second::Regular, Second::Backup] {
        for before in [Before::Nothing, Before::Queries, Before::Call] {
            for (name, links) in [("near", near), ("far", far), ("jitter", jittery)] {
                for idle in [MS(1), MS(40), MS(400), MS(5_000), MS(60_000)] {
                    let answered = asked_after_death(second, before, links, idle);
                    if answered.is_none_or(|after| after > DNS_PATIENCE) {
                        wrong.push((second, before, name, idle, answered));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} not answered in time: {wrong:#?}", wrong.len());
}
