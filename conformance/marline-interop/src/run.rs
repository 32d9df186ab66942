//! Run of one cell: namespaces, capture, both ends, faults, and then the checks.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::kernel_log::KernelLog;
use anyhow::Context;
use marline_lab::net::{Net, Options};
use marline_lab::scenario::Side;

use crate::cell::{Cell, Condition};
use crate::cell_result::CellResult;
use crate::cell_setup::{CellSetup, Scale};
use crate::judge;
use crate::peer::{Extra, Job, Stack};
use crate::play::{Play, seed};
use crate::special::SpecialCase;

/// A task to run.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Task {
    /// A cell of the matrix.
    Cell(Cell, Scale),
    /// A special case.
    Special(&'static SpecialCase),
}

impl Task {
    /// Amount of data.
    pub(crate) const fn scale(&self) -> Scale {
        match self {
            Task::Cell(_, scale) => *scale,
            Task::Special(_) => Scale::Small,
        }
    }
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Task::Cell(cell, Scale::Huge) => write!(f, "{cell}-1g"),
            Task::Cell(cell, _) => cell.fmt(f),
            Task::Special(special) => f.write_str(special.name),
        }
    }
}

/// Runs a task in `directory`, which keeps its files.
pub(crate) fn run(task: Task, instance: &str, directory: &Path) -> CellResult {
    let started = Instant::now();
    let made = std::fs::create_dir_all(directory).context("cannot create the task's directory");
    let result = made.and_then(|()| match task {
        Task::Cell(cell, scale) => attempt(cell, scale, instance, directory),
        Task::Special(special) => special.run(instance, directory),
    });
    let seconds = started.elapsed().as_secs_f64();
    match result {
        Ok(result) => CellResult { seconds, ..result },
        Err(error) => {
            CellResult { problems: vec![format!("{error:#}")], seconds, ..CellResult::default() }
        }
    }
}

fn attempt(
    cell: Cell,
    scale: Scale,
    instance: &str,
    directory: &Path,
) -> anyhow::Result<CellResult> {
    let setup = CellSetup::of(&cell, scale, seed(&cell.to_string()));
    let log = KernelLog::from_now();
    let net = Net::create(&setup.scenario, &Options::new(instance))?;
    let first = &setup.scenario.paths[0].name;
    if cell.condition == Condition::FirstDead {
        net.command(first, "down")?;
    }
    let mut faults: Vec<(Duration, &str)> = setup
        .fault
        .iter()
        .flat_map(|fault| [(fault.after + fault.lasts, "up"), (fault.after, "down")])
        .collect();
    let mut act = |elapsed: Duration| {
        if faults.last().is_some_and(|(at, _)| elapsed >= *at)
            && let Some((_, order)) = faults.pop()
        {
            net.command(first, order)?;
        }
        Ok(())
    };
    let play = Play {
        net: &net,
        directory,
        watched: if cell.pair.kernel_client() { Side::Client } else { Side::Server },
        jobs: [job(&cell, &setup, Side::Client), job(&cell, &setup, Side::Server)],
        limit: setup.limit,
    };
    let evidence = play.perform(log, &mut act)?;
    judge::judge(cell, &evidence)
}

fn job(cell: &Cell, setup: &CellSetup, side: Side) -> Job {
    let kernel = match side {
        Side::Client => cell.pair.kernel_client(),
        Side::Server => cell.pair.kernel_server(),
    };
    Job {
        stack: if kernel { Stack::Kernel } else { Stack::Marline },
        side,
        address: setup.server,
        paths: setup.scenario.paths.iter().map(|path| path.name.clone()).collect(),
        checksum: cell.checksum == crate::cell::Checksum::On,
        receive_buffer: setup.receive_buffer,
        plan: setup.plan.clone(),
        extra: Extra::default(),
    }
}
