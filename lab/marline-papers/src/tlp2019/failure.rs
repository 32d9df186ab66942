//! WLAN failure at 80 s: completion time of the affected burst, bytes on the air, and position of the loss in
//! the burst.

use marline_lab::figure::{Plot, cdf};

use super::campaign::{Case, Pair, SettingSamples, measure, setting_samples, settings};
use super::contestants::{Windows, standard};
use super::published::Published;
use super::run::reconnect;
use super::traffic::{App, FailurePlacement};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::Part;
use crate::table::{Reproduction, Table};
use crate::value::Value;

/// A separate part for each application, because they need different numbers of roots.
struct Campaign {
    name: &'static str,
    part: Part,
    cases: &'static [Case],
}

/// A root of Docs has a whole set of traces, because the study states the smallest saving in a set.
const CAMPAIGNS: [Campaign; 3] = [
    Campaign {
        name: "Docs",
        part: Part::new("docs", 110, 220),
        cases: &[Case::new(App::Docs, FailurePlacement::Independent, 30)],
    },
    Campaign {
        name: "Maps",
        part: Part::new("maps", 60, 300),
        cases: &[
            Case::new(App::Maps, FailurePlacement::Independent, 2),
            Case::new(App::Maps, FailurePlacement::Within, 2),
            Case::new(App::Maps, FailurePlacement::AsObserved, 3),
        ],
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
    },
];

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let mut positions = Vec::new();
    for Campaign { name, part, cases } in CAMPAIGNS {
        let settings = settings(cases);
        let (samples, rows) = context.judge_part(
            part,
            |root| measure(context, root, &settings),
            |samples| {
                let mut rows = Vec::new();
                for of in setting_samples(&settings, samples) {
                    rows.extend(rows_of(file, &of)?);
                }
                Ok(rows)
            },
        )?;
        for of in
            setting_samples(&settings, &samples).filter(|of| of.setting.windows == Windows::Kept)
        {
            let percent = of.pairs().map(|pair| pair.standard.position * 100.0).collect::<Vec<_>>();
            positions.push((of.setting.case, percent));
        }
        let title = format!("{name}: WLAN dies; the affected burst (99 % intervals)");
        all.tables.push(Table::new(part.name, title, rows));
    }
    all.figures.push(position_figure(&positions));
    all.tables.push(handover(context, file)?);
    Ok(())
}

fn rows_of(file: &PaperFile<Published>, of: &SettingSamples<'_>) -> anyhow::Result<Vec<Row>> {
    let mut rows = completion(file, of)?;
    if of.setting.case.app == App::Docs {
        rows.extend(docs(file, of)?);
    }
    rows.push(overhead(of));
    rows.extend(position(file, of));
    Ok(rows)
}

fn completion(file: &PaperFile<Published>, of: &SettingSamples<'_>) -> anyhow::Result<Vec<Row>> {
    let name = of.name();
    let least = 100.0 * file.tolerance("improved")?;
    let bound = |which: fn(&Pair) -> (f64, f64)| of.ratio(which).value;
    let saved = of.mean(Pair::saved_ms);
    let share = of.ratio(|pair| (100.0 * pair.saved_ms(), pair.standard.completion_ms));
    let faster = of.share(|pair| pair.saved_ms() > 0.0);
    let (hit, traces) = of.affected_runs();
    Ok(vec![
        Row::new(format!("{name}: TLP-STD"))
            .estimate(&of.mean(|pair| pair.standard.completion_ms), "ms")
            .bound_ratio(bound(|pair| (pair.standard.completion_ms, pair.standard.bound_ms)))
            .with_remark(format!("WLAN lost data in {hit} of {traces} runs")),
        Row::new(format!("{name}: TLP-MP"))
            .estimate(&of.mean(|pair| pair.multipath.completion_ms), "ms")
            .bound_ratio(bound(|pair| (pair.multipath.completion_ms, pair.multipath.bound_ms))),
        Row::new(format!("{name}: share of the time saved by TLP-MP"))
            .paper_claim("improved")
            .estimate(&share, "%")
            .at_least(least)
            .with_remark(format!(
                "{}; faster in {:.1} % of the runs",
                Value::from_estimate(&saved, "ms"),
                100.0 * faster.value
            )),
    ])
}

/// Claims of the study about every trace of Docs.
fn docs(file: &PaperFile<Published>, of: &SettingSamples<'_>) -> anyhow::Result<Vec<Row>> {
    let published = &file.published;
    let name = of.name();
    Ok(vec![
        Row::new(format!("{name}: time saved by TLP-MP"))
            .paper_claim("at least 200 ms")
            .estimate(&of.mean(Pair::saved_ms), "ms"),
        Row::new(format!("{name}: sets of traces with TLP-MP faster on every trace"))
            .paper_claim("all 30 traces")
            .estimate(&of.share_of_roots(|pair| pair.saved_ms() > 0.0), "")
            .at_least(file.tolerance("always")?),
        Row::new(format!("{name}: smallest saving in a set"))
            .paper(published.docs_least_saving_ms, "ms")
            .estimate(&of.extreme_estimate(Pair::saved_ms, f64::min), "ms")
            .at_least(published.docs_least_saving_ms),
        Row::new(format!("{name}: largest share saved in a set"))
            .paper(100.0 * published.docs_largest_share, "%")
            .estimate(&of.extreme_estimate(|pair| 100.0 * pair.saved_share(), f64::max), "%")
            .within_of_paper(file.tolerance("share")?),
    ])
}

/// Packets and bytes that TLP-MP sends in addition to those of TLP-STD.
fn overhead(of: &SettingSamples<'_>) -> Row {
    let packets =
        of.mean(|pair| pair.multipath.air_packets as f64 - pair.standard.air_packets as f64);
    let of_standard = of.mean(|pair| pair.standard.air_bytes as f64);
    Row::new(format!("{}: packets sent by TLP-MP beyond TLP-STD, per burst", of.name()))
        .paper_claim("no additional overhead")
        .estimate(&of.mean(Pair::more_bytes), "B")
        .at_most(0.0)
        .with_remark(format!(
            "{:+.2} packets; TLP-STD's are {:.0} B, on both paths together",
            packets.value, of_standard.value
        ))
}

/// Position of the first loss, which depends on our own placement of the bursts and their gaps.
fn position(file: &PaperFile<Published>, of: &SettingSamples<'_>) -> Option<Row> {
    let case = of.setting.case;
    if of.setting.windows != Windows::Kept || case.place == FailurePlacement::Within {
        return None;
    }
    let (words, says, fits): (_, _, &dyn Fn(f64) -> bool) = match case.app {
        App::Docs => ("before the burst was written", "always", &|position| position >= 1.0),
        App::Maps => ("between bursts or in the last tenth", "most", &|position| position >= 0.9),
        _ => {
            let most = file.published.netflix_position;
            ("in the first tenth", "all, as observed", &move |position| position <= most)
        }
    };
    let assumed = match case.place {
        FailurePlacement::AsObserved => "its position, from the paper's figures 2 and 3",
        FailurePlacement::Within | FailurePlacement::Independent => {
            "the gaps between bursts, which are our choice"
        }
    };
    let share = of.share(|pair| fits(pair.standard.position));
    let row = Row::new(format!("{}: losses {words}", of.name())).paper_claim(says);
    Some(row.estimate(&share, "").mark_fitted(assumed))
}

fn position_figure(positions: &[(Case, Vec<f64>)]) -> marline_lab::figure::Figure {
    let mut plot = Plot::new(
        "Position of the first loss in the burst",
        "position (% of the burst)",
        "share of the runs",
    );
    for (case, percent) in positions {
        let three = App::STUDIED.contains(&case.app) && case.app != App::Docs;
        if three && case.place != FailurePlacement::Within {
            let name = format!("{}, {}", case.app.name(), case.place.text());
            plot = plot.steps(&name, &cdf(percent));
        }
    }
    let caption = "Like figures 2 and 3 of the paper. A loss between two bursts counts as one at the end of the first. \
                   Losses marked \"as observed\" are placed there.";
    plot.x_range(0.0, 100.0).figure("loss-position", caption)
}

/// One path at a time, with the paper's time for a handover.
fn handover(context: &Context<'_>, file: &PaperFile<Published>) -> anyhow::Result<Table> {
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
    let row = |(number, app): (usize, App)| {
        let time = samples.mean(|times: &Vec<f64>| times.get(number).copied().unwrap_or(f64::NAN));
        Row::new(format!("{}, one path, reconnects after 3 s", app.name()))
            .paper(file.published.handover_ms, "ms")
            .estimate(&time, "ms")
            .mark_fitted("the 3 s are from the paper")
            .with_remark(
                "the paper reports the handover time; ours is the burst time, and the burst may begin later",
            )
    };
    let rows = App::STUDIED.into_iter().enumerate().map(row).collect();
    Ok(Table::new("handover", "Without MPTCP: the same burst (99 % intervals)", rows))
}
