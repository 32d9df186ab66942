//! Runs tasks, some in parallel, each in a separate world.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;

use crate::measure::{Bench, Task, Values};
use crate::results::Results;
use crate::systems::{Programs, System, Transports};
use crate::world::{Links, Side, World};

/// One measurement.
#[derive(Copy, Clone, Debug)]
pub struct Job {
    /// The task.
    pub task: Task,
    /// The system.
    pub system: System,
    /// Run number, used as the seed of the links' losses.
    pub run: u64,
}

/// Runs all jobs, `parallel` at a time, followed by those that must run alone.
pub fn all(jobs: &[Job], programs: &Programs, parallel: usize, logs: &Path, results: &mut Results) {
    let (alone, together): (Vec<Job>, Vec<Job>) = jobs.iter().partition(|job| job.task.is_alone());
    let results = Mutex::new(results);
    for (jobs, workers) in [(together, parallel), (alone, 1)] {
        let (all, jobs) = (jobs.len(), Mutex::new(jobs.into_iter().enumerate()));
        let work = || {
            loop {
                let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((place, job)) = next else { return };
                let measured = run_with_retry(job, programs, logs);
                let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                println!("{}/{all} {}", place + 1, record(job, measured, &mut results));
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(work);
            }
        });
    }
}

/// Records the results of a run and returns them as text.
fn record(
    job: Job,
    measured: anyhow::Result<(Values, Option<String>)>,
    results: &mut Results,
) -> String {
    let (system, row) = (job.system.name, job.task.row);
    let mut text = format!("{system} {row} run {}:", job.run);
    let mut remark = |remark: String| {
        results.remarks.entry(format!("{system} {row}")).or_default().push(remark);
    };
    match measured {
        Ok((values, doubt)) => {
            if let Some(doubt) = doubt {
                text += &format!(" LATE LINKS ({doubt})");
                remark("late links".into());
            }
            for (metric, value) in values {
                let shown = value.map_or("never".into(), |value| format!("{value:.4}"));
                text += &format!(" {metric} {shown}");
                results.add(system, &format!("{row} {metric}"), value);
            }
        }
        Err(error) => {
            text += &format!(" FAILED: {error:#}");
            let first = format!("{error}");
            remark(format!("failed: {}", first.lines().next().unwrap_or_default()));
        }
    }
    text
}

/// Runs the measurement, and repeats it if it failed or the links were late.
fn run_with_retry(
    job: Job,
    programs: &Programs,
    logs: &Path,
) -> anyhow::Result<(Values, Option<String>)> {
    match run_once(job, programs, logs) {
        Ok((values, None)) => Ok((values, None)),
        first => {
            let again = run_once(job, programs, logs);
            if again.is_ok() { again } else { first.or(again) }
        }
    }
}

/// A world with a running system, and the transports through it.
///
/// # Errors
/// The system does not start.
pub fn start(
    system: System,
    links: Links,
    seed: u64,
    programs: &Programs,
    logs: &Path,
) -> anyhow::Result<(World, Transports)> {
    let mut world = World::create(Path::new(&programs.lab), links, logs, seed)?;
    let server = world.spawn(Side::Server, "server", &[&programs.rivals, "server"])?;
    world.neutral.push(server);
    world.await_printed("server", "ready")?;
    let transports = system.start(&mut world, programs)?;
    Ok((world, transports))
}

fn run_once(
    job: Job,
    programs: &Programs,
    logs: &Path,
) -> anyhow::Result<(Values, Option<String>)> {
    let (mut world, transports) = start(job.system, job.task.links(), job.run, programs, logs)?;
    let mut bench =
        Bench { world: &mut world, transports: &transports, system: job.system, programs };
    let values = job.task.measure(&mut bench);
    let values = values.with_context(|| format!("see the logs in {}", world.dir.display()))?;
    Ok((values, world.doubt()))
}
