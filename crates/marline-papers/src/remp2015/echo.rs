//! Table 1 and Figure 1 of the paper.

use marline_lab::experiment::Variant;
use marline_lab::figure::{Plot, cdf};

use super::links;
use super::measure::{Echoes, echoes};
use super::published::{Published, RoundTrips};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Reproduction, Table};

/// The stack of the study's Linux 3.14.
const RECOVERY_THEN: &str = "rfc6675,pto=linux-3.10,fack=on,early-retransmit=on";

/// Runs of each variant.
const RUNS: usize = 300;

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    result: &mut Reproduction,
) -> anyhow::Result<()> {
    let home = measure(context, "home", ["wifi", "lte"], |_| links::home(links::WIFI))?;
    let train = measure(context, "train", ["lte1", "lte2"], links::train)?;
    let rows = home_rows(file, &home)?;
    result.tables.push(Table::new("home", "Experiment 1: WiFi and LTE at home", rows));
    let rows = train_rows(file, &train)?;
    result.tables.push(Table::new("train", "Experiment 2: two LTE connections in a train", rows));
    result.figures.push(figure(
        "home-cdf",
        "Round trips at home",
        &[("WiFi", &home[0]), ("LTE", &home[1]), ("ReMP", &home[2])],
    ));
    result.figures.push(figure(
        "train-cdf",
        "Round trips in the train",
        &[("LTE 1", &train[0]), ("LTE 2", &train[1]), ("ReMP", &train[2])],
    ));
    Ok(())
}

/// Plain TCP on each path, then redundancy on both.
fn measure(
    context: &Context<'_>,
    what: &str,
    paths: [&str; 2],
    experiment: impl Fn(u64) -> marline_lab::experiment::Experiment + Sync,
) -> anyhow::Result<[Echoes; 3]> {
    // Of that time, too: who suspects paths by probes (`min-rtt`) also retries sooner on one that is heard
    // again, alone as it may be.
    let alone = |path| Variant::alone(path, path).scheduler("lowest-rtt").recovery(RECOVERY_THEN);
    let both = Variant::new("ReMP").scheduler("redundant").recovery(RECOVERY_THEN);
    let variants = [alone(paths[0]), alone(paths[1]), both];
    let all = echoes(context, what, RUNS, experiment, &variants)?;
    all.try_into().map_err(|_| anyhow::anyhow!("three variants"))
}

/// Average (judged if `within`), worst and deviation of a variant.
fn round_trips(name: &str, paper: RoundTrips, ours: &Echoes, within: Option<f64>) -> [Row; 3] {
    let average = Row::new(format!("{name}: average"))
        .paper(paper.average, "ms")
        .ours(ours.average_ms(), "ms")
        .bound_ratio(ours.bound_ratio());
    let average = match within {
        Some(share) => average.within(share),
        None => average,
    };
    let worst = Row::new(format!("{name}: worst of 100 s"))
        .paper(paper.worst, "ms")
        .ours(ours.worst_ms(), "ms");
    let sigma = Row::new(format!("{name}: standard deviation"))
        .paper(paper.sigma, "ms")
        .ours(ours.sigma_ms(), "ms");
    [average, worst, sigma]
}

fn home_rows(file: &PaperFile<Published>, ours: &[Echoes; 3]) -> anyhow::Result<Vec<Row>> {
    let (paper, share) = (&file.published, file.tolerance("average")?);
    let [wifi, lte, remp] = ours;
    let mut rows = Vec::new();
    rows.extend(round_trips("WiFi alone", paper.wifi, wifi, Some(share)));
    rows.extend(round_trips("LTE alone", paper.lte, lte, Some(share)));
    rows.extend(round_trips("ReMP", paper.remp, remp, None));
    let cut = |mine: f64, other: f64| 100.0 * (1.0 - mine / other);
    rows.push(
        Row::new("ReMP: average less than WiFi's by")
            .paper(paper.cut_against_wifi, "%")
            .ours(cut(remp.average_ms(), wifi.average_ms()), "%")
            .at_least(file.tolerance("cut_against_wifi_percent")?),
    );
    rows.push(
        Row::new("ReMP: worst less than WiFi's by")
            .paper(cut(paper.remp.worst, paper.wifi.worst), "%")
            .ours(cut(remp.worst_ms(), wifi.worst_ms()), "%"),
    );
    let below = cut(remp.worst_ms(), lte.worst_ms());
    rows.push(
        Row::new("ReMP: worst less than LTE's by")
            .paper(cut(paper.remp.worst, paper.lte.worst), "%")
            .ours(below, "%")
            .holds(below > 0.0, "below LTE's"),
    );
    Ok(rows)
}

fn train_rows(file: &PaperFile<Published>, ours: &[Echoes; 3]) -> anyhow::Result<Vec<Row>> {
    let (paper, share) = (&file.published, file.tolerance("average")?);
    let [lte1, lte2, remp] = ours;
    let mut rows = Vec::new();
    rows.extend(round_trips("LTE 1 alone", paper.train_lte1, lte1, Some(share)));
    rows.extend(round_trips("LTE 2 alone", paper.train_lte2, lte2, Some(share)));
    rows.extend(round_trips("ReMP", paper.train_remp, remp, None));
    let best = lte1.average_ms().min(lte2.average_ms());
    let left = 100.0 * remp.average_ms() / best;
    rows.push(
        Row::new("ReMP: share of the better connection's average that is left")
            .paper(paper.train_share_left, "%")
            .ours(left, "%")
            .at_most(100.0 - file.tolerance("train_cut_percent")?)
            .remark("the text has \"more than halves (48.8 %)\": the share that is left"),
    );
    let factor = lte1.sigma_ms().min(lte2.sigma_ms()) / remp.sigma_ms();
    let papers = paper.train_lte1.sigma.min(paper.train_lte2.sigma) / paper.train_remp.sigma;
    let said = paper.train_sigma_factor_said;
    rows.push(
        Row::new("ReMP: standard deviation smaller by a factor of")
            .paper(papers, "")
            .ours(factor, "")
            .at_least(file.tolerance("train_sigma_factor")?)
            .remark(format!("the paper's table gives {papers:.1}, its text says {said:.0}")),
    );
    Ok(rows)
}

fn figure(name: &str, title: &str, curves: &[(&str, &Echoes)]) -> marline_lab::figure::Figure {
    let plot = Plot::new(title, "round trip (ms)", "share of messages").log_x();
    let plot =
        curves.iter().fold(plot, |plot, (name, ours)| plot.steps(name, &cdf(&ours.latencies_ms)));
    plot.figure(name, "Cumulated; plain TCP on each path alone, and redundantly on both.")
}
