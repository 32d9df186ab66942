//! WLAN failure: every trace separately, other stacks, and a slower WLAN. Only the wait of a lone packet's probe is
//! judged.

use marline_lab::experiment::Variant;
use marline_lab::figure::{Bars, Figure, mean_interval};

use super::campaign::{Case, Pair, death};
use super::contestants::{
    LINUX_314_RECOVERY, Windows, historic_stack, multipath, standard, variant_without_probes,
};
use super::published::Published;
use super::run::AffectedBurst;
use super::traffic::{App, FailurePlacement, WLAN_MBIT, WLAN_ON_AIR_MBIT};
use crate::estimate::{Estimate, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::plain::mptcp;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction};
use crate::value::Value;

const TRACES: Part = Part::fixed("traces", 30);
const REPETITIONS: usize = 5;
const VARIANTS: Part = Part::fixed("variants", 40);
const RATES: Part = Part::fixed("rates", 20);

/// Scenes of the grids.
const CASES: [Case; 4] = [
    Case::new(App::Docs, FailurePlacement::Independent, 1),
    Case::new(App::Maps, FailurePlacement::Independent, 1),
    Case::new(App::Maps, FailurePlacement::Within, 1),
    Case::new(App::Netflix, FailurePlacement::Within, 1),
];

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<Row> {
    all.figures.extend(traces(context)?);
    let list = list();
    let samples = context.sample(VARIANTS, |root| cells(context, root, &list))?;
    all.grids.push(variants(&samples, &list));
    all.grids.push(rates(context)?);
    no_allowance(file, &samples, &list)
}

/// The wait that tuned ACKs would avoid.
fn no_allowance(
    file: &PaperFile<Published>,
    samples: &Samples<Cells>,
    list: &[Variant],
) -> anyhow::Result<Row> {
    // The first of the cases is Docs.
    let at =
        |name: &str| list.iter().position(|variant| variant.name == name).unwrap_or(usize::MAX);
    let pair = [at("TLP-MP"), at("TLP-MP, no allowance")];
    let saved = samples.ratio(|cells| {
        let [slow, fast] = pair.map(|index| cells.get(index).copied().flatten());
        slow.zip(fast).map_or((0.0, 0.0), |(slow, fast)| (slow.0 - fast.0, 1.0))
    });
    Ok(Row::new("Docs: time that TLP-MP saves without the allowance for a delayed ACK")
        .statement("tuned-acks-avoid-wait")
        .paper(file.published.lone_probe_ms, "ms")
        .estimate(&saved, "ms")
        .within_of_paper(file.tolerance("share")?))
}

/// Figures with one group of repetitions for each trace of an application, as in the study.
fn traces(context: &Context<'_>) -> anyhow::Result<Vec<Figure>> {
    let samples = context.sample(TRACES, |root| {
        let of_app = |app: App| {
            // Every third trace of Maps is hit within a burst.
            let number = root.number % 3;
            let case = Case::new(app, FailurePlacement::AsObserved, 1);
            let mut pairs: Vec<Pair> = Vec::new();
            for repetition in 0..context.count(REPETITIONS) {
                let spot = case.spot(root, number, repetition, Windows::Kept, death(context))?;
                pairs.extend(spot.pair(Windows::Kept)?);
            }
            Ok(pairs)
        };
        App::STUDIED.into_iter().map(of_app).collect::<anyhow::Result<Vec<Vec<Pair>>>>()
    })?;
    let figure = |(index, app): (usize, App)| {
        let pairs = samples.all().iter().map(|apps| apps[index].as_slice());
        completion_bars(app, pairs)
    };
    Ok(App::STUDIED.into_iter().enumerate().map(figure).collect())
}

fn completion_bars<'a>(app: App, traces: impl Iterator<Item = &'a [Pair]>) -> Figure {
    let title = format!("{}: completion of the affected burst, per trace", app.name());
    let mut bars = Bars::new(&title, "time (ms)", &["TLP-STD", "TLP-MP"]);
    for (number, pairs) in (1..).zip(traces) {
        let bar = |of: fn(&Pair) -> f64| {
            let times: Vec<f64> = pairs.iter().map(of).collect();
            let (mean, interval) = mean_interval(&times);
            (mean, Some(interval).filter(|interval| interval.0.is_finite()))
        };
        let both =
            [bar(|pair| pair.standard.completion_ms), bar(|pair| pair.multipath.completion_ms)];
        bars = bars.group(&number.to_string(), &both);
    }
    let figure = match app {
        App::Docs => 4,
        App::Maps => 6,
        _ => 7,
    };
    let caption = format!(
        "Like figure {figure} of the paper: one group for each trace, windows kept, losses placed \
         as the paper observed them; 95 % intervals over {REPETITIONS} repetitions."
    );
    bars.figure(&app.name().to_lowercase(), &caption)
}

/// Alternative stacks, and Marline's min-rtt.
fn list() -> Vec<Variant> {
    let kept = Windows::Kept;
    let no_allowance = LINUX_314_RECOVERY.replace("linux-3.10", "no-allowance");
    let named = |name: &str, variant: Variant| Variant { name: name.to_owned(), ..variant };
    vec![
        variant_without_probes(kept),
        standard(kept),
        historic_stack("TLP-MP, waits for the timer", "tlp-mp,after=rto", kept),
        multipath(kept),
        named("TLP-STD, no allowance", standard(kept)).recovery(&no_allowance),
        named("TLP-MP, no allowance", multipath(kept)).recovery(&no_allowance),
        named("TLP-MP, RACK, Linux today", multipath(kept)).recovery("rack-tlp,pto=linux"),
        named("TLP-STD, LIA", standard(kept)).congestion("lia+keep-window"),
        named("TLP-MP, LIA", multipath(kept)).congestion("lia+keep-window"),
        mptcp("Marline's min-rtt"),
        mptcp("Marline's min-rtt, windows kept").congestion("cubic+keep-window"),
    ]
}

/// Completion and bound of each case and stack, ms. `None`: WLAN lost no data with at least one of the stacks.
type Cells = Vec<Option<(f64, f64)>>;

fn cells(context: &Context<'_>, root: &Root, list: &[Variant]) -> anyhow::Result<Cells> {
    let mut cells = Vec::new();
    for case in &CASES {
        let spot = case.spot(root, 0, 0, Windows::Kept, death(context))?;
        let hits =
            list.iter().map(|variant| spot.run(variant)).collect::<anyhow::Result<Vec<_>>>()?;
        // All stacks must be hit for a trace to count.
        let lost = hits.iter().all(|hit| hit.lost);
        let cell = |hit: &AffectedBurst| lost.then_some((hit.completion_ms, hit.bound_ms));
        cells.extend(hits.iter().map(cell));
    }
    Ok(cells)
}

fn variants(samples: &Samples<Cells>, list: &[Variant]) -> Grid {
    let columns = [
        ("burst", ""),
        ("stack", ""),
        ("traces", ""),
        ("completion", "ms"),
        ("worst", "ms"),
        ("ratio to bound", ""),
    ];
    let title = "WLAN dies: other stacks and Marline's own, traces in which WLAN lost data with every stack (99 % \
                 intervals)";
    let mut grid = Grid::new("variants", title, &columns);
    for (number, case) in CASES.iter().enumerate() {
        for (index, variant) in list.iter().enumerate() {
            let cell = |cells: &Cells| cells[number * list.len() + index];
            let completion = samples.ratio(|all| cell(all).map_or((0.0, 0.0), |c| (c.0, 1.0)));
            let bound = samples.ratio(|all| cell(all).unwrap_or((0.0, 0.0)));
            let hit = samples.all().iter().filter_map(|all| cell(all).map(|cell| cell.0));
            let times: Vec<f64> = hit.collect();
            grid.rows.push(vec![
                Value::Text(name(case)),
                Value::Text(variant.name.clone()),
                Value::new(times.len() as f64, ""),
                interval(&completion),
                Value::new(times.iter().copied().fold(0.0, f64::max), ""),
                Value::new(bound.value, ""),
            ]);
        }
    }
    grid
}

fn name(case: &Case) -> String {
    match case.app {
        App::Docs => case.app.name().to_owned(),
        app => format!("{}, {}", app.name(), case.place.text()),
    }
}

fn interval(of: &Estimate) -> Value {
    Value::from_estimate(of, "")
}

/// Results with the router's nominal rate, and with an assumed rate on the air.
fn rates(context: &Context<'_>) -> anyhow::Result<Grid> {
    let mut settings = Vec::new();
    for case in CASES {
        for wlan_mbit in [WLAN_MBIT, WLAN_ON_AIR_MBIT] {
            settings.extend(Windows::ALL.map(|windows| (case, wlan_mbit, windows)));
        }
    }
    let samples = context.sample(RATES, |root| {
        let times = |(case, wlan_mbit, windows): &(Case, f64, Windows)| {
            let case = Case { wlan_mbit: *wlan_mbit, ..*case };
            let spot = case.spot(root, 0, 0, *windows, death(context))?;
            let pair = spot.pair(*windows)?;
            Ok(pair.map(|pair| (pair.standard.completion_ms, pair.multipath.completion_ms)))
        };
        settings.iter().map(times).collect::<anyhow::Result<Cells>>()
    })?;
    let columns = [
        ("burst", ""),
        ("WLAN", "Mbit/s"),
        ("windows", ""),
        ("TLP-STD", "ms"),
        ("TLP-MP", "ms"),
        ("time saved by TLP-MP", "ms"),
    ];
    let title = "WLAN dies: by WLAN rate (99 % intervals)";
    let mut grid = Grid::new("rates", title, &columns);
    for (index, (case, wlan_mbit, windows)) in settings.iter().enumerate() {
        let mean = |of: fn((f64, f64)) -> f64| {
            interval(&samples.ratio(|all| all[index].map_or((0.0, 0.0), |times| (of(times), 1.0))))
        };
        grid.rows.push(vec![
            Value::Text(name(case)),
            Value::new(*wlan_mbit, ""),
            Value::Text(windows.text().to_owned()),
            mean(|times| times.0),
            mean(|times| times.1),
            mean(|times| times.0 - times.1),
        ]);
    }
    Ok(grid)
}
