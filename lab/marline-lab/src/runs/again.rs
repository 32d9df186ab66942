//! Simulated runs of a series once more, for what is not kept of them: time lines, traces, captures.

use super::Job;
use crate::experiment::Stack;
use crate::parallel::parallel;
use crate::policies;

/// The jobs on stack `sim`.
pub(super) fn simulated(jobs: &[Job]) -> Vec<&Job> {
    jobs.iter().filter(|job| job.lane.stack == Stack::Sim).collect()
}

/// Runs jobs, so many at once, by the policies of this thread, and hands what each made to `take`, in their order, as
/// long as `go_on`. One that fails made nothing. No more than is made at once is held in memory.
///
/// # Errors
/// Those of `take`, behind which nothing more is run.
pub(super) fn run_again<T: Send>(
    at_once: usize,
    jobs: &[&Job],
    go_on: &dyn Fn() -> bool,
    run: impl Fn(&Job) -> anyhow::Result<T> + Sync,
    mut take: impl FnMut(&Job, T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let registry = policies::registry();
    let lent = |job: &&Job| policies::with(&registry, || run(job));
    for some in jobs.chunks(at_once.max(1)) {
        if !go_on() {
            break;
        }
        for (job, made) in some.iter().zip(parallel(at_once, some, lent)) {
            if let Ok(made) = made {
                take(job, made)?;
            }
        }
    }
    Ok(())
}
