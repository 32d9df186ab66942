//! Judged rows of the failure of WLAN, one for each statement of the paper about it.
//!
//! Losses are placed as the paper observed them, or not placed where the position is itself the statement. All rows
//! have windows that persist over pauses: with windows that restart, a burst of Maps uses both paths, and the paper
//! says that it does not.

use super::campaign::{Pair, SettingSamples};
use super::contestants::Windows;
use super::published::Published;
use super::traffic::{App, FailurePlacement};
use crate::estimate::RequiredRange;
use crate::file::PaperFile;
use crate::judge::Row;
use crate::value::Value;

type File = PaperFile<Published>;

/// Position from which a loss counts as one at the end of a burst.
const TAIL: f64 = 0.9;
/// Maximum difference of the times of two packets that one event caused, ms.
const SAME_EVENT_MS: f64 = 1.0;

fn find_samples<'a, 'b>(
    all: &'b [SettingSamples<'a>],
    app: App,
    place: FailurePlacement,
) -> anyhow::Result<&'b SettingSamples<'a>> {
    let fits = |of: &&SettingSamples<'_>| {
        let case = of.setting.case;
        (case.app, case.place, of.setting.windows) == (app, place, Windows::Kept)
    };
    all.iter().find(fits).ok_or_else(|| anyhow::anyhow!("{} was not measured", app.name()))
}

fn same_event(one: Option<f64>, other: Option<f64>) -> bool {
    one.zip(other).is_some_and(|(one, other)| (one - other).abs() <= SAME_EVENT_MS)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Requires that TLP-MP saves time, too: without copies there is no overhead either.
fn with_gain(row: Row, file: &File, of: &SettingSamples<'_>) -> anyhow::Result<Row> {
    let least = 100.0 * file.tolerance("improved")?;
    let saved = of.saved_percent();
    let app = of.setting.case.app.name();
    let words = format!("at least {least} % of the time of {app} saved");
    Ok(row.require_also(&saved, RequiredRange::at_least(least), words))
}

fn improvement_row(id: &'static str, file: &File, of: &SettingSamples<'_>) -> anyhow::Result<Row> {
    let faster = of.share(|pair| pair.saved_ms() > 0.0);
    Ok(Row::new(format!("{}: share of the time saved by TLP-MP", of.setting.case.app.name()))
        .statement(id)
        .paper_claim("improved")
        .estimate(&of.saved_percent(), "%")
        .at_least(100.0 * file.tolerance("improved")?)
        .with_remark(format!(
            "{}; faster in {:.1} % of the runs",
            Value::from_estimate(&of.mean(Pair::saved_ms), "ms"),
            100.0 * faster.value
        )))
}

/// Bytes that TLP-MP sends in addition to those of TLP-STD, on both paths.
fn overhead(id: &'static str, of: &SettingSamples<'_>) -> Row {
    let of_standard = of.mean(|pair| pair.standard.air_bytes as f64);
    Row::new(format!("{}: bytes sent by TLP-MP beyond TLP-STD", of.setting.case.app.name()))
        .statement(id)
        .paper_claim("no additional overhead")
        .estimate(&of.mean(Pair::more_bytes), "B per burst")
        .at_most(0.0)
        .with_remark(format!("TLP-STD sends {:.0} B", of_standard.value))
}

pub(super) fn docs(file: &File, all: &[SettingSamples<'_>]) -> anyhow::Result<Vec<Row>> {
    let mut rows = docs_events(file, all)?;
    let of = find_samples(all, App::Docs, FailurePlacement::Independent)?;
    let published = &file.published;
    let share = file.tolerance("share")?;
    let percent = |pair: &Pair| 100.0 * pair.saved_share();
    rows.extend([
        Row::new("Docs: sets of traces with TLP-MP faster on every trace")
            .statement("docs-every-trace")
            .paper_claim("all 30 traces")
            .estimate(&of.share_of_roots(|pair| pair.saved_ms() > 0.0), "")
            .at_least(file.tolerance("always")?),
        Row::new("Docs: smallest saving in a set")
            .statement("docs-least-saving")
            .paper(published.docs_least_saving_ms, "ms")
            .estimate(&of.mean_over_roots(Pair::saved_ms, least), "ms")
            .at_least(published.docs_least_saving_ms)
            .within_of_paper(share),
        Row::new("Docs: largest share saved in a set")
            .statement("docs-largest-share")
            .paper(100.0 * published.docs_largest_share, "%")
            .estimate(&of.mean_over_roots(percent, largest), "%")
            .within_of_paper(share),
        Row::new("Docs: largest minus smallest share saved in a set")
            .statement("docs-gain-varies")
            .paper_claim("the gain varies")
            .estimate(&of.mean_over_roots(percent, |all| largest(all) - least(all)), "%")
            .at_least(100.0 * file.tolerance("improved")?),
    ]);
    Ok(rows)
}

/// Statements about the packets of a burst of Docs.
fn docs_events(file: &File, all: &[SettingSamples<'_>]) -> anyhow::Result<Vec<Row>> {
    let of = find_samples(all, App::Docs, FailurePlacement::Independent)?;
    let always = file.tolerance("always")?;
    let row = |id: &'static str, what: &str, claim: &str, holds: &dyn Fn(&Pair) -> bool| {
        let row = Row::new(format!("Docs: share of the runs in which {what}")).statement(id);
        row.paper_claim(claim).estimate(&of.share(holds), "").at_least(always)
    };
    let waits = of.ratio(|pair| pair.standard.repeats.probe_ms.map(|at| (at, 1.0)));
    Ok(vec![
        Row::new("Docs: wait of the lone packet's probe")
            .statement("lone-probe-waits")
            .paper(file.published.lone_probe_ms, "ms")
            .estimate(&waits, "ms")
            .within_of_paper(file.tolerance("share")?),
        row("docs-loss-between-bursts", "WLAN died between two bursts", "always", &|pair| {
            pair.standard.position >= 1.0
        }),
        row("std-waits-for-timer", "TLP-STD's copy is caused by the timer", "all", &|pair| {
            let repeats = pair.standard.repeats;
            same_event(repeats.copy_ms, repeats.timer_ms)
        }),
        row(
            "probe-on-both-paths",
            "TLP-MP's probe is on both paths, and ends before the timer",
            "all",
            &|pair| {
                let (repeats, end) = (pair.multipath.repeats, pair.multipath.completion_ms);
                same_event(repeats.copy_ms, repeats.probe_ms)
                    && repeats.timer_ms.is_none_or(|timer| end < timer)
            },
        ),
        row("original-path-repeats", "TLP-MP repeats on WLAN after its copy", "always", &|pair| {
            pair.multipath.repeats.wlan_after_copy > 0
        }),
    ])
}

pub(super) fn maps(file: &File, all: &[SettingSamples<'_>]) -> anyhow::Result<Vec<Row>> {
    let improvement = file.tolerance("improved")?;
    let free = find_samples(all, App::Maps, FailurePlacement::Independent)?;
    let within = find_samples(all, App::Maps, FailurePlacement::Within)?;
    let seen = find_samples(all, App::Maps, FailurePlacement::AsObserved)?;
    // Within a burst the probe's timer starts again with each ACK.
    let probe_rtts = free.ratio(|pair| {
        let at = pair.standard.repeats.probe_ms.filter(|_| pair.standard.position >= 1.0);
        at.map(|at| (at, pair.standard.srtt_ms))
    });
    let copied = |pair: &Pair| pair.standard.repeats.copied_bytes as f64;
    let rest = seen.ratio(|pair| {
        let of = pair.standard.repeats.rest_ms.zip(pair.multipath.repeats.rest_ms);
        of.map(|(standard, multipath)| (100.0 * (standard - multipath), standard))
    });
    Ok(vec![
        Row::new("Maps, not placed: wait of the probe")
            .statement("probe-after-two-rtts")
            .paper(file.published.probe_rtts, "RTT")
            .estimate(&probe_rtts, "RTT")
            .within_of_paper(file.tolerance("share")?),
        Row::new("Maps, not placed: packets on 4G before WLAN dies")
            .statement("short-bursts-use-one-path")
            .paper_claim("none")
            .estimate(&free.mean(|pair| 100.0 * pair.standard.lte_share), "%")
            .at_most(100.0 - 100.0 * file.tolerance("always")?),
        Row::new("Maps, not placed: losses between bursts or in the last tenth of one")
            .statement("maps-loss-at-end")
            .paper_claim("often")
            .estimate(&free.share(|pair| pair.standard.position >= TAIL), "")
            .at_least(file.tolerance("often")?),
        Row::new("Maps, within a burst: bytes repeated on 4G, second half relative to the first")
            .statement("position-decides-repeats")
            .paper_claim("by position")
            .estimate(&within.ratio_of_groups(copied, |pair| pair.standard.position >= 0.5), "")
            .at_most(1.0 - improvement),
        improvement_row("maps-improved", file, seen)?,
        Row::new("Maps: second packet repeated on 4G, share of the wait saved by TLP-MP")
            .statement("maps-rest-sooner")
            .paper_claim("faster")
            .estimate(&rest, "%")
            .at_least(100.0 * improvement),
        with_gain(overhead("maps-same-overhead", seen), file, seen)?,
    ])
}

pub(super) fn netflix(file: &File, all: &[SettingSamples<'_>]) -> anyhow::Result<Vec<Row>> {
    let of = find_samples(all, App::Netflix, FailurePlacement::AsObserved)?;
    let sooner = of.ratio(|pair| {
        let of = pair.standard.repeats.copy_ms.zip(pair.multipath.repeats.copy_ms);
        of.map(|(standard, multipath)| (100.0 * (standard - multipath), standard))
    });
    Ok(vec![
        Row::new("Netflix: share of the bursts that use 4G before WLAN dies")
            .statement("large-bursts-use-both-paths")
            .paper_claim("all")
            .estimate(&of.share(|pair| pair.standard.lte_share > 0.0), "")
            .at_least(file.tolerance("always")?),
        improvement_row("netflix-improved", file, of)?,
        Row::new("Netflix: first packet repeated on 4G, share of the wait saved by TLP-MP")
            .statement("netflix-probe-on-4g")
            .paper_claim("at the probe, not the timer")
            .estimate(&sooner, "%")
            .at_least(100.0 * file.tolerance("improved")?),
    ])
}

/// The conclusion about all scenarios. Maps has its own row.
pub(super) fn conclusion(file: &File, all: &[SettingSamples<'_>]) -> anyhow::Result<Row> {
    let docs = find_samples(all, App::Docs, FailurePlacement::Independent)?;
    let netflix = find_samples(all, App::Netflix, FailurePlacement::AsObserved)?;
    let row = overhead("no-overhead-on-failure", netflix).require_also(
        &docs.mean(Pair::more_bytes),
        RequiredRange::at_most(0.0),
        "at most 0 B of Docs",
    );
    with_gain(with_gain(row, file, netflix)?, file, docs)
}
