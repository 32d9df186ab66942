//! Trait of a paper, and the context of its run.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use marline_lab::emulation::traces::trace_directory_from_env;
use marline_lab::parallel::parallel;

use crate::table::Reproduction;

/// A published measurement that can be reproduced.
pub trait Paper: Sync {
    /// Key of the paper: the name of its file `papers/KEY.toml`, of its module, and on the command line.
    fn key(&self) -> &'static str;

    /// Text of its file, built into the program.
    fn text(&self) -> &'static str;

    /// True if `paper all` runs it, because it needs nothing but CPU time. The others need root privileges
    /// and real time.
    fn is_virtual_time(&self) -> bool {
        true
    }

    /// Runs the reproduction. The result depends on the context only, not on the clock or on the number of
    /// threads.
    ///
    /// # Errors
    /// Missing traces, or a failed run. A result that differs from the paper's is a row, not an error.
    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction>;
}

/// Amount of work.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As many roots as the verdicts need, up to the maximum of each part.
    Full,
    /// Two roots with shorter runs, as a smoke test. Nothing is judged.
    Quick,
    /// This number of roots for each part, with runs of full length. Nothing is judged with fewer than
    /// [`MIN_ROOTS`](crate::MIN_ROOTS).
    Roots(usize),
}

/// CPU time, in seconds, of kept roots when they were measured, by part and root.
pub type ProcessorTimes = Mutex<BTreeMap<(&'static str, u64), f64>>;

/// Context of a reproduction.
#[derive(Copy, Clone)]
pub struct Context<'a> {
    /// Key of the paper. Roots are drawn for it.
    pub key: &'a str,
    /// Master root, from which all other roots are drawn.
    pub master: u64,
    /// Amount of work.
    pub effort: Effort,
    /// Share of the full number of runs, for keys that run in real time. Above 0.
    pub scale: f64,
    /// Number of threads.
    pub jobs: usize,
    /// Identifier of the build. Roots that another build measured are measured again.
    pub program: &'a str,
    /// Existing directory of this key's results, for files that let an interrupted run continue.
    pub results: &'a std::path::Path,
    /// Directory of the recorded traces.
    pub traces: Option<&'a std::path::Path>,
    /// Original cost of the roots that were kept.
    pub spent: &'a ProcessorTimes,
    /// Called after every run with the name of the work, the number of finished runs, and their total.
    pub progress: &'a (dyn Fn(&str, usize, usize) + Sync),
}

impl Context<'_> {
    /// Number of runs of a key that runs in real time: `full` at scale 1, fewer below, at least one.
    #[must_use]
    pub fn runs(&self, full: usize) -> usize {
        ((full as f64 * self.scale).round() as usize).max(1)
    }

    /// The length `full`, or a twentieth of it in a quick run. For parts with a few long runs.
    #[must_use]
    pub fn length(&self, full: marline_time::Duration) -> marline_time::Duration {
        if self.effort == Effort::Quick { full.mul_f64(0.05) } else { full }
    }

    /// The number `full`, or a twentieth of it (at least one) in a quick run. For the messages in a run or the walks of
    /// a root.
    #[must_use]
    pub fn count(&self, full: usize) -> usize {
        if self.effort == Effort::Quick { full.div_ceil(20) } else { full }
    }

    /// Records the cost of a root. A root measured in this run is not recorded twice.
    pub(crate) fn record_cost(&self, part: &'static str, root: u64, cpu_s: f64) {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.entry((part, root)).or_insert(cpu_s);
    }

    /// Calls `run` for each item on all threads and returns the results in the order of the items. Reports the
    /// progress under the name `what`.
    ///
    /// # Errors
    /// The first error of a run. A panic becomes an error with its message.
    pub fn parallel<T: Sync, R: Send>(
        &self,
        what: &str,
        items: &[T],
        run: impl Fn(&T) -> anyhow::Result<R> + Sync,
    ) -> anyhow::Result<Vec<R>> {
        let done = std::sync::atomic::AtomicUsize::new(0);
        let results = parallel(self.jobs, items, |item| {
            // A panic must not discard the results of other keys.
            let result = catch_unwind(AssertUnwindSafe(|| run(item)))
                .unwrap_or_else(|panic| Err(anyhow::anyhow!("{what}: {}", panic_text(&*panic))));
            let done = 1 + done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            (self.progress)(what, done, items.len());
            result
        });
        results.into_iter().collect()
    }

    /// Directory of the recorded traces.
    ///
    /// # Errors
    /// No directory was given.
    pub fn traces(&self) -> anyhow::Result<&std::path::Path> {
        self.traces.context(
            "no directory of recorded traces was given; set --trace-dir DIR or MARLINE_TRACE_DIR",
        )
    }
}

/// Message of a panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a run panicked")
}

/// Directory of the recorded traces: `MARLINE_TRACE_DIR`, or `shared/traces` next to the current directory. `None` if
/// neither exists.
#[must_use]
pub fn trace_directory() -> Option<PathBuf> {
    let named = trace_directory_from_env();
    let places = named.into_iter().chain([PathBuf::from("../shared/traces")]);
    places.into_iter().find(|place| place.is_dir())
}
