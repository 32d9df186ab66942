//! `remp2015`: echoes over WiFi and LTE, and over two LTE connections in a train, on one path and
//! redundantly on both; flow completion times by degree of redundancy; and redundancy that is
//! only used when it pays. The assumptions are in `papers/remp2015.toml`.

mod coding;
mod detection;
mod echo;
mod links;
mod measure;
mod sizes;

use serde::Deserialize;

use super::{Context, Paper, PaperFile, Reproduction};

/// The stack of the study's Linux 3.14.
const RECOVERY_THEN: &str = "rfc6675,pto=linux-3.10,fack=on,early-retransmit=on";

/// The key.
#[derive(Debug)]
pub(super) struct Remp2015;

/// Average, worst and standard deviation of round trips, ms.
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoundTrips {
    average: f64,
    worst: f64,
    sigma: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    wifi: RoundTrips,
    lte: RoundTrips,
    remp: RoundTrips,
    train_lte1: RoundTrips,
    train_lte2: RoundTrips,
    train_remp: RoundTrips,
    /// Of the average, percent.
    cut_against_wifi: f64,
    /// Of the better path's average in the train, percent.
    train_share_left: f64,
    /// As its text has it.
    train_sigma_factor_said: f64,
}

impl Paper for Remp2015 {
    fn key(&self) -> &'static str {
        "remp2015"
    }

    fn text(&self) -> &'static str {
        include_str!("../../../../papers/remp2015.toml")
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        let file: PaperFile<Published> = PaperFile::parse(self.text())?;
        let mut result = Reproduction::default();
        echo::run(context, &file, &mut result)?;
        detection::run(context, &file, &mut result)?;
        sizes::run(context, &mut result)?;
        coding::run(context, &mut result)?;
        Ok(result)
    }
}
