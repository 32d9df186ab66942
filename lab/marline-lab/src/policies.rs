//! The policies that experiments name: the built-in ones, those of the literature, and those a program brings along.

use std::cell::RefCell;
use std::sync::OnceLock;

use anyhow::ensure;
use marline::Registry;

/// What the program was started with.
static CHOSEN: OnceLock<Registry> = OnceLock::new();

thread_local! {
    /// What [`with`] lends to this thread.
    static THREAD_REGISTRY: RefCell<Option<Registry>> = const { RefCell::new(None) };
}

/// All of them, by name: those that [`with`] lends to this thread, else those given to [`choose`], else the built-in
/// ones and those of the literature.
#[must_use]
pub fn registry() -> Registry {
    let chosen = || CHOSEN.get().cloned().unwrap_or_else(marline_research::registry);
    THREAD_REGISTRY.with_borrow(Clone::clone).unwrap_or_else(chosen)
}

/// Does `work` with other policies: on this thread, experiments are checked and run in virtual time by them meanwhile.
/// For a caller whose policies come and go; work on other threads does not see them.
pub fn with<R>(registry: &Registry, work: impl FnOnce() -> R) -> R {
    /// Gives back what was lent before, however the work ends.
    struct Before(Option<Registry>);
    impl Drop for Before {
        fn drop(&mut self) {
            THREAD_REGISTRY.set(self.0.take());
        }
    }
    let _before = Before(THREAD_REGISTRY.replace(Some(registry.clone())));
    work()
}

/// Has all experiments of this process, and the ends that it starts for them, go by these policies. A program that
/// has policies of its own calls it once, before anything else.
///
/// # Errors
/// Others were chosen before.
pub fn choose(registry: Registry) -> anyhow::Result<()> {
    ensure!(
        CHOSEN.set(registry).is_ok(),
        "the policies of this process are chosen once, at its start"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use marline::algos::schedulers::MinRtt;
    use marline::algos::{NamedScheduler, PolicyKind};

    use super::*;

    #[test]
    fn a_registry_is_lent_for_the_length_of_the_work_and_to_this_thread_alone() {
        let mut mine = registry();
        let scheduler = NamedScheduler::new("mine", || Box::<MinRtt>::default());
        mine.register_scheduler(scheduler).expect("the name is free");
        let known = || registry().names(PolicyKind::Scheduler).contains(&"mine");
        with(&mine, || {
            assert!(known());
            assert!(!std::thread::scope(|scope| scope.spawn(known).join().expect("no panic")));
            let ended = std::panic::catch_unwind(|| with(&registry(), || panic!("in the work")));
            assert!(ended.is_err() && known(), "what was lent before is lent again");
        });
        assert!(!known());
    }
}
