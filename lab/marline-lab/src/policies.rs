//! Policies for experiments: built-in policies, those from the literature, and those of the program.

use std::cell::RefCell;
use std::sync::OnceLock;

use anyhow::ensure;
use marline::algos::Registry;

/// Registry set by [`choose`].
static PROCESS_REGISTRY: OnceLock<Registry> = OnceLock::new();

thread_local! {
    /// Registry set by [`with`] for this thread.
    static THREAD_REGISTRY: RefCell<Option<Registry>> = const { RefCell::new(None) };
}

/// The registry in use: that of [`with_registry`] on this thread, or else that of [`choose`], or else the built-in
/// policies and those from the literature.
#[must_use]
pub fn registry() -> Registry {
    let chosen = || PROCESS_REGISTRY.get().cloned().unwrap_or_else(marline_research::registry);
    THREAD_REGISTRY.with_borrow(Clone::clone).unwrap_or_else(chosen)
}

/// Calls `work` with another registry on this thread, for callers with temporary policies: experiments are checked and
/// run in virtual time with these policies. Other threads do not see them.
pub fn with_registry<R>(registry: &Registry, work: impl FnOnce() -> R) -> R {
    /// Restores the previous registry, also after a panic.
    struct PreviousRegistry(Option<Registry>);
    impl Drop for PreviousRegistry {
        fn drop(&mut self) {
            THREAD_REGISTRY.set(self.0.take());
        }
    }
    let _before = PreviousRegistry(THREAD_REGISTRY.replace(Some(registry.clone())));
    work()
}

/// Sets the registry for all experiments of this process and for the ends that it starts. A program with its own
/// policies calls this once, before anything else.
///
/// # Errors
/// A registry was already chosen.
pub fn choose(registry: Registry) -> anyhow::Result<()> {
    ensure!(
        PROCESS_REGISTRY.set(registry).is_ok(),
        "the policies of this process are already set; they can be set only once, at its start"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use marline::algos::schedulers::MinRtt;
    use marline::algos::{NamedScheduler, PolicyKind};

    use super::*;

    #[test]
    fn a_registry_applies_only_during_the_work_and_on_this_thread() {
        let mut mine = registry();
        let scheduler = NamedScheduler::new("mine", || Box::<MinRtt>::default());
        mine.register_scheduler(scheduler).expect("the name is free");
        let known = || registry().names(PolicyKind::Scheduler).contains(&"mine");
        with_registry(&mine, || {
            assert!(known());
            assert!(!std::thread::scope(|scope| scope.spawn(known).join().expect("no panic")));
            let ended = std::panic::catch_unwind(|| {
                with_registry(&registry(), || panic!("the work uses the new registry"))
            });
            assert!(ended.is_err() && known(), "the previous policies are restored");
        });
        assert!(!known());
    }
}
