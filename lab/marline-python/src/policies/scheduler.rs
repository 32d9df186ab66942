//! Scheduler that calls a Python object.

use std::fmt;
use std::sync::Arc;

use marline::algos::schedulers::classes;
use marline::policy::{
    DataRange, Decision, Dsn, Penalty, Reinjection, Scheduler, SchedulerAction, SchedulerContext,
    SchedulerEvent,
};
use marline::time::{Duration, Instant};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple};

use super::{ObjectFactory, Value, call_object, views};
use crate::forecast::duration;
use crate::guard;

/// Properties that the object declared at its creation.
#[derive(Copy, Clone, Debug, Default)]
struct ObjectTraits {
    reinjections: bool,
    events: bool,
    outstanding: bool,
    acks: bool,
    delivery: bool,
    patience: Option<Duration>,
}

/// A Python object as a scheduler. After an exception it waits.
struct PyScheduler {
    object: Option<Py<PyAny>>,
    traits: ObjectTraits,
}

impl fmt::Debug for PyScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PyScheduler").field("traits", &self.traits).finish_non_exhaustive()
    }
}

/// Creates the scheduler of a connection.
pub(super) fn build(maker: &Arc<ObjectFactory>, values: &[(String, Value)]) -> Box<dyn Scheduler> {
    let made = guard::call_python(|py| {
        let object = maker.make(py, PyTuple::empty(py), values)?;
        let traits = views::named(py, "_scheduler_traits")?.call1((&object,))?;
        let (reinjections, events, outstanding, acks, delivery, patience_us) =
            traits.extract::<(bool, bool, bool, bool, bool, Option<f64>)>()?;
        let patience = patience_us.map(duration);
        Ok((
            object.unbind(),
            ObjectTraits { reinjections, events, outstanding, acks, delivery, patience },
        ))
    });
    let (object, traits) =
        made.map_or((None, ObjectTraits::default()), |(object, traits)| (Some(object), traits));
    Box::new(PyScheduler { object, traits })
}

impl PyScheduler {
    fn call_method<R>(
        &self,
        cx: &SchedulerContext<'_>,
        call: impl FnOnce(&Bound<'_, PyAny>, Bound<'_, PyAny>) -> PyResult<R>,
    ) -> Option<R> {
        call_object(self.object.as_ref(), |py, object| {
            call(object, views::context(py, cx, self.traits.outstanding)?)
        })
    }
}

impl Scheduler for PyScheduler {
    fn next_send(&mut self, cx: &SchedulerContext<'_>) -> Decision {
        let decide = |object: &Bound<'_, PyAny>, view: Bound<'_, PyAny>| {
            check_decision(decision(&object.call_method1("next_send", (view,))?, cx.unsent)?, cx)
        };
        self.call_method(cx, decide).unwrap_or(Decision::Wait)
    }

    fn next_reinjection(&mut self, item: &Reinjection, cx: &SchedulerContext<'_>) -> Decision {
        if !self.traits.reinjections {
            return classes::reinject(item, cx);
        }
        let decide = |object: &Bound<'_, PyAny>, view: Bound<'_, PyAny>| {
            let py = object.py();
            let carried_by = PyTuple::new(py, views::ids(item.carried_by))?;
            let cause = format!("{:?}", item.cause);
            let range = (item.range.start.0, item.range.end.0);
            let since_us = views::instant_us(item.since);
            let arguments = (range.0, range.1, carried_by, cause, since_us);
            let item_view = views::named(py, "Reinjection")?.call1(arguments)?;
            let answer = object.call_method1("next_reinjection", (item_view, view))?;
            // The base class's default behaves like the built-in schedulers.
            if answer.is(py.NotImplemented()) {
                return Ok(classes::reinject(item, cx));
            }
            let decision = check_decision(decision(&answer, item.range)?, cx)?;
            // Only part of the item is sent.
            let within = |(_, range): (_, DataRange)| !range.intersection(&item.range).is_empty();
            Ok(if decision.data().is_none_or(within) { decision } else { Decision::Wait })
        };
        self.call_method(cx, decide).unwrap_or(Decision::Wait)
    }

    fn on_event(
        &mut self,
        event: SchedulerEvent,
        cx: &SchedulerContext<'_>,
        out: &mut Vec<SchedulerAction>,
    ) {
        if !self.traits.events {
            return;
        }
        let tell = |object: &Bound<'_, PyAny>, view: Bound<'_, PyAny>| {
            let (kind, subflow, range) = describe_event(event);
            let range = range.map(|range| (range.start.0, range.end.0));
            let event =
                views::named(object.py(), "SchedulerEvent")?.call1((kind, subflow, range))?;
            let answer = object.call_method1("on_event", (event, view))?;
            if answer.is_none() {
                return Ok(Vec::new());
            }
            answer.try_iter()?.map(|asked| action(&asked?)).collect::<PyResult<Vec<_>>>()
        };
        out.extend(self.call_method(cx, tell).unwrap_or_default());
    }

    fn probe_patience(&self) -> Option<Duration> {
        self.traits.patience
    }

    fn watches_acks(&self) -> bool {
        self.traits.acks
    }

    fn watches_delivery(&self) -> bool {
        self.traits.delivery
    }
}

/// Returns the kind, subflow and data of an event.
fn describe_event(event: SchedulerEvent) -> (&'static str, Option<u8>, Option<DataRange>) {
    match event {
        SchedulerEvent::SubflowUp(id) => ("subflow-up", Some(id.0), None),
        SchedulerEvent::SubflowDown(id) => ("subflow-down", Some(id.0), None),
        SchedulerEvent::ProbeTimeout(id) => ("probe-timeout", Some(id.0), None),
        SchedulerEvent::ProbeRepeated { on, range } => ("probe-repeated", Some(on.0), Some(range)),
        SchedulerEvent::Acked { on, range } => ("acked", Some(on.0), Some(range)),
        SchedulerEvent::SubflowRto(id) => ("subflow-rto", Some(id.0), None),
        SchedulerEvent::PeerWindowBlocked { picked } => {
            ("peer-window-blocked", Some(picked.0), None)
        }
        SchedulerEvent::SendBufferBlocked => ("send-buffer-blocked", None, None),
        _ => ("other", None, None),
    }
}

fn range(object: &Bound<'_, PyAny>, all: DataRange) -> PyResult<DataRange> {
    let at = |name: &str| object.getattr(name)?.extract::<Option<u64>>();
    let (start, end) = (at("start")?.map_or(all.start, Dsn), at("end")?.map_or(all.end, Dsn));
    Ok(DataRange::new(start, end))
}

/// Converts a decision: `None`, a subflow number, or one of `marline.Send`, `Repair`, `WaitUntil`.
fn decision(answer: &Bound<'_, PyAny>, all: DataRange) -> PyResult<Decision> {
    if answer.is_none() {
        return Ok(Decision::Wait);
    }
    if answer.is_instance_of::<PyInt>() {
        return Ok(Decision::Send { subflow: views::id(answer.extract()?)?, range: all });
    }
    let class = answer.get_type().name()?.to_string();
    let subflow = || views::id(answer.getattr("subflow")?.extract()?);
    match class.as_str() {
        "Send" if answer.getattr("run")?.extract()? => {
            Ok(Decision::SendRun { subflow: subflow()?, range: range(answer, all)? })
        }
        "Send" => Ok(Decision::Send { subflow: subflow()?, range: range(answer, all)? }),
        "Repair" => Ok(Decision::Repair { subflow: subflow()?, range: range(answer, all)? }),
        "WaitUntil" => {
            let at_us: f64 = answer.getattr("at_us")?.extract()?;
            Ok(Decision::WaitUntil(Instant::ZERO + duration(at_us)))
        }
        _ => Err(PyTypeError::new_err(format!(
            "a scheduler must return None, a subflow number, Send, Repair or WaitUntil, not {}",
            answer.repr()?
        ))),
    }
}

/// Adapts a decision to what the core accepts: it waits for a subflow without room, and sends nothing if there is no
/// data.
///
/// # Errors
/// The subflow does not exist, or cannot carry this data.
fn check_decision(decision: Decision, cx: &SchedulerContext<'_>) -> PyResult<Decision> {
    let (subflow, range) = match decision {
        Decision::Repair { subflow, range } if cx.repairs => (subflow, range),
        Decision::Repair { .. } => return Ok(Decision::Wait),
        _ => match decision.data() {
            Some(data) => data,
            None => return Ok(decision),
        },
    };
    let wrong = |what: String| Err(PyValueError::new_err(what));
    let Some(view) = cx.subflow(subflow) else {
        let there: Vec<String> = cx.subflows.iter().map(|view| view.id.0.to_string()).collect();
        return wrong(format!("unknown subflow {}; known: {}", subflow.0, there.join(", ")));
    };
    if !view.is_ready() {
        return Ok(classes::wait(core::iter::once(view)));
    }
    let (start, next) = (range.start, cx.unsent.start);
    if start == next && !matches!(decision, Decision::Repair { .. }) {
        let empty = range.intersection(&cx.unsent).is_empty();
        return Ok(if empty { Decision::Wait } else { decision });
    }
    if start > next {
        return wrong(format!(
            "cannot send new data at {}: new data begins at {}",
            start.0, next.0
        ));
    }
    let fresh = cx.mappings.next_not_on(subflow, start.max(cx.data_una));
    let sent = DataRange::new(cx.data_una, next).intersection(&range);
    let fresh = fresh.is_some_and(|mapping| !mapping.range.intersection(&sent).is_empty());
    let repair = matches!(decision, Decision::Repair { .. }) && !sent.is_empty();
    if fresh || repair {
        return Ok(decision);
    }
    wrong(format!("subflow {} has already carried bytes {} to {}", subflow.0, start.0, range.end.0))
}

/// Converts one of `marline.Reinject`, `Suspect`, `Penalize`.
fn action(asked: &Bound<'_, PyAny>) -> PyResult<SchedulerAction> {
    let class = asked.get_type().name()?.to_string();
    let id = || views::id(asked.getattr("subflow")?.extract()?);
    match class.as_str() {
        "Reinject" => {
            let at = |name: &str| asked.getattr(name)?.extract::<u64>().map(Dsn);
            let range = DataRange::new(at("start")?, at("end")?);
            Ok(SchedulerAction::Reinject { range, on: id()? })
        }
        "Suspect" => Ok(SchedulerAction::Suspect(id()?)),
        "Penalize" => {
            let threshold = asked.getattr("threshold")?.extract()?;
            let penalty = if threshold { Penalty::WindowAndThreshold } else { Penalty::Window };
            Ok(SchedulerAction::Penalize { subflow: id()?, penalty })
        }
        _ => Err(PyTypeError::new_err(format!(
            "on_event must return a list of Reinject, Suspect and Penalize, not of {}",
            asked.repr()?
        ))),
    }
}
