//! WLAN failure at 80 s: completion time of the affected burst, bytes on the air, and position of the loss in
//! the burst.

use marline_lab::figure::{Plot, cdf};

use super::campaign::{
    Case, Pair, Sample, Setting, SettingSamples, measure, setting_samples, settings,
};
use super::contestants::{Windows, standard};
use super::published::Published;
use super::run::reconnect;
use super::statements;
use super::traffic::{App, FailurePlacement};
use crate::estimate::Samples;
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::Part;
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

type Rows = fn(&PaperFile<Published>, &[SettingSamples<'_>]) -> anyhow::Result<Vec<Row>>;

/// A separate part for each application, because they need different numbers of roots.
struct Campaign {
    name: &'static str,
    part: Part,
    cases: &'static [Case],
    rows: Rows,
}

/// A root of Docs has a whole set of traces, because the study states the smallest saving in a set.
const CAMPAIGNS: [Campaign; 3] = [
    Campaign {
        name: "Docs",
        part: Part::new("docs", 110, 220),
        cases: &[Case::new(App::Docs, FailurePlacement::Independent, 30)],
        rows: statements::docs,
    },
    Campaign {
        name: "Maps",
        part: Part::new("maps", 60, 300),
        cases: &[
            Case::new(App::Maps, FailurePlacement::Independent, 2),
            Case::new(App::Maps, FailurePlacement::Within, 2),
            Case::new(App::Maps, FailurePlacement::AsObserved, 3),
        ],
        rows: statements::maps,
    },
    Campaign {
        name: "Netflix",
        part: Part::new("netflix", 30, 200),
        cases: &[
            Case::new(App::Netflix, FailurePlacement::Independent, 1),
            Case::new(App::Netflix, FailurePlacement::Within, 1),
            Case::new(App::Netflix, FailurePlacement::AsObserved, 1),
            Case::new(App::NetflixSmall, FailurePlacement::Independent, 1),
            Case::new(App::NetflixSmall, FailurePlacement::Within, 1),
            Case::new(App::NetflixSmall, FailurePlacement::AsObserved, 1),
            Case::new(App::NetflixLarge, FailurePlacement::Independent, 1),
            Case::new(App::NetflixLarge, FailurePlacement::Within, 1),
            Case::new(App::NetflixLarge, FailurePlacement::AsObserved, 1),
        ],
        rows: statements::netflix,
    },
];

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let mut measured: Vec<(Vec<Setting>, Samples<Sample>)> = Vec::new();
    for Campaign { name, part, cases, rows } in CAMPAIGNS {
        let settings = settings(cases);
        let (samples, rows) = context.judge_part(
            part,
            |root| measure(context, root, &settings),
            |samples| rows(file, &setting_samples(&settings, samples)),
        )?;
        let title = format!("{name}: burst affected when WLAN dies (99 % intervals)");
        all.tables.push(Table::new(part.name, title, rows));
        measured.push((settings, samples));
    }
    let settings: Vec<SettingSamples<'_>> = measured
        .iter()
        .flat_map(|(settings, samples)| setting_samples(settings, samples))
        .collect();
    let title = "Docs and Netflix together (99 % intervals)";
    let conclusion = vec![statements::conclusion(file, &settings)?];
    all.tables.push(Table::new("conclusion", title, conclusion));
    all.grids.push(failures(&settings));
    all.figures.push(position_figure(&settings));
    all.grids.push(handover(context)?);
    Ok(())
}

/// Every scene, with windows that are kept and that restart.
fn failures(settings: &[SettingSamples<'_>]) -> Grid {
    let columns = [
        ("burst", ""),
        ("WLAN dies", ""),
        ("windows", ""),
        ("runs in which WLAN lost data", "%"),
        ("TLP-STD", "ms"),
        ("TLP-STD, ratio to bound", ""),
        ("TLP-MP", "ms"),
        ("TLP-MP, ratio to bound", ""),
        ("time saved by TLP-MP", "ms"),
        ("share saved", "%"),
        ("faster", "% of the runs"),
        ("bytes beyond TLP-STD", "B"),
        ("packets beyond TLP-STD", ""),
    ];
    let mut grid = Grid::new("failures", "WLAN dies: every scene (99 % intervals)", &columns);
    for of in settings {
        let Setting { case, windows } = of.setting;
        let text = |text: &str| Value::Text(text.to_owned());
        let mean = |which: fn(&Pair) -> f64| Value::from_estimate(&of.mean(which), "");
        let bound = |which: fn(&Pair) -> (f64, f64)| {
            Value::new(of.ratio(|pair| Some(which(pair))).value, "")
        };
        let (hit, traces) = of.affected_runs();
        let faster = of.share(|pair| pair.saved_ms() > 0.0).percent();
        let packets =
            |pair: &Pair| pair.multipath.air_packets as f64 - pair.standard.air_packets as f64;
        grid.rows.push(vec![
            text(case.app.name()),
            text(case.place.text()),
            text(windows.text()),
            Value::new(100.0 * hit as f64 / traces as f64, ""),
            mean(|pair| pair.standard.completion_ms),
            bound(|pair| (pair.standard.completion_ms, pair.standard.bound_ms)),
            mean(|pair| pair.multipath.completion_ms),
            bound(|pair| (pair.multipath.completion_ms, pair.multipath.bound_ms)),
            mean(Pair::saved_ms),
            Value::from_estimate(&of.saved_percent(), ""),
            Value::from_estimate(&faster, ""),
            mean(Pair::more_bytes),
            mean(packets),
        ]);
    }
    grid
}

fn position_figure(settings: &[SettingSamples<'_>]) -> marline_lab::figure::Figure {
    let mut plot = Plot::new(
        "Position of the first loss in the burst",
        "position (% of the burst)",
        "share of the runs",
    );
    for of in settings.iter().filter(|of| of.setting.windows == Windows::Kept) {
        let case = of.setting.case;
        let drawn = matches!(case.app, App::Maps | App::Netflix);
        if drawn && case.place != FailurePlacement::Within {
            let name = format!("{}, {}", case.app.name(), case.place.text());
            let percent: Vec<f64> = of.pairs().map(|pair| pair.standard.position * 100.0).collect();
            plot = plot.steps(&name, &cdf(&percent));
        }
    }
    let caption = "Like figures 2 and 3 of the paper. A loss between two bursts counts as one at the end of the first. \
                   Losses marked \"as observed\" are placed there.";
    plot.x_range(0.0, 100.0).figure("loss-position", caption)
}

/// One path at a time, with the paper's time for a handover.
fn handover(context: &Context<'_>) -> anyhow::Result<Grid> {
    let variant = marline_lab::experiment::Variant { plain: true, ..standard(Windows::Restarted) };
    let samples = context.sample(Part::fixed("handover", 20), |root| {
        let time = |app| {
            let case = Case::new(app, FailurePlacement::Independent, 1);
            let death = super::campaign::death(context);
            let spot = case.spot(root, 0, 0, Windows::Restarted, death)?;
            reconnect(&spot.trace, &spot.repetition, &variant)
        };
        App::STUDIED.into_iter().map(time).collect::<anyhow::Result<Vec<f64>>>()
    })?;
    let title = "One path at a time, the client reconnects after 3 s: the same burst, which may begin after WLAN \
                 dies (99 % intervals)";
    let mut grid = Grid::new("handover", title, &[("burst", ""), ("completion", "ms")]);
    for (number, app) in App::STUDIED.into_iter().enumerate() {
        let time = samples.mean(|times: &Vec<f64>| times.get(number).copied().unwrap_or(f64::NAN));
        grid.rows.push(vec![Value::Text(app.name().to_owned()), Value::from_estimate(&time, "")]);
    }
    Ok(grid)
}
