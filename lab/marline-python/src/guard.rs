//! Calls into Python from a run. An exception ends the run, and a canceled run makes no further calls.

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

/// Executes `work`, a run with policies that may be Python objects, and returns the exception that one of them
/// raised, if any.
///
/// A policy cannot return an error to the core. After the first exception, or once `canceled` is set, Python is not
/// called again. Schedulers then wait, and the rest of the run is fast because nothing is sent.
pub(crate) fn run<R>(canceled: &Arc<AtomicBool>, work: impl FnOnce() -> R) -> (R, Option<PyErr>) {
    RUN.replace(Run { canceled: Arc::clone(canceled), failure: None });
    let result = work();
    (result, RUN.take().failure)
}

/// Calls Python; `None` if it raised an exception or must no longer be called.
pub(crate) fn call_python<R>(ask: impl FnOnce(Python<'_>) -> PyResult<R>) -> Option<R> {
    let over = RUN.with_borrow(|run| run.failure.is_some() || run.canceled.load(Ordering::Relaxed));
    if over {
        return None;
    }
    // `None`: the interpreter is shutting down.
    match Python::try_attach(ask)? {
        Ok(answer) => Some(answer),
        Err(error) => {
            RUN.with_borrow_mut(|run| run.failure = Some(error));
            None
        }
    }
}
