//! Native part of the Python package `marline`: the lab's experiments, policies that are Python objects, and
//! environments for learning, all in virtual time.
//!
//! The public interface is the Python code in `python/marline`; this module contains only the functions that it needs.
//! Simulations run on separate threads, without the interpreter's lock. They take it only to call a policy written in
//! Python.

mod environments;
mod experiment;
mod forecast;
mod guard;
mod policies;
mod results;
mod running;
mod sweep;

use pyo3::prelude::*;

pyo3::create_exception!(
    marline._native,
    ExperimentError,
    pyo3::exceptions::PyValueError,
    "An experiment cannot be read or run; the message gives the error and its position."
);

/// Converts an error of the lab to a Python exception, with its causes in one line.
fn experiment_error(error: &anyhow::Error) -> PyErr {
    ExperimentError::new_err(format!("{error:#}"))
}

#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use super::ExperimentError;
    #[pymodule_export]
    use super::environments::Environments;
    #[pymodule_export]
    use super::experiment::Plan;
    #[pymodule_export]
    use super::forecast::Forecast;
    #[pymodule_export]
    use super::results::Results;
    #[pymodule_export]
    use super::running::Running;
    #[pymodule_export]
    use super::sweep::{Sweep, identity};
}
