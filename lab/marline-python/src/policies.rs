//! Policies that are Python classes, registered by name for experiments in virtual time.

mod congestion;
mod path_manager;
mod scheduler;
mod views;

use std::sync::Arc;

use marline::algos::Parameters;
use marline::algos::Registry;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::guard;

/// A class: kind (`scheduler`, `path_manager`, `congestion`), name, class, and for each parameter its name, the text
/// of its default, and the name of its type (`int`, `float`, `bool`, `str`).
pub(crate) type PolicyClass = (String, String, Py<PyAny>, Vec<(String, String, String)>);

/// Creates objects of a class.
struct ObjectFactory {
    class: Py<PyAny>,
    parameters: Vec<(String, String, String)>,
}

/// A parameter's value.
#[derive(Clone)]
enum Value {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
}

impl Value {
    fn read(kind: &str, text: &str) -> Option<Value> {
        match kind {
            "int" => text.parse().ok().map(Value::Int),
            "float" => {
                text.parse().ok().filter(|number: &f64| number.is_finite()).map(Value::Float)
            }
            "bool" => match text {
                "on" => Some(Value::Bool(true)),
                "off" => Some(Value::Bool(false)),
                _ => None,
            },
            _ => Some(Value::Text(text.to_owned())),
        }
    }
}

impl ObjectFactory {
    /// Values of a spec by name.
    fn read(&self, parameters: &mut Parameters<'_>) -> Vec<(String, Value)> {
        let value = |(key, default, kind): &(String, String, String)| {
            let expected = match kind.as_str() {
                "int" => "a whole number",
                "float" => "a number",
                "bool" => "on or off",
                _ => "text",
            };
            let read = |text: &str| Value::read(kind, text);
            Some((key.clone(), parameters.parse_with(key, default, expected, read)?))
        };
        self.parameters.iter().filter_map(value).collect()
    }

    /// Creates an object. Positional arguments come first.
    fn make<'py>(
        &self,
        py: Python<'py>,
        positional: Bound<'py, pyo3::types::PyTuple>,
        values: &[(String, Value)],
    ) -> PyResult<Bound<'py, PyAny>> {
        let named = PyDict::new(py);
        for (key, value) in values {
            match value {
                Value::Int(number) => named.set_item(key, number)?,
                Value::Float(number) => named.set_item(key, number)?,
                Value::Bool(flag) => named.set_item(key, flag)?,
                Value::Text(text) => named.set_item(key, text)?,
            }
        }
        self.class.bind(py).call(positional, Some(&named))
    }
}

/// Adds a class to a registry.
pub(crate) fn register(registry: &mut Registry, class: PolicyClass) -> PyResult<()> {
    let (kind, name, class, parameters) = class;
    let maker = Arc::new(ObjectFactory { class, parameters });
    let added = match kind.as_str() {
        "scheduler" => registry.register_scheduler_with(&name, move |parameters| {
            let (maker, values) = (Arc::clone(&maker), maker.read(parameters));
            move || scheduler::build(&maker, &values)
        }),
        "path_manager" => registry.register_path_manager_with(&name, move |parameters| {
            let (maker, values) = (Arc::clone(&maker), maker.read(parameters));
            move || path_manager::build(&maker, &values)
        }),
        "congestion" => registry.register_congestion_with(&name, move |parameters| {
            let (maker, values) = (Arc::clone(&maker), maker.read(parameters));
            move |mss, window, _| congestion::build(&maker, &values, mss, window)
        }),
        other => return Err(PyValueError::new_err(format!("unknown kind of policy `{other}`"))),
    };
    added.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// An object of a run, whose methods are called by name. `None` after it has raised an exception.
fn call_object<R>(
    object: Option<&Py<PyAny>>,
    call: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<R>,
) -> Option<R> {
    let object = object?;
    guard::call_python(|py| call(py, object.bind(py)))
}
