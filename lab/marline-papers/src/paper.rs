//! Paper: the interface each key implements, and the context of its run.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use marline_lab::emulation::traces::directory_of_environment;
use marline_lab::parallel::parallel;

use crate::table::Reproduction;

/// A published measurement that can be done again.
pub trait Paper: Sync {
    /// Its name: of its file `papers/KEY.toml`, its module, and what is said on the command line.
    fn key(&self) -> &'static str;

    /// The text of its file, built into the program.
    fn text(&self) -> &'static str;

    /// Whether `paper all` runs it: nothing but processor time is needed. The others need root and
    /// real time.
    fn in_virtual_time(&self) -> bool {
        true
    }

    /// Does it again. One context, one result: nothing may depend on the clock or on the number of
    /// threads.
    ///
    /// # Errors
    /// Something is missing (traces), or a run failed. A result that is not what the paper says is
    /// not an error but a row.
    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction>;
}

/// How much is run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As many roots as verdicts need, up to the most of each part.
    Full,
    /// Two roots, shorter runs: whether it works. Judges nothing.
    Quick,
    /// So many roots of each part, runs of full length; fewer than
    /// [`MIN_ROOTS`](crate::MIN_ROOTS) judge nothing.
    Roots(usize),
}

/// Processor time that kept roots cost when they were measured, by part and root.
pub type Spent = Mutex<BTreeMap<(&'static str, u64), f64>>;

/// Context of a reproduction.
#[derive(Copy, Clone)]
pub struct Context<'a> {
    /// The paper's key: roots are drawn for it.
    pub key: &'a str,
    /// Master root, from which all roots are drawn.
    pub master: u64,
    /// How much is run.
    pub effort: Effort,
    /// Share of the full number of runs of keys that run in real time, above 0.
    pub scale: f64,
    /// Threads.
    pub jobs: usize,
    /// What tells this build from others: roots that another measured are measured again.
    pub program: &'a str,
    /// Directory of this key's results; it exists. For what can be continued after an interruption.
    pub results: &'a std::path::Path,
    /// Where recorded traces lie.
    pub traces: Option<&'a std::path::Path>,
    /// What kept roots had cost.
    pub spent: &'a Spent,
    /// Told after every run: what is run, how many are done, of how many.
    pub progress: &'a (dyn Fn(&str, usize, usize) + Sync),
}

impl Context<'_> {
    /// Of keys that run in real time: `full` runs at scale 1, fewer at less, at least one.
    #[must_use]
    pub fn runs(&self, full: usize) -> usize {
        ((full as f64 * self.scale).round() as usize).max(1)
    }

    /// So long, or a twentieth of it for a quick look: for runs that are long rather than many.
    #[must_use]
    pub fn length(&self, full: marline_time::Duration) -> marline_time::Duration {
        if self.effort == Effort::Quick { full.mul_f64(0.05) } else { full }
    }

    /// So many, or a twentieth of them, at least one, for a quick look: messages of a run, walks of a
    /// root.
    #[must_use]
    pub fn count(&self, full: usize) -> usize {
        if self.effort == Effort::Quick { full.div_ceil(20) } else { full }
    }

    /// Notes what a root had cost; what this run measured itself is not noted again.
    pub(crate) fn spend(&self, part: &'static str, root: u64, cpu_s: f64) {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.entry((part, root)).or_insert(cpu_s);
    }

    /// Does `run` with each item on all threads, in the order of the items, and tells how far it is
    /// under the name of `what`.
    ///
    /// # Errors
    /// The first error of a run; one that panicked has the words of the panic.
    pub fn parallel<T: Sync, R: Send>(
        &self,
        what: &str,
        items: &[T],
        run: impl Fn(&T) -> anyhow::Result<R> + Sync,
    ) -> anyhow::Result<Vec<R>> {
        let done = std::sync::atomic::AtomicUsize::new(0);
        let results = parallel(self.jobs, items, |item| {
            // One that breaks must not take with it what other keys have to show.
            let result = catch_unwind(AssertUnwindSafe(|| run(item)))
                .unwrap_or_else(|panic| Err(anyhow::anyhow!("{what}: {}", words(&*panic))));
            let done = 1 + done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            (self.progress)(what, done, items.len());
            result
        });
        results.into_iter().collect()
    }

    /// The directory with recorded traces.
    ///
    /// # Errors
    /// No directory was given.
    pub fn traces(&self) -> anyhow::Result<&std::path::Path> {
        self.traces.context("recorded traces are needed: --trace-dir DIR or MARLINE_TRACE_DIR")
    }
}

/// What a panic said.
fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a run panicked")
}

/// Where recorded traces lie: `MARLINE_TRACE_DIR`, or `shared/traces` beside the directory this is
/// run in; `None` where neither exists.
#[must_use]
pub fn trace_directory() -> Option<PathBuf> {
    let named = directory_of_environment();
    let places = named.into_iter().chain([PathBuf::from("../shared/traces")]);
    places.into_iter().find(|place| place.is_dir())
}
