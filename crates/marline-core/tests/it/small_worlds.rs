//! Small worlds, exhaustively (`docs/research/small-worlds.md`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use marline_algos::Registry;
use marline_testkit::small_worlds::{
    Action, Finding, Order, Report, Scene, Step, Trigger, explore, parse_script, replay,
    script_text, trace,
};
use rustix::time::{ClockId, clock_gettime};

/// One segment each way over one path.
fn one_path() -> Scene {
    Scene::new("one path", 1, false)
}

/// One path with every order of arrival, instead of reordering only as a fault.
fn any_order() -> Scene {
    Scene { name: "any order", ..one_path() }.with_order(Order::Any)
}

/// Both ends write and close at once.
fn at_once() -> Scene {
    let steps: [Step; 2] =
        [(Trigger::Connected, Action::Write(300)), (Trigger::Connected, Action::Shutdown)];
    Scene::new("at once", 1, false).with_steps(&steps, &steps)
}

/// A second exchange, of two segments each way.
fn twice() -> Scene {
    Scene::new("twice", 1, false).with_steps(&TWO_EXCHANGES, &TWO_ANSWERS)
}

const TWO_EXCHANGES: [Step; 3] = [
    (Trigger::Connected, Action::Write(300)),
    (Trigger::Received(200), Action::Write(2_000)),
    (Trigger::Received(2_200), Action::Shutdown),
];

const TWO_ANSWERS: [Step; 3] = [
    (Trigger::Received(300), Action::Write(200)),
    (Trigger::Received(2_300), Action::Write(2_000)),
    (Trigger::Received(2_300), Action::Shutdown),
];

/// One path, with DSS checksums.
fn checksums() -> Scene {
    Scene::with("checksums", 1, false, |config| config.dss_checksum = true)
}

/// The client joins over a second path.
fn two_paths() -> Scene {
    Scene::new("two paths", 2, false)
}

/// Two paths on a carrier like UDP: flows have ids, and middleboxes do not see options.
fn flow_ids() -> Scene {
    Scene::new("flow ids", 2, true)
}

/// Two segments each way after the join, one on each path: data lost when a path fails is sent on the other.
fn reinjection() -> Scene {
    let by_turns = Registry::default().scheduler("round-robin,segments=1").expect("a scheduler");
    Scene::with("reinjection", 2, false, |config| config.policies.scheduler = by_turns.clone())
        .with_steps(
            &[TWO_EXCHANGES[0], (Trigger::Joined, Action::Write(2_000)), TWO_EXCHANGES[2]],
            &TWO_ANSWERS,
        )
}

/// The client writes nothing before its join is established.
fn join_first() -> Scene {
    let client =
        [(Trigger::Joined, Action::Write(300)), (Trigger::Received(200), Action::Shutdown)];
    let server = [TWO_ANSWERS[0], (Trigger::Received(300), Action::Shutdown)];
    Scene::new("join first", 2, false).with_steps(&client, &server)
}

/// The client announces its second address.
fn announced() -> Scene {
    let mut scene = Scene { name: "announced", ..two_paths() };
    Arc::make_mut(&mut scene.client).local_addresses[1].signal = true;
    scene
}

/// The client aborts, with data and a DATA_FIN of the server in flight.
fn abort() -> Scene {
    const CLIENT: [Step; 3] = [
        (Trigger::Connected, Action::Write(300)),
        (Trigger::Received(200), Action::Write(300)),
        (Trigger::Received(200), Action::Abort),
    ];
    const SERVER: [Step; 3] = [
        (Trigger::Received(300), Action::Write(200)),
        (Trigger::Received(300), Action::Write(2_000)),
        (Trigger::Received(300), Action::Shutdown),
    ];
    Scene::new("abort", 2, false).with_steps(&CLIENT, &SERVER)
}

/// The client aborts as soon as it has written.
fn abort_at_once() -> Scene {
    let client = [
        (Trigger::Connected, Action::Write(300)),
        (Trigger::Connected, Action::Write(2_000)),
        (Trigger::Connected, Action::Abort),
    ];
    let server = [(Trigger::Connected, Action::Write(300)), (Trigger::End, Action::Shutdown)];
    Scene::new("abort at once", 1, false).with_steps(&client, &server)
}

fn scenes() -> Vec<Scene> {
    vec![
        one_path(),
        any_order(),
        at_once(),
        twice(),
        checksums(),
        two_paths(),
        flow_ids(),
        reinjection(),
        announced(),
        join_first(),
        abort(),
        abort_at_once(),
    ]
}

fn scene(name: &str) -> Scene {
    scenes().into_iter().find(|scene| scene.name == name).expect("a scene")
}

fn show(scene: &Scene, faults: usize, report: &Report) {
    // In one piece, because several threads may print.
    let mut text = format!(
        "{}, {faults} faults: {} worlds, {} ends, depth {}, {} states, {} steps, complete {}\n",
        scene.name,
        report.worlds,
        report.ends,
        report.depth,
        report.states,
        report.steps,
        report.complete
    );
    for (outcome, count) in &report.outcomes {
        text += &format!("  {count:8}  {outcome}\n");
    }
    for finding in &report.findings {
        text += &format!(
            "  {} x {} (first after {} worlds)\n    {}\n",
            finding.count,
            finding.complaint,
            finding.after_worlds,
            script_text(&finding.script)
        );
    }
    println!("{text}");
}

/// Walks through all worlds, and reports every broken rule.
fn walk(scene: &Scene, faults: usize, stop: &mut dyn FnMut(&Report) -> bool) -> Report {
    let report = explore(scene, faults, stop);
    show(scene, faults, &report);
    if let Some(Finding { complaint, script, after_worlds, .. }) = report.findings.first() {
        panic!(
            "{}, {faults} faults, after {after_worlds} worlds: {complaint}\n{}",
            scene.name,
            script_text(script)
        );
    }
    report
}

fn walk_all(scene: &Scene, faults: usize) {
    let report = walk(scene, faults, &mut |_| false);
    assert!(report.complete && report.ends > 100, "{report:?}");
    // Including worlds with events.
    assert!(report.outcomes.len() > 1, "{:?}", report.outcomes);
}

#[test]
fn one_segment_each_way_with_any_two_faults() {
    walk_all(&one_path(), 2);
    walk_all(&at_once(), 2);
}

#[test]
fn other_exchanges_on_one_path_with_any_fault() {
    walk_all(&checksums(), 1);
    walk_all(&twice(), 1);
    walk_all(&any_order(), 1);
}

#[test]
fn a_join_beside_data_and_close_with_any_fault() {
    walk_all(&two_paths(), 1);
    walk_all(&announced(), 1);
    walk_all(&join_first(), 1);
}

#[test]
fn an_abort_is_reported_as_such_with_any_fault() {
    walk_all(&abort_at_once(), 2);
    // All of these worlds end the same way.
    let report = walk(&abort(), 1, &mut |_| false);
    assert!(report.complete && report.ends > 1_000, "{report:?}");
}

#[test]
fn a_join_on_a_carrier_with_flow_ids_with_any_fault() {
    walk_all(&flow_ids(), 1);
}

#[test]
fn two_segments_each_way_on_two_paths_with_any_fault() {
    walk_all(&reinjection(), 1);
}

/// Lists of choices that broke a rule in the past.
const FIXED: [(&str, &str); 14] = [
    // an unanswered DATA_FIN is repeated endlessly, even after the peer's arrived
    ("one path", "d0 d0 d0 d0 d0 d0 d0 p0"),
    // the server falls back alone after its client has lost a mapping
    ("one path", "d0 d0 d0 d0 p0 d0 d0 d0 l0"),
    // an unanswered DATA_FIN is repeated endlessly, even after the peer's arrived
    ("at once", "d0 d0 d0 d0 d1 d1 p0"),
    // the server falls back alone after its client has lost a mapping
    ("at once", "d0 d0 d0 d0 p0 d1 d1 l1"),
    // the client falls back alone after the server has sent no DATA_FIN that passed
    ("twice", "d0 d0 d0 d0 d0 d0 d0 p0"),
    // a server that falls back sends an infinite mapping, an option, again without end when no options pass
    ("one path", "d0 d0 b0 d0 l0"),
    // the server falls back at the FIN of a client that has finished: the mode no longer matters
    ("at once", "d0 d0 d0 d0 d0 p0"),
    // the server falls back although the DATA_ACK of its data came on the other subflow
    ("two paths", "d0 d0 d0 d0 d0 d0 d0 d1 d3 d3 d3 p1 d3 d3 d4 s1"),
    // the server falls back when it has the whole stream of its client, and its own was sent
    ("at once", "d0 d0 d0 d0 t d0 s4"),
    // the DATA_ACK that answers the third ACK is lost, and neither side sends data
    ("join first", "d0 d0 d0 l0"),
    // the server falls back after it has reset the join that carried the bytes before: wrong bytes
    ("reinjection", "d0 d0 d0 d0 d0 d0 d1 d1 d1 d1 d0 s0 d0 s0"),
    // the client falls back and resets a join that the server has established: an error although the join would suffice
    ("two paths", "d0 d0 d0 d1 d1 d1 d1 p0 d0 d1 d1 d3"),
    ("announced", "d0 d0 d0 d1 d1 d2 p0 d0 d1 d1 d1 d2 l2"),
    // the server repeats an infinite mapping that never passes, and nothing makes its peer answer: both end in an error
    ("abort", "d0 d0 b0 d0 l0"),
];

#[test]
fn a_data_ack_by_another_subflow_keeps_a_connection_multipath() {
    let (name, script) = FIXED[7];
    let script = parse_script(script).expect("choices");
    let verdict = replay(&scene(name), &script).expect("choices that are possible");
    assert_eq!(verdict.outcome, BOTH_FINISHED, "{name}");
}

const BOTH_FINISHED: &str = "client finished (multipath), server finished (multipath)";

#[test]
fn fixed_faults_stay_fixed() {
    // The world without faults is included, so that a rule that is always broken shows.
    let quiet = scenes().into_iter().map(|scene| (scene, String::new()));
    let fixed = FIXED.into_iter().map(|(name, script)| (scene(name), script.to_owned()));
    for (scene, script) in quiet.chain(fixed) {
        let script = parse_script(&script).expect("choices");
        let verdict = replay(&scene, &script).expect("choices that are possible");
        assert_eq!(verdict.complaint, None, "{}: {}", scene.name, script_text(&script));
        if script.is_empty() && !scene.name.starts_with("abort") {
            assert_eq!(verdict.outcome, BOTH_FINISHED, "{}", scene.name);
            // In other scenes the close overtakes the join.
            assert!(verdict.joins > 0 || scene.name != "reinjection", "{verdict:?}");
        }
    }
}

/// An end with a clear error is allowed if options are lost. From the handshake on, plain TCP is better.
#[test]
fn a_path_that_removes_options_early_leads_to_plain_tcp() {
    for scene in [one_path(), at_once(), twice()] {
        for script in ["p0", "b0", "d0 s0", "d0 p0", "d0 d0 p0", "d0 d0 d0 p0"] {
            let script = parse_script(script).expect("choices");
            let verdict = replay(&scene, &script).expect("choices that are possible");
            let (name, script) = (scene.name, script_text(&script));
            let plain = "client finished (plain), server finished (plain)";
            assert_eq!(verdict.outcome, plain, "{name}: {script}");
        }
    }
}

/// Three faults at any point of the main scene within half an hour of CPU time, and two in all scenes.
#[test]
#[ignore = "an hour and a half of CPU time; `cargo xtask nightly small-worlds` runs it"]
fn two_faults_everywhere_and_three_for_half_an_hour() {
    const MINUTE: Duration = Duration::from_secs(60);
    let two = scenes().into_iter().map(|scene| (scene, 2, 10 * MINUTE));
    let jobs: Vec<_> = [(two_paths(), 3, 30 * MINUTE)].into_iter().chain(two).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((scene, faults, limit)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let report = walk(scene, *faults, &mut limited(*limit));
            assert!(report.ends > 1_000, "{}", scene.name);
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| {
            scope.spawn(work);
        });
    });
}

/// About four gigabytes.
const MOST_WORLDS: u64 = 50_000_000;

/// Stops when this thread has worked for this long, or uses too much memory.
fn limited(limit: Duration) -> impl FnMut(&Report) -> bool {
    let spent = || {
        let spent = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
    };
    let end = spent() + limit;
    move |report| report.worlds % 1_024 == 0 && (spent() > end || report.worlds > MOST_WORLDS)
}

/// `SCENE=name FAULTS=n LIMIT=worlds cargo test -p marline-core --test it -- small_worlds::explored --ignored`
#[test]
#[ignore = "runs as long as its limit allows"]
fn explored() {
    let text = |name: &str| std::env::var(name).unwrap_or_default();
    let limit = text("LIMIT").parse().unwrap_or(u64::MAX);
    let faults = text("FAULTS").parse().unwrap_or(1);
    for scene in scenes().into_iter().filter(|scene| text("SCENE").contains(scene.name)) {
        let report = explore(&scene, faults, &mut |report| report.worlds >= limit);
        show(&scene, faults, &report);
    }
}

/// `SCENE=name SCRIPT="d0 l0" cargo test -p marline-core --test it -- small_worlds::traced --ignored --nocapture`
#[test]
#[ignore = "prints what happens in a world"]
fn traced() {
    let text = |name: &str| std::env::var(name).unwrap_or_default();
    let scene = scene(&text("SCENE"));
    let script = parse_script(&text("SCRIPT")).expect("choices");
    let (verdict, log) = trace(&scene, &script).expect("a world");
    println!("{}\n{verdict:?}", log.join("\n"));
}
