//! Server push after an idle time in which WiFi died silently. An idle client with a receive timer must leave LTE
//! asleep. The results show, by the client's keepalive interval, when the push arrives and how much energy the
//! keepalives take.

use anyhow::Context as _;
use marline_lab::figure::{Figure, Plot, cdf};
use marline_sim::{Pace, Units};
use marline_time::{Duration, Instant, Rng};
use serde::{Deserialize, Serialize};

use super::phone_scenario::{DrawnLinks, LTE, PhoneScenario, WIFI, joules, ms};
use super::quantiles::{RankedSamples, count_where};
use super::radios::{CONSTANTS, cell};
use super::systems::{self, System};
use crate::estimate::{Estimate, Samples};
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const PUSH: Part = Part::new("push", 120, 480);
/// Idle times before a keepalive, s.
const INTERVALS_S: [u64; 5] = [5, 10, 15, 60, 300];
const SHIPPED_S: u64 = 10;
/// Size of each message.
const BYTES: u64 = 200;
/// Messages in each direction before the pause, one every [`GAP`], starting at [`BEGIN`].
const MESSAGES_BEFORE_PAUSE: u32 = 5;
const GAP: Duration = Duration::from_millis(200);
const BEGIN: Instant = Instant::from_secs(1);
/// Both sides are silent from this time on, and the radio of WiFi is idle.
const SILENCE: Instant = Instant::from_secs(3);
/// Minimum and maximum length of the pause, s.
const PAUSE_S: (f64, f64) = (60.0, 600.0);
/// Minimum time between the death of WiFi and the push, s. The maximum is the length of the pause.
const MIN_DEAD_S: f64 = 0.1;
/// Time to wait for the push. A later push counts as lost.
const PUSH_TIMEOUT: Duration = Duration::from_secs(320);

/// The client of a contestant.
struct Contestant {
    name: String,
    system: System,
    /// Idle time before a keepalive, s. `None`: the row is not about keepalives.
    interval_s: Option<u64>,
}

fn contestants() -> Vec<Contestant> {
    let mut all: Vec<Contestant> = Vec::new();
    let tuned = |name: String, interval_s: Option<u64>| Contestant {
        system: systems::tuned_with_keepalive(interval_s.map(Duration::from_secs)),
        name,
        interval_s,
    };
    all.push(tuned("tuned, keepalives off".to_owned(), None));
    all.extend(INTERVALS_S.map(|s| {
        tuned(
            format!(
                "tuned, keepalives after {s} s{}",
                if s == SHIPPED_S { " (as shipped)" } else { "" }
            ),
            Some(s),
        )
    }));
    let others = [
        systems::authors(),
        systems::vanilla_full_mesh(),
        systems::vanilla_backup(),
        systems::kernel_backup(),
    ];
    all.extend(others.map(|system| Contestant {
        name: system.name.to_owned(),
        system,
        interval_s: None,
    }));
    all
}

/// A pause, with the result of each contestant.
#[derive(Serialize, Deserialize)]
struct Pause {
    /// Time from the silence to the push.
    lasts_s: f64,
    /// Time from the death of WiFi to the push.
    dead_s: f64,
    pushes: Vec<PushResult>,
}

/// Result of a push.
#[derive(Serialize, Deserialize)]
struct PushResult {
    /// Time from the server's write to the client's read. `None`: the push did not arrive.
    after_s: Option<f64>,
    /// True if the server had closed the connection by the end.
    closed: bool,
    /// WiFi energy of the traffic before WiFi died.
    wifi_j: f64,
    /// LTE energy of the traffic from the silence to the push.
    lte_j: f64,
}

pub(super) fn reproduce(context: &Context<'_>, all: &mut Reproduction) -> anyhow::Result<()> {
    let contestants = contestants();
    let (pauses, rows) = context.judge_part(
        PUSH,
        |root| measure(root, &contestants),
        |pauses| Ok(verdicts(pauses, &contestants)),
    )?;
    let title = "Server push after a pause in which WiFi died silently (99 % intervals)";
    all.tables.push(Table::new("push", title, rows));
    all.grids.push(grid(&pauses, &contestants, context.master));
    all.figures.push(figure(&pauses, &contestants));
    Ok(())
}

fn measure(root: &Root, contestants: &[Contestant]) -> anyhow::Result<Pause> {
    let mut rng = root.rng("push");
    let lasts_s = (PAUSE_S.1 - PAUSE_S.0).mul_add(rng.unit(), PAUSE_S.0);
    // Log-uniform, because only the ratio to the keepalive interval matters.
    let dead_s = MIN_DEAD_S * ((lasts_s / MIN_DEAD_S).ln() * rng.unit()).exp();
    let push = |contestant: &Contestant| push(&contestant.system, root, lasts_s, dead_s);
    let pushes = contestants.iter().map(push).collect::<anyhow::Result<_>>()?;
    Ok(Pause { lasts_s, dead_s, pushes })
}

fn push(system: &System, root: &Root, lasts_s: f64, dead_s: f64) -> anyhow::Result<PushResult> {
    let links = DrawnLinks::draw(root);
    let scenario = PhoneScenario::experiment_over_links(&links.wifi, &links.lte, None, root.seed)?;
    let mut paths = scenario.stage(system, root.seed)?;
    let pushed = SILENCE + Duration::from_secs_f64(lasts_s);
    let died = pushed - Duration::from_secs_f64(dead_s);
    let spoken = || (0..MESSAGES_BEFORE_PAUSE).map(|n| BEGIN + GAP * n);
    let speaker = |times: Vec<Instant>, write_seed, read_seed| {
        Units::new(Pace::At { bytes: BYTES, times }, BYTES, write_seed, read_seed)
    };
    let mut server = Some(speaker(spoken().chain([pushed]).collect(), 6, 5));
    let silent = || Units::new(Pace::Never, 1, 6, 5);
    paths.listen(Box::new(move |_| Box::new(server.take().unwrap_or_else(silent))));
    paths.connect(WIFI, Box::new(speaker(spoken().collect(), 5, 6))).context("cannot connect")?;
    paths.schedule_path_change(died, WIFI, false);
    let mut drawn = |until: Instant| {
        paths.world.run_until(until);
        joules(&paths, until).map(|energy| energy.traffic_j())
    };
    let (before, at_death, at_push) = (drawn(SILENCE), drawn(died), drawn(pushed));
    let (client, whole) = (paths.client, u64::from(MESSAGES_BEFORE_PAUSE + 1) * BYTES);
    paths.world.run_while(pushed + PUSH_TIMEOUT, |world| {
        world.node(client).report(0).is_none_or(|report| report.read < whole)
    });
    let report = paths.client_report(0).context("cannot find the connection")?;
    if let Some(byte) = report.wrong_at {
        anyhow::bail!("received data differs from sent data at byte {byte}");
    }
    let closed = paths.server_report(0).is_some_and(|report| report.closed.is_some());
    let read = report.received.get(MESSAGES_BEFORE_PAUSE as usize);
    Ok(PushResult {
        after_s: read.map(|at| ms(at.since(pushed)) / 1e3),
        closed,
        wifi_j: at_death[WIFI] - before[WIFI],
        lte_j: at_push[LTE] - before[LTE],
    })
}

/// Quantile of the delays. A lost push counts as the maximum.
fn quantile(pauses: &Samples<Pause>, master: u64, place: usize, share: f64) -> Estimate {
    let after =
        |pause: &Pause| Some(pause.pushes[place].after_s.unwrap_or(PUSH_TIMEOUT.as_secs_f64()));
    let ranked = RankedSamples::rank_samples(pauses, after);
    count_where(pauses, master, |drawn| ranked.quantile(drawn, share))
}

/// Share of the pushes that arrive within this time.
fn share_within(pauses: &Samples<Pause>, place: usize, limit_s: f64) -> Estimate {
    let came = |pause: &Pause| pause.pushes[place].after_s.is_some_and(|s| s <= limit_s);
    pauses.share(|pause| (u64::from(came(pause)), 1)).percent()
}

/// Longest delay of a push that arrived.
fn longest_s(pauses: &Samples<Pause>, place: usize) -> f64 {
    pauses.all().iter().filter_map(|pause| pause.pushes[place].after_s).fold(0.0, f64::max)
}

/// In an idle time the server has marked its last data, so that the receive timer does not run.
fn verdicts(pauses: &Samples<Pause>, contestants: &[Contestant]) -> Vec<Row> {
    let name = systems::authors().name;
    let authors = contestants.iter().position(|contestant| contestant.name == name);
    let slept = |pause: &Pause| authors.is_some_and(|place| pause.pushes[place].lte_j <= 0.0);
    let share = pauses.share(|pause| (u64::from(slept(pause)), 1)).percent();
    vec![
        Row::new("authors' parameters: idle times in which LTE sleeps until the push")
            .statement("idle-mark-stops-the-timer")
            .paper_claim("stop if data with MP_IDLE was received")
            .estimate(&share, "%")
            .at_least(95.0),
    ]
}

fn grid(pauses: &Samples<Pause>, contestants: &[Contestant], master: u64) -> Grid {
    let columns = [
        ("client", ""),
        ("median", "s"),
        ("90 %", "s"),
        ("longest delay of those that arrived", "s"),
        ("within 1 s", "%"),
        ("within 5 s", "%"),
        ("within 15 s", "%"),
        ("within 60 s", "%"),
        ("ever", "%"),
        ("the server gave up", "%"),
        ("WiFi before it failed, per idle minute", "J"),
        ("LTE, per idle minute", "J"),
    ];
    let title = format!(
        "Time from the server's write to the client's read, after a pause in which WiFi died; pushes that never \
         arrived count as {} s in quantiles; joules by traffic: {CONSTANTS}",
        PUSH_TIMEOUT.as_secs()
    );
    let mut grid = Grid::new("push-times", title, &columns);
    for (place, contestant) in contestants.iter().enumerate() {
        let minutes = |seconds: f64| seconds / 60.0;
        let wifi = pauses
            .ratio(|pause| (pause.pushes[place].wifi_j, minutes(pause.lasts_s - pause.dead_s)));
        let lte = pauses.ratio(|pause| (pause.pushes[place].lte_j, minutes(pause.lasts_s)));
        let mut cells = vec![Value::Text(contestant.name.clone())];
        cells.extend([0.5, 0.9].map(|share| cell(quantile(pauses, master, place, share))));
        cells.push(Value::new(longest_s(pauses, place), ""));
        let limits_s = [1.0, 5.0, 15.0, 60.0, PUSH_TIMEOUT.as_secs_f64()];
        cells.extend(limits_s.map(|limit_s| cell(share_within(pauses, place, limit_s))));
        let closed = pauses.share(|pause| (u64::from(pause.pushes[place].closed), 1));
        cells.extend([cell(closed.percent()), cell(wifi), cell(lte)]);
        grid.rows.push(cells);
    }
    grid
}

fn figure(pauses: &Samples<Pause>, contestants: &[Contestant]) -> Figure {
    let heading = "Server push after a pause in which WiFi died";
    let mut plot = Plot::new(heading, "from write to read (s)", "share of the pushes").log_x();
    let shown = contestants.iter().enumerate();
    for (place, contestant) in shown.filter(|(_, c)| c.interval_s.is_some()) {
        let after =
            |pause: &Pause| Some(pause.pushes[place].after_s.unwrap_or(PUSH_TIMEOUT.as_secs_f64()));
        plot = plot
            .steps(&contestant.name, &cdf(&RankedSamples::rank_samples(pauses, after).values()));
    }
    let caption = "The times at which WiFi died are spread evenly on a logarithmic scale \
                   before the push.";
    plot.figure("push", caption)
}
