//! Congestion control that calls a Python object and reads its attributes after each call.

use std::fmt;
use std::sync::Arc;

use marline::policy::{AckSample, CongestionController, CongestionSignal, SubflowId, SubflowView};
use marline::time::Instant;
use marline_time::Rate;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::{ObjectFactory, Value, call_object, views};
use crate::forecast::micros;
use crate::guard;

/// Attributes of the object.
#[derive(Copy, Clone, Debug)]
struct Limits {
    window: u64,
    ssthresh: u64,
    pacing: Option<Rate>,
}

/// A Python object as a congestion control. After an exception its window stays constant.
struct PyCongestion {
    object: Option<Py<PyAny>>,
    wants_group: bool,
    mss: u32,
    limits: Limits,
}

impl fmt::Debug for PyCongestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PyCongestion").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Creates the congestion control of a subflow.
pub(super) fn build(
    maker: &Arc<ObjectFactory>,
    values: &[(String, Value)],
    mss: u32,
    window: u64,
) -> Box<dyn CongestionController> {
    let made = guard::call_python(|py| {
        let object = maker.make(py, (mss, window).into_pyobject(py)?, values)?;
        let wants_group = object.getattr("wants_group")?.extract()?;
        Ok((limits(&object, mss)?, wants_group, object.unbind()))
    });
    let start = Limits { window, ssthresh: u64::MAX, pacing: None };
    Box::new(match made {
        Some((limits, wants_group, object)) => {
            PyCongestion { object: Some(object), wants_group, mss, limits }
        }
        None => PyCongestion { object: None, wants_group: false, mss, limits: start },
    })
}

/// Reads the attributes. A window is at least one segment.
fn limits(object: &Bound<'_, PyAny>, mss: u32) -> PyResult<Limits> {
    let bytes = |name: &str| -> PyResult<Option<u64>> {
        let value: Option<f64> = object.getattr(name)?.extract()?;
        Ok(value.filter(|value| value.is_finite()).map(|value| value.max(0.0) as u64))
    };
    let window = bytes("window_bytes")?.unwrap_or(0).max(u64::from(mss));
    let ssthresh = bytes("ssthresh_bytes")?.unwrap_or(u64::MAX);
    Ok(Limits { window, ssthresh, pacing: bytes("pacing_bits_per_s")?.map(Rate::from_bits_per_s) })
}

impl PyCongestion {
    fn notify(&mut self, call: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<()>) {
        let mss = self.mss;
        let told = call_object(self.object.as_ref(), |py, object| {
            call(py, object)?;
            limits(object, mss)
        });
        self.limits = told.unwrap_or(self.limits);
    }
}

impl CongestionController for PyCongestion {
    fn on_ack(&mut self, ack: &AckSample, me: SubflowId, group: &[SubflowView]) {
        self.notify(|py, object| {
            let view = views::named(py, "AckSample")?.call1((
                views::instant_us(ack.now),
                ack.delivered,
                ack.lost,
                ack.prior_in_flight,
                ack.bytes_in_flight,
                ack.rtt.map(micros),
                ack.srtt.map(micros),
                ack.min_rtt.map(micros),
                ack.rate.map(|sample| sample.rate.bits_per_s()),
                ack.rate.is_some_and(|sample| sample.app_limited),
                (ack.cwnd_limited, ack.in_recovery),
            ))?;
            let group = views::subflows(py, group)?;
            object.call_method1("on_ack", (view, me.0, group)).map(drop)
        });
    }

    fn on_signal(
        &mut self,
        signal: CongestionSignal,
        now: Instant,
        me: SubflowId,
        group: &[SubflowView],
    ) {
        let (word, in_flight) = match signal {
            CongestionSignal::Loss { bytes_in_flight } => ("loss", Some(bytes_in_flight)),
            CongestionSignal::Rto { bytes_in_flight, first } => {
                (if first { "rto" } else { "rto-again" }, Some(bytes_in_flight))
            }
            CongestionSignal::Ecn { bytes_in_flight } => ("ecn", Some(bytes_in_flight)),
            CongestionSignal::Spurious => ("spurious", None),
            CongestionSignal::RecoveryDone => ("recovery-done", None),
            CongestionSignal::Penalty(_) => ("penalty", None),
            CongestionSignal::Idle => ("idle", None),
        };
        self.notify(|py, object| {
            let group: Bound<'_, PyList> = views::subflows(py, group)?;
            let arguments = (word, in_flight, views::instant_us(now), me.0, group);
            object.call_method1("on_signal", arguments).map(drop)
        });
    }

    fn window(&self) -> u64 {
        self.limits.window
    }

    fn ssthresh(&self) -> u64 {
        self.limits.ssthresh
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.limits.pacing
    }

    fn on_mss_change(&mut self, mss: u32) {
        self.mss = mss;
        self.notify(|_, object| object.call_method1("on_mss_change", (mss,)).map(drop));
    }

    fn wants_group(&self) -> bool {
        self.wants_group
    }
}
