//! Supplementary results without acceptance criteria: other rules, other buffers, the links of the
//! paper itself.

use marline::BufferTuning;

use super::curves::{
    Curve, Links, RECEIVE_AS_LINUX, RECEIVE_AS_SAID, SEND_AS_LINUX, SEND_AS_SAID, Sample, Setting,
    measure,
};
use super::four::{BOTH, CELLULAR, Four, NONE, WIFI};
use crate::paper::Context;
use crate::table::Grid;

/// Columns of every grid here, after its own words.
const COLUMNS: [(&str, &str); 9] = [
    ("peak", "ms"),
    ("p5", "ms"),
    ("p50", "ms"),
    ("p95", "ms"),
    ("p50 / bound", ""),
    ("goodput", "Mbit/s"),
    ("WiFi", "MB"),
    ("3G", "MB"),
    ("repeated", "MB"),
];

fn grid(name: &str, title: &str, words: &[&str]) -> Grid {
    let words = words.iter().map(|word| (*word, ""));
    Grid::new(name, title, &words.chain(COLUMNS).collect::<Vec<_>>())
}

fn push(grid: &mut Grid, words: &[&str], sample: &Sample) {
    let [wifi, cellular] = sample.carried_mbyte;
    let numbers = [
        sample.peak_ms(),
        sample.quantile(0.05),
        sample.quantile(0.5),
        sample.quantile(0.95),
        sample.bound_ratio,
        sample.goodput_mbit_per_s,
        wifi,
        cellular,
        sample.repeated_mbyte,
    ];
    grid.push(words, &numbers);
}

/// More of the judged curves.
pub(super) fn details(all: &[Four]) -> Grid {
    let mut grid = grid("details", "The judged curves", &["jitter", "curve"]);
    for four in all {
        let jitter = format!("{} ms", four.at.jitter_ms);
        let curves = [&four.wifi, &four.both, &four.none, &four.cellular];
        for (curve, sample) in [WIFI, BOTH, NONE, CELLULAR].iter().zip(curves) {
            push(&mut grid, &[&jitter, curve.name], sample);
        }
    }
    grid
}

/// Each mechanism by itself, by every rule, and other schedulers.
pub(super) fn rules(context: &Context<'_>) -> anyhow::Result<Grid> {
    const RUNS: usize = 4;
    let curves = [
        NONE,
        Curve::with("M1 (kernel)", "lowest-rtt+orp,penalise=off"),
        Curve::with("M1 (wide)", "lowest-rtt+orp,retransmit=wide,penalise=off"),
        Curve::with("M2 (kernel)", "lowest-rtt+orp,retransmit=off"),
        Curve::with("M1 and M2 (paper)", "lowest-rtt+orp,retransmit=paper,penalise=paper"),
        Curve::with("M1 and M2 (2012 code)", "lowest-rtt+orp,penalise=paper"),
        Curve::with("M1 and M2 (later kernel)", "lowest-rtt+orp"),
        Curve::with("M1 (wide), M2 (kernel)", "lowest-rtt+orp,retransmit=wide"),
        Curve::with("BLEST, M1 and M2 (kernel)", "blest+orp"),
        Curve::with("ECF, M1 and M2 (kernel)", "ecf+orp"),
        Curve::with("Marline as shipped", "min-rtt"),
    ];
    let jitters = [100, 250];
    let jobs: Vec<(Setting, Curve)> = jitters
        .iter()
        .flat_map(|jitter| curves.map(|curve| (Setting::cs244(*jitter), curve)))
        .collect();
    let title = "Rules of M1 and M2, and other schedulers; links and buffers as judged";
    let mut grid = grid("rules", title, &["jitter", "curve"]);
    let samples = measure(context, "rules", &jobs, RUNS)?;
    let named = jitters.iter().flat_map(|jitter| curves.map(|curve| (*jitter, curve.name)));
    for ((jitter, name), sample) in named.zip(&samples) {
        push(&mut grid, &[&format!("{jitter} ms"), name], sample);
    }
    Ok(grid)
}

/// The same curves with other buffers, and without overtaking.
pub(super) fn buffers(context: &Context<'_>) -> anyhow::Result<Grid> {
    const RUNS: usize = 3;
    let in_order = |jitter_ms| Links::Cs244 { jitter_ms, overtaking: false };
    let mut jobs = Vec::new();
    for jitter in [100, 250] {
        let judged = Setting::cs244(jitter);
        let said = Setting { send: SEND_AS_SAID, receive: RECEIVE_AS_SAID, ..judged };
        let half = Setting { receive: RECEIVE_AS_SAID, ..judged };
        let settings = [
            Setting { name: "253,866 / 30,720", ..half },
            Setting { name: "204,800 / 30,720", ..said },
            Setting { name: "253,866 / 61,440, in order", links: in_order(jitter), ..judged },
            Setting { name: "253,866 / 30,720, in order", links: in_order(jitter), ..half },
            Setting { name: "204,800 / 30,720, in order", links: in_order(jitter), ..said },
        ];
        for setting in settings {
            jobs.extend([WIFI, BOTH, NONE, CELLULAR].map(|curve| (setting, curve)));
        }
    }
    let title = "Send buffer (payload) / window, bytes, and a 3G link on which nothing overtakes";
    let mut grid = grid("buffers", title, &["buffers", "jitter", "curve"]);
    for ((setting, curve), sample) in jobs.iter().zip(measure(context, "buffers", &jobs, RUNS)?) {
        let Links::Cs244 { jitter_ms, .. } = setting.links else { continue };
        push(&mut grid, &[setting.name, &format!("{jitter_ms} ms"), curve.name], &sample);
    }
    Ok(grid)
}

/// The links of the NSDI paper, all four mechanisms.
pub(super) fn nsdi(context: &Context<'_>) -> anyhow::Result<Grid> {
    const RUNS: usize = 3;
    const BOUND: u64 = 4 << 20;
    let links = Links::Nsdi;
    let small = Setting { name: "200 KB", links, send: SEND_AS_SAID, receive: SEND_AS_SAID };
    let doubled = Setting { name: "200 KB, doubled", send: SEND_AS_LINUX, ..small };
    let doubled = Setting { receive: 2 * SEND_AS_SAID, ..doubled };
    let tuned = Setting { name: "tuned, 4 MB at most", send: BOUND, receive: BOUND, ..small };
    let capped = |curve: Curve, name| Curve { name, congestion: "cubic-classic+cap", ..curve };
    let rates = |curve: Curve, name| Curve { name, tuning: BufferTuning::Rates, ..curve };
    let windows = |curve: Curve, name| Curve { name, tuning: BufferTuning::Windows, ..curve };
    let mut jobs = Vec::new();
    for setting in [small, doubled] {
        jobs.extend([WIFI, CELLULAR, NONE, BOTH].map(|curve| (setting, curve)));
        jobs.push((setting, capped(BOTH, "MPTCP, M1+M2+M4")));
        jobs.push((setting, Curve::with("Marline's scheduler", "min-rtt")));
    }
    let four = capped(rates(BOTH, ""), "MPTCP, M1+M2+M3+M4");
    jobs.push((tuned, windows(BOTH, "MPTCP, M1+M2, windows")));
    jobs.push((tuned, rates(BOTH, "MPTCP, M1+M2+M3")));
    jobs.push((tuned, four));
    let title = "Links of the NSDI paper: WiFi 8 Mbit/s, 20 ms, 80 ms of buffer; 3G 2 Mbit/s, 150 ms, \
                 2 s of buffer";
    let mut grid = grid("nsdi", title, &["buffers", "curve"]);
    for ((setting, curve), sample) in jobs.iter().zip(measure(context, "nsdi", &jobs, RUNS)?) {
        push(&mut grid, &[setting.name, curve.name], &sample);
    }
    Ok(grid)
}

// The judged windows are those that Linux would use.
const _: () = assert!(RECEIVE_AS_LINUX == 2 * RECEIVE_AS_SAID);
