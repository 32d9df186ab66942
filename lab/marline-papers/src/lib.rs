//! Reproductions of published measurements: `marline-lab paper KEY`.
//!
//! A paper is a file `papers/KEY.toml` in the repository (what was published, what we assume where
//! the text is silent, the buffers, the tolerances) and a module here that runs the same experiment
//! and says, row by row, what the paper has, what we have, what is asked, and whether it is met
//! ([`Row`]). What is not met stays in the table and makes the command fail. Tables without a
//! counterpart in the paper are [`Grid`]s.
//!
//! A new key: write the file and the module, implement [`Paper`], add it to [`all`].

use anyhow::Context as _;
use marline_sim::digest;

mod agree;
mod auto;
mod datagrams;
mod download;
mod file;
mod hsr2018;
mod judge;
mod kernel;
mod live;
mod markdown;
mod matrix;
mod multimob2018;
mod multimob_live;
mod output;
mod papd2017;
mod paper;
mod plain;
mod raiciu2012;
mod recorded;
mod remp2015;
pub mod report;
mod roots;
mod table;
mod tlp2019;
mod traces;
mod value;
mod verdicts;

pub use agree::{Agreement, agreement};
pub use file::PaperFile;
pub use judge::{Row, Verdict};
pub use markdown::{page_with_summary, page_with_verdicts};
use marline_lab::estimate;
pub use marline_lab::estimate::{Asked, CONFIDENCE, Estimate, MIN_ROOTS, Samples, pooled_quantile};
pub use output::{Machine, RunInfo, load, store};
pub use paper::{Context, Effort, Paper, Spent, trace_directory};
pub use roots::{Part, Root, forget};
pub use table::{Column, Counts, Grid, Reproduction, Table};
pub use value::Value;
pub use verdicts::{KeptRow, KeptTable, KeptVerdicts};

/// All there are, in the order in which they are run and shown.
#[must_use]
pub fn all() -> Vec<&'static dyn Paper> {
    vec![
        // A line each, in the order of their years.
        &raiciu2012::Raiciu,
        &remp2015::Remp2015,
        &tlp2019::Tlp,
        &papd2017::Papd,
        &hsr2018::HighSpeedRail,
        &multimob2018::MultiMob,
        &traces::Traces,
        &auto::Auto,
        &matrix::Matrix,
        &datagrams::Datagrams,
        // Those in real time.
        &kernel::Kernel,
        &live::Live,
        &multimob_live::MultiMobLive,
    ]
}

/// Runs a paper; also the digest of everything that was simulated for it ([`RunInfo::digest`]).
///
/// # Errors
/// Those of the paper.
pub fn run(paper: &dyn Paper, context: &Context<'_>) -> anyhow::Result<(Reproduction, String)> {
    let (result, runs) = digest::of_runs(|| paper.run(context));
    let simulated = runs != digest::Digest::default();
    let digest = simulated.then(|| format!("{:016x}", runs.value()));
    let mut result = result?;
    let judges = match context.effort {
        Effort::Full => true,
        Effort::Quick => false,
        Effort::Roots(count) => count >= MIN_ROOTS,
    };
    if !judges {
        result.clear_verdicts();
    }
    Ok((result, digest.unwrap_or_default()))
}

/// Other names under which a paper is known: CS244's students did `raiciu2012` again.
const ALIASES: [(&str, &str); 1] = [("cs244", "raiciu2012")];

/// The paper of this key, or of another name for it.
///
/// # Errors
/// There is none; the keys there are.
pub fn find(key: &str) -> anyhow::Result<&'static dyn Paper> {
    let meant = ALIASES.iter().find(|(alias, _)| *alias == key).map_or(key, |(_, key)| *key);
    all().into_iter().find(|paper| paper.key() == meant).with_context(|| {
        let keys: Vec<&str> = all().iter().map(|paper| paper.key()).collect();
        format!("no paper `{key}`; there are {}", keys.join(", "))
    })
}

#[cfg(test)]
mod tests;
