//! Path manager that calls a Python object.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use marline::policy::{AddressId, PathAction, PathContext, PathEvent, PathManager, Role};
use marline::time::Instant;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::{ObjectFactory, Value, call_object, views};
use crate::forecast::duration;
use crate::guard;

/// A Python object as a path manager. After an exception it does nothing.
struct PyPathManager {
    object: Option<Py<PyAny>>,
    actions: VecDeque<PathAction>,
    timeout: Option<Instant>,
}

impl fmt::Debug for PyPathManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PyPathManager").field("actions", &self.actions).finish_non_exhaustive()
    }
}

/// Creates the path manager of a connection.
pub(super) fn build(
    maker: &Arc<ObjectFactory>,
    values: &[(String, Value)],
) -> Box<dyn PathManager> {
    let object = guard::call_python(|py| Ok(maker.make(py, PyTuple::empty(py), values)?.unbind()));
    Box::new(PyPathManager { object, actions: VecDeque::new(), timeout: None })
}

impl PyPathManager {
    /// Calls a method that returns a list of actions, and reads when the object wants to be called again.
    fn notify(&mut self, method: &str, event: Option<&PathEvent>, cx: &PathContext<'_>) {
        let told = call_object(self.object.as_ref(), |py, object| {
            let view = context(py, cx)?;
            let answer = match event {
                Some(event) => object.call_method1(method, (path_event(py, event)?, view))?,
                None => object.call_method1(method, (view,))?,
            };
            let timeout: Option<f64> = object.getattr("next_timeout_us")?.extract()?;
            let timeout = timeout.map(|at_us| Instant::ZERO + duration(at_us));
            if answer.is_none() {
                return Ok((Vec::new(), timeout));
            }
            let actions: PyResult<Vec<_>> =
                answer.try_iter()?.map(|asked| action(&asked?)).collect();
            Ok((actions?, timeout))
        });
        let (actions, timeout) = told.unwrap_or_default();
        self.actions.extend(actions);
        self.timeout = timeout;
    }
}

impl PathManager for PyPathManager {
    fn on_event(&mut self, event: &PathEvent, cx: &PathContext<'_>) {
        self.notify("on_event", Some(event), cx);
    }

    fn accepts_join(&mut self, from: SocketAddr, cx: &PathContext<'_>) -> bool {
        let asked = call_object(self.object.as_ref(), |py, object| {
            object.call_method1("accepts_join", (from.to_string(), context(py, cx)?))?.extract()
        });
        asked.unwrap_or(false)
    }

    fn poll_action(&mut self) -> Option<PathAction> {
        self.actions.pop_front()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.timeout
    }

    fn on_timeout(&mut self, cx: &PathContext<'_>) {
        // Without a new wake-up time the object is not called again.
        self.timeout = None;
        let _ = call_object(self.object.as_ref(), |_, object| {
            object.setattr("next_timeout_us", None::<f64>)
        });
        self.notify("on_timeout", None, cx);
    }
}

fn context<'py>(py: Python<'py>, cx: &PathContext<'_>) -> PyResult<Bound<'py, PyAny>> {
    let local = cx.local.iter().map(|local| {
        let flags = (local.backup, local.signal, local.subflow, local.up);
        let arguments = (local.id.0, local.address.to_string(), flags.0, flags.1, flags.2, flags.3);
        views::named(py, "LocalAddress")?.call1(arguments)
    });
    let local = PyList::new(py, local.collect::<PyResult<Vec<_>>>()?)?;
    let remote = cx.remote.iter().map(|remote| {
        views::named(py, "RemoteAddress")?.call1((remote.id.0, remote.address.to_string()))
    });
    let remote = PyList::new(py, remote.collect::<PyResult<Vec<_>>>()?)?;
    let paths = cx.paths.iter().map(|path| {
        let ends = (path.local.to_string(), path.remote.to_string());
        let ids = (path.local_id.0, path.remote_id.0);
        let arguments = (path.id.0, ends.0, ends.1, ids.0, ids.1, path.established);
        views::named(py, "SubflowPath")?.call1(arguments)
    });
    let paths = PyList::new(py, paths.collect::<PyResult<Vec<_>>>()?)?;
    let role = if cx.role == Role::Client { "client" } else { "server" };
    views::named(py, "PathContext")?.call1((
        views::instant_us(cx.now),
        role,
        local,
        remote,
        paths,
        views::subflows(py, cx.subflows)?,
        cx.deny_join_id0,
        cx.max_subflows,
        cx.has_unacked_data,
    ))
}

/// Creates a `marline.PathEvent`: kind, subflow, address id, and a flag (backup, degraded, or previously established).
fn path_event<'py>(py: Python<'py>, event: &PathEvent) -> PyResult<Bound<'py, PyAny>> {
    let (kind, subflow, address, flag) = match *event {
        PathEvent::Established => ("established", None, None, None),
        PathEvent::LocalUp(id) => ("local-up", None, Some(id.0), None),
        PathEvent::LocalDown(id) => ("local-down", None, Some(id.0), None),
        PathEvent::Announced(id) => ("announced", None, Some(id.0), None),
        PathEvent::Removed(id) => ("removed", None, Some(id.0), None),
        PathEvent::SubflowUp(id) => ("subflow-up", Some(id.0), None, None),
        PathEvent::SubflowDown { id, local, was_established, .. } => {
            ("subflow-down", Some(id.0), Some(local.0), Some(was_established))
        }
        PathEvent::Priority { id, backup } => ("priority", Some(id.0), None, Some(backup)),
        PathEvent::Unreachable(id) => ("unreachable", Some(id.0), None, None),
        PathEvent::Stuck(id) => ("stuck", Some(id.0), None, None),
        PathEvent::Reachable(id) => ("reachable", Some(id.0), None, None),
        PathEvent::AddressPair { id, degraded } => {
            ("address-pair", Some(id.0), None, Some(degraded))
        }
        PathEvent::Fading { id, fading } => ("fading", Some(id.0), None, Some(fading)),
        PathEvent::Silent { id, .. } => ("silent", Some(id.0), None, None),
        _ => ("other", None, None, None),
    };
    views::named(py, "PathEvent")?.call1((kind, subflow, address, flag))
}

/// Converts one of the actions of `marline.policies`.
fn action(asked: &Bound<'_, PyAny>) -> PyResult<PathAction> {
    let class = asked.get_type().name()?.to_string();
    let subflow = || views::id(asked.getattr("subflow")?.extract()?);
    let flag = |name: &str| asked.getattr(name)?.extract::<bool>();
    let address = |name: &str| asked.getattr(name)?.extract::<u8>().map(AddressId);
    Ok(match class.as_str() {
        "OpenSubflow" => PathAction::OpenSubflow {
            local: address("local")?,
            remote: address("remote")?,
            backup: flag("backup")?,
            fast: flag("fast")?,
        },
        "CloseSubflow" => PathAction::CloseSubflow(subflow()?),
        "ProbeSubflow" => PathAction::Probe(subflow()?),
        "SetBackup" => PathAction::SetBackup { id: subflow()?, backup: flag("backup")? },
        "Announce" => PathAction::Announce(address("address")?),
        "Withdraw" => PathAction::Withdraw(address("address")?),
        _ => {
            let shown = asked.repr()?;
            let what = format!("a path manager must return a list of actions, not of {shown}");
            return Err(PyTypeError::new_err(what));
        }
    })
}
