//! Handover duration once it is decided: the WiFi address goes, the client knows, and only the join
//! stands between the application and LTE. With and without Fast JOIN.

use anyhow::Context as _;
use marline_sim::{Pace, Units};
use marline_time::{Duration, Instant};

use super::phone_scenario::{PhoneScenario, WIFI, ms};
use super::published::Published;
use super::systems::{self, System};
use crate::file::PaperFile;
use crate::judge::Row;
use crate::paper::Context;
use crate::table::{Grid, Reproduction, Table};

/// Round trips of LTE, ms.
const RTTS_MS: [u32; 3] = [50, 100, 200];
/// The address goes at such times after the start, so that it meets the stream anywhere.
const REPEATS: u32 = 10;
const GONE: Duration = Duration::from_secs(3);
/// A unit of the stream each so often.
const GAP: Duration = Duration::from_millis(20);
const UNIT: u64 = 1_000;
const UNITS: u32 = 500;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

pub(super) fn reproduce(
    context: &Context<'_>,
    file: &PaperFile<Published>,
    all: &mut Reproduction,
) -> anyhow::Result<()> {
    let systems = [systems::tuned_with_plain_join(), systems::tuned()];
    let mut items = Vec::new();
    for rtt in RTTS_MS {
        for way in [Way::Up, Way::Down] {
            for system in 0..systems.len() {
                items.extend(
                    (0..context.runs(REPEATS as usize) as u32).map(|n| (rtt, way, system, n)),
                );
            }
        }
    }
    let times = context.parallel("handover", &items, |(rtt, way, system, number)| {
        handover_ms(&systems[*system], *rtt, *way, *number, context.master)
    })?;
    let mean = |rtt: u32, way: Way, system: usize| {
        let mine =
            items.iter().zip(&times).filter(|((r, w, s, _), _)| (*r, *w, *s) == (rtt, way, system));
        let mine: Vec<f64> = mine.map(|(_, time)| *time).collect();
        mine.iter().sum::<f64>() / mine.len() as f64
    };
    let columns = [
        ("way", ""),
        ("LTE RTT", "ms"),
        ("plain JOIN", "ms"),
        ("Fast JOIN", "ms"),
        ("plain JOIN", "RTT"),
        ("Fast JOIN", "RTT"),
        ("saved", "RTT"),
    ];
    let title = "From the loss of the WiFi address to new data at the reader";
    let mut grid = Grid::new("handover-times", title, &columns);
    let mut rows = Vec::new();
    for way in [Way::Up, Way::Down] {
        let name = if way == Way::Up { "upload" } else { "download" };
        let mut saved = Vec::new();
        for rtt in RTTS_MS {
            let (plain, fast) = (mean(rtt, way, 0), mean(rtt, way, 1));
            let rtt = f64::from(rtt);
            saved.push((plain - fast) / rtt);
            let numbers = [rtt, plain, fast, plain / rtt, fast / rtt, (plain - fast) / rtt];
            grid.push(&[name], &numbers);
        }
        let mean_saved = saved.iter().sum::<f64>() / saved.len() as f64;
        let row =
            Row::new(format!("{name}: round trips saved by Fast JOIN")).ours(mean_saved, "RTT");
        rows.push(match way {
            Way::Up => {
                row.paper(file.published.fast_join_rtts, "RTT").within(file.tolerance("fast_join")?)
            }
            Way::Down => row.remark(
                "the server may send when its SYN/ACK is acknowledged, as after a plain join; the \
                 DATA_ACK in the SYN tells it what to send again",
            ),
        });
    }
    all.tables.push(Table::new("handover", "Handover time", rows));
    all.grids.push(grid);
    Ok(())
}

/// From the loss of the address to the first arrival over LTE.
fn handover_ms(
    system: &System,
    rtt_ms: u32,
    way: Way,
    number: u32,
    seed: u64,
) -> anyhow::Result<f64> {
    let lte = format!("rate=20M,delay={}ms,queue=300ms", f64::from(rtt_ms) / 2.0);
    let scenario = PhoneScenario::of("rate=20M,delay=10ms,queue=100ms", &lte, None, seed)?;
    let mut paths = scenario.stage(system, seed)?;
    let from = Duration::from_secs(1);
    let times = (0..UNITS).map(|n| Instant::ZERO + from + GAP * n).collect();
    let (mut writer, mut reader) = (
        Some(Units::new(Pace::At { bytes: UNIT, times }, 1, (5, 6))),
        Some(Units::new(Pace::Never, UNIT, (6, 5))),
    );
    let (client, mut server) = match way {
        Way::Up => (writer.take(), reader.take()),
        Way::Down => (reader.take(), writer.take()),
    };
    let silent = || Units::new(Pace::Never, 1, (6, 5));
    paths.listen(Box::new(move |_| Box::new(server.take().unwrap_or_else(silent))));
    paths.connect(WIFI, Box::new(client.context("a client")?)).context("connect")?;
    let gone = Instant::ZERO + GONE + GAP * number / REPEATS;
    // With its signal: what was on its way is lost, and must come over LTE.
    paths.at_set_path_up(gone, WIFI, false);
    paths.at_set_address(gone, WIFI, false);
    paths.world.run_until(gone + Duration::from_secs(5));
    let report = match way {
        Way::Up => paths.server_report(0),
        Way::Down => paths.client_report(0),
    };
    let report = report.context("no connection")?;
    anyhow::ensure!(report.wrong_at.is_none(), "a wrong byte at {:?}", report.wrong_at);
    let first = report.arrivals.iter().find(|(at, _)| *at > gone);
    let (at, _) = first.context("no handover")?;
    Ok(ms(at.since(gone)))
}
