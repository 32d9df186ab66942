//! Call into Python from a run: what it raises ends the run, and what was canceled calls nothing any more.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

/// The run of this thread.
#[derive(Default)]
struct Run {
    canceled: Arc<AtomicBool>,
    failure: Option<PyErr>,
}

thread_local! {
    static RUN: RefCell<Run> = RefCell::default();
}

/// Does `work`, a run with policies that may be Python objects, and returns what one of them raised, if one did.
///
/// A policy cannot return an error to the core. After the first exception, or once `canceled` is set, Python is not
/// asked again: schedulers wait, and the rest of the run passes quickly, for nothing is sent.
pub(crate) fn run<R>(canceled: &Arc<AtomicBool>, work: impl FnOnce() -> R) -> (R, Option<PyErr>) {
    RUN.replace(Run { canceled: Arc::clone(canceled), failure: None });
    let result = work();
    (result, RUN.take().failure)
}

/// Asks Python something; `None` if it raised, or is not to be asked any more.
pub(crate) fn call_python<R>(ask: impl FnOnce(Python<'_>) -> PyResult<R>) -> Option<R> {
    let over = RUN.with_borrow(|run| run.failure.is_some() || run.canceled.load(Ordering::Relaxed));
    if over {
        return None;
    }
    // `None`: the interpreter shuts down.
    match Python::try_attach(ask)? {
        Ok(answer) => Some(answer),
        Err(error) => {
            RUN.with_borrow_mut(|run| run.failure = Some(error));
            None
        }
    }
}
