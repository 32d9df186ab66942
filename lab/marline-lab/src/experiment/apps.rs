//! Applications of a workload in virtual time.

use anyhow::Context as _;
use marline_sim::{App, Dialogue, ExchangeSizes, Pace, Paths, Request, ResponseServer, Units};
use marline_time::{Duration, Instant};

use super::START;
use crate::workload::{Sizes, Workload};

/// Starts a workload: the server listens, and the client connects over the first path.
///
/// # Errors
/// The workload has no sizes, or the client cannot connect.
pub fn begin(paths: &mut Paths, workload: &Workload, seed: u64) -> anyhow::Result<()> {
    let (client, server) = both(workload, seed)?;
    let mut server = Some(server);
    let silent = || -> Box<dyn App> { Box::new(Units::new(Pace::Never, 1, 7, 8)) };
    paths.listen(Box::new(move |_| server.take().unwrap_or_else(silent)));
    paths.connect(0, client).map(drop).context("connect")
}

/// The applications of both ends, the client's first.
///
/// # Errors
/// The workload has no sizes.
pub(crate) fn both(workload: &Workload, seed: u64) -> anyhow::Result<(Box<dyn App>, Box<dyn App>)> {
    let times = || workload.times_ns(seed).into_iter().map(after_start);
    Ok(match *workload {
        Workload::Ask { request_bytes, answer_bytes, .. } => {
            let sizes = ExchangeSizes {
                request_bytes: request_bytes.into(),
                answer_bytes: answer_bytes.into(),
            };
            let pace = Pace::At { bytes: sizes.request_bytes, times: times().collect() };
            let client = Units::new(pace, sizes.answer_bytes, 5, 6);
            (Box::new(client), Box::new(ResponseServer::new(sizes, 6, 5)))
        }
        Workload::Dialogue { request_bytes, answer_bytes, unanswered_bytes, .. } => {
            let sizes = ExchangeSizes {
                request_bytes: request_bytes.into(),
                answer_bytes: answer_bytes.into(),
            };
            let planned = workload.dialogue(seed).into_iter().flat_map(|plan| plan.requests);
            let request = |(at, pieces): (u64, Vec<u32>)| Request {
                at: after_start(at),
                pieces: pieces.into_iter().map(u64::from).collect(),
            };
            let requests = planned.map(request).collect();
            let client = Dialogue::new(requests, sizes, unanswered_bytes.into(), 5, 6);
            (Box::new(client), Box::new(ResponseServer::new(sizes, 6, 5)))
        }
        Workload::Exchange { bytes } => {
            let bytes = u64::from(bytes);
            let pace = || Pace::At { bytes, times: vec![START] };
            (Box::new(Units::new(pace(), bytes, 5, 6)), Box::new(Units::new(pace(), bytes, 6, 5)))
        }
        Workload::Bursts { bytes, .. } => {
            let bytes = u64::from(bytes);
            let server = Units::new(Pace::At { bytes, times: times().collect() }, 1, 7, 8);
            (Box::new(Units::new(Pace::Never, bytes, 8, 7)), Box::new(server))
        }
        Workload::RandomBursts { .. } => {
            let Sizes::Each(sizes) = workload.sizes(seed) else { anyhow::bail!("no sizes") };
            let sizes: Vec<u64> = sizes.into_iter().map(u64::from).collect();
            let units = times().zip(sizes.iter().copied()).collect();
            let server = Units::new(Pace::Sized { units }, 1, 7, 8);
            let client = Units::new(Pace::Never, 1, 8, 7).reading(&sizes);
            (Box::new(client), Box::new(server))
        }
        Workload::Blocks { bytes, lasts_ms } => {
            let bytes = u64::from(bytes);
            let until = START + Duration::from_millis(lasts_ms);
            let server = Units::new(Pace::Flood { bytes, from: START, until }, 1, 7, 8);
            (Box::new(Units::new(Pace::Never, bytes, 8, 7)), Box::new(server))
        }
    })
}

fn after_start(ns: u64) -> Instant {
    START + Duration::from_nanos(ns)
}
