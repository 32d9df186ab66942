//! Repetition of a series' simulated runs for data that is not stored: time lines, traces, captures.

use super::Job;
use crate::experiment::Stack;
use crate::parallel::parallel;
use crate::policies;

/// The jobs on stack `sim`.
pub(super) fn simulated_jobs(jobs: &[Job]) -> Vec<&Job> {
    jobs.iter().filter(|job| job.lane.stack == Stack::Sim).collect()
}

/// Runs jobs, `at_once` in parallel, with this thread's policies, and calls `take` with their results in order, until
/// `go_on` returns false. Failed jobs have no result. Only the results of one batch are held in memory.
///
/// # Errors
/// Returns the first error of `take`. The remaining jobs are not run.
pub(super) fn run_again<T: Send>(
    at_once: usize,
    jobs: &[&Job],
    go_on: &dyn Fn() -> bool,
    run: impl Fn(&Job) -> anyhow::Result<T> + Sync,
    mut take: impl FnMut(&Job, T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let registry = policies::registry();
    let lent = |job: &&Job| policies::with_registry(&registry, || run(job));
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
