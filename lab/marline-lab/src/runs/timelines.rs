//! Time lines of a series: two tables, with all simulated runs in the order of the plan.
//!
//! Runs are repeated for them, or made for the first time, because stored runs have no time lines and a simulation is
//! cheap. Stored results therefore do not depend on time lines.

use std::fmt::Write as _;
use std::path::Path;

use super::Job;
use super::repetition::{run_again, simulated_jobs};
use crate::experiment::{Timeline, TimelineConfig, simulate_recorded};
use crate::results::{Format, RunColumns, Sheet, Sheets};

/// Settings of the tables.
#[derive(Copy, Clone, Debug)]
pub struct Timelines {
    /// Number of parallel runs, at least 1.
    pub jobs: usize,
    /// Settings of each run's time lines.
    pub config: TimelineConfig,
}

/// Sizes of the written tables.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenSizes {
    /// Size of table `subflows`.
    pub subflows: Sheet,
    /// Size of table `copies`.
    pub copies: Sheet,
}

impl Timelines {
    /// Maximum number of rows of a file, excluding its header line.
    pub const MAX_FILE_ROWS: u64 = 5_000_000;

    /// Writes the tables `subflows` and `copies` of the jobs on stack `sim` into a directory. The files are identical
    /// for any number of parallel jobs. Failed runs have no rows.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(
        &self,
        jobs: &[Job],
        directory: &Path,
        formats: &[Format],
    ) -> anyhow::Result<WrittenSizes> {
        let (run, empty) = (RunColumns::for_jobs(jobs), Timeline::empty());
        let create = |table| {
            let like = run.prepend_columns(table, None);
            Sheets::create(directory, &like, formats, Timelines::MAX_FILE_ROWS)
        };
        let (mut subflows, mut copies) = (create(&empty.subflows)?, create(&empty.copies)?);
        let recorded = |job: &Job| {
            simulate_recorded(&job.experiment, &job.lane.variant, job.seed, self.config)
        };
        run_again(self.jobs, &simulated_jobs(jobs), &|| true, recorded, |job, (_, timeline)| {
            let of_run = |table| run.prepend_columns(table, Some(job));
            subflows.append(&of_run(&timeline.subflows), timeline.subflows_left_out)?;
            copies.append(&of_run(&timeline.copies), timeline.copies_left_out)
        })?;
        Ok(WrittenSizes { subflows: subflows.close()?, copies: copies.close()? })
    }
}

impl WrittenSizes {
    /// A note about omitted rows, if any.
    #[must_use]
    pub fn omission_note(&self) -> Option<String> {
        let mut cut = String::new();
        for (name, Sheet { rows, left_out }) in
            [("subflows", self.subflows), ("copies", self.copies)]
        {
            if left_out > 0 {
                // Writing to a String cannot fail.
                let _ = write!(cut, "{name} has the first {rows} rows, {left_out} were left out; ");
            }
        }
        let (run, file) = (TimelineConfig::MAX_ROWS, Timelines::MAX_FILE_ROWS);
        (!cut.is_empty()).then(|| {
            format!(
                "TIME LINES ARE INCOMPLETE: {cut}the limits are {run} rows per run and {file} per \
                    file. Use fewer seeds, shorter runs or a longer interval"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::file::{ExperimentFile, Lane};
    use crate::experiment::{Experiment, Stack, Variant};
    use crate::workload::{Gap, Workload};

    #[test]
    fn files_do_not_depend_on_the_number_of_parallel_runs() {
        let gap = Gap { least_ms: 100.0, most_ms: 100.0 };
        let workload = Workload::Bursts { bytes: 5_000, gap, count: 5 };
        let experiment = Experiment::over(&[("a", "delay=5ms"), ("b", "delay=9ms")], workload);
        let lane = |stack, name: &str| Lane { stack, variant: Variant::new(name) };
        let lanes = [lane(Stack::Sim, "x, y"), lane(Stack::Live, "live"), lane(Stack::Sim, "z")];
        let jobs = Job::series(&experiment, &lanes, 3);
        let made = [1, 4].map(|at_once| {
            let dir = std::env::temp_dir()
                .join(format!("marline-timelines-{}-{at_once}", std::process::id()));
            std::fs::create_dir_all(&dir).expect("a directory");
            let timelines = Timelines { jobs: at_once, config: TimelineConfig::default() };
            let written = timelines.write(&jobs, &dir, &[Format::Csv]).expect("files");
            let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect(name);
            let files = (read("subflows.csv"), read("copies.csv"));
            std::fs::remove_dir_all(&dir).expect("the file exists");
            (written, files)
        });
        assert_eq!(made[0], made[1]);
        let (written, (subflows, copies)) = &made[0];
        assert_eq!(written.omission_note(), None);
        assert!(subflows.starts_with("stack,variant,seed,time_us,end,path,"));
        assert!(subflows.contains("\nsim,\"x, y\",2,") && !subflows.contains("\nlive"));
        assert_eq!(copies.lines().count() as u64, 1 + written.copies.rows);
        // Five bursts, two variants, three seeds.
        let won = copies.lines().filter(|line| line.ends_with(",1")).count();
        assert_eq!(won, 5 * 2 * 3);
    }

    #[test]
    fn left_out_rows_are_reported() {
        let sheet = |rows, left_out| Sheet { rows, left_out };
        let written = WrittenSizes { subflows: sheet(10, 0), copies: sheet(500_000, 7) };
        let said = written.omission_note().expect("cut");
        assert!(said.contains("copies has the first 500000 rows, 7 were left out"), "{said}");
        assert!(!said.contains("subflows has"), "{said}");
    }

    #[test]
    fn files_may_enable_time_lines_without_changing_runs() {
        let text = "[[path]]\nname = 'a'\n[workload]\nkind = 'exchange'\nbytes = 9\n";
        let read = |text: &str| ExperimentFile::from_toml("x.toml", text);
        let (plain, asked) =
            (read(text).expect("good"), read(&format!("timelines = '5ms'\n{text}")).expect("good"));
        assert_eq!(plain.timelines, None);
        assert_eq!(asked.timelines, Some(std::time::Duration::from_millis(5)));
        let debug = |file: &ExperimentFile| format!("{:?}", file.experiment);
        assert_eq!(debug(&plain), debug(&asked), "earlier runs are not repeated");
        let error =
            format!("{:#}", read(&format!("timelines = '1us'\n{text}")).expect_err("short"));
        assert!(error.contains("x.toml:1:") && error.contains("at least 10"), "{error}");
    }
}
