//! Reproductions of published measurements: `marline-lab paper KEY`.
//!
//! A paper is a file `papers/KEY.toml` in the repository and a module of this crate. The file holds the published
//! values, our assumptions about unstated details, the buffers and the tolerances. The module runs the same experiment
//! and compares, row by row, the paper's value with ours and states the requirement and the verdict ([`Row`]). A
//! missed requirement stays in the table and makes the command fail. Tables without a counterpart in the paper are
//! [`Grid`]s.
//!
//! To add a key, write the file and the module, implement [`Paper`], and add it to [`all`].

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
mod mechanism;
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
mod statements;
mod table;
mod tlp2019;
mod traces;
mod value;
mod verdicts;

pub use agree::{Agreement, agreement};
pub use file::{PaperFile, Statement};
pub use judge::{Row, Verdict};
pub use markdown::{page_with_summary, page_with_verdicts};
use marline_lab::estimate;
pub use marline_lab::estimate::{
    CONFIDENCE, Estimate, MIN_ROOTS, RequiredRange, Samples, pooled_quantile,
};
pub use matrix::default_on_seed_ground;
pub use mechanism::{Mechanism, MutationEffect};
pub use output::{Machine, RunInfo, load, store};
pub use paper::{Context, Effort, Paper, ProcessorTimes, trace_directory};
pub use roots::{Part, Root, remove_stored};
pub use statements::statement_faults;
pub use table::{Column, Counts, Grid, Reproduction, Table};
pub use value::Value;
pub use verdicts::{StoredRow, StoredTable, StoredVerdicts};

/// All papers, in the order in which they are run and shown.
#[must_use]
pub fn all() -> Vec<&'static dyn Paper> {
    vec![
        // One paper per line, in the order of their years.
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
        // Papers that run in real time.
        &kernel::Kernel,
        &live::Live,
        &multimob_live::MultiMobLive,
    ]
}

/// Runs a paper. Returns its result and the digest of everything that was simulated for it ([`RunInfo::digest`]).
///
/// # Errors
/// Any error of the paper.
pub fn run(paper: &dyn Paper, context: &Context<'_>) -> anyhow::Result<(Reproduction, String)> {
    let (result, runs) = digest::digest_of_runs(|| paper.run(context));
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

/// Other names of papers. The students of CS244 reproduced `raiciu2012`.
const ALIASES: [(&str, &str); 1] = [("cs244", "raiciu2012")];

/// Finds the paper of this key or alias.
///
/// # Errors
/// Unknown key. The error lists the valid ones.
pub fn find(key: &str) -> anyhow::Result<&'static dyn Paper> {
    let meant = ALIASES.iter().find(|(alias, _)| *alias == key).map_or(key, |(_, key)| *key);
    all().into_iter().find(|paper| paper.key() == meant).with_context(|| {
        let keys: Vec<&str> = all().iter().map(|paper| paper.key()).collect();
        format!("unknown paper `{key}`; known: {}", keys.join(", "))
    })
}

#[cfg(test)]
mod tests;
