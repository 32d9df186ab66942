//! TCP-friendly redundancy: every degree of it, under coupled congestion control, beside a plain TCP
//! in a bottleneck that both of its paths share.
//!
//! The paper adopts "a TCP-friendly congestion control" from Multipath TCP and shows no measurement
//! of it. Here the multipath connection meets a Reno TCP that sends as much as it can, and sends as
//! much itself, or bursts. Most degrees of redundancy copy at the end of something only, and are
//! min-rtt, packet by packet, where there is no end; bursts have one. Their payload is less than half of
//! the bottleneck, and more than that with every byte sent twice. Asked is what RFC 6356 asks of a
//! coupled controller, that it does no more harm than one TCP would: the TCP must have what it has
//! beside another that sends as much as it can. How much of its own share the redundant connection
//! turns into goodput is another matter, and shown.

use marline_lab::experiment::Variant;
use marline_link::{DuplexConfig, DuplexSpec};
use marline_sim::{Amount, App, Bulk, Pace, Paths, PathsConfig, Units};
use marline_time::{Duration, Instant, Rng as _, SeedTree};
use serde::{Deserialize, Serialize};

use super::measure::thousandth;
use super::published::Published;
use crate::estimate::{Estimate, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::plain::mptcp;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

/// A queue of one round trip without it; the jitter keeps the flows from losing in step for ever.
const BOTTLENECK: &str = "rate=10M,delay=20ms,queue=40ms,jitter=1ms";
/// What is not looked at in the beginning, and the whole run.
const SETTLED: Duration = Duration::from_secs(10);
const LENGTH: Duration = Duration::from_secs(40);

/// Bytes of a burst, and from one to the next: 3.2 Mbit/s.
const BURST: u64 = 80_000;
const EVERY: Duration = Duration::from_millis(200);

/// What the multipath connection sends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Load {
    /// As much as it can.
    Greedy,
    /// A burst every now and then.
    Bursts,
}

/// Loads, what tables call them, and the schedulers under each. The first copies nothing; without end
/// of what is sent, the others are like it.
const LOADS: [(Load, &str, &[&str]); 2] = [
    (
        Load::Greedy,
        "as much as it can",
        &["min-rtt", "redundant", "opportunistic-redundant", "coded"],
    ),
    (
        Load::Bursts,
        "bursts",
        &[
            "min-rtt",
            "redundant",
            "opportunistic-redundant",
            "redundant-idle",
            "burst-end",
            "probing",
            "hedged",
            "auto-redundant",
            "coded",
        ],
    ),
];
/// The first does not couple.
const CONTROLS: [&str; 3] = ["reno", "lia", "olia"];

/// Rates of two connections in one bottleneck, Mbit/s.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Rates {
    /// What the multipath connection's application, or the first TCP's, got.
    goodput: f64,
    /// What it sent, copies and repetitions included.
    sent: f64,
    /// What the TCP's application got.
    tcp_goodput: f64,
    /// What it sent.
    tcp_sent: f64,
}

/// A root: two TCPs, and every scheduler under every control beside a TCP.
#[derive(Debug, Serialize, Deserialize)]
struct Shares {
    two_tcps: Rates,
    /// The first of them sends bursts.
    tcp_of_bursts: Rates,
    /// By load, scheduler, and control.
    all: Vec<Vec<Vec<Rates>>>,
}

fn bottleneck() -> anyhow::Result<DuplexConfig> {
    let spec: DuplexSpec = BOTTLENECK.parse()?;
    // It names no trace.
    Ok(spec.resolve(&SeedTree::new(1), &mut |_| None)?)
}

/// The sender's application; bursts begin within the first interval, at a moment of the root's.
fn sender(load: Load, length: Duration, root: &Root) -> Box<dyn App> {
    match load {
        Load::Greedy => Box::new(Bulk::new(Amount::Endless, 1, 2)),
        Load::Bursts => {
            let first = EVERY.mul_f64(root.rng("first burst").unit());
            let count = (length.as_secs_f64() / EVERY.as_secs_f64()) as u32;
            let times = (1..=count).map(|n| Instant::ZERO + first + EVERY * n).collect();
            Box::new(Units::new(Pace::At { bytes: BURST, times }, 1, (1, 2)))
        }
    }
}

fn rates(load: Load, variant: &Variant, length: Duration, root: &Root) -> anyhow::Result<Rates> {
    let link = bottleneck()?;
    let config = PathsConfig::new(vec![link.clone(), link], variant.connection()?);
    let mut paths = Paths::new(&config, SeedTree::new(root.seed));
    paths.share_link(1, 0);
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    let tcp = Variant { plain: true, ..mptcp("tcp") }.congestion("reno").connection()?;
    let connect = |error| anyhow::anyhow!("no connection: {error:?}");
    let ids = [
        paths.connect(0, sender(load, length, root)).map_err(connect)?,
        paths.connect_as(tcp, 0, sender(Load::Greedy, length, root)).map_err(connect)?,
    ];
    let sent = |paths: &Paths| {
        ids.map(|id| {
            let info = paths.world.node(paths.client).endpoint().info(id);
            let subflows = info.into_iter().flat_map(|info| info.subflows);
            subflows.map(|subflow| subflow.bytes_sent).sum::<u64>()
        })
    };
    let settled = SETTLED.min(length / 4);
    let (from, to) = (Instant::ZERO + settled, Instant::ZERO + length);
    paths.world.run_until(from);
    let before = sent(&paths);
    paths.world.run_until(to);
    let after = sent(&paths);
    let mbit_per_s = |connection: usize| {
        let bytes = (after[connection] - before[connection]) as f64;
        thousandth(bytes * 8.0 / (length - settled).as_secs_f64() / 1e6)
    };
    let goodput = |connection: usize| {
        let report = paths.server_report(connection);
        let rate = report.map_or(0.0, |report| report.goodput(from, to).bits_per_s() as f64);
        thousandth(rate / 1e6)
    };
    Ok(Rates {
        goodput: goodput(0),
        sent: mbit_per_s(0),
        tcp_goodput: goodput(1),
        tcp_sent: mbit_per_s(1),
    })
}

fn measure(length: Duration, root: &Root) -> anyhow::Result<Shares> {
    let plain = Variant { plain: true, ..mptcp("tcp") }.congestion("reno");
    let of_variant = |load: Load, scheduler: &str, control: &str| {
        let variant = mptcp(scheduler).scheduler(scheduler).congestion(control);
        let variant = Variant { repair: scheduler == "coded", ..variant };
        rates(load, &variant, length, root)
    };
    let mut all = Vec::new();
    for (load, _, schedulers) in LOADS {
        let mut of_load = Vec::new();
        for scheduler in schedulers {
            let of_control = |control: &&str| of_variant(load, scheduler, control);
            of_load.push(CONTROLS.iter().map(of_control).collect::<anyhow::Result<_>>()?);
        }
        all.push(of_load);
    }
    Ok(Shares {
        two_tcps: rates(Load::Greedy, &plain, length, root)?,
        tcp_of_bursts: rates(Load::Bursts, &plain, length, root)?,
        all,
    })
}

/// Of two rates: 1 if they are equal, 1/2 if one has all (R. Jain and others, 1984).
fn fairness_index(a: f64, b: f64) -> f64 {
    (a + b).powi(2) / (2.0 * (a * a + b * b))
}

pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    result: &mut Reproduction,
) -> anyhow::Result<()> {
    let length = context.length(LENGTH);
    let least = 1.0 - file.tolerance("tcp_share")?;
    let (samples, rows) = context.judge(
        Part::new("fairness", 20, 60),
        |root| measure(length, root),
        |samples| Ok(rows(samples, least)),
    )?;
    let title = "Coupled redundancy beside a TCP in one bottleneck of 10 Mbit/s: the TCP's goodput \
                 over what it has beside another TCP";
    result.tables.push(Table::new("fairness", title, rows));
    result.grids.push(grid(&samples));
    Ok(())
}

/// Every scheduler under every control that couples.
fn rows(samples: &Samples<Shares>, least: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for (number, (_, load, schedulers)) in LOADS.iter().enumerate() {
        for (place, scheduler) in schedulers.iter().enumerate() {
            for (at, control) in CONTROLS.iter().enumerate().skip(1) {
                let share = samples.ratio(|root| {
                    (root.all[number][place][at].tcp_goodput, root.two_tcps.tcp_goodput)
                });
                let row = Row::new(format!("{load}: {scheduler}, {control}"));
                rows.push(row.estimate(&share, "").at_least(least));
            }
        }
    }
    rows
}

fn grid(samples: &Samples<Shares>) -> Grid {
    let columns = [
        ("load", ""),
        ("scheduler", ""),
        ("control", ""),
        ("goodput", "Mbit/s"),
        ("sent", "Mbit/s"),
        ("TCP's goodput", "Mbit/s"),
        ("TCP's, over beside a TCP", ""),
        ("share of what is sent", "%"),
        ("Jain's index of what is sent", ""),
    ];
    let title = "Shares of a bottleneck of 10 Mbit/s: a multipath connection with both paths through \
                 it, and a TCP (Reno); intervals of 99 %";
    let mut grid = Grid::new("shares", title, &columns);
    let cell = |of: Estimate| Value::between(of.value, (of.low, of.high), "");
    let mut push = |names: [&str; 3], of: &dyn Fn(&Shares) -> Rates| {
        let words = names.map(|name| Value::Text(name.to_owned()));
        let numbers = [
            samples.mean(|root| of(root).goodput),
            samples.mean(|root| of(root).sent),
            samples.mean(|root| of(root).tcp_goodput),
            samples.ratio(|root| (of(root).tcp_goodput, root.two_tcps.tcp_goodput)),
            samples.ratio(|root| {
                let rates = of(root);
                (100.0 * rates.sent, rates.sent + rates.tcp_sent)
            }),
            samples.mean(|root| fairness_index(of(root).sent, of(root).tcp_sent)),
        ];
        grid.rows.push(words.into_iter().chain(numbers.map(cell)).collect());
    };
    let [(_, greedy, _), (_, bursts, _)] = LOADS;
    push([greedy, "one TCP", "reno"], &|root| root.two_tcps);
    push([bursts, "one TCP", "reno"], &|root| root.tcp_of_bursts);
    for (number, (_, load, schedulers)) in LOADS.iter().enumerate() {
        for (place, scheduler) in schedulers.iter().enumerate() {
            for (at, control) in CONTROLS.iter().enumerate() {
                push([load, scheduler, control], &|root| root.all[number][place][at]);
            }
        }
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_one_for_equals_and_a_half_where_one_has_all() {
        assert_eq!((fairness_index(3.0, 3.0), fairness_index(3.0, 0.0)), (1.0, 0.5));
    }
}
