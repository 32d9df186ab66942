//! Paper: the interface each key implements, and the context of its run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

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

/// Context of a reproduction.
#[derive(Copy, Clone)]
pub struct Context<'a> {
    /// Root of everything random.
    pub seed: u64,
    /// Share of the full number of runs, above 0; verdicts apply to 1, less is for a quick look.
    pub scale: f64,
    /// Threads.
    pub jobs: usize,
    /// Directory of this key's results; it exists. For what can be continued after an interruption.
    pub results: &'a std::path::Path,
    /// Where recorded traces lie.
    pub traces: Option<&'a std::path::Path>,
    /// Told after every run: what is run, how many are done, of how many.
    pub progress: &'a (dyn Fn(&str, usize, usize) + Sync),
}

impl Context<'_> {
    /// `full` runs at scale 1, fewer at less, at least one.
    #[must_use]
    pub fn runs(&self, full: usize) -> usize {
        ((full as f64 * self.scale).round() as usize).max(1)
    }

    /// So long at scale 1, shorter at less, a twentieth at least: for keys whose runs are long rather than
    /// many.
    #[must_use]
    pub fn length(&self, full: marline_time::Duration) -> marline_time::Duration {
        full.mul_f64(self.scale.clamp(0.05, 1.0))
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
