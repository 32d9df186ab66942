//! Rows with acceptance criteria, and tables for information.

use marline_lab::figure::{Figure, Plot, cdf};
use marline_lab::runs::Record;
use marline_lab::wifi_mobility::PATHS;
use marline_sim::median;

use super::campaign::{Campaign, PublishedValues, Runs, hole_ms, joules, lte_bytes, pair_runs};
use super::systems::{self, System};
use crate::estimate::{Samples, pooled_quantile};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::table::{Grid, Table};

fn runs_of<'a>(all: &'a [Runs], system: &System) -> Option<&'a Runs> {
    all.iter().find(|runs| runs.system.name() == system.name())
}

/// Tables with verdicts.
pub(super) fn tables(
    campaign: &Campaign,
    file: &PaperFile<PublishedValues>,
    master: u64,
) -> anyhow::Result<Vec<Table>> {
    Ok(vec![
        Table::new("walks", "walks out of WiFi range", walks(&campaign.walks, file, master)?),
        Table::new("statics", "WiFi is never lost", statics(&campaign.statics, file, master)?),
        Table::new(
            "downloads",
            "a download, WiFi dies",
            downloads(&campaign.downloads, file, master),
        ),
    ])
}

/// Largest ratio between a decile of one system and the same decile of another.
fn worst_ratio(pairs: &[&(f64, f64)]) -> f64 {
    let sorted = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = pairs.iter().map(|pair| of(pair)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let (ours, theirs) = (sorted(|pair| pair.0), sorted(|pair| pair.1));
    let at =
        |values: &[f64], decile| pooled_quantile([values].into_iter(), f64::from(decile) / 10.0);
    (1..=9).map(|decile| at(&ours, decile) / at(&theirs, decile)).fold(0.0, f64::max)
}

fn walks(all: &[Runs], file: &PaperFile<PublishedValues>, master: u64) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let Some(kernel) = runs_of(all, &systems::kernel_backup()) else { return Ok(rows) };
    for ours in all.iter().filter(|runs| *runs.system.name() != *kernel.system.name()) {
        let name = ours.system.name();
        if ours.system.is_mixed() {
            rows.push(unanswered_row(ours, kernel));
            continue;
        }
        let holes = pair_runs(ours, kernel, master, hole_ms);
        let middle = |pairs: &[&(f64, f64)], of: fn(&(f64, f64)) -> f64| {
            median(&pairs.iter().map(|pair| of(pair)).collect::<Vec<f64>>())
        };
        let ratio =
            holes.estimate(|pairs| middle(pairs, |pair| pair.0) / middle(pairs, |pair| pair.1));
        let row = Row::new(format!("{name}: median gap, ratio to kernel MPTCP with backup flag"))
            .estimate(&ratio, "")
            .with_remark(format!(
                "{:.0} and {:.0} ms",
                median(&ours.holes_ms()),
                median(&kernel.holes_ms())
            ));
        rows.push(if ours.system.judged { row.at_most(file.tolerance("hole")?) } else { row });
        if !ours.system.judged {
            continue;
        }
        for other in [systems::vanilla_mesh(), systems::vanilla_backup()] {
            let Some(other) = runs_of(all, &other) else { continue };
            let ratio = pair_runs(ours, other, master, hole_ms).estimate(worst_ratio);
            let row = Row::new(format!("{name}: worst decile, ratio to {}", other.system.name()))
                .estimate(&ratio, "")
                .at_most(1.0 + file.tolerance("decile")?);
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Number of requests without an answer, plus the number of failed runs.
fn count_lost(runs: &Runs) -> usize {
    let open: usize = runs.good_records().map(|record| record.unanswered_ms.len()).sum();
    open + runs.records.len() - runs.good_records().count()
}

/// Requires every request to be answered if the client is Marline's. A stock client can leave a request in the send
/// queue of a dead path, which no server can change. Its limit is the number with two kernels on the same walks.
fn unanswered_row(runs: &Runs, kernel: &Runs) -> Row {
    let asked = if runs.system.is_marline_client() { 0 } else { count_lost(kernel) };
    Row::new(format!("{}: unanswered requests and failed runs", runs.system.name()))
        .measured(count_lost(runs) as f64, "")
        .at_most(asked as f64)
        .with_remark(format!(
            "two kernels: {}; median gap {:.0} ms",
            count_lost(kernel),
            median(&runs.holes_ms())
        ))
}

fn statics(
    all: &[Runs],
    file: &PaperFile<PublishedValues>,
    master: u64,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let Some(mesh) = runs_of(all, &systems::vanilla_mesh()) else { return Ok(rows) };
    for ours in all.iter().filter(|runs| runs.system.name() != mesh.system.name()) {
        let name = ours.system.name();
        let of_lte = |record: &Record| joules(record, PATHS[1]).unwrap_or(f64::NAN);
        let ratio = pair_runs(ours, mesh, master, of_lte).ratio(|pair| *pair);
        let row = Row::new(format!("{name}: LTE energy, ratio to full mesh"))
            .estimate(&ratio, "")
            .with_remark(format!(
                "{:.2} and {:.2} J per run",
                ours.joules(PATHS[1]),
                mesh.joules(PATHS[1])
            ));
        let silent = pair_runs(ours, mesh, master, lte_bytes);
        let silent = silent.share(|(bytes, _)| (u64::from(*bytes == 0), 1));
        let sent = Row::new(format!("{name}: share of the runs without a byte over LTE"))
            .estimate(&silent, "")
            .with_remark(format!("{} B in all runs", ours.lte_bytes()));
        if ours.system.judged {
            rows.push(row.at_most(file.tolerance("energy")?));
            // Twenty runs without a byte over LTE show 77 % at the required confidence.
            rows.push(sent.at_least(file.tolerance("silent")?));
        } else {
            rows.extend([row, sent]);
        }
    }
    Ok(rows)
}

/// Longest time without a block, ms.
fn gap_ms(record: &Record) -> f64 {
    let mut read: Vec<f64> =
        record.messages.iter().map(|message| message.sent_ms + message.latency_ms).collect();
    read.sort_by(f64::total_cmp);
    let first = read.first().copied().unwrap_or(f64::INFINITY);
    read.windows(2).map(|pair| pair[1] - pair[0]).fold(first, f64::max)
}

/// Maximum receive timer: its floor, before the server has announced its RTO.
const RECEIVE_TIMER_MS: f64 = 500.0;
const PROMOTION_MS: f64 = 260.1;

fn downloads(all: &[Runs], file: &PaperFile<PublishedValues>, master: u64) -> Vec<Row> {
    let rtt = file.published.lte_rtt_ms;
    let most = RECEIVE_TIMER_MS + PROMOTION_MS + 2.0 * rtt;
    let row = |runs: &Runs| {
        let gaps = Samples::new(runs.good_records().map(gap_ms).collect::<Vec<f64>>(), master);
        let gap = gaps.estimate(|gaps| median(&gaps.iter().map(|gap| **gap).collect::<Vec<f64>>()));
        let row = Row::new(format!("{}: median gap of the download", runs.system.name()))
            .estimate(&gap, "ms")
            .with_remark(format!("{:.2} Mbit/s overall", median_goodput(runs)));
        if !runs.system.judged {
            return row;
        }
        row.at_most(most).with_remark(format!(
            "receive timer {RECEIVE_TIMER_MS:.0} + promotion {PROMOTION_MS} + 2 x {rtt:.0} ms; \
             {:.2} Mbit/s overall",
            median_goodput(runs)
        ))
    };
    all.iter().map(row).collect()
}

fn median_goodput(runs: &Runs) -> f64 {
    median(&runs.good_records().map(|record| record.goodput_mbit_per_s).collect::<Vec<f64>>())
}

/// Tables with the numbers of all systems.
pub(super) fn grids(campaign: &Campaign) -> Vec<Grid> {
    const SHARES: [&str; 10] =
        ["10 %", "20 %", "30 %", "40 %", "50 %", "60 %", "70 %", "80 %", "90 %", "100 %"];
    let mut columns = vec![("system", ""), ("runs", "")];
    columns.extend(SHARES.map(|share| (share, "ms")));
    columns.extend([("missing", "per run"), ("WiFi", "J"), ("LTE", "J")]);
    let mut holes = Grid::new("holes", "deciles of the longest delay of a walk", &columns);
    for runs in &campaign.walks {
        let count = runs.good_records().count();
        let missing: u32 = runs.good_records().map(|record| record.missing).sum();
        let mut numbers: Vec<f64> = (1..=10).map(|decile| runs.decile_ms(decile)).collect();
        let joules = PATHS.map(|path| runs.joules(path));
        numbers.extend([f64::from(missing) / count as f64, joules[0], joules[1]]);
        holes.push(&[runs.system.name(), &count.to_string()], &numbers);
    }
    let columns = [("system", ""), ("runs", ""), ("WiFi", "J"), ("LTE", "J"), ("LTE", "kB")];
    let mut energy =
        Grid::new("energy", "WiFi is never lost: energy by traffic, per run", &columns);
    for runs in &campaign.statics {
        let count = runs.good_records().count();
        let kilobytes = runs.lte_bytes() as f64 / 1e3 / count as f64;
        let numbers = [runs.joules(PATHS[0]), runs.joules(PATHS[1]), kilobytes];
        energy.push(&[runs.system.name(), &count.to_string()], &numbers);
    }
    vec![holes, energy]
}

/// Distributions of the longest delays.
pub(super) fn figure(walks: &[Runs]) -> Figure {
    let mut plot =
        Plot::new("Longest delay of a walk, live", "longest delay (ms)", "share of the walks");
    for runs in walks {
        plot = plot.steps(runs.system.name(), &cdf(&runs.holes_ms()));
    }
    let caption = "Real processes over emulated links, each system on the same walks. Requests never answered count \
                   until the end of the run.";
    plot.log_x().figure("holes", caption)
}
