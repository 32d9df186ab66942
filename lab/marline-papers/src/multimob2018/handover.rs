//! Handover duration after the decision. The WiFi address is removed, the client knows it, and only the join over LTE
//! remains. Measured with and without Fast JOIN.

use anyhow::Context as _;
use marline_sim::{Pace, Units, mean};
use marline_time::{Duration, Instant, Rng};
use serde::{Deserialize, Serialize};

use super::phone_scenario::{PhoneScenario, WIFI, ms};
use super::published::Published;
use super::radios::cell;
use super::systems::{self, System};
use crate::estimate::{Estimate, Samples};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::roots::{Part, Root};
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

const HANDOVER: Part = Part::new("handover", 60, 4_000);
/// Round trips of LTE, ms.
const RTTS_MS: [u32; 3] = [50, 100, 200];
/// Earliest loss of the address. Its time is uniform over the interval of a unit, so that it can hit any point of the
/// stream.
const EARLIEST_LOSS: Duration = Duration::from_secs(3);
/// Time between units of the stream.
const GAP: Duration = Duration::from_millis(20);
const UNIT: u64 = 1_000;
const UNITS: u32 = 500;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Transfer {
    Up,
    Down,
}

/// Index of the upload in [`TRANSFERS`].
const UPLOAD: usize = 0;
const TRANSFERS: [(Transfer, &str); 2] = [(Transfer::Up, "upload"), (Transfer::Down, "download")];

/// Handovers that start at the same moment of the stream.
#[derive(Serialize, Deserialize)]
struct Handovers {
    /// Durations by direction, then by round-trip time: with a plain join, with a Fast JOIN, and with full mesh, which
    /// joined at the start, ms.
    ms: Vec<Vec<[f64; 3]>>,
}

impl Handovers {
    /// Mean number of LTE round trips saved.
    fn saved(&self, way: usize) -> f64 {
        let both = self.ms[way].iter().zip(RTTS_MS);
        let saved = both.map(|([plain, fast, _], rtt)| (plain - fast) / f64::from(rtt));
        mean(&saved.collect::<Vec<f64>>())
    }

    /// True if the first new data arrived with the SYN, half a round trip after the loss.
    fn has_data_in_syn(&self, way: usize) -> bool {
        let both = self.ms[way].iter().zip(RTTS_MS);
        both.into_iter().all(|([_, fast, _], rtt)| *fast < 0.75 * f64::from(rtt))
    }
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let (handovers, rows) =
        context.judge_part(HANDOVER, measure, |handovers| verdicts(handovers, file))?;
    let title = "Handover time once the WiFi address is gone (99 % intervals)";
    all.tables.push(Table::new("handover", title, rows));
    all.grids.extend([handover_times(&handovers), upload_cases(&handovers)]);
    Ok(())
}

fn measure(root: &Root) -> anyhow::Result<Handovers> {
    let gone = Instant::ZERO + EARLIEST_LOSS + GAP.mul_f64(root.rng("gone").unit());
    let systems =
        [systems::tuned_with_plain_join(), systems::tuned(), systems::vanilla_full_mesh()];
    let each = |way: Transfer, rtt: u32| -> anyhow::Result<[f64; 3]> {
        let [plain, fast, mesh] =
            systems.each_ref().map(|s| handover_ms(s, rtt, way, gone, root.seed));
        Ok([plain?, fast?, mesh?])
    };
    let of = |(way, _)| RTTS_MS.into_iter().map(|rtt| each(way, rtt)).collect();
    Ok(Handovers { ms: TRANSFERS.into_iter().map(of).collect::<anyhow::Result<_>>()? })
}

fn verdicts(
    handovers: &Samples<Handovers>,
    file: &PaperFile<Published>,
) -> anyhow::Result<Vec<Row>> {
    let delay = handovers.ratio(|handovers| {
        let of = |system: usize| handovers.ms[UPLOAD].iter().map(|ms| ms[system]).sum::<f64>();
        (of(0), of(2))
    });
    let delay = Row::new("upload: handover time with a plain JOIN, ratio to full mesh")
        .statement("late-path-adds-latency")
        .paper_claim("larger latency in mobility cases")
        .estimate(&delay, "")
        .at_least(1.0 + file.tolerance("decile")?);
    let saved = handovers.mean(|handovers| handovers.saved(UPLOAD));
    let saved = Row::new("upload: round trips saved by Fast JOIN")
        .statement("fast-join-carries-data")
        .paper_claim("the data waits for no handshake")
        .estimate(&saved, "RTT")
        .at_least(file.published.fast_join_rtts)
        .with_remark("the mean of two cases (below), whose shares depend on the stream");
    Ok(vec![delay, saved])
}

fn upload_cases(handovers: &Samples<Handovers>) -> Grid {
    let columns = [("upload by Fast JOIN", ""), ("handovers", "%"), ("saved", "RTT")];
    let title = "Round trips saved by Fast JOIN, by what the SYN carries";
    let mut grid = Grid::new("fast-join-cases", title, &columns);
    for (with, case) in [(true, "the SYN carries new data"), (false, "the SYN carries no new data")]
    {
        let saved = handovers.ratio(|handovers| match handovers.has_data_in_syn(UPLOAD) == with {
            true => (handovers.saved(UPLOAD), 1.0),
            false => (0.0, 0.0),
        });
        let share = handovers.share(|h| (u64::from(h.has_data_in_syn(UPLOAD) == with), 1));
        grid.rows.push(vec![Value::Text(case.to_owned()), cell(share.percent()), cell(saved)]);
    }
    grid
}

fn handover_times(handovers: &Samples<Handovers>) -> Grid {
    let columns = [
        ("way", ""),
        ("LTE RTT", "ms"),
        ("plain JOIN", "ms"),
        ("Fast JOIN", "ms"),
        ("full mesh", "ms"),
        ("plain JOIN", "RTT"),
        ("Fast JOIN", "RTT"),
        ("saved", "RTT"),
    ];
    let title = "Time from the loss of the WiFi address to new data at the reader";
    let mut grid = Grid::new("handover-times", title, &columns);
    for (way, (_, name)) in TRANSFERS.into_iter().enumerate() {
        for (place, rtt) in RTTS_MS.into_iter().enumerate() {
            let rtt = f64::from(rtt);
            let mean = |of: &dyn Fn([f64; 3]) -> f64| -> Estimate {
                handovers.mean(|handovers| of(handovers.ms[way][place]))
            };
            grid.rows.push(vec![
                Value::Text(name.to_owned()),
                Value::new(rtt, ""),
                cell(mean(&|[plain, _, _]| plain)),
                cell(mean(&|[_, fast, _]| fast)),
                cell(mean(&|[_, _, mesh]| mesh)),
                cell(mean(&|[plain, _, _]| plain / rtt)),
                cell(mean(&|[_, fast, _]| fast / rtt)),
                cell(mean(&|[plain, fast, _]| (plain - fast) / rtt)),
            ]);
        }
    }
    grid
}

/// Time from the loss of the address to the first arrival over LTE, ms.
fn handover_ms(
    system: &System,
    rtt_ms: u32,
    way: Transfer,
    gone: Instant,
    seed: u64,
) -> anyhow::Result<f64> {
    let lte = format!("rate=20M,delay={}ms,queue=300ms", f64::from(rtt_ms) / 2.0);
    let scenario =
        PhoneScenario::experiment_over_links("rate=20M,delay=10ms,queue=100ms", &lte, None, seed)?;
    let mut paths = scenario.stage(system, seed)?;
    let from = Duration::from_secs(1);
    let times = (0..UNITS).map(|n| Instant::ZERO + from + GAP * n).collect();
    let (mut writer, mut reader) = (
        Some(Units::new(Pace::At { bytes: UNIT, times }, 1, 5, 6)),
        Some(Units::new(Pace::Never, UNIT, 6, 5)),
    );
    let (client, mut server) = match way {
        Transfer::Up => (writer.take(), reader.take()),
        Transfer::Down => (reader.take(), writer.take()),
    };
    let silent = || Units::new(Pace::Never, 1, 6, 5);
    paths.listen(Box::new(move |_| Box::new(server.take().unwrap_or_else(silent))));
    paths
        .connect(WIFI, Box::new(client.context("cannot create the client")?))
        .context("cannot connect")?;
    // The signal is lost with the address. Packets in flight are lost and must be sent over LTE.
    paths.schedule_path_change(gone, WIFI, false);
    paths.schedule_address_change(gone, WIFI, false);
    paths.world.run_until(gone + Duration::from_secs(5));
    let report = match way {
        Transfer::Up => paths.server_report(0),
        Transfer::Down => paths.client_report(0),
    };
    let report = report.context("cannot find the connection")?;
    if let Some(byte) = report.wrong_at {
        anyhow::bail!("received data differs from sent data at byte {byte}");
    }
    let first = report.arrivals.iter().find(|(at, _)| *at > gone);
    let (at, _) = first.context("no data arrived after WiFi was lost")?;
    Ok(ms(at.since(gone)))
}
