//! Views as Python objects: the dataclasses of `marline.policies`, filled with the core's values.

use marline::policy::{
    DataRange, Eligibility, Phase, SchedulerContext, SubflowId, SubflowSet, SubflowView,
};
use marline::time::Instant;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use pyo3::{IntoPyObjectExt, intern};

use crate::forecast::{Forecast, micros};

/// Maximum number of mappings passed to a scheduler at once.
const MAX_SHOWN_MAPPINGS: usize = 10_000;

static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Looks up a class or function of `marline.policies`.
pub(super) fn named<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let import = || py.import("marline.policies").map(|module| module.into_any().unbind());
    MODULE.get_or_try_init(py, import)?.bind(py).getattr(name)
}

/// Converts a value to a Python object.
fn to_python<'py, T: IntoPyObjectExt<'py>>(
    py: Python<'py>,
    value: T,
) -> PyResult<Bound<'py, PyAny>> {
    value.into_bound_py_any(py)
}

pub(super) fn instant_us(at: Instant) -> f64 {
    at.as_nanos() as f64 / 1e3
}

pub(super) fn ids(set: SubflowSet) -> Vec<u8> {
    set.iter().map(|id| id.0).collect()
}

/// Creates a `marline.SubflowView`, with its fields in order.
pub(super) fn subflow<'py>(py: Python<'py>, view: &SubflowView) -> PyResult<Bound<'py, PyAny>> {
    let (word, cause) = (view.health.path_health().name(), view.health.cause());
    let phase = match view.phase {
        Phase::Open => intern!(py, "open"),
        Phase::Recovery => intern!(py, "recovery"),
        Phase::Loss => intern!(py, "loss"),
    };
    let (eligibility, room, opens_at) = match view.eligibility {
        Eligibility::Ready { room } => (intern!(py, "ready"), room, None),
        Eligibility::CwndLimited => (intern!(py, "cwnd-limited"), 0, None),
        Eligibility::PacingLimited(at) => (intern!(py, "pacing-limited"), 0, Some(instant_us(at))),
        Eligibility::NotActive => (intern!(py, "not-active"), 0, None),
    };
    let ssthresh = (view.ssthresh < u64::MAX).then_some(view.ssthresh);
    let fields = [
        to_python(py, view.id.0)?,
        to_python(py, view.local_id.0)?,
        to_python(py, view.remote_id.0)?,
        to_python(py, view.backup)?,
        to_python(py, view.metered)?,
        to_python(py, view.wake_share)?,
        to_python(py, word)?,
        to_python(py, cause)?,
        phase.clone().into_any(),
        eligibility.clone().into_any(),
        to_python(py, room)?,
        to_python(py, opens_at)?,
        to_python(py, view.mss)?,
        to_python(py, view.cwnd)?,
        to_python(py, ssthresh)?,
        to_python(py, view.bytes_in_flight)?,
        to_python(py, view.bytes_queued)?,
        to_python(py, view.bytes_copied)?,
        to_python(py, view.srtt.map(micros))?,
        to_python(py, micros(view.rttvar))?,
        to_python(py, view.min_rtt.map(micros))?,
        to_python(py, view.delivery_rate.map(|rate| rate.bits_per_s()))?,
        to_python(py, Forecast { core: view.forecast })?,
        to_python(py, view.overdue_at.map(instant_us))?,
        to_python(py, view.bytes_since_loss)?,
        to_python(py, view.bytes_between_losses)?,
        to_python(py, instant_us(view.last_sent_at))?,
        to_python(py, instant_us(view.last_rx_at))?,
        to_python(py, instant_us(view.last_new_at))?,
        to_python(py, view.bytes_sent)?,
        to_python(py, view.bytes_received)?,
    ];
    named(py, "SubflowView")?.call1(PyTuple::new(py, fields)?)
}

pub(super) fn subflows<'py>(
    py: Python<'py>,
    views: &[SubflowView],
) -> PyResult<Bound<'py, PyList>> {
    let all: PyResult<Vec<_>> = views.iter().map(|view| subflow(py, view)).collect();
    PyList::new(py, all?)
}

/// Creates a `marline.SchedulerContext`. It contains outstanding data only if requested, because there may be much of
/// it.
pub(super) fn context<'py>(
    py: Python<'py>,
    cx: &SchedulerContext<'_>,
    wants_outstanding: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let outstanding = if wants_outstanding { outstanding(cx) } else { Vec::new() };
    let mapping = |(range, carried_by, delivered): (DataRange, SubflowSet, bool)| {
        let carried_by = PyTuple::new(py, ids(carried_by))?;
        named(py, "Mapping")?.call1((range.start.0, range.end.0, carried_by, delivered))
    };
    let outstanding: PyResult<Vec<_>> = outstanding.into_iter().map(mapping).collect();
    named(py, "SchedulerContext")?.call1((
        instant_us(cx.now),
        subflows(py, cx.subflows)?,
        (cx.unsent.start.0, cx.unsent.end.0),
        cx.written.0,
        cx.data_una.0,
        cx.window_end.0,
        cx.send_limit,
        cx.repeated,
        cx.repairs,
        PyList::new(py, outstanding?)?,
    ))
}

/// Data that was assigned to subflows and is not DATA_ACKed, oldest first.
fn outstanding(cx: &SchedulerContext<'_>) -> Vec<(DataRange, SubflowSet, bool)> {
    let mut all = Vec::new();
    let mut next = cx.mappings.oldest();
    while let Some(mapping) = next.filter(|mapping| !mapping.range.is_empty())
        && all.len() < MAX_SHOWN_MAPPINGS
    {
        all.push((mapping.range, mapping.carried_by, mapping.delivered));
        next = cx.mappings.mapping_at(mapping.range.end);
    }
    all
}

/// Reads a subflow number from a Python value.
pub(super) fn id(number: u64) -> PyResult<SubflowId> {
    if number < u64::from(SubflowSet::CAPACITY) {
        return Ok(SubflowId(number as u8));
    }
    Err(pyo3::exceptions::PyValueError::new_err(format!("unknown subflow {number}")))
}
