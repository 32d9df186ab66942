//! TCP-friendly redundancy: every degree of redundancy, under coupled congestion control, competing with a plain
//! TCP in a bottleneck that both of its paths share.
//!
//! The paper adopts "a TCP-friendly congestion control" from Multipath TCP without measuring it. Here the multipath
//! connection competes with a greedy Reno TCP and sends either greedily or in bursts. Most degrees of redundancy copy
//! only at the end of data: under a greedy load they equal min-rtt, packet by packet. The payload of the bursts takes
//! less than half of the bottleneck, or more than half if every byte is sent twice. One row is judged, by RFC 6356's
//! requirement for a coupled controller: the TCP gets as much as it gets when it competes with another greedy TCP.

use marline_lab::experiment::Variant;
use marline_link::{DuplexConfig, DuplexSpec};
use marline_sim::{Amount, App, Bulk, Pace, Paths, PathsConfig, Units};
use marline_time::{Duration, Instant, Rng as _, SeedTree};
use serde::{Deserialize, Serialize};

use super::measure::round_to_thousandth;
use super::published::Published;
use crate::estimate::{Estimate, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::plain::mptcp;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction};
use crate::value::Value;

/// The link has a base round trip of 40 ms and a queue of the same length. The jitter prevents flows from losing
/// packets in lockstep.
const BOTTLENECK: &str = "rate=10M,delay=20ms,queue=40ms,jitter=1ms";
/// Time at the start that is not evaluated, and the length of a run.
const WARM_UP: Duration = Duration::from_secs(10);
const LENGTH: Duration = Duration::from_secs(40);

/// Bytes of a burst and time between bursts: 3.2 Mbit/s.
const BURST: u64 = 80_000;
const MESSAGE_INTERVAL: Duration = Duration::from_millis(200);

/// Traffic of the multipath connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Load {
    /// Endless data, sent as fast as possible.
    Greedy,
    /// Bursts at regular intervals.
    Bursts,
}

/// Loads, their names in tables, and their schedulers. The first scheduler copies nothing. The others behave like the
/// first if the data has no end.
const LOADS: [(Load, &str, &[&str]); 2] = [
    (Load::Greedy, "greedy", &["min-rtt", "redundant", "opportunistic-redundant", "coded"]),
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
/// Congestion controls. The first is not coupled.
const CONTROLS: [&str; 3] = ["reno", "lia", "olia"];
/// Indexes of the judged load, scheduler and control.
const GREEDY: usize = 0;
const REDUNDANT: usize = 1;
const LIA: usize = 1;

/// Rates of two connections in one bottleneck, Mbit/s.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Rates {
    /// Goodput of the multipath connection, or of the first TCP.
    goodput: f64,
    /// Send rate of that connection, including copies and retransmissions.
    sent: f64,
    /// Goodput of the competing TCP.
    tcp_goodput: f64,
    /// Send rate of the competing TCP.
    tcp_sent: f64,
}

/// Results of a root: two TCPs, and every scheduler under every control, competing with a TCP.
#[derive(Debug, Serialize, Deserialize)]
struct Shares {
    two_tcps: Rates,
    /// Two TCPs: the first sends bursts.
    tcp_of_bursts: Rates,
    /// Results by load, scheduler and control.
    all: Vec<Vec<Vec<Rates>>>,
}

fn bottleneck_link() -> anyhow::Result<DuplexConfig> {
    let spec: DuplexSpec = BOTTLENECK.parse()?;
    // The description names no trace.
    Ok(spec.resolve(&SeedTree::new(1), &mut |_| None)?)
}

/// Application of the sender. Bursts start within the first interval, at a time that the root draws.
fn sender(load: Load, length: Duration, root: &Root) -> Box<dyn App> {
    match load {
        Load::Greedy => Box::new(Bulk::new(Amount::Endless, 1, 2)),
        Load::Bursts => {
            let first = MESSAGE_INTERVAL.mul_f64(root.rng("first burst").unit());
            let count = (length.as_secs_f64() / MESSAGE_INTERVAL.as_secs_f64()) as u32;
            let times = (1..=count).map(|n| Instant::ZERO + first + MESSAGE_INTERVAL * n).collect();
            Box::new(Units::new(Pace::At { bytes: BURST, times }, 1, 1, 2))
        }
    }
}

fn rates(load: Load, variant: &Variant, length: Duration, root: &Root) -> anyhow::Result<Rates> {
    let link = bottleneck_link()?;
    let config = PathsConfig::new(vec![link.clone(), link], variant.connection()?);
    let mut paths = Paths::new(&config, SeedTree::new(root.seed));
    paths.share_link(1, 0);
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Nothing, 2, 1))));
    let tcp = Variant { plain: true, ..mptcp("tcp") }.congestion("reno").connection()?;
    let connect = |error| anyhow::anyhow!("cannot connect: {error:?}");
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
    let settled = WARM_UP.min(length / 4);
    let (from, to) = (Instant::ZERO + settled, Instant::ZERO + length);
    paths.world.run_until(from);
    let before = sent(&paths);
    paths.world.run_until(to);
    let after = sent(&paths);
    let mbit_per_s = |connection: usize| {
        let bytes = (after[connection] - before[connection]) as f64;
        round_to_thousandth(bytes * 8.0 / (length - settled).as_secs_f64() / 1e6)
    };
    let goodput = |connection: usize| {
        let report = paths.server_report(connection);
        let rate = report.map_or(0.0, |report| report.goodput(from, to).bits_per_s() as f64);
        round_to_thousandth(rate / 1e6)
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

/// Jain's fairness index of two rates: 1 if they are equal, 1/2 if one gets everything (R. Jain and others, 1984).
fn fairness_index(a: f64, b: f64) -> f64 {
    (a + b).powi(2) / (2.0 * (a * a + b * b))
}

/// The row of redundancy under the coupled control of the study's kernel, and the grid of all.
pub(super) fn run(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    result: &mut Reproduction,
) -> anyhow::Result<Row> {
    let length = context.length(LENGTH);
    let share = file.tolerance("tcp_share")?;
    let (samples, mut rows) = context.judge_part(
        Part::new("fairness", 20, 60),
        |root| measure(length, root),
        |samples| Ok(vec![friendliness_row(samples, share)]),
    )?;
    result.grids.push(grid(&samples));
    Ok(rows.remove(0))
}

fn friendliness_row(samples: &Samples<Shares>, share: f64) -> Row {
    let ratio = samples
        .ratio(|root| (root.all[GREEDY][REDUNDANT][LIA].tcp_goodput, root.two_tcps.tcp_goodput));
    Row::new("TCP's goodput against greedy ReMP with LIA, ratio to that against another TCP")
        .statement("tcp-friendly")
        .estimate(&ratio, "")
        .within_of(share, 1.0, "that against another TCP")
}

fn grid(samples: &Samples<Shares>) -> Grid {
    let columns = [
        ("load", ""),
        ("scheduler", ""),
        ("control", ""),
        ("goodput", "Mbit/s"),
        ("sent", "Mbit/s"),
        ("TCP goodput", "Mbit/s"),
        ("TCP goodput, ratio to that against TCP", ""),
        ("share of sent bytes", "%"),
        ("Jain's index of sent bytes", ""),
    ];
    let title = "Shares of a bottleneck of 10 Mbit/s: a multipath connection with both paths through it, and a TCP \
                 Reno connection (99 % intervals)";
    let mut grid = Grid::new("shares", title, &columns);
    let cell = |of: Estimate| Value::from_estimate(&of, "");
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
    push([greedy, "one TCP connection", "reno"], &|root| root.two_tcps);
    push([bursts, "one TCP connection", "reno"], &|root| root.tcp_of_bursts);
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
    fn the_index_is_one_for_equal_rates_and_a_half_for_a_single_user() {
        assert_eq!((fairness_index(3.0, 3.0), fairness_index(3.0, 0.0)), (1.0, 0.5));
    }
}
