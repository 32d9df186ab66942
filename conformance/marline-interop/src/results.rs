//! Results on disk, so that a run can be resumed, and their summary.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use marline_lab::provenance;
use serde::{Deserialize, Serialize};

use crate::cell::{Condition, Pair};
use crate::cell_result::CellResult;
use crate::cell_setup::Scale;
use crate::run::Task;

/// Stored result of a cell.
#[derive(Debug, Serialize, Deserialize)]
struct StoredResult {
    /// Identity of the program build.
    program: String,
    /// Name of the cell and the amount of data.
    name: String,
    #[serde(rename = "verdict")]
    result: CellResult,
}

/// A directory of results.
#[derive(Debug)]
pub(crate) struct Results {
    place: PathBuf,
    program: String,
    repeats_passed: bool,
    keep_captures: bool,
    done: AtomicUsize,
}

/// Summary of all results.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) green: bool,
    pub(crate) text: String,
    pub(crate) markdown: String,
}

impl Results {
    /// Opens the results in this directory. `repeats_passed` repeats passed cells, and `keep_captures` keeps their
    /// captures.
    pub(crate) fn open(place: &Path, fresh: bool, keep_captures: bool) -> anyhow::Result<Results> {
        fs::create_dir_all(place).with_context(|| place.display().to_string())?;
        let program = provenance::program_hash()?;
        let place = place.canonicalize()?;
        Ok(Results {
            place,
            program,
            repeats_passed: fresh,
            keep_captures,
            done: AtomicUsize::new(0),
        })
    }

    /// Directory for the files of a cell.
    pub(crate) fn directory(&self, task: &Task) -> PathBuf {
        self.place.join(name(task))
    }

    pub(crate) fn has_passed(&self, task: &Task) -> bool {
        !self.repeats_passed && self.read(task).is_some_and(|result| result.problems.is_empty())
    }

    fn read(&self, task: &Task) -> Option<CellResult> {
        let text = fs::read_to_string(self.directory(task).join("verdict.json")).ok()?;
        let kept: StoredResult = serde_json::from_str(&text).ok()?;
        (kept.program == self.program && kept.name == name(task)).then_some(kept.result)
    }

    /// Stores and prints a result. Removes the captures of a passed cell unless they must be kept.
    pub(crate) fn keep(&self, task: &Task, result: &CellResult, total: usize) {
        let directory = self.directory(task);
        let (program, name) = (self.program.clone(), name(task));
        let kept = StoredResult { program, name, result: result.clone() };
        let text = serde_json::to_string_pretty(&kept).unwrap_or_default();
        if let Err(error) = fs::write(directory.join("verdict.json"), text) {
            eprintln!("{}: {error}", directory.display());
        }
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let word = if result.problems.is_empty() { "ok    " } else { "FAILED" };
        println!("{done:4}/{total} {word} {:6.1} s  {task}", result.seconds);
        for problem in &result.problems {
            println!("       {problem}");
        }
        if result.problems.is_empty() && self.keep_captures {
            println!("       {} ({})", directory.display(), result.capture);
        } else if result.problems.is_empty() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if name.to_string_lossy().contains(".pcap") {
                    let _ = fs::remove_file(entry.path());
                }
            }
        } else {
            println!("       evidence: {}", directory.display());
            let scale = if task.scale() == Scale::Small { "--small " } else { "" };
            println!("       repeat: cargo xtask interop {scale}--only {task}");
        }
    }

    pub(crate) fn summary(&self, tasks: &[Task]) -> anyhow::Result<Summary> {
        let results: Vec<(Task, Option<CellResult>)> =
            tasks.iter().map(|task| (*task, self.read(task))).collect();
        let ok = |result: &Option<CellResult>| {
            result.as_ref().is_some_and(|result| result.problems.is_empty())
        };
        let green = results.iter().filter(|(_, result)| ok(result)).count();
        let mut markdown = format!(
            "{green} of {} cells passed; kernel {}.\n\n| |{}\n|---|{}\n",
            tasks.len(),
            provenance::kernel_release(),
            Condition::ALL.iter().map(|c| format!(" {c:?} |")).collect::<String>(),
            "---|".repeat(Condition::ALL.len()),
        );
        for pair in Pair::ALL {
            let _ = write!(markdown, "| {} |", words(*pair));
            for condition in Condition::ALL {
                let here = results.iter().filter(|(task, _)| {
                    matches!(task, Task::Cell(cell, _)
                        if cell.pair == *pair && cell.condition == *condition)
                });
                let (count, good) = here.fold((0, 0), |(count, good), (_, result)| {
                    (count + 1, good + usize::from(ok(result)))
                });
                let _ = match count {
                    0 => write!(markdown, " - |"),
                    _ => write!(markdown, " {good} of {count} |"),
                };
            }
            markdown.push('\n');
        }
        let specials: Vec<_> =
            results.iter().filter(|(task, _)| matches!(task, Task::Special(_))).collect();
        if !specials.is_empty() {
            let good = specials.iter().filter(|(_, result)| ok(result)).count();
            let _ = writeln!(
                markdown,
                "\nPath management and fallback: {good} of {} cases passed.",
                specials.len()
            );
        }
        let failed = results.iter().filter(|(_, result)| !ok(result));
        for (number, (task, result)) in failed.enumerate() {
            if number == 0 {
                markdown.push_str("\nNot passed:\n\n");
            }
            let why = result.as_ref().map_or("not run", |result| &result.problems[0]);
            let _ = writeln!(markdown, "- `{task}`: {why}");
        }
        let seconds: f64 = results.iter().flat_map(|(_, v)| v).map(|v| v.seconds).sum();
        let text = format!("\n{markdown}\ntotal time of all cells: {seconds:.0} s\n");
        Ok(Summary { green: green == tasks.len(), text, markdown })
    }
}

/// Name of the result's directory.
fn name(task: &Task) -> String {
    format!("{task}-{:?}", task.scale()).to_lowercase()
}

const fn words(pair: Pair) -> &'static str {
    match pair {
        Pair::MarlineKernel => "Marline client, kernel server",
        Pair::KernelMarline => "kernel client, Marline server",
        Pair::MarlineMarline => "Marline, Marline",
    }
}
